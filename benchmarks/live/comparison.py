"""One session: a cluster of its own, a workload that runs through all variants by turns, and the audit at its end."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.live.figures import turn_figures
from benchmarks.live.session import Session, open_session
from benchmarks.live.situations import Lengths, Shape, Situation
from benchmarks.live.turn import begin, run_turn
from benchmarks.live.variants import SPARK, Variant
from benchmarks.report.results import progress
from benchmarks.workloads.base import Input
from benchmarks.workloads.registry import all_workloads
from testbed.progress import batches
from testbed.stack import StackError

LENGTHS = Lengths(before=12, waiting=18, after=40, cycle=160, event=80)
QUICK_LENGTHS = Lengths(before=6, waiting=10, after=18, cycle=84, event=38)
SPIKE = 1.5  # times the rows
_FEW = 2  # variants
ROWS = 0.6  # of the workload's own, which are for the whole machine: the nodes have about so much of it
WARM_UP = 80  # batches before quotas hold: the Java machines compile what they run most
HELD = 20  # batches under quotas before the first turn, which began a third slower than the rest without them


@dataclass(frozen=True)
class Plan:
    """Plan of one session. ``order``: the variant of each turn."""

    situation: Situation
    workload: str
    source: Input
    order: tuple[Variant, ...]
    lengths: Lengths
    shape: Shape
    repeat: int
    seed: int

    def record(self) -> dict[str, Any]:
        """Return the plan in the form of the figures, to which the measurement is added."""
        return {
            "situation": self.situation.name,
            "workload": self.workload,
            "repeat": self.repeat,
            "seed": self.seed,
            "shape": asdict(self.shape),
            "lengths": asdict(self.lengths),
            "input": asdict(self.source),
            "ways": sorted({variant.name for variant in self.order}),
        }

    @staticmethod
    def identity(record: Mapping[str, Any]) -> str:
        """Return what two records of the same measurement share."""
        names = ("situation", "workload", "seed", "shape", "lengths", "input", "ways")
        return json.dumps([record.get(name) for name in names], sort_keys=True)


def input_of(workload: str, situation: Situation, lengths: Lengths, other: Mapping[str, Any]) -> Input:
    """Return the input of a workload in a situation; ``other``: fields that are not the workload's own."""
    chosen = all_workloads()[workload]
    own: dict[str, Any] = {"rows": int(chosen.rows * ROWS), "keys": chosen.keys, "skew": chosen.skew}
    source = Input(**{**own, **other})
    if situation.event == "drift":
        return replace(source, cycle=lengths.cycle, drift_at=(lengths.event,))
    if situation.event == "spike":
        return replace(source, cycle=lengths.cycle, spike_at=lengths.event, spike=SPIKE)
    return source


def in_turns(variants: Sequence[Variant], seed: str) -> list[Variant]:
    """Return the variants in a random order, with Spark first, last, and after every one or two of them.

    Every variant has turns of Spark on either side to be compared with, and Spark's own between two others show what
    chance does.
    """
    others = [variant for variant in variants if variant != SPARK]
    random.Random(seed).shuffle(others)  # noqa: S311  no secret
    size = 1 if len(others) <= _FEW else 2
    order = [SPARK]
    for at in range(0, len(others), size):
        order += [*others[at : at + size], SPARK]
    return order


def measure(directory: Path, plan: Plan, record: dict[str, Any]) -> None:
    """Measure a session; ``record`` has the figures so far at any time, also when this raises."""
    record |= {"phases": [], "figures": [], "exact": False}
    directory.mkdir(parents=True)
    try:
        with open_session(directory, plan.shape, plan.situation.nodes) as session:
            session.start_workload(plan.workload, plan.source, f"{plan.shape.interval:g} seconds")
            session.wait_batches(WARM_UP)
            session.hold()
            record["testbed"] = session.nodes.statement().as_dict()
            with session.sampling():
                try:
                    _turns(session, plan, record)
                finally:
                    _figures(session, plan.source, record)
            report = session.report()
            record["link"] = {"failed": report.failed_tasks, "missed": report.missed} if report else {}
            progress("audit")
            record["end"] = session.finish()
            record["exact"] = all(audit["ok"] for audit in record["end"]["audit"].values())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _turns(session: Session, plan: Plan, record: dict[str, Any]) -> None:
    begin(session, plan.situation, plan.seed)  # the first turn is not to be the only one without loads before it
    session.wait_batches(HELD)
    for number, variant in enumerate(plan.order):
        progress(f"{plan.situation.name}: {variant.name}, {number + 1} of {len(plan.order)}")
        try:
            turn = run_turn(session, plan.situation, plan.lengths, variant, plan.seed)
            record["phases"].append({"turn": number, **turn})
        except StackError as error:
            record["phases"].append({"turn": number, "way": variant.name, "error": str(error)})
            progress(f"{variant.name}: {error}")
        session.group.check()


def _figures(session: Session, source: Input, record: dict[str, Any]) -> None:
    record["batches"] = session.poll()
    committed = batches(record["batches"])
    rows = {batch.number: source.size(batch.number) for batch in committed}
    for turn in record["phases"]:
        if "end" in turn:
            try:
                record["figures"].append(turn_figures(turn, committed, session.samples, rows))
            except ValueError as error:  # the other turns are worth having
                turn["error"] = str(error)
