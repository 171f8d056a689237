"""Micro-batches of streaming queries on executors, as discrete events.

A query's batch is planned by the driver, runs its stages one after the other, and is committed. All tasks of a stage
are submitted at one moment, each to the executor of its partition, where it waits for a core behind what was submitted
before it: first come, first served, the next task on the core that is free first, as Spark's ``TaskSetManager`` hands
them out. A task holds its core while it fetches, works and, where its partition has just moved, loads the state.
What it fetches comes over its executor's link, one fetch after the other; what comes from another sub-cluster passes
that sub-cluster's uplink too.

Since nobody overtakes in such a queue, a task's end is known when its stage is submitted: one event a stage is
enough, and the tasks of a stage are worked out as arrays, all executors at once. That is why this is ``heapq`` and
NumPy and not SimPy, which is well kept: its processes need several events for each task (25,000 tasks a second on the
machine this was written on), and an hour of a thousand executors has some seventy million.

Migrations are steps of moves, as the planner made them. A query takes the moves of the step over with its next batch;
the next step begins when all queries of this one have committed. Exact where the model is: queues, cores, links. Not
in it: Spark's fair scheduler, tasks that drift away from their executor, failures, and drivers that launch slowly
unless :attr:`Costs.task` says so. Times are seconds of simulated time, sizes bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.policies.model.arrays import FloatArray, IntArray, sum_by_index
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload

__all__ = ["Batch", "Costs", "Simulation", "Step"]

Step = tuple[Move, ...]
"""Moves that are taken over together."""


@dataclass(frozen=True)
class Costs:
    """Costs of a batch beside its tasks' work, in seconds and bytes per second.

    ``planning`` and ``commit`` of each batch, by the driver; ``task`` of each task, whatever it does; ``scale``: what a
    task takes over what it is said to take. A load takes ``load_overhead`` and its bytes at ``load_rate``, and
    ``checkpoint`` for what has to be replayed since the last snapshot. ``latency`` of each task's fetch; ``uplink``:
    bytes per second into one sub-cluster from all others. ``noise``: deviation of the logarithm of a task's time.
    ``backlog``: times the usual input that a batch takes at most after a long one; 1: every batch has the same.
    """

    planning: float = 0.0
    commit: float = 0.0
    task: float = 0.0
    scale: float = 1.0
    load_overhead: float = 0.0
    load_rate: float = float("inf")
    checkpoint: float = 0.0
    latency: float = 0.0
    uplink: float = float("inf")
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


@dataclass(frozen=True)
class _Layout:
    """Places of a stage's tasks: for each turn, the task that every executor runs in it, and its fetches."""

    turns: tuple[tuple[IntArray, IntArray], ...]
    remote: FloatArray | None
    outside: FloatArray | None


class Simulation:
    """One cluster with its queries. The same arguments and calls make the same batches.

    ``factors``: stage -> what each of its entries works over what the workload says, for loads that change.
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
        self._random = np.random.default_rng(seed)
        self._at = {key: array.copy() for key, array in placement.assignments.items()}
        slots = task_slots(cluster)
        self._free = np.where(np.arange(slots.max()) < slots[:, None], 0.0, np.inf)
        self._slots = slots
        self._link = np.zeros(cluster.size)
        self._uplink = np.zeros(int(cluster.subcluster.max()) + 1)
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
        """Do something at a time; what is due at the same time is done in the order in which it was asked for."""
        heapq.heappush(self._events, (when, next(self._order), action))

    def run(self, until: float, *, stagger: bool = True) -> None:
        """Run to a time; batches that are under way then are not in :attr:`batches`. May be called again.

        ``stagger``: the queries' first batches begin at different moments of their intervals.
        """
        if not self.now and not self.batches:
            for index, query in enumerate(self._queries.values()):
                query.due = query.interval * ((index * 0.618034) % 1.0) if stagger else 0.0
                self.at(query.due, self._beginner(query))
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

    def _beginner(self, query: _Query) -> Callable[[], None]:
        return lambda: self._begin(query)

    def _begin(self, query: _Query) -> None:
        since = self.now - query.last_start if query.last_start >= 0 else query.interval
        query.input = min(max(since / query.interval, 1.0), self.costs.backlog)
        query.last_start = self.now
        query.loads, query.landed = {}, 0
        if query.name in self._waiting and query.name in self._steps[0]:
            for move in self._steps[0].pop(query.name):
                self._at[move.stage][move.partition] = move.target
                size = float(self.workload.stage(move.stage).state_bytes[move.partition])
                query.loads.setdefault(move.stage, {})[move.partition] = self.costs.load(size)
                query.landed += 1
            for stage in query.stages:  # what one fetches depends on where the others are
                self._layouts.pop(stage.key, None)
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
        self.at(query.due, self._beginner(query))

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
            layout = self._layouts[stage.key] = self._laid_out(stage)
        loads = query.loads.get(stage.key)
        extra = np.zeros(stage.n) if loads is None else np.bincount(list(loads), list(loads.values()), stage.n)
        ends = self.now
        for tasks, executors in layout.turns:
            free = self._free[executors]
            core = free.argmin(axis=1)
            start = np.maximum(free[np.arange(len(tasks)), core], self.now)
            took = work[tasks] / self.cluster.speed[executors] + self.costs.task + extra[tasks]
            ready = start
            if layout.remote is not None:
                ready = self._fetched(start, layout.remote[tasks] * query.input, executors)
            end = ready + took
            self.worked[executors] += end - start
            self._free[executors, core] = end
            ends = max(ends, float(end.max()))
        return self._through_uplinks(layout, query.input, ends)

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

    def _fetched(self, start: FloatArray, size: FloatArray, executors: IntArray) -> FloatArray:
        """Return the end of each task's fetch, its executor's link serving one after the other."""
        wants = size > 0
        begin = np.maximum(start, self._link[executors])
        done = np.where(wants, begin + size / self.cluster.bandwidth[executors], start)
        self._link[executors] = np.where(wants, done, self._link[executors])
        return np.where(wants, done + self.costs.latency, start)

    def _through_uplinks(self, layout: _Layout, times: float, ends: float) -> float:
        if layout.outside is None:
            return ends
        wants = layout.outside > 0
        done = np.maximum(self._uplink, self.now) + layout.outside * times / self.costs.uplink
        self._uplink = np.where(wants, done, self._uplink)
        return max(ends, float(np.where(wants, done, 0.0).max(initial=0.0)))

    def _laid_out(self, stage: Stage) -> _Layout:
        at = self._at[stage.key]
        held = np.bincount(at, minlength=self.cluster.size)
        order = np.argsort(at, kind="stable")
        rank = np.arange(stage.n) - (np.cumsum(held) - held)[at[order]]
        by_rank = order[np.argsort(rank, kind="stable")]
        turns = np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])
        remote, outside = self._remote(stage)
        return _Layout(tuple((tasks, at[tasks]) for tasks in turns), remote, outside)

    def _remote(self, stage: Stage) -> tuple[FloatArray | None, FloatArray | None]:
        """Bytes that each task fetches from other executors a batch, and each sub-cluster from others."""
        cluster = self.cluster
        links, uplinks = bool(np.isfinite(cluster.bandwidth).any()), np.isfinite(self.costs.uplink)
        streams = [stream for stream in self.workload.streams if stream.downstream == stage.key]
        if not streams or not (links or uplinks) or stage.batches_per_second == 0:
            return None, None
        remote, crossing = np.zeros(stage.n), np.zeros(stage.n)
        anywhere, down = np.arange(cluster.size), self._at[stage.key]
        for stream in streams:
            up, whole = self._at.get(stream.upstream, anywhere), stream.received()
            remote += np.maximum(whole - stream.local_received(up, down), 0.0)
            if uplinks:
                near = stream.local_received(cluster.subcluster[up], cluster.subcluster[down])
                crossing += np.maximum(whole - near, 0.0)
        rate = stage.batches_per_second
        outside = sum_by_index(cluster.subcluster[down], crossing / rate, len(self._uplink)) if uplinks else None
        return np.asarray(remote / rate), outside
