"""Lower bounds on the cost of every placement, which certify answers of ``adaptive``."""

from __future__ import annotations

import numpy as np

from rechannel.policies.analysis.placement_cost import SATURATED, task_slots
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.workload import Workload

_SAME = 1e-9


def lower_bound(
    busy: FloatArray, speed: FloatArray, slots: IntArray, available: BoolArray, capacity: float | None = None
) -> float:
    """Return the seconds that no placement of the units can go below.

    The largest of: all work spread evenly over ``capacity``, the largest unit on the fastest core, and, with m cores,
    the k + 1 smallest of the k m + 1 largest units on one core (they cannot all be on different ones; k up to 4).

    ``busy``: seconds of each unit on a reference core, (n,); ``speed``, ``slots`` and ``available``: of each executor,
    (E,); ``capacity``: reference cores, by default slots times speed of the available executors.
    """
    if not available.any() or not len(busy):
        return 0.0
    fastest = float(speed[available].max())
    cores = int(slots[available].sum())
    bound = float(busy.sum()) / (capacity or float((slots * speed)[available].sum()))
    if len(busy) <= cores:
        return max(bound, float(busy.max()) / fastest)
    ordered = np.sort(busy)[::-1]
    bound = max(bound, float(ordered[0]) / fastest)
    for k in range(1, 5):
        if k * cores < len(ordered):
            bound = max(bound, float(ordered[k * cores - k : k * cores + 1].sum()) / fastest)
    return bound


def certified_bound(cluster: Cluster, workload: Workload) -> float:
    """Return the least stage time of all placements without a saturated executor.

    In seconds per second. The sum of :func:`lower_bound` over the stages. The work of the other queries is taken
    off the capacity of the available executors first: however that work is spread, so much less of them is left.
    """
    available = cluster.available
    capacity = task_slots(cluster) * cluster.speed
    whole = float(capacity[available].sum())
    by_query = dict.fromkeys(workload.queries, 0.0)
    for stage in workload.stages:
        busy = stage.busy if stage.placeable else stage.busy[available]
        by_query[stage.query] += stage.batches_per_second * float(busy.sum())
    total = sum(by_query.values())
    certain = total <= SATURATED * float((cluster.cores * cluster.speed)[available].sum())
    bound = 0.0
    for stage in workload.stages:
        if stage.placeable:
            others = total - by_query[stage.query] if certain else 0.0
            # An executor with a part of a core beside its whole ones may be used by others for that part first.
            left = max(whole - others * float((task_slots(cluster) / cluster.cores)[available].min()), _SAME)
            seconds = lower_bound(stage.busy, cluster.speed, task_slots(cluster), available, left)
        else:
            seconds = float((stage.busy / (cluster.cores * cluster.speed)).max())
        bound += stage.batches_per_second * seconds
    return bound
