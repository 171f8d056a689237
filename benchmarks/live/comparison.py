"""One session: a cluster of its own, a workload that runs through all ways by turns, and the audit at its end."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.live.figures import phase_figures
from benchmarks.live.session import Session, open_session
from benchmarks.live.situations import Lengths, Shape, Situation
from benchmarks.live.turn import begin, run_phase
from benchmarks.live.variants import SPARK, Variant
from benchmarks.migration.bench import BenchError
from benchmarks.report.results import say
from benchmarks.workloads.base import Input
from benchmarks.workloads.registry import all_workloads
from testbed.progress import batches

__all__ = ["LENGTHS", "QUICK_LENGTHS", "in_turns", "input_of", "measure"]

LENGTHS = Lengths(before=12, waiting=18, after=40, cycle=160, event=80)
QUICK_LENGTHS = Lengths(before=6, waiting=10, after=18, cycle=84, event=38)
SPIKE = 1.5  # times the rows
_FEW = 2  # ways
ROWS = 0.6  # of the workload's own, which are for the whole machine: the nodes have about so much of it
WARM_UP = 80  # batches before quotas hold: the Java machines compile what they run most
HELD = 20  # batches under quotas before the first way: a first session's first phase began a third slower than the rest


def input_of(
    workload: str,
    situation: Situation,
    lengths: Lengths,
    rows: int | None = None,
    keys: int | None = None,
    skew: float | None = None,
) -> Input:
    """Return the input that a workload gets in a situation; what is None is the workload's own."""
    chosen = all_workloads()[workload]
    given = Input(
        int(chosen.rows * ROWS) if rows is None else rows,
        chosen.keys if keys is None else keys,
        chosen.skew if skew is None else skew,
    )
    if situation.event == "drift":
        return replace(given, cycle=lengths.cycle, drift_at=(lengths.event,))
    if situation.event == "spike":
        return replace(given, cycle=lengths.cycle, spike_at=lengths.event, spike=SPIKE)
    return given


def in_turns(ways: Sequence[Variant], seed: str) -> list[Variant]:
    """Return the ways in an order that chance decides, with Spark first, last, and after every one or two of them.

    Every way has Spark's phases on either side to be held against, and Spark's own between two others tell what chance
    does.
    """
    others = [way for way in ways if way != SPARK]
    random.Random(seed).shuffle(others)  # noqa: S311  no secret
    size = 1 if len(others) <= _FEW else 2
    order = [SPARK]
    for at in range(0, len(others), size):
        order += [*others[at : at + size], SPARK]
    return order


def measure(
    directory: Path,
    situation: Situation,
    given: Input,
    order: Sequence[Variant],
    lengths: Lengths,
    shape: Shape,
    keep: dict[str, Any],
) -> None:
    """Measure a session of ``keep``'s workload; what there is is in ``keep`` at any time, also when this raises."""
    keep |= {"phases": [], "figures": [], "exact": False}
    directory.mkdir(parents=True)
    try:
        with open_session(directory, shape, situation.nodes) as session:
            session.start_workload(keep["workload"], given, f"{shape.interval:g} seconds")
            session.wait_batches(WARM_UP)
            session.hold()
            keep["testbed"] = session.nodes.statement().as_dict()
            with session.sampling():
                try:
                    _phases(session, situation, order, lengths, keep)
                finally:
                    _figures(session, given, keep)
            report = session.report()
            keep["link"] = {"failed": report.failed_tasks, "missed": report.missed} if report else {}
            say("audit")
            keep["end"] = session.finish()
            keep["exact"] = all(found["ok"] for found in keep["end"]["audit"].values())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _phases(
    session: Session,
    situation: Situation,
    order: Sequence[Variant],
    lengths: Lengths,
    keep: dict[str, Any],
) -> None:
    begin(session, situation, keep["seed"])  # the first way is not to be the only one without loads before it
    session.wait_batches(HELD)
    for turn, way in enumerate(order):
        say(f"{situation.name}: {way.name}, {turn + 1} of {len(order)}")
        try:
            keep["phases"].append({"turn": turn, **run_phase(session, situation, lengths, way, keep["seed"])})
        except BenchError as error:
            keep["phases"].append({"turn": turn, "way": way.name, "error": str(error)})
            say(f"{way.name}: {error}")
        session.group.check()


def _figures(session: Session, given: Input, keep: dict[str, Any]) -> None:
    keep["batches"] = session.poll()
    known = batches(keep["batches"])
    rows = {batch.number: given.size(batch.number) for batch in known}
    for phase in keep["phases"]:
        if "end" in phase:
            try:
                keep["figures"].append(phase_figures(phase, known, session.samples, rows))
            except ValueError as error:  # the other phases are worth having
                phase["error"] = str(error)
