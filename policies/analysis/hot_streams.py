"""Hot streams (class HIGH): the largest of a workload, and their ends at its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rechannel.policies.analysis.classification import high_edges
from rechannel.policies.analysis.placement_cost import unit_executors
from rechannel.policies.model.arrays import FloatArray, IntArray, ModelError, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload


class _Ends(NamedTuple):
    """Hot streams of one shuffle, by the unit of one of its stages.

    ``starts`` (n + 1,): where the streams of each unit begin; ``others``: units of the stage at the other end, or
    executors where ``stage``, its key, is None; ``volumes``: bytes per batch; ``received``: whether the unit receives
    them.
    """

    starts: IntArray
    others: IntArray
    volumes: FloatArray
    stage: str | None
    received: bool

    @classmethod
    def of(
        cls, own: Stage, units: IntArray, others: IntArray, volumes: FloatArray, stage: str | None, received: bool
    ) -> _Ends:
        """Return the streams of a stage's units; ``volumes`` in bytes per second."""
        order = np.argsort(units, kind="stable")
        starts = np.searchsorted(units[order], np.arange(own.n + 1))
        return cls(starts, others[order], volumes[order] / (own.batches_per_second or 1.0), stage, received)


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
        if limit and len(volumes) > limit:  # only the largest are put in order: there may be millions
            large = np.flatnonzero(volumes >= np.partition(volumes, -limit)[-limit])
            ups, downs, volumes = ups[large], downs[large], volumes[large]
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
        # Own units, other ends, bytes per second, key of the stage there, whether they are received.
        self._streams: dict[str, list[tuple[IntArray, IntArray, FloatArray, str | None, bool]]] = {}
        self._ends: dict[str, list[_Ends]] = {}  # of the stages that were asked for
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
                    self._streams.setdefault(own, []).append((units, others, volumes, key, own == shuffle.downstream))

    def local_bytes(
        self, stage: Stage, at: Mapping[str, IntArray], executors: int, *, received: bool = False
    ) -> Callable[[int], FloatArray] | None:
        """Return a function: unit to the bytes of its hot streams with an end on each executor.

        In bytes per batch, shape (E,). ``at``: executors of the units of every placeable stage. ``received``: only
        what the unit receives. None where the stage has no hot stream of the kind.
        """
        if stage.key not in self._ends:
            self._ends[stage.key] = [_Ends.of(stage, *streams) for streams in self._streams.pop(stage.key, ())]
        ends = [it for it in self._ends[stage.key] if it.received or not received]
        if not ends:
            return None
        anywhere = np.arange(executors)  # what a floating stage ran on an executor is there
        places = [anywhere if it.stage is None else at[it.stage] for it in ends]
        rows: dict[int, FloatArray] = {}

        def local_to(unit: int) -> FloatArray:
            if unit not in rows:
                row = np.zeros(executors)
                for it, place in zip(ends, places, strict=True):
                    own = slice(int(it.starts[unit]), int(it.starts[unit + 1]))
                    row += sum_by_index(place[it.others[own]], it.volumes[own], executors)
                rows[unit] = row
            return rows[unit]

        return local_to
