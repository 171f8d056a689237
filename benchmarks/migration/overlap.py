"""Overlap of the stages of a migration, from the journal's times. Pure.

The stages of a step: *prepare* (its snapshots are waited for), *load* (its batch: steered to committed), *close* (the
old copies go). Later steps of the same migration may be in another stage at the same time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.wire.codes import MoveState

PREPARE, LOAD, CLOSE = "prepare", "load", "close"


@dataclass(frozen=True)
class Span:
    """One stage of one step; seconds since the epoch."""

    step: int
    stage: str
    begin: float
    end: float

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.end - self.begin


def spans(lines: Iterable[Mapping[str, Any]], *, overlapped: bool) -> list[Span]:
    """Return the stages of each step of one migration, as far as all its moves took them.

    ``lines``: the journal's, with ``move``, ``step``, ``after`` and ``at``. All moves are planned at once, and take
    effect from the next batch boundary on, taken to be when the first of them is prepared. A step's turn to be
    prepared comes when the second step before it has landed, or, without overlap, when the step before it is closed.
    What it waited until then is not counted as its own.
    """
    first: dict[int, dict[str, dict[str, float]]] = {}
    for line in lines:
        moves = first.setdefault(int(line["step"]), {})
        moves.setdefault(str(line["move"]), {}).setdefault(str(line["after"]), float(line["at"]))
    prepared_at = [times.get(MoveState.PREPARED, math.inf) for moves in first.values() for times in moves.values()]
    result: list[Span] = []
    landed: list[float] = []
    closed = boundary = min(prepared_at, default=math.inf)
    for step in sorted(first):
        moves_of = [times for times in first[step].values() if MoveState.ABANDONED not in times]
        planned = _all(moves_of, MoveState.PLANNED, min)
        prepared = _all(moves_of, MoveState.PREPARED, max)
        steered = _all(moves_of, MoveState.STEERED, min)
        drained = _all(moves_of, MoveState.DRAINED, max)
        killed = _all(moves_of, MoveState.KILLED, max)
        turn = (landed[-2] if len(landed) > 1 else boundary) if overlapped else closed
        if planned is not None and prepared is not None:
            result.append(Span(step, PREPARE, min(max(planned, turn), prepared), prepared))
        if steered is not None and drained is not None:
            result.append(Span(step, LOAD, steered, drained))
            landed.append(drained)
        if drained is not None and killed is not None:
            # Spark may close an old copy before the batch's commit, which is when the move counts as drained.
            result.append(Span(step, CLOSE, min(drained, killed), killed))
            closed = killed
    return result


def _all(moves: Sequence[Mapping[str, float]], state: str, choose: Any) -> float | None:
    if not moves or any(state not in times for times in moves):
        return None
    return float(choose(times[state] for times in moves))


def overlap(stages: Sequence[Span]) -> dict[str, float]:
    """Return seconds: ``total`` from the first stage's begin to the last one's end, ``landed`` until the last load.

    ``sum``: of all stages; ``prepare``, ``load`` and ``close``: of each kind. ``share``: of the total, in which two
    stages of different steps were under way.
    """
    if not stages:
        return {"total": 0.0, "landed": 0.0, "sum": 0.0, PREPARE: 0.0, LOAD: 0.0, CLOSE: 0.0, "share": 0.0}
    begin = min(span.begin for span in stages)
    total = max(span.end for span in stages) - begin
    cuts = sorted({time for span in stages for time in (span.begin, span.end)})
    both = 0.0
    for left, right in itertools.pairwise(cuts):
        steps = {span.step for span in stages if span.begin <= left and span.end >= right}
        both += (right - left) * (len(steps) > 1)
    kinds = {kind: math.fsum(span.seconds for span in stages if span.stage == kind) for kind in (PREPARE, LOAD, CLOSE)}
    return {
        "total": total,
        "landed": max((span.end for span in stages if span.stage == LOAD), default=begin) - begin,
        "sum": math.fsum(kinds.values()),
        **kinds,
        "share": both / total if total > 0 else 0.0,
    }
