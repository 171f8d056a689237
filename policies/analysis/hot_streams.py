"""Hot streams (class HIGH): the largest of a workload, and their ends at its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.classification import high_edges
from rechannel.policies.analysis.placement_cost import unit_executors
from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload

__all__ = ["HotStream", "HotStreamEnds", "largest_streams"]

_Ends = tuple[IntArray, IntArray, str | None, FloatArray, bool]


@dataclass(frozen=True)
class HotStream:
    """One stream of class HIGH, in bytes per second.

    ``local`` where both its ends are on one executor.
    """

    upstream: str
    upstream_index: int
    downstream: str
    downstream_partition: int
    volume: float
    local: bool


def largest_streams(
    workload: Workload, placement: Placement, cluster: Cluster, limit: int | None = None
) -> tuple[HotStream, ...]:
    """Return the streams of class HIGH over all shuffles, the largest first.

    At most ``limit`` of them (None: all). Equal volumes stand in the order of blocks, upstream and downstream index.
    """
    if limit is not None and limit < 0:
        raise ModelError(f"limit: must not be negative, got {limit}")
    placement.validate(cluster, workload)
    ranked: list[tuple[float, int, int, int]] = []
    for block, (ups, downs, volumes) in enumerate(high_edges(workload)):
        best = np.argsort(-volumes, kind="stable")[:limit]
        ranked.extend((-float(volumes[i]), block, int(ups[i]), int(downs[i])) for i in best)
    ranked.sort()
    result = []
    for negative, block, up, down in ranked[:limit]:
        shuffle = workload.shuffles[block]
        source = unit_executors(cluster, workload.stage(shuffle.upstream), placement)[up]
        target = unit_executors(cluster, workload.stage(shuffle.downstream), placement)[down]
        local = bool(source == target >= 0)
        result.append(HotStream(shuffle.upstream, up, shuffle.downstream, down, -negative, local))
    return tuple(result)


class HotStreamEnds:
    """Ends of the hot streams of a workload, by placeable stage."""

    def __init__(self, workload: Workload) -> None:
        # Own units, other ends (executors where no stage is named), bytes per second, whether they are received.
        self._ends: dict[str, list[_Ends]] = {}
        placeable = {stage.key for stage in workload.placeable}
        for shuffle, (ups, downs, volumes) in zip(workload.shuffles, high_edges(workload), strict=True):
            if not len(volumes):
                continue
            for own, other, units, others in (
                (shuffle.upstream, shuffle.downstream, ups, downs),
                (shuffle.downstream, shuffle.upstream, downs, ups),
            ):
                if own in placeable:
                    key = other if other in placeable else None
                    self._ends.setdefault(own, []).append((units, others, key, volumes, own == shuffle.downstream))

    def local_bytes(
        self, stage: Stage, at: Mapping[str, IntArray], executors: int, *, received: bool = False
    ) -> Callable[[int], FloatArray] | None:
        """Return a function: unit to the bytes of its hot streams with an end on each executor.

        In bytes per batch, shape (E,). ``at``: executors of the units of every placeable stage. ``received``: only
        what the unit receives. None where the stage has no hot stream of the kind.
        """
        ends = [end for end in self._ends.get(stage.key, ()) if end[4] or not received]
        if not ends:
            return None
        rate = stage.batches_per_second or 1.0
        sorted_ends = []
        for units, others, key, volumes, _ in ends:
            order = np.argsort(units, kind="stable")
            where = (others if key is None else at[key][others])[order]
            starts = np.searchsorted(units[order], np.arange(stage.n + 1))
            sorted_ends.append((starts, where, volumes[order] / rate))
        rows: dict[int, FloatArray] = {}

        def local_to(unit: int) -> FloatArray:
            if unit not in rows:
                row = np.zeros(executors)
                for starts, where, volumes in sorted_ends:
                    mine = slice(int(starts[unit]), int(starts[unit + 1]))
                    row += sum_by_index(where[mine], volumes[mine], executors)
                rows[unit] = row
            return rows[unit]

        return local_to
