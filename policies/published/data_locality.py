"""Stage by stage to the executor nearest to the data, as many partitions as it may hold.

Source: Twister2's streaming data locality task scheduler, its page and its code (2020). Data nodes all look alike to
it: their bandwidth and latency are always the configured ones. The distance is a difference, so the nearest executor is
the one most like a data node, not the fastest; with the defaults of the code every executor is at distance 0.

Deviations: bandwidth comes from the topology where that is known, and latency always from the parameters (the code
takes a worker's own only where it has both). Named data nodes are an addition, see :class:`DataLocalityParameters`. The
list of full executors lives as long as one call; the code keeps it for the life of the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_choice, check_count, check_number
from rechannel.policies.published.slots import partition_counts, unevenness

Cost = Literal["bandwidth_delay", "transfer_time"]

_BITS_PER_BYTE = 8
_MEGA = 1e6


@dataclass(frozen=True)
class DataLocalityParameters:
    """Settings of ``data-locality``; bandwidths in megabits per second, latencies in seconds.

    ``instances_per_executor``: the most partitions an executor may hold, None for an equal share of all, rounded up.
    ``worker_bandwidth``: that of an executor whose bandwidth the topology does not know.
    ``worker_latency``: that of every executor.
    ``data_bandwidth`` and ``data_latency``: those of every data node.
    ``cost``: "bandwidth_delay" is the distance of Twister2's code, "transfer_time" the seconds to fetch the state.
    ``data_nodes``: nodes that hold the data; their executors have distance 0 and go before others of distance 0. None:
    the nodes are not known, and the distance alone decides.
    ``strict``: a stage is never divided, and one above the limit is an error, as in Twister2's code; otherwise the rest
    of a stage goes to the next executor, as in Twister2's documentation.
    """

    instances_per_executor: int | None = None
    worker_bandwidth: float = 100.0
    worker_latency: float = 0.02
    data_bandwidth: float = 200.0
    data_latency: float = 0.01
    cost: Cost = "bandwidth_delay"
    data_nodes: tuple[str, ...] | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        check_count("instances_per_executor", self.instances_per_executor)
        for name in ("worker_bandwidth", "data_bandwidth"):
            check_number(name, getattr(self, name), 0, above=True, finite=True)
        for name in ("worker_latency", "data_latency"):
            check_number(name, getattr(self, name), 0, finite=True)
        check_choice("cost", self.cost, get_args(Cost))
        nodes: object = self.data_nodes
        if nodes is not None:
            if not isinstance(nodes, list | tuple) or not nodes or not all(isinstance(name, str) for name in nodes):
                raise ModelError(f"data_nodes: expected None or a list of node names, got {nodes!r}")
            object.__setattr__(self, "data_nodes", tuple(nodes))


def bandwidth_delay_distance(bandwidth: FloatArray, parameters: DataLocalityParameters) -> FloatArray:
    """Return the difference of the two-way bandwidth-delay products of executor and data node.

    In megabits, (E,). ``bandwidth`` (E,) is that of the executors in megabits per second.
    """
    worker = 2 * bandwidth * parameters.worker_latency
    return np.asarray(np.abs(worker - 2 * parameters.data_bandwidth * parameters.data_latency))


def transfer_seconds(megabits: float, bandwidth: FloatArray, parameters: DataLocalityParameters) -> FloatArray:
    """Return the seconds to fetch the data at the slower bandwidth, and both latencies, (E,).

    Our reading of Twister2's page; its code has the size of the data in a comment alone.
    """
    slower = np.minimum(bandwidth, parameters.data_bandwidth)
    return np.asarray(megabits / slower + parameters.worker_latency + parameters.data_latency)


def data_locality(
    cluster: Cluster, workload: Workload, _current: Placement, parameters: DataLocalityParameters
) -> PolicyAnswer:
    """Place each stage in order on the nearest executors that are not full; ties: the first.

    Raises ``ScaleOutError`` where the limit times the executors is less than the partitions, and with ``strict`` where
    a stage is above the limit.
    """
    use = np.flatnonzero(cluster.available)
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
    return PolicyAnswer(Placement(assignments))


def _holds_data(cluster: Cluster, parameters: DataLocalityParameters) -> BoolArray:
    named = parameters.data_nodes or ()
    return np.array([node in named for node in cluster.nodes], dtype=np.bool_)


def _distances(cluster: Cluster, stage: Stage, parameters: DataLocalityParameters) -> FloatArray:
    """Distance of each executor from the data node nearest to it, (E,)."""
    measured = cluster.bandwidth * _BITS_PER_BYTE / _MEGA
    bandwidth = np.where(np.isfinite(measured), measured, parameters.worker_bandwidth)
    if parameters.cost == "transfer_time":
        megabits = float(stage.state_bytes.sum()) * _BITS_PER_BYTE / _MEGA
        distance = transfer_seconds(megabits, bandwidth, parameters)
    else:
        distance = bandwidth_delay_distance(bandwidth, parameters)
    return np.where(_holds_data(cluster, parameters), 0.0, distance)


def _objective(
    cluster: Cluster, workload: Workload, placement: Placement, parameters: DataLocalityParameters
) -> Objective:
    """Sum of the distances of all partitions on available executors, then unevenness."""
    counts = partition_counts(cluster, workload, placement)
    distance = sum(
        float(row @ _distances(cluster, stage, parameters)[cluster.available])
        for row, stage in zip(counts, workload.placeable, strict=True)
    )
    return (float(distance), *unevenness(counts.sum(axis=0, keepdims=True)))


DATA_LOCALITY = FunctionPolicy(
    name="data-locality",
    scheduler=data_locality,
    measure=_objective,
    parameters=DataLocalityParameters,
    summary="Fills the executors nearest to the data first, stage by stage.",
    source="Twister2's data locality streaming task scheduler",
)
