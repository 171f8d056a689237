"""Micro-batches of streaming queries on executors, as discrete events.

A query's batch is planned by the driver, runs its stages one after the other, and is committed. All tasks of a stage
are submitted at one moment, each to the executor of its partition, where it waits for a core behind what was submitted
before it: first come, first served, the next task on the core that is free first, as Spark's ``TaskSetManager`` hands
them out. A task holds its core while it works and, where its partition has just moved, loads the state.

Since no task overtakes another in such a queue, a task's end is known when its stage is submitted: one event a stage is
enough, and the tasks of a stage are computed as arrays, all executors at once. That is why this is ``heapq`` and
NumPy and not SimPy, whose processes need several events for each task (25,000 tasks a second on the machine this was
written on): an hour of a thousand executors has some seventy million.

Migrations are steps of moves, as the planner made them. A query takes the moves of the step over with its next batch;
the next step begins when all queries of this one have committed. Not modeled: links, Spark's fair scheduler, tasks that
drift away from their executor, failures, and drivers that launch slowly beyond :attr:`Costs.task`. Times are seconds of
simulated time, sizes bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload

_MOST_INPUT = 8.0  # times the usual one

Step = tuple[Move, ...]
"""Moves that are taken over together."""


@dataclass(frozen=True)
class Costs:
    """Costs of a batch beside its tasks' work, in seconds and bytes per second.

    ``planning`` and ``commit`` of each batch, by the driver; ``task`` of each task, whatever it does; ``scale``: what a
    task takes over what it is said to take. A load takes ``load_overhead`` and its bytes at ``load_rate``, and
    ``checkpoint`` for what has to be replayed since the last snapshot. ``noise``: deviation of the logarithm of a
    task's time. ``backlog``: most of the usual input that a batch takes after a long one; 1: every batch has the same.
    """

    planning: float = 0.0
    commit: float = 0.0
    task: float = 0.0
    scale: float = 1.0
    load_overhead: float = 0.0
    load_rate: float = float("inf")
    checkpoint: float = 0.0
    noise: float = 0.0
    backlog: float = 1.0

    def load(self, size: float) -> float:
        """Seconds that loading so many bytes takes."""
        return self.load_overhead + self.checkpoint + size / self.load_rate


@dataclass(frozen=True)
class Batch:
    """A finished batch. ``input``: its rows over those of a usual one; ``landed``: partitions that moved with it."""

    query: str
    start: float
    end: float
    input: float
    landed: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.end - self.start


@dataclass
class _Query:
    name: str
    stages: list[Stage]
    interval: float
    due: float = 0.0
    last_start: float = -1.0
    input: float = 1.0
    landed: int = 0
    loads: dict[str, dict[int, float]] = field(default_factory=dict)  # stage -> partition -> seconds, of this batch


_Layout = list[tuple[IntArray, IntArray]]
"""Places of a stage's tasks: for each round, a task of every executor that has one left, and these executors."""


class Simulation:
    """One cluster with its queries. The same arguments and calls make the same batches.

    ``factors``: stage -> what each of its entries works over what the workload says, for loads that change.
    ``arrivals``: query -> seconds in which its usual input arrives, of a source by time. A batch has what came since
    the one before it began, at most eight times its usual input; that of others follows :attr:`Costs.backlog`.
    Raises ``ModelError`` where placement, workload and cluster do not fit together, ValueError where a partition is on
    no executor.
    """

    def __init__(
        self, cluster: Cluster, workload: Workload, placement: Placement, costs: Costs, *, seed: int = 0
    ) -> None:
        placement.validate(cluster, workload)
        if any((array == UNPLACED).any() for array in placement.assignments.values()):
            raise ValueError("placement: every partition needs an executor")
        self.cluster, self.workload, self.costs = cluster, workload, costs
        self.now = 0.0
        self.batches: list[Batch] = []
        self.worked = np.zeros(cluster.size)  # core seconds, loading and fetching included
        self.factors: dict[str, FloatArray] = {stage.key: np.ones(stage.n) for stage in workload.stages}
        self.arrivals: dict[str, float] = {}
        self._random = np.random.default_rng(seed)
        self._at = {key: array.copy() for key, array in placement.assignments.items()}
        slots = task_slots(cluster)
        self._free = np.where(np.arange(slots.max()) < slots[:, None], 0.0, np.inf)
        self._slots = slots
        self._layouts: dict[str, _Layout] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._steps: list[dict[str, Step]] = []
        self._waiting: set[str] = set()
        self._queries: dict[str, _Query] = {}
        for name in workload.queries:
            stages = [stage for stage in workload.stages if stage.query == name]
            rate = max(stage.batches_per_second for stage in stages)
            if rate > 0:
                self._queries[name] = _Query(name, stages, 1.0 / rate)

    @property
    def placement(self) -> Placement:
        """Current places of the partitions."""
        return Placement({key: array.copy() for key, array in self._at.items()})

    @property
    def migrating(self) -> bool:
        """Whether some step is not done."""
        return bool(self._steps)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Call an action at a time; those that are due at the same time are called in the order of these calls."""
        heapq.heappush(self._events, (when, next(self._order), action))

    def run(self, until: float, *, stagger: bool = True) -> None:
        """Run to a time; batches that are under way then are not in :attr:`batches`. May be called again.

        ``stagger``: the queries' first batches begin at different moments of their intervals.
        """
        if not self.now and not self.batches:
            for index, query in enumerate(self._queries.values()):
                query.due = query.interval * ((index * 0.618034) % 1.0) if stagger else 0.0
                self.at(query.due, partial(self._begin, query))
        while self._events and self._events[0][0] <= until:
            self.now, _, action = heapq.heappop(self._events)
            action()
        self.now = until

    def steer(self, steps: Sequence[Step]) -> None:
        """Take over the steps of a migration, one after the other, behind those that are not done yet."""
        for step in steps:
            parted: dict[str, list[Move]] = {}
            for move in step:
                parted.setdefault(self.workload.stage(move.stage).query, []).append(move)
            if parted:
                self._steps.append({query: tuple(moves) for query, moves in parted.items()})
        self._open_step()

    def _open_step(self) -> None:
        if self._steps and not self._waiting:
            self._waiting = set(self._steps[0])

    def _begin(self, query: _Query) -> None:
        usual = self.arrivals.get(query.name, query.interval)
        since = self.now - query.last_start if query.last_start >= 0 else usual
        if query.name in self.arrivals:
            query.input = min(since / usual, _MOST_INPUT)
        else:
            query.input = min(max(since / usual, 1.0), self.costs.backlog)
        query.last_start = self.now
        query.loads, query.landed = {}, 0
        if query.name in self._waiting and query.name in self._steps[0]:
            for move in self._steps[0].pop(query.name):
                self._at[move.stage][move.partition] = move.target
                size = float(self.workload.stage(move.stage).state_bytes[move.partition])
                query.loads.setdefault(move.stage, {})[move.partition] = self.costs.load(size)
                query.landed += 1
                self._layouts.pop(move.stage, None)
        self._next_stage(query, 0, self.now + self.costs.planning)

    def _next_stage(self, query: _Query, index: int, when: float) -> None:
        if index == len(query.stages):
            self.at(when + self.costs.commit, lambda: self._commit(query))
        else:
            self.at(when, lambda: self._next_stage(query, index + 1, self._submit(query, query.stages[index])))

    def _commit(self, query: _Query) -> None:
        self.batches.append(Batch(query.name, query.last_start, self.now, query.input, query.landed))
        if query.landed:
            self._waiting.discard(query.name)
            if not self._waiting:
                self._steps.pop(0)
                self._open_step()
        # A trigger that was missed is not made up for: the next one begins at once.
        query.due = max(query.due + query.interval, self.now)
        self.at(query.due, partial(self._begin, query))

    def _submit(self, query: _Query, stage: Stage) -> float:
        """Run a stage's tasks; returns when the last one ends."""
        work = stage.busy * self.factors[stage.key] * (self.costs.scale * query.input)
        if self.costs.noise:
            deviation = self.costs.noise
            work = work * self._random.lognormal(-(deviation**2) / 2, deviation, stage.n)
        if not stage.placeable:
            return self._run_floating(work)
        layout = self._layouts.get(stage.key)
        if layout is None:
            layout = self._layouts[stage.key] = self._layout(stage)
        loads = query.loads.get(stage.key)
        extra = np.zeros(stage.n) if loads is None else np.bincount(list(loads), list(loads.values()), stage.n)
        ends = self.now
        for tasks, executors in layout:
            free = self._free[executors]
            core = free.argmin(axis=1)
            start = np.maximum(free[np.arange(len(tasks)), core], self.now)
            end = start + (work[tasks] / self.cluster.speed[executors] + self.costs.task + extra[tasks])
            self.worked[executors] += end - start
            self._free[executors, core] = end
            ends = max(ends, float(end.max()))
        return ends

    def _run_floating(self, work: FloatArray) -> float:
        """Divide the work of tasks without a place evenly over the cores of the executor that ran them."""
        here = np.flatnonzero(work)
        if not here.size:
            return self.now
        each = work[here] / (self.cluster.cores * self.cluster.speed)[here]
        end = np.maximum(self._free[here], self.now) + each[:, None]
        self._free[here] = end
        self.worked[here] += each * self._slots[here]
        return float(np.where(np.isfinite(end), end, self.now).max())

    def _layout(self, stage: Stage) -> _Layout:
        at = self._at[stage.key]
        count = np.bincount(at, minlength=self.cluster.size)
        order = np.argsort(at, kind="stable")
        rank = np.arange(stage.n) - (np.cumsum(count) - count)[at[order]]
        by_rank = order[np.argsort(rank, kind="stable")]
        rounds = np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])
        return [(tasks, at[tasks]) for tasks in rounds]
