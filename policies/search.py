"""The running totals of a local search over placements, and the price of its moves and swaps.

For policies only: mutable, unchecked, and in flat indices. A *unit* is one partition of a placeable stage, counted
through over all of them; stages are counted through the placeable ones. Totals are taken anew from the units of an
executor whenever it changes, so they do not depend on the way that led there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.policies.classification import high_edges
from rechannel.policies.model import UNPLACED, BoolArray, Cluster, FloatArray, IntArray, Placement, Workload

__all__ = ["Candidates", "Locality", "SearchState", "largest_without", "lexicographic_best", "most_local"]


class SearchState:
    """Where every unit is, and what each executor has to do in each stage and in all."""

    def __init__(self, cluster: Cluster, workload: Workload, placement: Placement) -> None:
        stages = workload.placeable
        self.cluster = cluster
        self.keys = tuple(stage.key for stage in stages)
        sizes = [stage.n for stage in stages]
        self.offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        self.rate = np.array([stage.batches_per_second for stage in stages])
        self.stage_of = np.repeat(np.arange(len(stages)), sizes)
        self.busy = _joined([stage.busy for stage in stages])
        self.state_bytes = _joined([stage.state_bytes for stage in stages])
        self.assignment = np.concatenate([np.empty(0, np.int64), *(placement[key] for key in self.keys)])
        self.capacity = cluster.cores * cluster.speed
        self._fixed = np.zeros(cluster.size)
        self._fixed_path = 0.0
        for stage in workload.stages:
            if not stage.placeable:
                self._fixed += stage.batches_per_second * stage.busy
                self._fixed_path += stage.batches_per_second * float((stage.busy / self.capacity).max())
        shape = (len(stages), cluster.size)
        self.sums, self.time, self.count = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._top, self._next = np.zeros(shape), np.zeros(shape)  # the two largest tasks
        self.memory = np.zeros(cluster.size)
        self.load = np.zeros(cluster.size)
        for executor in range(cluster.size):
            self._refresh(executor, range(len(stages)))

    def placement(self) -> Placement:
        """The placement as it now is."""
        pieces = zip(self.keys, self.offsets[:-1], self.offsets[1:], strict=True)
        return Placement({key: self.assignment[start:end] for key, start, end in pieces})

    @property
    def utilization(self) -> FloatArray:
        """Busy share of the cores of each executor."""
        use: FloatArray = self.load / self.capacity
        return use

    def stage_times(self) -> FloatArray:
        """Seconds per batch of each stage."""
        times: FloatArray = self.time.max(axis=1)
        return times

    def value(self) -> tuple[float, float]:
        """Weighted stage time and highest utilization of an available executor."""
        highest = self.utilization[self.cluster.available].max(initial=0.0)
        return self._fixed_path + float(self.rate @ self.stage_times()), float(highest)

    def floors(self) -> FloatArray:
        """Seconds per batch that no placement of a stage on the available executors can go below."""
        available = self.cluster.available
        total = np.bincount(self.stage_of, weights=self.busy, minlength=len(self.keys))
        largest = np.zeros(len(self.keys))
        np.maximum.at(largest, self.stage_of, self.busy)
        even = total / self.capacity[available].sum()
        floors: FloatArray = np.maximum(even, largest / self.cluster.speed[available].max())
        return floors

    def set(self, changes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Put each unit on its new executor; returns the changes that undo it."""
        undo = [(unit, int(self.assignment[unit])) for unit, _ in changes]
        touched: set[tuple[int, int]] = set()
        for unit, target in changes:
            touched |= {(int(self.stage_of[unit]), executor) for executor in (int(self.assignment[unit]), target)}
            self.assignment[unit] = target
        for stage, executor in sorted(touched):
            if executor != UNPLACED:
                self._refresh(executor, (stage,))
        return undo[::-1]

    def units(self, stage: int) -> slice:
        """The units of a stage."""
        return slice(int(self.offsets[stage]), int(self.offsets[stage + 1]))

    def _refresh(self, executor: int, stages: Sequence[int]) -> None:
        for stage in stages:
            part = self.units(stage)
            members = self.busy[part][self.assignment[part] == executor]
            top = np.sort(np.partition(members, -2)[-2:]) if members.size > 2 else np.sort(members)
            self._top[stage, executor] = top[-1] if top.size else 0.0
            self._next[stage, executor] = top[-2] if top.size > 1 else 0.0
            self.sums[stage, executor] = members.sum()
            self.count[stage, executor] = members.size
        self.memory[executor] = self.state_bytes[self.assignment == executor].sum()
        cores, speed = self.cluster.cores[executor], self.cluster.speed[executor]
        rows = list(stages)
        shared = np.maximum(self.sums[rows, executor] / cores, self._top[rows, executor])
        self.time[rows, executor] = shared / speed
        self.load[executor] = self._fixed[executor] + self.rate @ self.sums[:, executor]

    def rest(self, units: IntArray) -> FloatArray:
        """The largest task that each unit's executor keeps in its stage when the unit leaves."""
        stage, executor = self.stage_of[units], self.assignment[units]
        top = self._top[stage, executor]
        kept: FloatArray = np.where(self.busy[units] < top, top, self._next[stage, executor])
        return kept

    def moves(self, units: IntArray, source: int) -> Candidates:
        """Each of P units of executor ``source`` to each of E executors."""
        cluster, stage, busy = self.cluster, self.stage_of[units], self.busy[units]
        work = busy * self.rate[stage]
        summed = (self.sums[stage, source] - busy) / cluster.cores[source]
        source_time = np.maximum(np.maximum(summed, self.rest(units)), 0.0) / cluster.speed[source]
        summed = (self.sums[stage] + busy[:, None]) / cluster.cores
        target_time = np.maximum(np.maximum(summed, self._top[stage]), busy[:, None]) / cluster.speed
        allowed = cluster.available & (np.arange(cluster.size) != source)
        return Candidates(
            source_time=np.broadcast_to(source_time[:, None], target_time.shape),
            target_time=target_time,
            source_use=np.broadcast_to(
                ((self.load[source] - work) / self.capacity[source])[:, None], target_time.shape
            ),
            target_use=(self.load + work[:, None]) / self.capacity,
            target=np.arange(cluster.size),
            allowed=allowed & (self.memory + self.state_bytes[units][:, None] <= cluster.memory_bytes),
        )

    def swaps(self, units: IntArray, partners: IntArray, stage: int, source: int) -> Candidates:
        """Each of P units of ``source`` against each of Q partners elsewhere, all of one stage."""
        cluster, other = self.cluster, self.assignment[partners]
        gives, takes = self.busy[units][:, None], self.busy[partners]
        summed = (self.sums[stage, source] - gives + takes) / cluster.cores[source]
        source_time = np.maximum(np.maximum(summed, self.rest(units)[:, None]), takes) / cluster.speed[source]
        summed = (self.sums[stage, other] - takes + gives) / cluster.cores[other]
        target_time = np.maximum(np.maximum(summed, self.rest(partners)), gives) / cluster.speed[other]
        work = self.rate[stage] * (gives - takes)
        grows = self.state_bytes[units][:, None] - self.state_bytes[partners]
        fits = (grows <= 0) | (self.memory[other] + grows <= cluster.memory_bytes[other])
        fits &= (grows >= 0) | (self.memory[source] - grows <= cluster.memory_bytes[source])
        return Candidates(
            source_time=source_time,
            target_time=target_time,
            source_use=(self.load[source] - work) / self.capacity[source],
            target_use=(self.load[other] + work) / self.capacity[other],
            target=other,
            allowed=fits,
        )


@dataclass(frozen=True, eq=False)
class Candidates:
    """What each candidate leaves behind: stage times and utilizations of both ends, (P, C) each; ``target`` is (C,)."""

    source_time: FloatArray
    target_time: FloatArray
    source_use: FloatArray
    target_use: FloatArray
    target: IntArray
    allowed: BoolArray


class Locality:
    """The volume of class HIGH that each executor exchanges with a unit."""

    def __init__(self, workload: Workload, state: SearchState) -> None:
        index = {key: i for i, key in enumerate(state.keys)}
        self._state = state
        self._links: dict[int, list[tuple[FloatArray, int | None]]] = {}
        for stream, (ups, downs, volumes) in zip(workload.streams, high_edges(workload), strict=True):
            if not len(volumes):
                continue
            volume = np.zeros(stream.shape)
            volume[ups, downs] = volumes
            up, down = index.get(stream.upstream), index.get(stream.downstream)
            if up is not None:
                self._links.setdefault(up, []).append((volume, down))
            if down is not None:
                self._links.setdefault(down, []).append((volume.T, up))

    def volume(self, unit: int) -> FloatArray:
        """Bytes per second of HIGH streams that would be local on each executor, shape (E,)."""
        state = self._state
        size = state.cluster.size
        result = np.zeros(size)
        stage = int(state.stage_of[unit])
        for volume, other in self._links.get(stage, ()):
            row = volume[unit - int(state.offsets[stage])]
            if other is None:  # a floating stage: entry e is executor e
                result += row
            else:
                executors = state.assignment[state.units(other)]
                placed = executors >= 0
                result += np.bincount(executors[placed], weights=row[placed], minlength=size)
        return result


def largest_without(values: FloatArray, index: int) -> FloatArray:
    """For each e, the largest value but those at ``index`` and e; minus infinity where there is none."""
    others = values.copy()
    others[index] = -np.inf
    first = int(others.argmax())
    result = np.full(others.shape, others[first])
    others[first] = -np.inf
    result[first] = others.max()
    return result


def lexicographic_best(chosen: IntArray, keys: Sequence[FloatArray]) -> int:
    """Of the flat indices ``chosen``, the one with the smallest keys, compared in turn; ties: the first."""
    for key in keys:
        values = key.ravel()[chosen]
        least = values.min()
        chosen = chosen[values <= least + 1e-9 * abs(least)]
        if len(chosen) == 1:
            break
    return int(chosen[0])


def most_local(locality: Locality, unit: int, best: int, near: IntArray) -> int:
    """``best``, or the executor of ``near`` that makes more HIGH volume of the unit local, if one does."""
    volume = locality.volume(unit)
    return int(near[volume[near].argmax()]) if volume[near].max(initial=0.0) > volume[best] else best


def _joined(arrays: Sequence[FloatArray]) -> FloatArray:
    return np.concatenate([np.empty(0), *arrays])
