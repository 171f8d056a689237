"""Flat view for the published policies: partitions as units, streams as edges.

A *unit* is one partition of a placeable stage, counted through over all of them. An *end* of a stream is a unit, or
what is fixed: end ``size + e`` stands for whatever floating stages run on executor e. So every stream has two ends of
one numbering, and every end but the units not yet placed has an executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, sum_by_index
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload

ROUNDING = 1e-9
"""Relative: closer than this is equal."""


@dataclass(frozen=True, eq=False)
class Links:
    """Other ends of the streams at each end, and their bytes per second."""

    starts: IntArray
    others: IntArray
    volumes: FloatArray

    @classmethod
    def by(cls, ends: IntArray, others: IntArray, volumes: FloatArray, count: int) -> Links:
        """Index n streams by ``ends``, numbered below ``count``.

        Arrays have shape (n,); the streams of each end stay in the order given.
        """
        order = np.argsort(ends, kind="stable")
        starts = np.concatenate(([0], np.cumsum(np.bincount(ends, minlength=count))))
        return cls(starts, others[order], volumes[order])

    def of(self, end: int) -> tuple[IntArray, FloatArray]:
        """Other ends and bytes per second of the streams at ``end``."""
        part = slice(self.starts[end], self.starts[end + 1])
        return self.others[part], self.volumes[part]


@dataclass(frozen=True, eq=False)
class Units:
    """A cluster of E executors, the U units on it and the n streams between their ends."""

    cluster: Cluster
    keys: tuple[str, ...]  # of the placeable stages
    offsets: IntArray  # of the first unit of each stage, and U
    stage_of: IntArray  # number of the stage, (U,)
    query_of: IntArray  # number of the query, (U,)
    load: FloatArray  # core-seconds per second on a reference executor, (U,)
    memory: FloatArray  # bytes of state, (U,)
    current: IntArray  # executor or UNPLACED, (U,)
    fixed: FloatArray  # load of floating stages, (E,)
    capacity: FloatArray  # reference cores, (E,)
    node: IntArray  # number of the node, by the first executor on it, (E,)
    source: IntArray  # end of each stream, in the order of the workload, (n,)
    target: IntArray  # the other end, (n,)
    volume: FloatArray  # bytes per second, (n,)

    @property
    def size(self) -> int:
        """Number of units."""
        return len(self.load)

    @property
    def ends(self) -> int:
        """Number of ends: units, and one for each executor."""
        return self.size + self.cluster.size

    def home(self) -> IntArray:
        """Executor of each unit where that is available, else :data:`UNPLACED`, (U,)."""
        return np.where(self.cluster.available[self.current], self.current, UNPLACED)

    def neighbors(self) -> Links:
        """Return the streams of each end in both directions."""
        both = np.concatenate((self.source, self.target)), np.concatenate((self.target, self.source))
        return Links.by(*both, np.concatenate((self.volume, self.volume)), self.ends)

    def pairs(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return lower end, higher end and volume of every pair, most volume first."""
        return merge_pairs(self.source, self.target, self.volume, self.ends)

    def placement(self, assignment: IntArray) -> Placement:
        """Return the placement that puts each unit on the executor of its index, (U,)."""
        pieces = zip(self.keys, self.offsets[:-1], self.offsets[1:], strict=True)
        return Placement({key: assignment[start:end] for key, start, end in pieces})


def merge_pairs(
    firsts: IntArray, seconds: IntArray, volume: FloatArray, count: int
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return lower, higher and volume of each pair of ``count`` items, most volume first."""
    keys, index = np.unique(np.minimum(firsts, seconds) * count + np.maximum(firsts, seconds), return_inverse=True)
    total = sum_by_index(index, volume, len(keys))
    order = np.argsort(-total, kind="stable")
    return keys[order] // count, keys[order] % count, total[order]


def flatten(cluster: Cluster, workload: Workload, current: Placement) -> Units:
    """Return the flat view; raises ``ModelError`` where the arguments do not fit together."""
    current.validate(cluster, workload)
    stages = workload.placeable
    queries = {query: i for i, query in enumerate(workload.queries)}
    sizes = np.array([stage.n for stage in stages], dtype=np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    fixed = np.zeros(cluster.size)
    for stage in workload.stages:
        if not stage.placeable:
            fixed += stage.batches_per_second * stage.busy
    size = int(offsets[-1])
    first = {stage.key: size for stage in workload.stages}
    first.update((stage.key, int(start)) for stage, start in zip(stages, offsets, strict=False))
    edges = [shuffle.above(0.0) for shuffle in workload.shuffles]
    ends = [(first[shuffle.upstream], first[shuffle.downstream]) for shuffle in workload.shuffles]
    _, firsts = np.unique(cluster.node_of, return_index=True)
    return Units(
        cluster=cluster,
        keys=tuple(stage.key for stage in stages),
        offsets=offsets,
        stage_of=np.repeat(np.arange(len(stages)), sizes),
        query_of=np.repeat(np.array([queries[stage.query] for stage in stages], dtype=np.int64), sizes),
        load=np.concatenate([np.empty(0), *(stage.batches_per_second * stage.busy for stage in stages)]),
        memory=np.concatenate([np.empty(0), *(stage.state_bytes for stage in stages)]),
        current=np.concatenate([np.empty(0, np.int64), *(current[stage.key] for stage in stages)]),
        fixed=fixed,
        capacity=cluster.cores * cluster.speed,
        node=np.argsort(np.argsort(firsts))[cluster.node_of],
        source=np.concatenate(
            [np.empty(0, np.int64), *(up + a for (up, _, _), (a, _) in zip(edges, ends, strict=True))]
        ),
        target=np.concatenate(
            [np.empty(0, np.int64), *(to + b for (_, to, _), (_, b) in zip(edges, ends, strict=True))]
        ),
        volume=np.concatenate([np.empty(0), *(volume for _, _, volume in edges)]),
    )


class PartialPlacement:
    """Executors while units are put on them. For policies only: mutable and unchecked.

    It starts with ``assignment`` (U,), with nothing placed by default. ``floating``: count the load of floating stages.
    """

    def __init__(self, units: Units, assignment: IntArray | None = None, *, floating: bool = True) -> None:
        size = units.cluster.size
        start = np.full(units.size, UNPLACED, dtype=np.int64) if assignment is None else assignment
        self.units = units
        self.where = np.concatenate((start, np.arange(size)))  # executor of each end
        self.load = units.fixed * floating + sum_by_index(start, units.load, size)  # of each executor, (E,)
        self.memory = sum_by_index(start, units.memory, size)
        self.count = np.bincount(start[start != UNPLACED], minlength=size)
        self.misfits = 0  # units that were put where they do not fit

    @property
    def assignment(self) -> IntArray:
        """Executor of each unit."""
        return self.where[: self.units.size]

    @property
    def utilization(self) -> FloatArray:
        """Load over capacity of each executor."""
        use: FloatArray = self.load / self.units.capacity
        return use

    def answer(self, *notes: str) -> PolicyAnswer:
        """Return the placement with notes, the last of which counts the misfits."""
        if self.misfits:
            notes += (f"{self.misfits} partitions fit on no executor and were put on the least utilized",)
        return PolicyAnswer(self.units.placement(self.assignment), notes)

    def put(self, unit: int, executor: int) -> None:
        """Move a unit; :data:`UNPLACED` takes it off."""
        units = self.units
        for place, sign in ((int(self.where[unit]), -1), (executor, 1)):
            if place != UNPLACED:
                self.load[place] += sign * units.load[unit]
                self.memory[place] += sign * units.memory[unit]
                self.count[place] += sign
        self.where[unit] = executor

    def fits(self, unit: int, cpu: float = 1.0, memory: float = 1.0) -> BoolArray:
        """Available executors that keep within shares of capacity and memory with the unit, (E,)."""
        units, cluster = self.units, self.units.cluster
        fits = cluster.available & (self.load + units.load[unit] <= cpu * units.capacity * (1 + ROUNDING))
        fits &= self.memory + units.memory[unit] <= memory * cluster.memory_bytes * (1 + ROUNDING)
        return np.asarray(fits)

    def emptiest(self, allowed: BoolArray) -> int:
        """Of the allowed executors the one with the lowest utilization; ties: the first."""
        return int(np.where(allowed, self.utilization, np.inf).argmin())

    def local(self, links: Links, unit: int) -> FloatArray:
        """Bytes per second between the unit and what is placed on each executor, (E,)."""
        others, volumes = links.of(unit)
        return sum_by_index(self.where[others], volumes, self.units.cluster.size)


def best_of(chosen: IntArray, keys: Sequence[FloatArray]) -> int:
    """Return the one of ``chosen`` with the smallest keys, compared in turn; ties: the first.

    ``chosen`` is not empty; keys have shape (E,).
    """
    for key in keys:
        least = key[chosen].min()
        chosen = chosen[key[chosen] <= least + ROUNDING * abs(least)]
    return int(chosen[0])
