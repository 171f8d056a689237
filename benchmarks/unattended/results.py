"""The record of one run: a script in one way, with every batch, decision, move and event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.live.service.results import BatchLine, DecisionLine
from benchmarks.report.results import Result
from benchmarks.unattended.script import Script

NONE = "none"  # Spark as it is: Rechannel only observes, and its link spreads nothing
RESTART = "restart"  # the same, and an operator restarts the queries where executors came
ORACLE = "oracle"  # Rechannel only observes, and an operator who knows every load orders moves
WAYS = (NONE, RESTART, "even", "adaptive", ORACLE)
OBSERVED = frozenset({NONE, RESTART})
_LINK = "link-"  # before the number of moves that the link began
# Where numbers have no name of their own, they have the unit of the list that they are in.
_UNITS = {
    "s": "batches moves at beside task_overhead batch_before batch_after peak ended begun came",
    "batches": "batch end",
    "partitions": "order placement",
    "rows": "rows",
    "1": "zipf asleep load times speeds",
    "ms": "service_ms",
    "moves": "given_up landed",
    "count": "executor executors cores",
}


class MoveLine(msgspec.Struct, frozen=True, array_like=True):
    """One move: its begin and end (seconds since 1970; 0: not ended), and whether it landed.

    ``decision``: its id; moves of the link's own, without a decision of the controller, have one that the link made.
    """

    decision: str
    query: str
    partition: int
    source: str
    target: str
    begun: float
    ended: float = 0.0
    landed: bool = False

    @property
    def by_link(self) -> bool:
        """Whether the link began it, without a decision of the controller."""
        return self.decision.startswith(_LINK)


class PhaseRecord(msgspec.Struct, kw_only=True):
    """The time of a phase's event, and the placement at the phase's end.

    ``came``: time at which the executor of a node that joins was there, 0 of other events and if not recorded;
    ``placement``: number of the executor of each partition, by query; [] where it was not complete at that moment.
    """

    at: float
    came: float = 0.0
    placement: list[list[int]] = []


class Run(msgspec.Struct, kw_only=True):
    """One run. Times are seconds since 1970; ``ended``: of the last phase.

    ``task_overhead``: median seconds of a stateful task beside its rows; ``beside``: median seconds of a batch beside
    its stateful stage; ``asleep``: share of the stateful tasks' time that is their rows' own; all in the last phase's
    second half. ``failed_attempts``: of tasks, those of a killed executor too.
    """

    script: Script
    way: str
    phases: list[PhaseRecord] = []
    ended: float = 0.0
    batches: list[BatchLine] = []
    decisions: list[DecisionLine] = []
    moves: list[MoveLine] = []
    task_overhead: float = 0.0
    beside: float = 0.0
    asleep: float = 0.0
    exact: bool = False
    audit: dict[str, Any] = {}
    failed_attempts: int = 0
    error: str = ""

    @property
    def name(self) -> str:
        """Name of its part of a result file."""
        burned = f", {self.script.case.burned:.0%} burned" if self.script.case.burned else ""
        return f"seed {self.script.seed}, {self.script.minutes:g} minutes{burned}, {self.way}"


def stored(run: Run, machine: Mapping[str, Any]) -> Result:
    """Return a run as a part of a result file; ``machine``: as it was when the run began."""
    figures = {"seed": run.script.seed, "machine": dict(machine), "run": msgspec.to_builtins(run)}
    return Result.of(f"{run.way}: events that nobody looks at", figures, units=_UNITS)


def runs(results: Mapping[str, Result]) -> list[Run]:
    """Return the runs of a result file by seed, length, script and way."""
    every = [msgspec.convert(result.values["run"], Run) for result in results.values()]
    return sorted(every, key=_order)


def _order(run: Run) -> tuple[int, float, bytes, int]:
    script = run.script
    return script.seed, script.minutes, msgspec.json.encode(script), WAYS.index(run.way)
