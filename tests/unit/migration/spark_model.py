"""Pure model of Spark: queries whose batches begin, run, end and commit, on executors that keep copies of state."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from rechannel.wire.measurements import ClosedStore
from rechannel.wire.messages import Unit
from unit.migration.samples import closed_store

Phase = Enum("Phase", "IDLE BEGUN RAN ENDED UNCOMMITTED")  # of a batch; ENDED: one job of several


@dataclass
class Query:
    """A streaming query. ``jobs``: the stateful stages of each job of a batch; ``stores``: stores by stage.

    ``idle``: no input arrives.
    """

    name: str
    jobs: list[list[int]]
    placement: dict[int, list[str]]  # where each partition ran last
    stores: dict[int, int] = field(default_factory=dict)
    idle: bool = False
    run: str = ""
    runs: int = 0
    batch: int = 0
    committed: int = 0
    job: int = 0
    phase: Phase = Phase.IDLE
    active_at: float = 0.0  # when it last did anything
    discovered: bool = True  # the link has met this run
    trusted: bool = True  # and has seen a batch of it end
    last_ran: dict[int, list[int]] = field(default_factory=dict)
    preferred: dict[int, list[str]] = field(default_factory=dict)
    snapshots: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.run = f"{self.name}-run-0"
        self.preferred = {stage: list(where) for stage, where in self.placement.items()}
        self.last_ran = {stage: [0] * len(where) for stage, where in self.placement.items()}
        self.snapshots = {stage: [0] * len(where) for stage, where in self.placement.items()}

    @property
    def quiet(self) -> bool:
        """Whether none of its jobs runs."""
        return self.phase in (Phase.IDLE, Phase.ENDED, Phase.UNCOMMITTED)

    @property
    def units(self) -> list[Unit]:
        """All its partitions."""
        sizes = {stage: len(where) for stage, where in self.placement.items()}
        return [Unit(self.name, stage, number) for stage, size in sizes.items() for number in range(size)]


class Driver:
    """Spark: what runs where, and who keeps a copy of which state.

    ``closing``: when executors close what is no longer theirs: ``early`` (when one opens another store, the last one of
    several at the maintenance), ``late`` (at the maintenance), ``unseen`` (at the maintenance, and nobody hears of it).
    ``copies``: by partition, the executors that have stores of it open, and how many.
    """

    def __init__(self, queries: list[Query], executors: str, closing: str) -> None:
        self.queries = {query.name: query for query in queries}
        self.executors = list(executors)
        self.closing = closing
        self.strays: dict[Unit, str] = {}  # partitions that the next batch runs elsewhere: "back" or "away"
        self.copies: dict[Unit, dict[str, int]] = {}
        self.evidence: deque[ClosedStore] = deque()
        self.turns = 0  # stages that were run
        self.opened: dict[tuple[Unit, str], int] = {}  # when an executor opened a copy that it had not, or not whole
        for query in queries:
            for unit in query.units:
                self.copies[unit] = {query.placement[unit[1]][unit[2]]: query.stores.get(unit[1], 1)}

    def run_stage(self, query: Query, stage: int, *, only: str = "") -> list[Unit]:
        """Run a stage's tasks (``only``: those of an executor that was lost); returns what did not run as wished."""
        astray = []
        self.turns += 1
        for number, preferred in enumerate(query.preferred[stage]):
            unit = Unit(query.name, stage, number)
            if only and query.placement[stage][number] != only:
                continue
            where = self._choice(preferred, query.placement[stage][number], self.strays.pop(unit, ""))
            if where != preferred:
                astray.append(unit)
            # Whoever opens the store reports itself, and what it keeps beside it is looked through.
            query.placement[stage][number] = query.preferred[stage][number] = where
            query.last_ran[stage][number] = query.batch
            if self.copies[unit].get(where, 0) < query.stores.get(stage, 1):
                self.copies[unit][where], self.opened[unit, where] = query.stores.get(stage, 1), self.turns
        if self.closing == "early":
            for executor in set(query.placement[stage]):
                self.close_old(executor, but_one=True)
        return astray

    def _choice(self, preferred: str, last: str, stray: str) -> str:
        if stray == "back" and last in self.executors:
            return last
        if preferred in self.executors and not stray:
            return preferred
        rest = [name for name in self.executors if name not in (preferred, last)]
        return (rest or self.executors)[0]

    def close_old(self, executor: str, *, but_one: bool = False) -> None:
        """Have an executor close the copies that the coordinator says are others'; ``but_one`` of several stores."""
        for unit, holders in self.copies.items():
            query = self.queries[unit[0]]
            if executor not in holders or query.preferred[unit[1]][unit[2]] == executor:
                continue
            count = holders.pop(executor)
            if but_one and query.stores.get(unit[1], 1) > 1:
                holders[executor] = 1
            if self.closing == "unseen":
                continue
            self.evidence += [
                closed_store(executor, query.run, unit[1], unit[2], str(store))
                for store in range(holders.get(executor, 0), count)
            ]
