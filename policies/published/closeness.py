"""Closeness of communicating partitions: cohesion and coupling.

Source: Son and Moon, Locality/Fairness-Aware Job Scheduling in Distributed Stream Processing Engines, Electronics 9(11)
2020. The closeness of two instances is one over their distance: 1 in one slot, 40 between two (memory 0.25 ms, network
10 ms).

Both measures count instances and edges of the job, never bytes: an edge joins every instance of one operator with
every one of the next. An executor is a slot, so two of one node are as far apart as any. A partition that is on no
executor is near to no other one.
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload

NEAR = 1.0
"""Distance of two partitions on one executor."""

FAR = 40.0
"""Distance of two partitions on different executors."""


def operator_edges(workload: Workload) -> tuple[tuple[int, int], ...]:
    """Return the edges of the job's graph as positions in ``workload.placeable``, ascending.

    Two placeable stages are joined by a stream or by a path of streams through floating stages only: what floats runs
    anywhere, so what is between the two is still theirs.
    """
    position = {stage.key: i for i, stage in enumerate(workload.placeable)}
    inputs: dict[str, list[str]] = {stage.key: [] for stage in workload.stages}
    for shuffle in workload.shuffles:
        inputs[shuffle.downstream].append(shuffle.upstream)
    sources: dict[str, set[int]] = {}
    for stage in workload.stages:
        sources[stage.key] = set()
        for key in inputs[stage.key]:
            sources[stage.key] |= {position[key]} if key in position else sources[key]
    return tuple(sorted((source, position[key]) for key in position for source in sources[key]))


def local_upstreams(cluster: Cluster, workload: Workload, placement: Placement) -> tuple[int, int]:
    """Count upstream partitions near a partition of the next stage, and all of them.

    Near is on the same executor. Each is counted once for every edge that leaves its stage. The paper has chains of
    operators only; the sum over the edges of a branching job is our reading. Raises ``ModelError`` where the arguments
    do not fit together.
    """
    placement.validate(cluster, workload)
    stages = workload.placeable
    local = total = 0
    for source, target in operator_edges(workload):
        up, down = placement[stages[source].key], placement[stages[target].key]
        local += int(np.isin(up, down[down >= 0]).sum())
        total += len(up)
    return local, total


def cohesion(cluster: Cluster, workload: Workload, placement: Placement) -> float:
    """Add up the closeness of upstream partitions to the nearest one of the next stage.

    Larger is better. The paper prints a minimum over closeness, with which its gains do not come out; with the minimum
    over distance, as here, all five do. Raises ``ModelError`` where the arguments do not fit together.
    """
    local, total = local_upstreams(cluster, workload, placement)
    return local / NEAR + (total - local) / FAR


def coupling(cluster: Cluster, workload: Workload, placement: Placement) -> float:
    """Add up the closeness of partitions to the nearest other one of their stage.

    Smaller is better. A partition without siblings counts as far from them, where the paper is silent: only so its
    coupling is ten times as large for ten times the partitions. Errors are those of :func:`cohesion`.
    """
    placement.validate(cluster, workload)
    together = total = 0
    for stage in workload.placeable:
        executors = placement[stage.key]
        held = np.bincount(executors[executors >= 0])
        together += int(held[held > 1].sum())
        total += stage.n
    return together / NEAR + (total - together) / FAR
