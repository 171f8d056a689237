"""What every policy reads: the cluster, the workload on it, and where its partitions are.

All values are immutable and checked when they are made, so a kernel may rely on them. Arrays are kept as read-only
float64, int64 or bool; an executor is known by its index in :class:`Cluster` from there on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from rechannel.policies.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    ModelError,
    ScaleOutError,
    checked_floats,
    frozen,
    same_length,
)
from rechannel.policies.streams import SparseStream, Stream, StreamLike

__all__ = [
    "UNPLACED",
    "BoolArray",
    "Cluster",
    "FloatArray",
    "IntArray",
    "ModelError",
    "Move",
    "Outcome",
    "Placement",
    "ScaleOutError",
    "SparseStream",
    "Stage",
    "Stream",
    "StreamLike",
    "Topology",
    "Workload",
]

UNPLACED = -1
"""Stands for an executor index: on no executor, or on one that the cluster does not know."""


@dataclass(frozen=True, eq=False)
class Topology:
    """How far executors are from each other, and how fast they fetch; unknown unless somebody says so.

    ``subcluster`` is the sub-cluster (rack, zone) of each executor's node, shape (E,), counted from 0.
    ``bandwidth`` is the bytes per second that an executor can fetch, (E,), infinity where fetching costs nothing that
    is known. ``distances`` between two nodes by their sub-clusters, (S, S), any unit; its diagonal is that of two nodes
    of one sub-cluster. Two executors of one node are at distance 0.
    """

    subcluster: IntArray
    bandwidth: FloatArray
    distances: FloatArray

    def __post_init__(self) -> None:
        subcluster = np.asarray(self.subcluster)
        distances = checked_floats("distances", self.distances, ndim=2)
        count = len(distances)
        if distances.shape != (count, count):
            raise ModelError(f"distances: expected a square, got {distances.shape}")
        if subcluster.ndim != 1 or not np.issubdtype(subcluster.dtype, np.integer):
            raise ModelError("subcluster: expected one whole number for each executor")
        if subcluster.size and (subcluster.min() < 0 or subcluster.max() >= count):
            raise ModelError(f"subcluster: outside 0..{count - 1}, the sub-clusters that have distances")
        bandwidth = checked_floats("bandwidth", self.bandwidth, infinite=True)
        if not (bandwidth > 0).all():
            raise ModelError("bandwidth: must be greater than zero")
        object.__setattr__(self, "subcluster", frozen(subcluster.astype(np.int64)))
        object.__setattr__(self, "distances", distances)
        object.__setattr__(self, "bandwidth", bandwidth)

    @classmethod
    def flat(cls, executors: int) -> Topology:
        """One sub-cluster, all nodes at distance 1, fetching free."""
        return cls(np.zeros(executors, dtype=np.int64), np.full(executors, np.inf), np.ones((1, 1)))


@dataclass(frozen=True, eq=False)
class Cluster:
    """The executors of one application.

    ``executors`` and ``nodes`` name each executor and its node; ``cores`` is its number of task slots,
    ``memory_bytes`` what it may hold of state (infinity: unknown), ``speed`` its measured rate against a reference
    executor (1.0), and ``available`` is False where it is draining or dead: nothing may be placed there.
    Every sequence has one entry for each executor. ``topology`` is flat unless given.
    """

    executors: tuple[str, ...]
    nodes: tuple[str, ...]
    cores: FloatArray
    memory_bytes: FloatArray
    speed: FloatArray
    available: BoolArray
    topology: Topology | None = None
    node_of: IntArray = field(init=False, repr=False)
    _topology: Topology = field(init=False, repr=False)
    _index: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "executors", tuple(self.executors))
        set_field(self, "nodes", tuple(self.nodes))
        set_field(self, "_index", {name: i for i, name in enumerate(self.executors)})
        size = len(self.executors)
        if size == 0:
            raise ModelError("executors: at least one is needed")
        if len(self._index) != size:
            raise ModelError("executors: names must be unique")
        if len(self.nodes) != size:
            raise ModelError(f"nodes: expected {size} entries, got {len(self.nodes)}")
        set_field(self, "cores", checked_floats("cores", self.cores))
        set_field(self, "memory_bytes", checked_floats("memory_bytes", self.memory_bytes, infinite=True))
        set_field(self, "speed", checked_floats("speed", self.speed))
        available = np.asarray(self.available)
        if available.dtype != np.bool_ or available.ndim != 1:
            raise ModelError("available: expected one bool for each executor")
        set_field(self, "available", frozen(available))
        same_length(
            "",
            size,
            cores=self.cores,
            memory_bytes=self.memory_bytes,
            speed=self.speed,
            available=self.available,
        )
        for name, array in (("cores", self.cores), ("speed", self.speed)):
            if not (array > 0).all():
                raise ModelError(f"{name}: must be greater than zero")
        given = self.topology
        if given is not None:
            same_length("topology: ", size, subcluster=given.subcluster, bandwidth=given.bandwidth)
        set_field(self, "_topology", given or Topology.flat(size))
        set_field(self, "node_of", frozen(np.unique(self.nodes, return_inverse=True)[1].astype(np.int64)))

    @property
    def size(self) -> int:
        """Number of executors, available or not."""
        return len(self.executors)

    @property
    def bandwidth(self) -> FloatArray:
        """Bytes per second that each executor can fetch, infinity where that is not known, shape (E,)."""
        return self._topology.bandwidth

    @property
    def subcluster(self) -> IntArray:
        """Number of the sub-cluster of each executor, shape (E,)."""
        return self._topology.subcluster

    def distances_from(self, executor: int) -> FloatArray:
        """Distance of each executor's node from the node of one, 0 for its own, shape (E,)."""
        topology = self._topology
        row = topology.distances[topology.subcluster[executor]][topology.subcluster]
        return np.where(self.node_of == self.node_of[executor], 0.0, row)

    def index_of(self, executor: str) -> int:
        """Index of the executor of that name, :data:`UNPLACED` if there is none."""
        return self._index.get(executor, UNPLACED)


@dataclass(frozen=True, eq=False)
class Stage:
    """The tasks of one stage of one query.

    A placeable stage has one entry for each partition, and where it runs is ours to say. A floating stage (a source,
    or other stateless tasks, which run anywhere each batch) has one entry for each executor of the cluster: what was
    observed there. ``busy`` is busy seconds per batch on a reference executor, ``rows`` the input rows per batch,
    ``state_bytes`` the size of the state, ``batches_per_second`` how often the stage runs.
    """

    key: str
    query: str
    placeable: bool
    batches_per_second: float
    busy: FloatArray
    rows: FloatArray
    state_bytes: FloatArray

    def __post_init__(self) -> None:
        owner = f"stage {self.key!r}: "
        if not self.key:
            raise ModelError("stage key: must not be empty")
        rate = float(self.batches_per_second)
        if not np.isfinite(rate) or rate < 0:
            raise ModelError(f"{owner}batches_per_second: must be finite and not negative, got {rate}")
        object.__setattr__(self, "batches_per_second", rate)
        for name in ("busy", "rows", "state_bytes"):
            object.__setattr__(self, name, checked_floats(owner + name, getattr(self, name)))
        if self.n == 0:
            raise ModelError(f"{owner}busy: at least one entry is needed")
        same_length(owner, self.n, rows=self.rows, state_bytes=self.state_bytes)

    @property
    def n(self) -> int:
        """Number of entries: partitions of a placeable stage, executors of a floating one."""
        return len(self.busy)


@dataclass(frozen=True, eq=False)
class Workload:
    """The stages of all queries, those of one query in the order they run, and the shuffles between them."""

    stages: tuple[Stage, ...]
    streams: tuple[StreamLike, ...] = ()
    _order: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "streams", tuple(self.streams))
        object.__setattr__(self, "_order", {stage.key: i for i, stage in enumerate(self.stages)})
        if len(self._order) != len(self.stages):
            raise ModelError("stages: keys must be unique")
        if len({stage.n for stage in self.stages if not stage.placeable}) > 1:
            raise ModelError("stages: floating stages must all have one entry for each executor")
        for stream in self.streams:
            self._check_stream(stream)

    def _check_stream(self, stream: StreamLike) -> None:
        owner = f"stream {stream.upstream!r} to {stream.downstream!r}: "
        for name in ("upstream", "downstream"):
            if getattr(stream, name) not in self._order:
                raise ModelError(f"{owner}{name}: no such stage")
        if self._order[stream.upstream] >= self._order[stream.downstream]:
            raise ModelError(f"{owner}upstream must come before downstream in stages")
        upstream, downstream = self.stage(stream.upstream), self.stage(stream.downstream)
        if upstream.query != downstream.query:
            raise ModelError(f"{owner}joins two queries")
        if stream.shape != (upstream.n, downstream.n):
            raise ModelError(f"{owner}volume: expected shape {(upstream.n, downstream.n)}, got {stream.shape}")

    def stage(self, key: str) -> Stage:
        """The stage of that key; KeyError if there is none."""
        return self.stages[self._order[key]]

    @property
    def placeable(self) -> tuple[Stage, ...]:
        """The stages whose partitions a policy places, in order."""
        return tuple(stage for stage in self.stages if stage.placeable)

    @property
    def queries(self) -> tuple[str, ...]:
        """The queries, by first appearance."""
        return tuple(dict.fromkeys(stage.query for stage in self.stages))


@dataclass(frozen=True, order=True)
class Move:
    """One partition changes its executor; ``source`` is :data:`UNPLACED` where it was on none that is known."""

    stage: str
    partition: int
    source: int
    target: int


@dataclass(frozen=True, eq=False)
class Placement:
    """The executor index of every partition of every placeable stage, :data:`UNPLACED` where it has none."""

    assignments: Mapping[str, IntArray]

    def __post_init__(self) -> None:
        checked: dict[str, IntArray] = {}
        for key, values in self.assignments.items():
            array = np.asarray(values)
            if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
                raise ModelError(f"assignments[{key!r}]: expected a flat array of executor indices")
            checked[key] = frozen(array.astype(np.int64))
        object.__setattr__(self, "assignments", MappingProxyType(checked))

    def __getitem__(self, key: str) -> IntArray:
        return self.assignments[key]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Placement):
            return NotImplemented
        return self.assignments.keys() == other.assignments.keys() and all(
            np.array_equal(array, other[key]) for key, array in self.assignments.items()
        )

    def __hash__(self) -> int:
        return hash(frozenset((key, array.tobytes()) for key, array in self.assignments.items()))

    def moves_from(self, old: Placement) -> tuple[Move, ...]:
        """What has to move for ``old`` to become this placement, by stage and partition.

        A stage that ``old`` does not know comes from nowhere. A changed number of partitions is a
        :class:`ModelError`: Spark fixes it for the life of a checkpoint.
        """
        moves: list[Move] = []
        for key, targets in self.assignments.items():
            sources = old.assignments.get(key, np.full(len(targets), UNPLACED, dtype=np.int64))
            same_length(f"assignments[{key!r}], ", len(targets), old=sources)
            moves.extend(
                Move(key, int(i), int(sources[i]), int(targets[i])) for i in np.flatnonzero(sources != targets)
            )
        return tuple(moves)

    def validate(self, cluster: Cluster, workload: Workload) -> None:
        """Raise :class:`ModelError` unless this places this workload on this cluster; unplaced partitions are allowed.

        Checks the workload against the cluster too: a floating stage must have one entry for each executor.
        """
        for stage in workload.stages:
            if not stage.placeable and stage.n != cluster.size:
                raise ModelError(f"stage {stage.key!r}: floating, expected {cluster.size} entries, got {stage.n}")
        expected = {stage.key: stage.n for stage in workload.placeable}
        if self.assignments.keys() != expected.keys():
            differing = sorted(self.assignments.keys() ^ expected.keys())
            raise ModelError(f"assignments: stages differ from the placeable ones of the workload: {differing}")
        if not expected:
            return
        # All at once: this is asked for again and again, and there are hundreds of stages.
        every, size = np.concatenate(list(self.assignments.values())), cluster.size
        outside = bool(every.size) and (every.min() < UNPLACED or every.max() >= size)
        for key, array in self.assignments.items():
            if len(array) != expected[key]:
                same_length("assignments: ", expected[key], **{key: array})
            if outside and ((array < UNPLACED) | (array >= size)).any():
                raise ModelError(f"assignments[{key!r}]: executor index outside {UNPLACED}..{size - 1}")


@dataclass(frozen=True)
class Outcome:
    """What a policy answers: a placement, and sentences about how it came to it."""

    placement: Placement
    notes: tuple[str, ...] = ()
