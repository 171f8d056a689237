"""What a placement costs: busy time, stage times, critical paths and the traffic between executors and nodes.

Partitions that are on no executor count nowhere in these figures (their traffic counts as remote), so two placements
are comparable only where both place everything. Every function raises ``ModelError`` where placement, workload and
cluster do not fit together.
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.model import Cluster, FloatArray, IntArray, ModelError, Placement, Stage, Workload

__all__ = [
    "critical_path",
    "executor_busy",
    "inter_executor_volume",
    "inter_node_volume",
    "placement_cost",
    "spread",
    "stage_time",
    "unit_executors",
]


def unit_executors(cluster: Cluster, stage: Stage, placement: Placement) -> IntArray:
    """Executor index of each entry of a stage; entry e of a floating stage is what executor e runs."""
    return placement[stage.key] if stage.placeable else np.arange(cluster.size, dtype=np.int64)


def executor_busy(cluster: Cluster, workload: Workload, placement: Placement) -> FloatArray:
    """Busy seconds per second of each executor, floating stages included, shape (E,).

    At its own speed: work of one second on a reference executor is half a second where speed is 2. Divide by the
    cores for the utilization.
    """
    placement.validate(cluster, workload)
    work = np.zeros(cluster.size)
    for stage in workload.stages:
        work += stage.batches_per_second * _sums(cluster, stage.busy, unit_executors(cluster, stage, placement))
    return work / cluster.speed


def stage_time(cluster: Cluster, stage: Stage, assignment: IntArray) -> float:
    """Seconds per batch that the slowest executor needs for its share of a placeable stage.

    On one executor the tasks are indivisible and share its cores. The time is taken as the larger of the sum over
    the cores and the largest single task. No schedule of the tasks is shorter; list scheduling, which is what Spark
    does, is never longer than the sum of the two (Graham 1966), so this is a lower bound of what will be seen.
    """
    if not stage.placeable:
        raise ModelError(f"stage {stage.key!r}: floating, it has no assignment")
    Placement({stage.key: assignment}).validate(cluster, Workload((stage,)))
    return float(_executor_times(cluster, stage, assignment).max())


def critical_path(cluster: Cluster, workload: Workload, placement: Placement) -> dict[str, float]:
    """Seconds per batch of each query: its stages run one after the other, each as long as its slowest executor.

    A floating stage is taken as evenly divisible over the cores of the executor that ran it. The stages of other
    queries are not counted as contention; the utilization shows it.
    """
    placement.validate(cluster, workload)
    seconds = dict.fromkeys(workload.queries, 0.0)
    for stage in workload.stages:
        seconds[stage.query] += _time(cluster, stage, placement)
    return seconds


def placement_cost(cluster: Cluster, workload: Workload, placement: Placement) -> tuple[float, float, float]:
    """The objective of ``balance``, smaller is better, compared entry by entry.

    1. stage time in seconds per second: the critical paths of all queries, weighted by their batches per second
    2. the highest utilization of an available executor
    3. the sum of squares of the busy seconds per second of all executors
    """
    busy = executor_busy(cluster, workload, placement)
    path = sum(stage.batches_per_second * _time(cluster, stage, placement) for stage in workload.stages)
    highest = (busy / cluster.cores)[cluster.available].max(initial=0.0)
    return float(path), float(highest), float(busy @ busy)


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


def _sums(cluster: Cluster, values: FloatArray, executors: IntArray) -> FloatArray:
    placed = executors >= 0
    return np.bincount(executors[placed], weights=values[placed], minlength=cluster.size).astype(np.float64)


def _executor_times(cluster: Cluster, stage: Stage, assignment: IntArray) -> FloatArray:
    placed = assignment >= 0
    largest = np.zeros(cluster.size)
    np.maximum.at(largest, assignment[placed], stage.busy[placed])
    times: FloatArray = np.maximum(_sums(cluster, stage.busy, assignment) / cluster.cores, largest) / cluster.speed
    return times


def _time(cluster: Cluster, stage: Stage, placement: Placement) -> float:
    if stage.placeable:
        return float(_executor_times(cluster, stage, placement[stage.key]).max())
    return float((stage.busy / (cluster.cores * cluster.speed)).max())


def _crossing(cluster: Cluster, workload: Workload, placement: Placement, group: IntArray) -> float:
    """Volume between different groups of executors; an unplaced end is in no group, not even its own."""
    placement.validate(cluster, workload)
    total = 0.0
    for stream in workload.streams:
        up = unit_executors(cluster, workload.stage(stream.upstream), placement)
        down = unit_executors(cluster, workload.stage(stream.downstream), placement)
        up_group, down_group = np.where(up < 0, -1, group[up]), np.where(down < 0, -1, group[down])
        total += float(stream.received().sum() - stream.local_received(up_group, down_group).sum())
    return max(total, 0.0)
