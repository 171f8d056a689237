"""Hot streams (class HIGH): the largest of a workload, and their ends at its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rechannel.policies.analysis.classification import high_cut, high_edges
from rechannel.policies.analysis.placement_cost import unit_executors
from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import Shuffle
from rechannel.policies.model.workload import Stage, Workload


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
    least = 0.0
    if limit:  # the largest ones of that many entries are as many streams: smaller ones are not among them
        peaks = np.concatenate([np.empty(0), *(shuffle.largest() for shuffle in workload.shuffles)])
        least = float(np.partition(peaks, -limit)[-limit]) if len(peaks) > limit else 0.0
    for block, (ups, downs, volumes) in enumerate(high_edges(workload, least)):
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


class _End(NamedTuple):
    """One end of a shuffle, at a placeable stage.

    ``received``: whether the stage receives; ``stage``: key of the stage at the other end, None for a floating one.
    """

    shuffle: Shuffle
    received: bool
    stage: str | None


class HotStreamEnds:
    """Ends of the hot streams of a workload, by placeable stage."""

    def __init__(self, workload: Workload) -> None:
        self._cut = high_cut(workload)
        self._ends: dict[str, list[_End]] = {}
        placeable = {stage.key for stage in workload.placeable}
        for shuffle in workload.shuffles:
            if shuffle.largest().max(initial=0.0) <= self._cut:
                continue
            up, down = (key if key in placeable else None for key in (shuffle.upstream, shuffle.downstream))
            for own, end in ((up, _End(shuffle, False, down)), (down, _End(shuffle, True, up))):
                if own is not None:
                    self._ends.setdefault(own, []).append(end)

    def local_bytes(
        self, stage: Stage, at: Mapping[str, IntArray], executors: int, *, received: bool = False
    ) -> Callable[[int], FloatArray] | None:
        """Return a function: unit to the bytes of its hot streams with an end on each executor.

        In bytes per batch, shape (E,). ``at``: executors of the units of every placeable stage. ``received``: only
        what the unit receives. None where the stage has no hot stream of the kind.
        """
        ends = [end for end in self._ends.get(stage.key, ()) if end.received or not received]
        if not ends:
            return None
        anywhere = np.arange(executors)  # what a floating stage ran on an executor is there
        places = [anywhere if end.stage is None else at[end.stage] for end in ends]
        rate = stage.batches_per_second or 1.0
        rows: dict[int, FloatArray] = {}

        def local_to(unit: int) -> FloatArray:
            if unit not in rows:
                row = np.zeros(executors)
                for end, place in zip(ends, places, strict=True):
                    others, volumes = end.shuffle.above_at(unit, self._cut, received=end.received)
                    row += sum_by_index(place[others], volumes / rate, executors)
                rows[unit] = row
            return rows[unit]

        return local_to
