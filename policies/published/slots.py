"""Executors as slots that are dealt out, and the evenness of partitions on them.

In the papers' words: a slot, container or worker process is an executor here; an operator, task or component is a
placeable stage, an instance one of its partitions. The papers schedule one job on slots of its own. Here all
queries of the workload count as that one job, since they share the executors.
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.model.arrays import IntArray, ranks
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload


def sort_slots(cluster: Cluster) -> IntArray:
    """Return the A available executors in the order in which they are dealt out, (A,).

    The node with the most of them comes first; then the first executor of every node, the second of every node, and
    so on. Source: Storm's EvenScheduler (``sort-slots``), which is also the first algorithm of Son and Moon 2020.
    Equal nodes stand by the index of their first available executor, where the paper names no rule and Storm goes by
    node id, and so do the executors of a node by theirs.
    """
    slots = np.flatnonzero(cluster.available)
    _, first, node, count = np.unique(
        cluster.node_of[slots], return_index=True, return_inverse=True, return_counts=True
    )
    return slots[np.lexsort((first[node], -count[node], ranks(node)))]


def placement_of_units(workload: Workload, executors: IntArray) -> Placement:
    """Return the placement by executor of every partition, (n,), stage after stage."""
    stages = workload.placeable
    ends = np.cumsum([stage.n for stage in stages])
    return Placement(dict(zip((stage.key for stage in stages), np.split(executors, ends[:-1]), strict=True)))


def partition_counts(cluster: Cluster, workload: Workload, placement: Placement) -> IntArray:
    """Partitions of each placeable stage on each available executor, shape (stages, A).

    Raises ``ModelError`` where the arguments do not fit together.
    """
    placement.validate(cluster, workload)
    counts = np.zeros((len(workload.placeable), cluster.size), dtype=np.int64)
    for row, stage in zip(counts, workload.placeable, strict=True):
        executors = placement[stage.key]
        row += np.bincount(executors[executors >= 0], minlength=cluster.size)
    return counts[:, cluster.available]


def unevenness(counts: IntArray) -> tuple[float, float]:
    """Return the sum over the rows of largest minus smallest, and the sum of squares.

    ``counts`` has shape (rows, A). For given row sums both are smallest exactly where no row differs by more than one.
    """
    width = int((counts.max(axis=1) - counts.min(axis=1)).sum()) if counts.size else 0
    return float(width), float((counts**2).sum())
