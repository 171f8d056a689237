"""Executors of one application, and the distances between them.

Values are checked on construction and arrays are read-only. An executor is identified by its index in :class:`Cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rechannel.policies.model.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    ModelError,
    ScaleOutError,
    check_lengths,
    float_array,
    read_only,
)

UNPLACED = -1
"""Stands for an executor index: on no executor, or on one that the cluster does not know."""


@dataclass(frozen=True, eq=False)
class Topology:
    """Distances between executors, and how fast each fetches.

    ``subcluster`` is the sub-cluster (rack, zone) of each executor's node, shape (E,), counted from 0. ``bandwidth`` is
    the bytes per second that an executor can fetch, (E,), infinity where the cost of fetching is unknown. ``distances``
    between two nodes by their sub-clusters, (S, S), any unit; its diagonal is that of two nodes of one sub-cluster. Two
    executors of one node are at distance 0.
    """

    subcluster: IntArray
    bandwidth: FloatArray
    distances: FloatArray

    def __post_init__(self) -> None:
        subcluster = np.asarray(self.subcluster)
        distances = float_array("distances", self.distances, ndim=2)
        count = len(distances)
        if distances.shape != (count, count):
            raise ModelError(f"distances: expected a square, got {distances.shape}")
        if subcluster.ndim != 1 or not np.issubdtype(subcluster.dtype, np.integer):
            raise ModelError("subcluster: expected one whole number for each executor")
        if subcluster.size and (subcluster.min() < 0 or subcluster.max() >= count):
            raise ModelError(f"subcluster: outside 0..{count - 1}, the sub-clusters that have distances")
        bandwidth = float_array("bandwidth", self.bandwidth, infinite=True)
        if not (bandwidth > 0).all():
            raise ModelError("bandwidth: must be greater than zero")
        object.__setattr__(self, "subcluster", read_only(subcluster.astype(np.int64)))
        object.__setattr__(self, "distances", distances)
        object.__setattr__(self, "bandwidth", bandwidth)

    @classmethod
    def flat(cls, executors: int) -> Topology:
        """One sub-cluster, all nodes at distance 1, fetching free."""
        return cls(np.zeros(executors, dtype=np.int64), np.full(executors, np.inf), np.ones((1, 1)))


@dataclass(frozen=True, eq=False)
class Cluster:
    """Executors of one application.

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
            twice = next(name for i, name in enumerate(self.executors) if name in self.executors[:i])
            raise ModelError(f"executors: names must be unique, {twice!r} stands twice")
        if len(self.nodes) != size:
            raise ModelError(f"nodes: expected {size} entries, got {len(self.nodes)}")
        set_field(self, "cores", float_array("cores", self.cores))
        set_field(self, "memory_bytes", float_array("memory_bytes", self.memory_bytes, infinite=True))
        set_field(self, "speed", float_array("speed", self.speed))
        available = np.asarray(self.available)
        if available.dtype != np.bool_ or available.ndim != 1:
            raise ModelError("available: expected one bool for each executor")
        set_field(self, "available", read_only(available))
        check_lengths(
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
        explicit = self.topology
        if explicit is not None:
            check_lengths("topology: ", size, subcluster=explicit.subcluster, bandwidth=explicit.bandwidth)
        set_field(self, "_topology", explicit or Topology.flat(size))
        set_field(self, "node_of", read_only(np.unique(self.nodes, return_inverse=True)[1].astype(np.int64)))

    @property
    def size(self) -> int:
        """Number of executors, available or not."""
        return len(self.executors)

    def check_available(self, partitions: int) -> None:
        """Raise ScaleOutError if no executor is available for this many partitions."""
        if partitions and not self.available.any():
            raise ScaleOutError(f"{partitions} partitions need an executor and none is available: add executors")

    @property
    def bandwidth(self) -> FloatArray:
        """Bytes per second that each executor can fetch, infinity where unknown, (E,)."""
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
