"""Placement on trial: single moves change it, and its batches follow at once."""

from __future__ import annotations

import numpy as np

from rechannel.policies.analysis.placement_cost import finish_time, finish_times, task_slots
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, sum_rows_by_index
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.cycle import QueryTimings, QueryWork, batch_seconds, unplaced_work
from rechannel.policies.prediction.model import PredictionModel

_EVENNESS = 0.02  # weight of even executors: moves that prepare the next one
_BINDING = 0.9  # share of the largest load from which an executor is about as busy as the busiest one
_ALONE = 0.25  # weight of the batches if each query ran alone, where the cycle formula is not exact


class TrialPlacement:
    """A placement with the sums that its batches are computed from; moves change it in place.

    Queries that run back to back are a group: they wait for each other's tasks in every batch, so their load counts
    together. A query with a trigger is a group of its own, for the executors are idle in between.

    ``base``: the placement that the cost is relative to; by default this one.
    """

    def __init__(self, model: PredictionModel, placement: Placement, base: TrialPlacement | None = None) -> None:
        workload, cluster = model.workload, model.cluster
        self.model = model
        self.stages = workload.placeable
        self._query = {query: index for index, query in enumerate(workload.queries)}
        self._stage_query = np.array([self._query[stage.query] for stage in self.stages], dtype=np.int64)
        self.capacity = cluster.cores * cluster.speed
        self._slots = task_slots(cluster)
        self.at = [placement[stage.key].copy() for stage in self.stages]
        self._sums = np.array(
            [
                np.bincount(at[at >= 0], stage.busy[at >= 0], cluster.size)
                for stage, at in zip(self.stages, self.at, strict=True)
            ]
        ).reshape(len(self.stages), cluster.size)
        self._finish: list[FloatArray] = []  # of each stage's executors, where some have several cores
        if self._slots.max() > 1:
            self._finish = [finish_times(cluster, it.busy, at) for it, at in zip(self.stages, self.at, strict=True)]
        self._free = cluster.memory_bytes.copy()
        for stage, at in zip(self.stages, self.at, strict=True):
            self._free -= np.bincount(at[at >= 0], stage.state_bytes[at >= 0], cluster.size)
        self._unplaced = unplaced_work(model)
        self._timings = QueryTimings.of(model)
        together = self._timings.interval <= 0
        groups = np.where(together, 0, np.cumsum(~together) - (not together.any()))
        self._groups, self._stage_group = int(groups.max(initial=-1)) + 1, groups[self._stage_query]
        self._query_group = groups
        unplaced = self._unplaced.pinned + self._unplaced.anywhere
        self._unplaced_by_group = sum_rows_by_index(groups, unplaced, self._groups)
        self._unplaced_load = unplaced.sum(axis=0)
        reference = base or self
        self._base = np.maximum(reference.seconds(), 1e-9)
        self._base_alone = reference._seconds_alone(reference._path())
        self._group_weight = np.bincount(groups, 1.0 / self._base, self._groups) / max(1, len(self._base))
        is_exact = len(self.stages) == len(workload.queries) and together.all() and not model.pools
        self._alone = 0.0 if is_exact else _ALONE
        self._squares = np.maximum(reference._sum_squares(), 1e-12)

    def move(self, stage: int, partition: int, target: int) -> int:
        """Move a partition; return where it was."""
        source = int(self.at[stage][partition])
        busy, size = self.stages[stage].busy[partition], self.stages[stage].state_bytes[partition]
        if source >= 0:
            self._sums[stage, source] -= busy
            self._free[source] += size
        if target >= 0:
            self._sums[stage, target] += busy
            self._free[target] -= size
        self.at[stage][partition] = target
        if self._finish:
            for executor in {source, target} - {-1}:
                tasks = self.stages[stage].busy[self.at[stage] == executor].tolist()
                self._finish[stage][executor] = finish_time(tasks, int(self._slots[executor]))
        return source

    def has_room(self, stage: int, partition: int) -> BoolArray:
        """Return the available executors with memory for a partition's state, (E,).

        All of them if none has it: what is measured of the memory is not all that state may use.
        """
        available = self.model.cluster.available
        room = available & (self._free >= self.stages[stage].state_bytes[partition])
        return np.asarray(room if room.any() else available)

    def fits(self, stage: int, partition: int, target: int) -> bool:
        """Return whether one executor is among those of `has_room`."""
        is_available = bool(self.model.cluster.available[target])
        if is_available and self._free[target] >= self.stages[stage].state_bytes[partition]:
            return True
        return is_available and bool(self.has_room(stage, partition)[target])

    def seconds(self) -> FloatArray:
        """Return the predicted batch of each query, (Q,)."""
        return self._seconds(self._path())

    def _seconds(self, path: FloatArray) -> FloatArray:
        pinned = self._pinned()
        return batch_seconds(QueryWork(path, pinned + self._unplaced.anywhere, pinned > 0), self._timings)

    def _pinned(self) -> FloatArray:
        """Return the seconds of each query's work that runs where its state is, (Q, E)."""
        placed = sum_rows_by_index(self._stage_query, self.stage_loads(), len(self._unplaced.path))
        return np.asarray(self._unplaced.pinned + placed)

    def _path(self) -> FloatArray:
        """Return the seconds of each query's stages one after the other, (Q,)."""
        finish = np.array(self._finish) / self.model.cluster.speed if self._finish else self.stage_loads()
        slowest = finish.max(axis=1, initial=0.0)
        return np.asarray(self._unplaced.path + np.bincount(self._stage_query, slowest, len(self._unplaced.path)))

    def _seconds_alone(self, path: FloatArray) -> FloatArray:
        """Return each query's batch if it ran alone, (Q,)."""
        return np.asarray(np.maximum(self._timings.overhead + path, 1e-9))

    def stage_loads(self) -> FloatArray:
        """Return the seconds of each stage's work on each executor, (S, E)."""
        return np.asarray(self._sums / self.capacity)

    def loads(self) -> FloatArray:
        """Return the seconds of everybody's work on each executor in one batch of each, (E,)."""
        return np.asarray(self._sums.sum(axis=0) / self.capacity + self._unplaced_load)

    def group_loads(self) -> FloatArray:
        """Return the seconds of each group's work on each executor, (G, E).

        In one batch of each query.
        """
        sums = sum_rows_by_index(self._stage_group, self._sums, self._groups)
        return np.asarray(sums / self.capacity + self._unplaced_by_group)

    def least_loads(self) -> FloatArray:
        """Return a bound on the busiest executor of each group, (G,).

        It is at least as busy as all are on average, and as the longest task.
        """
        available = self.model.cluster.available
        even = (self.group_loads() * self.capacity).sum(axis=1) / self.capacity[available].sum()
        longest, fastest = np.zeros(self._groups), float(self.model.cluster.speed[available].max())
        for stage, group in zip(self.stages, self._stage_group, strict=True):
            longest[group] = max(longest[group], float(stage.busy.max(initial=0.0)) / fastest)
        return np.asarray(np.maximum(np.maximum(even, longest), 1e-9))

    def is_binding(self, stage: int, executor: int) -> bool:
        """Return whether an executor is about as busy as the busiest of a stage or group."""
        loads = self.group_loads()[self._stage_group[stage]], self.stage_loads()[stage]
        return any(bool(load[executor] >= _BINDING * load.max()) for load in loads)

    def stages_of(self, group: int) -> list[int]:
        """Return the indexes of a group's stages."""
        return list(np.flatnonzero(self._stage_group == group).tolist())

    def placement(self) -> Placement:
        """Return the placement as it is now."""
        return Placement({stage.key: at.copy() for stage, at in zip(self.stages, self.at, strict=True)})

    def cost(self) -> float:
        """Return the mean of the queries' batches over the base."""
        return float((self.seconds() / self._base).mean())

    def soft_cost(self) -> float:
        """Return what a search descends along.

        That is the cost, a part for the batches if each query ran alone, and a small part for uneven executors, all
        relative to the start. Queries with several stages, triggers or pools, which wait for each other in other ways,
        take longer than the cycle formula says: the less so, the shorter their batches would be alone.
        """
        path = self._path()
        cost = float((self._seconds(path) / self._base).mean())
        alone = float((self._seconds_alone(path) / self._base_alone).mean())
        uneven = float((self._sum_squares() / self._squares).sum())
        return (1 - self._alone) * cost + self._alone * alone + _EVENNESS * uneven

    def estimate_changes(self, stage: IntArray, source: IntArray, target: IntArray, busy: FloatArray) -> FloatArray:
        """Estimate the change of the soft cost by work that goes to another executor, (N,).

        Each query is taken to last as long as the busiest executor of its group, and of its stages, though its own path
        may be longer. Parameters are (N,) each; ``busy`` is in seconds.
        """
        loads, shares, by_group = self.loads(), self.stage_loads(), self.group_loads()
        group, query = self._stage_group[stage], self._stage_query[stage]
        less, more = busy / self.capacity[source], busy / self.capacity[target]
        ends = source, target, less, more
        alone = _change_of_busiest(shares, stage, *ends) / len(self._base)
        together = _change_of_busiest(by_group, group, *ends) * self._group_weight[group]
        uneven = _change_of_squares(loads[source], loads[target], less, more) / self._squares[0]
        uneven += _change_of_squares(shares[stage, source], shares[stage, target], less, more) / self._squares[1]
        alone /= self._base_alone[query]
        return np.asarray((1 - self._alone) * together + self._alone * alone + _EVENNESS * uneven)

    def estimate_additions(self, stage: int, busy: float) -> FloatArray:
        """Estimate the change of the soft cost by unplaced work of a stage on each executor, (E,).

        Each query is taken to last as long as the busiest executor that it uses in its group, or its own path.
        """
        query, group = int(self._stage_query[stage]), self._stage_group[stage]
        share, more = self.stage_loads()[stage], busy / self.capacity
        pinned, load, path = self._pinned(), self.group_loads()[group], self._seconds_alone(self._path())
        longer = np.maximum(0.0, share + more - share.max())
        before = np.maximum(np.where(pinned > 0, load, 0.0).max(axis=1), path)[:, None]
        uses = (pinned > 0) & (self._query_group == group)[:, None]
        uses[query] = True
        after = np.where(uses, np.maximum(before, load + more), before)
        after[query] = np.maximum(after[query], path[query] + longer)
        cost = ((after - before) / self._base[:, None]).mean(axis=0)
        alone = longer / self._base_alone[query] / len(self._base)
        uneven = _growth_of_squares(self.loads(), more) / self._squares[0]
        uneven += _growth_of_squares(share, more) / self._squares[1]
        return np.asarray((1 - self._alone) * cost + self._alone * alone + _EVENNESS * uneven)

    def _sum_squares(self) -> FloatArray:
        """Return the sums of the squared loads of the executors, in all and by stage, (2,)."""
        loads, shares = self.loads(), self.stage_loads()
        return np.array([loads @ loads, (shares * shares).sum()])


def _change_of_busiest(
    loads: FloatArray, row: IntArray, source: IntArray, target: IntArray, less: FloatArray, more: FloatArray
) -> FloatArray:
    """Return the change of the largest load in a row, less here and more there, (N,)."""
    order = np.argsort(-loads, axis=1)[:, :3]
    rest = np.zeros(len(row))  # the largest load at any other place
    for place in order.T[::-1]:
        elsewhere = place[row]
        rest = np.where((elsewhere != source) & (elsewhere != target), loads[row, elsewhere], rest)
    after = np.maximum(rest, np.maximum(loads[row, source] - less, loads[row, target] + more))
    return np.asarray(after - loads.max(axis=1)[row])


def _change_of_squares(source: FloatArray, target: FloatArray, less: FloatArray, more: FloatArray) -> FloatArray:
    """Return the change of the sum of the squared loads, by those at both ends, (N,)."""
    return _growth_of_squares(source, -less) + _growth_of_squares(target, more)


def _growth_of_squares(loads: FloatArray, more: FloatArray) -> FloatArray:
    """Return the change of each squared load with so much more, (N,)."""
    return np.asarray(more * (more + 2 * loads))
