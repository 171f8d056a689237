"""Stream classification: the largest streams first, and clusters of them together.

Source: DSC-Heron, task scheduling by stream classification for Apache Heron (Zhang Yitian, Yu Jiong, Lu Liang,
Li Ziyang): classification of streams, allocation of stream clusters, and the scheduling that uses both. Its printed
formulas of the resource constraints are lost; the forms here follow its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.classification import StreamClass, classify
from rechannel.policies.analysis.placement_cost import inter_executor_volume, inter_node_volume
from rechannel.policies.model.arrays import BoolArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_count, check_number
from rechannel.policies.published.units import ROUNDING, Links, PartialPlacement, Units, flatten


@dataclass(frozen=True)
class StreamClassificationParameters:
    """Settings of ``stream-classification``.

    ``alpha``, ``beta`` and ``gamma``: the share of an executor's cores, memory and bandwidth that may be taken (0.7, 1
    and 1, the paper's). ``hot_includes_upper_mid``: cluster the streams of class MID above the mean too, as the
    authors' later program does. ``max_instances_per_executor``: the most partitions on one executor, None for no bound;
    the authors' program checks only this, with partitions over executors, rounded up.
    """

    alpha: float = 0.7
    beta: float = 1.0
    gamma: float = 1.0
    hot_includes_upper_mid: bool = False
    max_instances_per_executor: int | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma"):
            check_number(name, getattr(self, name), 0, above=True)
        check_count("max_instances_per_executor", self.max_instances_per_executor, 1)


def stream_classification(
    cluster: Cluster, workload: Workload, current: Placement, parameters: StreamClassificationParameters
) -> PolicyAnswer:
    """Place everything anew along the streams, from the largest to the smallest.

    A HIGH stream takes both its ends to one executor and everything that HIGH streams tie to them; a MID stream its
    own two ends; what is left goes to the least utilized executor. An end that does not fit where it should be goes to
    the least utilized executor that has room, and where none has, to the least utilized (a note counts these).

    Readings and deviations: the paper's node is an executor. Its least load is the lowest utilization, since executors
    differ. A partition on no available executor has no old node, and does not vote for one. What a floating stage runs
    on an executor is an end already placed, which is not followed to other streams; streams of one on an unavailable
    executor have no effect. The bandwidth constraint counts streams whose ends are both placed, one end here, and only
    where the bandwidth is known; the executor at the other end is not asked again.
    """
    units = flatten(cluster, workload, current)
    streams = classify(units.volume)
    plan = _Plan(units, parameters)
    hot = streams.classes == StreamClass.HIGH
    if parameters.hot_includes_upper_mid:
        hot |= (streams.classes == StreamClass.MID) & (units.volume > streams.mean)
    plan.run(hot, streams.classes != StreamClass.LOW)
    counts = np.bincount(streams.classes, minlength=3)
    return plan.partial.answer(f"streams: {counts[2]} high, {counts[1]} mid, {counts[0]} low")


def traffic(cluster: Cluster, workload: Workload, placement: Placement, _parameters: object = None) -> Objective:
    """Objective: bytes per second between nodes, then between executors."""
    return inter_node_volume(cluster, workload, placement), inter_executor_volume(cluster, workload, placement)


class _Plan:
    """Placement in the making."""

    def __init__(self, units: Units, parameters: StreamClassificationParameters) -> None:
        self.units = units
        self.parameters = parameters
        self.partial = PartialPlacement(units)
        self._home = units.home()
        self._limited = bool(np.isfinite(units.cluster.bandwidth).any())
        self._links = units.neighbors() if self._limited else None
        self._network = np.zeros(units.cluster.size)

    def run(self, hot: BoolArray, pulling: BoolArray) -> None:
        """Place every unit along the ``pulling`` streams, of which the ``hot`` ones are clustered."""
        units, where = self.units, self.partial.where
        reachable = np.concatenate((np.ones(units.size, np.bool_), units.cluster.available))
        pulling = pulling & reachable[units.source] & reachable[units.target]
        order = np.lexsort((units.target, units.source, -units.volume))
        clusters = _Clusters(units, order[(hot & pulling)[order]])
        low = order[~pulling[order]]
        for edge in order[pulling[order]].tolist():
            source, target = int(units.source[edge]), int(units.target[edge])
            if where[source] != UNPLACED and where[target] != UNPLACED:
                continue
            executor = self._executor(source, target)
            for end in (source, target):
                if where[end] == UNPLACED:
                    self._put(end, executor)
                    executor = int(where[end]) if executor == UNPLACED else executor
            if hot[edge]:
                for unit in clusters.follow(source, target, self.partial):
                    self._put(unit, executor)
        rest = np.concatenate((np.stack((units.source[low], units.target[low]), axis=1).ravel(), np.arange(units.size)))
        for end in rest.tolist():
            if where[end] == UNPLACED:
                self._put(end, UNPLACED)

    def _executor(self, source: int, target: int) -> int:
        """Return the executor of the end that is placed, else one of the ends' old executors."""
        placed = max(int(self.partial.where[source]), int(self.partial.where[target]))
        if placed != UNPLACED:
            return placed
        old = sorted({int(self._home[end]) for end in (source, target)} - {UNPLACED})
        return min(old, key=lambda executor: self.partial.utilization[executor], default=UNPLACED)

    def _put(self, unit: int, executor: int) -> None:
        fits = self._fits(unit)
        if executor == UNPLACED or not fits[executor]:
            self.partial.misfits += not fits.any()
            executor = self.partial.emptiest(fits if fits.any() else self.units.cluster.available)
        if self._links is not None:
            local = self.partial.local(self._links, unit)
            crossing = np.where(np.arange(len(local)) == executor, local.sum() - local[executor], local)
            self._network += crossing
        self.partial.put(unit, executor)

    def _fits(self, unit: int) -> BoolArray:
        parameters = self.parameters
        fits = self.partial.fits(unit, parameters.alpha, parameters.beta)
        if parameters.max_instances_per_executor is not None:
            fits &= self.partial.count < parameters.max_instances_per_executor
        if self._links is not None:
            local = self.partial.local(self._links, unit)
            after = self._network + local.sum() - local
            fits &= after <= parameters.gamma * self.units.cluster.bandwidth * (1 + ROUNDING)
        return fits


class _Clusters:
    """HIGH streams upstream and downstream of each end, the largest first."""

    def __init__(self, units: Units, order: IntArray) -> None:
        """``order``: indices of the HIGH streams, the largest first."""
        source, target, volume = units.source[order], units.target[order], units.volume[order]
        self._size = units.size
        self._up = Links.by(target, source, volume, units.ends)
        self._down = Links.by(source, target, volume, units.ends)
        self._done_up: set[int] = set()
        self._done_down: set[int] = set()

    def follow(self, source: int, target: int, partial: PartialPlacement) -> Iterator[int]:
        """Yield the unplaced units tied to a stream; each is placed before the next one is drawn.

        Upstream of its source and downstream of its target, and so on from each stream on the way, depth first.
        """
        stack = [self._steps(source, target)]
        while stack:
            step = next(stack[-1], None)
            if step is None:
                stack.pop()
            elif partial.where[step[0]] == UNPLACED:
                yield step[0]
                stack.append(self._steps(*step[1]))

    def _steps(self, source: int, target: int) -> Iterator[tuple[int, tuple[int, int]]]:
        # Nothing unplaced is left at an end that was followed completely: it is not followed again.
        if source < self._size and source not in self._done_up:
            for end in self._up.of(source)[0].tolist():
                yield end, (end, source)
            self._done_up.add(source)
        if target < self._size and target not in self._done_down:
            for end in self._down.of(target)[0].tolist():
                yield end, (target, end)
            self._done_down.add(target)


STREAM_CLASSIFICATION = FunctionPolicy(
    name="stream-classification",
    scheduler=stream_classification,
    measure=traffic,
    parameters=StreamClassificationParameters,
    summary="Keeps large streams and what they are tied to on one executor.",
    source="DSC-Heron: task scheduling by stream classification for Apache Heron (Zhang and others)",
)
