"""Cost of a placement: busy time, stage times, critical paths and traffic.

Partitions that are on no executor count nowhere in these figures (their traffic counts as remote), so two placements
are comparable only where both place everything. Every function raises ``ModelError`` where placement, workload and
cluster do not fit together.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray, ranks, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import Shuffle
from rechannel.policies.model.workload import Stage, Workload

SATURATED = 0.95
"""Utilization above which an executor counts as having no room: a queue there grows for the least reason."""

_ROUNDING = 1e-9


class Cost(NamedTuple):
    """Objective of ``adaptive``: smaller is better, compared entry by entry."""

    excess_bytes: float  # of state that executors hold beyond their memory
    missing_cores: float  # that executors are short of: what lifts their utilization above the limit
    stage_time: float  # seconds per second: the critical paths of all queries, weighted by their batches per second

    def improves(self, before: Cost, min_gain: float) -> bool:
        """Return whether it is better: a limit broken by less, else less stage time.

        The stage time must be less by the share ``min_gain``.
        """
        for new, old in zip(self[:2], before[:2], strict=True):
            if abs(new - old) > _ROUNDING * max(new, old):
                return new < old
        return self.stage_time < before.stage_time * (1 - max(min_gain, _ROUNDING))

    def eases_limits(self, before: Cost) -> bool:
        """Return whether a limit is broken by less, whatever the stage times are."""
        return self._replace(stage_time=0.0).improves(before._replace(stage_time=0.0), 0.0)


def unit_executors(cluster: Cluster, stage: Stage, placement: Placement) -> IntArray:
    """Return the executor of each entry of a stage.

    Entry e of a floating stage is what executor e runs.
    """
    return placement[stage.key] if stage.placeable else np.arange(cluster.size, dtype=np.int64)


def executor_busy(cluster: Cluster, workload: Workload, placement: Placement) -> FloatArray:
    """Busy seconds per second of each executor, floating stages included, shape (E,).

    At its own speed: work of one second on a reference executor is half a second where speed is 2. Divide by the
    cores for the utilization.
    """
    placement.validate(cluster, workload)
    work = np.zeros(cluster.size)
    for stage in workload.stages:
        work += stage.batches_per_second * _work(cluster, stage, placement)
    return work / cluster.speed


def state_bytes_held(cluster: Cluster, workload: Workload, placement: Placement) -> FloatArray:
    """Bytes of state that each executor holds, shape (E,)."""
    held = np.zeros(cluster.size)
    for stage in workload.placeable:
        held += sum_by_index(placement[stage.key], stage.state_bytes, cluster.size)
    return held


def finish_time(busy: Sequence[float], cores: int) -> float:
    """Return when one executor is done with tasks that start in this order.

    Each takes the core that is free first.
    """
    if len(busy) <= cores:
        return max(busy, default=0.0)
    free = list(busy[:cores])
    heapq.heapify(free)
    for task in busy[cores:]:
        heapq.heapreplace(free, free[0] + task)
    return max(free)


def finish_times(cluster: Cluster, busy: FloatArray, assignment: IntArray) -> FloatArray:
    """Return the seconds until each executor is done with its tasks of one stage, (E,).

    At speed 1 and undisturbed. ``busy`` (n,) are the tasks in the order of their partitions, ``assignment`` (n,) their
    executors.
    """
    return CoreOrder(task_slots(cluster), assignment).finish_times(busy)


class CoreOrder:
    """Order in which tasks take the cores of their executors, for any busy seconds.

    Executors of several stages may stand side by side in one order. ``slots``: tasks that each executor runs at a time,
    (E,); ``assignment``: executor of each task in the order in which they begin, (n,), negative for none.
    """

    def __init__(self, slots: IntArray, assignment: IntArray) -> None:
        self._slots, self._assignment = slots, assignment
        self._rounds: list[tuple[IntArray, IntArray]] = []  # tasks and their places; a place's nth in round n
        if slots.max() <= 1:
            return
        placed = np.flatnonzero(assignment >= 0)
        self._by_executor = placed[np.argsort(assignment[placed], kind="stable")]
        executors = assignment[self._by_executor]
        self._begins = np.flatnonzero(np.diff(executors, prepend=-1))
        self._used = executors[self._begins]
        # Most executors of a large cluster have a core for each of their tasks: the last one ends with its longest.
        count = np.diff(self._begins, append=len(executors))
        self._crowded = self._used[count > slots[self._used]]
        place = np.full(len(slots), -1)
        place[self._crowded] = np.arange(len(self._crowded))
        waiting = placed[place[assignment[placed]] >= 0]
        rank = ranks(assignment[waiting])
        if len(waiting):
            by_rank = waiting[np.argsort(rank, kind="stable")]
            rounds = np.split(by_rank, np.cumsum(np.bincount(rank))[:-1])
            self._rounds = [(tasks, place[assignment[tasks]]) for tasks in rounds]

    def finish_times(self, busy: FloatArray) -> FloatArray:
        """Return what `finish_times` does, for tasks of so many busy seconds, (E,)."""
        if self._slots.max() <= 1:
            return sum_by_index(self._assignment, busy, len(self._slots))
        finish = np.zeros(len(self._slots))
        if len(self._used):
            finish[self._used] = np.maximum.reduceat(busy[self._by_executor], self._begins)
        if self._rounds:
            slots = self._slots[self._crowded]
            free = np.where(np.arange(slots.max()) < slots[:, None], 0.0, np.inf)
            for tasks, places in self._rounds:
                core = free[places].argmin(axis=1)
                free[places, core] += busy[tasks]
            finish[self._crowded] = np.where(np.isfinite(free), free, 0.0).max(axis=1)
        return finish


def task_slots(cluster: Cluster) -> IntArray:
    """Tasks that each executor runs at a time, at least one, shape (E,)."""
    return np.asarray(np.maximum(np.floor(cluster.cores + _ROUNDING), 1), dtype=np.int64)


def remote_received(shuffle: Shuffle, upstream: IntArray, downstream: IntArray) -> FloatArray:
    """Return the bytes per second that reach each entry downstream from other groups.

    Of shape (D,). ``upstream`` (U,) and ``downstream`` (D,) are the groups of the entries, executors for example;
    negative: in none.
    """
    return np.asarray(np.maximum(shuffle.received() - shuffle.local_received(upstream, downstream), 0.0))


def fetch_seconds(
    cluster: Cluster, workload: Workload, stage: Stage, assignments: Mapping[str, IntArray]
) -> FloatArray:
    """Return the seconds per batch that each executor fetches for a placeable stage, (E,).

    0 where the bandwidth is unknown.
    """
    seconds = np.zeros(cluster.size)
    if stage.batches_per_second == 0:
        return seconds
    anywhere = np.arange(cluster.size, dtype=np.int64)
    for shuffle in workload.shuffles:
        if shuffle.downstream == stage.key:
            down = assignments[stage.key]
            remote = remote_received(shuffle, assignments.get(shuffle.upstream, anywhere), down)
            seconds += sum_by_index(down, remote / stage.batches_per_second, cluster.size) / cluster.bandwidth
    return seconds


def stage_seconds(cluster: Cluster, workload: Workload, placement: Placement) -> FloatArray:
    """Return the seconds per batch of each stage: those of its slowest executor, (S,).

    An executor's time for a placeable stage is that of its tasks on its cores, longer by what other queries take of it
    (what is left to this query is what the utilization by the others leaves, but never less than 5 %), and the time to
    fetch what is not on the executor already, where its bandwidth is known. A floating stage is taken as it was
    observed, evenly divisible over the cores of the executor that ran it.
    """
    placement.validate(cluster, workload)
    capacity = cluster.cores * cluster.speed
    work = [_work(cluster, stage, placement) for stage in workload.stages]
    load = np.zeros(cluster.size)
    own = {query: np.zeros(cluster.size) for query in workload.queries}
    for stage, busy in zip(workload.stages, work, strict=True):
        load += stage.batches_per_second * busy
        own[stage.query] += stage.batches_per_second * busy
    fetching = bool(np.isfinite(cluster.bandwidth).any())
    seconds = np.zeros(len(workload.stages))
    for index, stage in enumerate(workload.stages):
        if not stage.placeable:
            seconds[index] = (stage.busy / capacity).max()
            continue
        left = np.maximum(1.0 - (load - own[stage.query]) / capacity, 1.0 - SATURATED)
        times = finish_times(cluster, stage.busy, placement[stage.key]) / (cluster.speed * np.minimum(left, 1.0))
        if fetching:
            times = times + fetch_seconds(cluster, workload, stage, placement.assignments)
        seconds[index] = times.max()
    return seconds


def placement_cost(cluster: Cluster, workload: Workload, placement: Placement, limit: float = SATURATED) -> Cost:
    """Return the objective of ``adaptive``; ``limit``: allowed utilization of an executor."""
    rates = np.array([stage.batches_per_second for stage in workload.stages])
    path = float(rates @ stage_seconds(cluster, workload, placement)) if len(rates) else 0.0
    busy = executor_busy(cluster, workload, placement)
    over = np.maximum(state_bytes_held(cluster, workload, placement) - cluster.memory_bytes, 0.0)
    over = np.where(over > _ROUNDING * cluster.memory_bytes, over, 0.0)
    short = np.maximum(busy - limit * cluster.cores, 0.0)
    return Cost(float(over.sum()), float(np.where(short > _ROUNDING, short, 0.0).sum()), path)


def inter_executor_volume(cluster: Cluster, workload: Workload, placement: Placement) -> float:
    """Bytes per second that leave the executor they were made on."""
    return _crossing(cluster, workload, placement, np.arange(cluster.size))


def inter_node_volume(cluster: Cluster, workload: Workload, placement: Placement) -> float:
    """Bytes per second that leave the node they were made on."""
    return _crossing(cluster, workload, placement, cluster.node_of)


def spread(values: FloatArray) -> float:
    """Population standard deviation over the mean, 0 where the mean is 0 or there is nothing."""
    values = np.asarray(values, dtype=np.float64)
    mean = values.mean() if values.size else 0.0
    return float(values.std() / mean) if mean > 0 else 0.0


def _work(cluster: Cluster, stage: Stage, placement: Placement) -> FloatArray:
    return sum_by_index(unit_executors(cluster, stage, placement), stage.busy, cluster.size)


def _crossing(cluster: Cluster, workload: Workload, placement: Placement, group: IntArray) -> float:
    """Return the volume between different groups of executors.

    An unplaced end is in no group, not even its own.
    """
    placement.validate(cluster, workload)
    total = 0.0
    for shuffle in workload.shuffles:
        up = unit_executors(cluster, workload.stage(shuffle.upstream), placement)
        down = unit_executors(cluster, workload.stage(shuffle.downstream), placement)
        up_group, down_group = np.where(up < 0, -1, group[up]), np.where(down < 0, -1, group[down])
        total += float(shuffle.received().sum() - shuffle.local_received(up_group, down_group).sum())
    return max(total, 0.0)
