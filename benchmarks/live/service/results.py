"""The record of one run, with its placements, predictions and batches; one JSON file for each run."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live.service.cases import Case
from benchmarks.report.results import write_json


class BatchLine(msgspec.Struct, frozen=True, array_like=True):
    """One batch: its query, its number, its begin (seconds since 1970) and its duration (seconds)."""

    query: str
    batch: int
    begin: float
    seconds: float

    @property
    def end(self) -> float:
        """The time of its commit."""
        return self.begin + self.seconds


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """A published decision, with the seconds of a batch by the name of its query; all queries are predicted."""

    decision: str
    at: float
    trigger: str
    outcome: str
    reason: str
    sentence: str
    moves: int
    rollback_of: str = ""
    batch_before: dict[str, float] = {}
    batch_after: dict[str, float] = {}
    peak: dict[str, float] = {}
    landed: int = 0
    given_up: int = 0
    settled: float = 0.0
    verdict: str = ""


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """One goal: exact loads by executor before and after, the optimum, and the fewest moves to a load; seconds.

    ``fewest_same`` brings the busiest executor within 2 % of where it ended; ``optimum_bound`` is below every
    placement.
    """

    queries: list[str]
    loads_before: list[float]
    loads_after: list[float]
    busiest_before: float
    busiest_after: float
    optimum: float
    optimum_bound: float
    moves: int
    fewest_same: int | None


class RunResult(msgspec.Struct, kw_only=True):
    """One run. Times are seconds since 1970.

    Batches that begin and end between ``before_from`` and ``before_until`` are those before; those after lie between
    ``after_from`` and ``after_until``. ``first`` is the decision whose moves were carried out first, "" if there is
    none. ``task_overhead``: median seconds of a stateful task beside its rows, before; ``asleep``: share of all these
    tasks' time that is slept. ``load_average``: the machine's at the end of both parts. ``assessed``: share of a batch
    that an assessment of Spark's event log before the decision would save, by query.
    """

    command: list[str]
    seed: int
    variant: str
    case: Case
    machine: dict[str, Any]
    began: float
    seconds: float = 0.0
    before_from: float = 0.0
    before_until: float = 0.0
    after_from: float = 0.0
    after_until: float = 0.0
    first: str = ""
    cut_short: bool = False
    placed_before: list[list[int]] = []
    placed_after: list[list[int]] = []
    task_overhead: float = 0.0
    task_overhead_after: float = 0.0
    load_average: list[float] = []
    asleep: float = 0.0
    batches: list[BatchLine] = []
    decisions: list[DecisionLine] = []
    assessed: dict[str, float] = {}
    truth: list[Truth] = []
    exact: bool = False
    audit: dict[str, Any] = {}
    failed_attempts: int = 0
    error: str = ""

    def decision(self) -> DecisionLine | None:
        """Return the decision whose moves were carried out first."""
        return next((line for line in self.decisions if line.decision == self.first), None)

    @property
    def migrations(self) -> int:
        """Number of migrations in the whole run, rollbacks included."""
        return sum(line.outcome == "applied" and line.moves > 0 for line in self.decisions)

    def durations(self, query: str, begin: float, end: float) -> list[float]:
        """Return the durations of a query's batches that begin and end within a time."""
        lines = (line for line in self.batches if line.query == query)
        return [line.seconds for line in lines if begin <= line.begin and line.end <= end]

    def figures(self) -> list[QueryFigures]:
        """Return the figures of each query that has batches before and after."""
        decision, rows = self.decision(), []
        for query in self.case.queries:
            before = self.durations(query.name, self.before_from, self.before_until)
            after = self.durations(query.name, self.after_from, self.after_until)
            if not before or not after:
                continue
            row = QueryFigures(query.name, len(before), len(after), statistics.fmean(before), statistics.fmean(after))
            if len(after) > 1:
                row.after_error = statistics.stdev(after) / len(after) ** 0.5 / row.after
            if decision is not None:
                row.assessed = self.assessed.get(query.name, math.nan)
                row.predicted_before = decision.batch_before.get(query.name, math.nan)
                row.predicted_after = decision.batch_after.get(query.name, math.nan)
                row.peak_predicted = decision.peak.get(query.name, math.nan)
                moving = [
                    line.seconds
                    for line in self.batches
                    if line.query == query.name and line.begin < decision.settled and line.end > decision.at
                ]
                row.peak = max(moving, default=math.nan)
            rows.append(row)
        return rows


class QueryFigures(msgspec.Struct):
    """Figures of one query of one run; seconds. NaN where nothing moved."""

    query: str
    count_before: int
    count_after: int
    before: float
    after: float
    after_error: float = math.nan  # standard error of ``after``, as a share of it
    predicted_before: float = math.nan
    predicted_after: float = math.nan
    peak: float = math.nan
    peak_predicted: float = math.nan
    assessed: float = math.nan

    @property
    def ratio(self) -> float:
        """The mean batch after over the one before."""
        return self.after / self.before

    @property
    def error(self) -> float:
        """How far the predicted batch is off the measured one, as a share of the latter."""
        return self.predicted_after / self.after - 1

    @property
    def assessed_error(self) -> float:
        """Points by which the batch became longer than `rechannel assess` said, as a share of the batch before."""
        return self.ratio - (1 - self.assessed)


def write(path: Path, result: RunResult) -> None:
    """Write a run's file; its directory is created."""
    write_json(path, msgspec.to_builtins(result))


def read(path: Path) -> RunResult:
    """Read a run's file."""
    return msgspec.json.decode(path.read_bytes(), type=RunResult)
