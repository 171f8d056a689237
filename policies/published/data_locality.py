"""Stage by stage to the executor nearest to the data, as many partitions as it may hold.

Source: Twister2's streaming data locality task scheduler, its page and its code (2020). Data nodes all look alike to
it: their bandwidth and latency are always the configured ones. The distance is a difference, so the nearest executor is
the one most like a data node, not the fastest; with the defaults of the code every executor is at distance 0.

Deviations: bandwidth comes from the topology where that is known, and latency always from the parameters (the code
takes a worker's own only where it has both). Named data nodes are ours, see :class:`DataLocalityParameters`. The list
of full executors lives as long as one call; the code keeps it for the life of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Outcome, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_count, check_number
from rechannel.policies.published.slots import (
    NOTHING_TO_PLACE,
    available_executors,
    partition_counts,
    unevenness,
)

__all__ = [
    "DATA_LOCALITY",
    "DataLocalityParameters",
    "bandwidth_delay_distance",
    "data_locality",
    "transfer_seconds",
]

_COSTS = ("bandwidth_delay", "transfer_time")
_BITS_PER_BYTE = 8
_MEGA = 1e6


@dataclass(frozen=True)
class DataLocalityParameters:
    """Settings of ``data-locality``; bandwidths in megabits per second, latencies in seconds.

    ``instances_per_executor``: the most partitions an executor may hold, None for an equal share of all, rounded up.
    ``worker_bandwidth`` stands in for an executor whose bandwidth the topology does not know; ``worker_latency`` is
    that of every executor, ``data_bandwidth`` and ``data_latency`` are those of every data node.
    ``cost``: "bandwidth_delay" is the code's distance, "transfer_time" the seconds it takes to fetch a stage's state.
    ``data_nodes``: nodes that hold the data; an executor there is at distance 0 and goes before others that are too.
    None: nobody knows, and the distance alone decides.
    ``strict``: as the code does, a stage is never divided, and one above the limit is an error; else what is above it
    spills to the next executor, as the page says.
    """

    instances_per_executor: int | None = None
    worker_bandwidth: float = 100.0
    worker_latency: float = 0.02
    data_bandwidth: float = 200.0
    data_latency: float = 0.01
    cost: Literal["bandwidth_delay", "transfer_time"] = "bandwidth_delay"
    data_nodes: tuple[str, ...] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_count("instances_per_executor", self.instances_per_executor)
        for name in ("worker_bandwidth", "data_bandwidth"):
            check_number(name, getattr(self, name), 0, above=True, finite=True)
        for name in ("worker_latency", "data_latency"):
            check_number(name, getattr(self, name), 0, finite=True)
        if self.cost not in _COSTS:
            raise ModelError(f"cost: expected one of {', '.join(_COSTS)}, got {self.cost!r}")
        if not isinstance(self.strict, bool):
            raise ModelError(f"strict: expected true or false, got {self.strict!r}")
        nodes: object = self.data_nodes
        if nodes is not None:
            if not isinstance(nodes, list | tuple) or not nodes or not all(isinstance(name, str) for name in nodes):
                raise ModelError(f"data_nodes: expected None or a list of node names, got {nodes!r}")
            object.__setattr__(self, "data_nodes", tuple(nodes))


def bandwidth_delay_distance(
    worker_bandwidth: ArrayLike, worker_latency: ArrayLike, data_bandwidth: ArrayLike, data_latency: ArrayLike
) -> FloatArray:
    """Return the difference of two-way bandwidth-delay products, in megabits.

    Of worker and data node; shapes broadcast.
    """
    worker = 2 * np.asarray(worker_bandwidth, dtype=np.float64) * np.asarray(worker_latency, dtype=np.float64)
    data = 2 * np.asarray(data_bandwidth, dtype=np.float64) * np.asarray(data_latency, dtype=np.float64)
    return np.asarray(np.abs(worker - data))


def transfer_seconds(
    megabits: float,
    worker_bandwidth: ArrayLike,
    worker_latency: ArrayLike,
    data_bandwidth: ArrayLike,
    data_latency: ArrayLike,
) -> FloatArray:
    """Return the seconds to fetch the data at the slower bandwidth, after both latencies.

    Shapes broadcast. Twister2's page speaks of the size of the data, its code only in a comment; this is our reading
    of the page.
    """
    slower = np.minimum(worker_bandwidth, np.asarray(data_bandwidth, dtype=np.float64))
    return np.asarray(megabits / slower + np.asarray(worker_latency) + np.asarray(data_latency))


def data_locality(
    cluster: Cluster, workload: Workload, current: Placement, parameters: DataLocalityParameters | None = None
) -> Outcome:
    """Place each stage in order on the nearest executors that are not full.

    ``current`` is not looked at. Equal distances: the executor of the lower index. Raises ``ModelError`` where the
    arguments do not fit together, ``ScaleOutError`` where no executor is available, where the limit times the
    executors is less than the partitions, and with ``strict`` where a stage is above the limit.
    """
    current.validate(cluster, workload)
    parameters = parameters or DataLocalityParameters()
    if not workload.placeable:
        return Outcome(current, (NOTHING_TO_PLACE,))
    use = available_executors(cluster)
    total = sum(stage.n for stage in workload.placeable)
    limit = parameters.instances_per_executor or -(-total // len(use))
    if limit * len(use) < total:
        raise ScaleOutError(f"{len(use)} executors hold {limit} of {total} partitions each: add executors")
    remote = ~_holds_data(cluster, parameters)
    held = np.zeros(cluster.size, dtype=np.int64)
    assignments: dict[str, IntArray] = {}
    for stage in workload.placeable:
        order = use[np.lexsort((use, remote[use], _distances(cluster, stage, parameters)[use]))]
        order = order[held[order] < limit]
        if parameters.strict and stage.n > limit:
            raise ScaleOutError(f"stage {stage.key!r}: {stage.n} partitions, an executor may hold {limit}")
        room = np.full(len(order), stage.n) if parameters.strict else limit - held[order]
        assignments[stage.key] = np.repeat(order, room)[: stage.n]
        held += np.bincount(assignments[stage.key], minlength=cluster.size)
    return Outcome(Placement(assignments))


def _holds_data(cluster: Cluster, parameters: DataLocalityParameters) -> BoolArray:
    named = parameters.data_nodes or ()
    return np.array([node in named for node in cluster.nodes], dtype=np.bool_)


def _distances(cluster: Cluster, stage: Stage, parameters: DataLocalityParameters) -> FloatArray:
    """Distance of each executor from the data node nearest to it, (E,)."""
    measured = cluster.bandwidth * _BITS_PER_BYTE / _MEGA
    bandwidth = np.where(np.isfinite(measured), measured, parameters.worker_bandwidth)
    ends = (bandwidth, parameters.worker_latency, parameters.data_bandwidth, parameters.data_latency)
    if parameters.cost == "transfer_time":
        distance = transfer_seconds(float(stage.state_bytes.sum()) * _BITS_PER_BYTE / _MEGA, *ends)
    else:
        distance = bandwidth_delay_distance(*ends)
    return np.where(_holds_data(cluster, parameters), 0.0, distance)


def _objective(
    cluster: Cluster, workload: Workload, placement: Placement, parameters: DataLocalityParameters | None = None
) -> Objective:
    """Sum of the distances of all partitions on available executors, then unevenness."""
    counts = partition_counts(cluster, workload, placement)
    parameters = parameters or DataLocalityParameters()
    distance = sum(
        float(row @ _distances(cluster, stage, parameters)[cluster.available])
        for row, stage in zip(counts, workload.placeable, strict=True)
    )
    return (float(distance), *unevenness(counts.sum(axis=0, keepdims=True)))


DATA_LOCALITY = FunctionPolicy(
    name="data-locality",
    place=data_locality,
    objective=_objective,
    parameters=DataLocalityParameters,
    summary="Fills the executors nearest to the data first, stage by stage.",
    source="Twister2's data locality streaming task scheduler",
)
