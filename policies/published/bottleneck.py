"""Bottleneck scheduler: a dynamic program for the fastest slowest executor or link.

Source: MT-Scheduler (Sinayyid and Zhu, The Journal of Supercomputing 76(12), 2020), which maps a topology onto unequal
nodes by a dynamic program that minimizes the computing and transfer bottlenecks; the throughput is one over that. Its
recurrence is not at hand, the one here follows its abstract.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.placement_cost import executor_busy, remote_received, unit_executors
from rechannel.policies.model.arrays import FloatArray, IntArray, sum_by_index
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_count
from rechannel.policies.published.units import ROUNDING, Links, Units, flatten


@dataclass(frozen=True)
class BottleneckParameters:
    """Settings of ``bottleneck``.

    ``lookback``: number of earlier partitions whose alternatives are still compared, None for all.
    """

    lookback: int | None = 64

    def __post_init__(self) -> None:
        check_count("lookback", self.lookback, 1)


def bottleneck_time(cluster: Cluster, workload: Workload, placement: Placement) -> float:
    """Return the seconds of work per second of the slowest part.

    A part is the load of an available executor over its cores, or the bytes per second that it fetches from others over
    its bandwidth. Above 1 the work cannot keep up; one over it is how many times the present input could be served.
    """
    busy = executor_busy(cluster, workload, placement) / cluster.cores
    fetched = np.zeros(cluster.size)
    for shuffle in workload.shuffles:
        up = unit_executors(cluster, workload.stage(shuffle.upstream), placement)
        down = unit_executors(cluster, workload.stage(shuffle.downstream), placement)
        fetched += sum_by_index(down, remote_received(shuffle, up, down), cluster.size)
    slowest = np.maximum(busy, fetched / cluster.bandwidth)
    return float(slowest[cluster.available].max(initial=0.0))


def bottleneck(
    cluster: Cluster, workload: Workload, current: Placement, parameters: BottleneckParameters
) -> PolicyAnswer:
    """Place everything anew by a dynamic program over units and executors.

    B(i, j) is the least bottleneck of units 0..i with unit i on executor j. B(i, j) is the least over k, the executor
    of unit i - 1, of the largest of B(i - 1, k), the load of j with unit i, and the transfers that this causes. Each
    state carries the loads, transfers and places of the way it came, so that a unit with several predecessors fetches
    from where they are.

    Readings and deviations: units stand in the order of the stages, the largest first within one, since nothing links
    the partitions of a stage. Transfers of all streams into an executor add up, as they share its link. Ties are
    broken by the sum of squares of all shares; otherwise the rest would pile up on the first executor. Places further
    back than ``lookback`` are fixed as they are in the best state, and states that differ are dropped; this bounds the
    time. State memory and the current placement do not count.
    """
    units = flatten(cluster, workload, current)
    program = _DynamicProgram(units, units.size if parameters.lookback is None else parameters.lookback)
    placement = units.placement(program.run())
    # Measured anew: what the program carried along has the rounding of all its steps in it.
    least = bottleneck_time(cluster, workload, placement)
    return PolicyAnswer(placement, (f"the slowest part needs {least:.3g} s per second",))


class _DynamicProgram:
    """States (rows), one for each executor of the last unit, by executor (columns)."""

    def __init__(self, units: Units, lookback: int) -> None:
        self.units = units
        self.choices = np.flatnonzero(units.cluster.available)
        size = len(self.choices)
        self.lookback = lookback
        self.order = np.lexsort((-units.load, units.stage_of))
        self.capacity = units.capacity[self.choices]
        self.bandwidth = units.cluster.bandwidth[self.choices]
        self.load = np.tile(units.fixed[self.choices], (size, 1))
        self.fetch = np.tile(_between_fixed(units)[self.choices], (size, 1))
        self.slowest = np.full(size, np.inf)  # one state to start from
        self.slowest[0] = np.maximum(self.load[0] / self.capacity, self.fetch[0] / self.bandwidth).max()
        self.squares = np.zeros(size)
        # Ends are looked up by their place in the order; what never moves stands behind.
        self.where = np.full((size, units.ends), -1, dtype=np.int64)
        self.where[:, units.size + self.choices] = np.arange(size)
        self.step_of = np.arange(units.ends)
        self.step_of[self.order] = np.arange(units.size)
        fetching = bool(np.isfinite(self.bandwidth).any())
        streams = slice(None) if fetching else slice(0)
        self.up = Links.by(units.target[streams], units.source[streams], units.volume[streams], units.ends)
        fixed = units.target[streams] >= units.size
        self.out = Links.by(
            units.source[streams][fixed], units.target[streams][fixed], units.volume[streams][fixed], units.ends
        )

    def run(self) -> IntArray:
        """Return the executor of each unit, (U,)."""
        for step, unit in enumerate(self.order.tolist()):
            self._advance(step, unit)
            if step >= self.lookback:
                self._settle(step - self.lookback)
        result = np.empty(self.units.size, dtype=np.int64)
        result[self.order] = self.choices[self.where[self._best(), : self.units.size]]
        return result

    def _advance(self, step: int, unit: int) -> None:
        work, size = self.units.load[unit], len(self.choices)
        load = self.load + work
        fetch, sent = self._fetches(unit)
        shares = np.maximum(load / self.capacity, fetch / self.bandwidth)
        level = np.maximum(self.slowest[:, None], shares)
        if sent is not None:
            level = np.maximum(level, _largest_of_others((self.fetch + sent) / self.bandwidth))
        squares = self.squares[:, None] + (load**2 - self.load**2) / self.capacity**2
        squares = squares + (fetch**2 - self.fetch**2) / self.bandwidth**2
        least = level.min(axis=0)
        back = np.where(level <= least * (1 + ROUNDING), squares, np.inf).argmin(axis=0)
        state = np.arange(size)
        self.slowest, self.squares = level[back, state], squares[back, state]
        own_load, own_fetch = load[back, state], fetch[back, state]
        self.load, self.fetch = self.load[back], self.fetch[back]
        if sent is not None:
            self.fetch += sent
        self.load[state, state], self.fetch[state, state] = own_load, own_fetch
        open_steps = slice(max(step - self.lookback, 0), step)
        self.where[:, open_steps] = self.where[back, open_steps]
        self.where[:, step] = state

    def _fetches(self, unit: int) -> tuple[FloatArray, FloatArray | None]:
        """Return what each executor fetches with the unit, and what fixed ends fetch of it."""
        size = len(self.choices)
        ends, volumes = self.up.of(unit)
        fetch = self.fetch
        if len(ends):
            at = self.where[:, self.step_of[ends]]
            placed = at >= 0
            flat = (np.arange(size)[:, None] * size + at)[placed]
            local = sum_by_index(flat, np.broadcast_to(volumes, at.shape)[placed], size * size)
            fetch = fetch + np.maximum(volumes.sum() - local.reshape(size, size), 0.0)
        ends, volumes = self.out.of(unit)
        if not len(ends):
            return fetch, None
        return fetch, sum_by_index(self.where[0, ends], volumes, size)

    def _settle(self, step: int) -> None:
        fixed = self.where[self._best(), step]
        self.slowest[self.where[:, step] != fixed] = np.inf
        self.where[:, step] = fixed

    def _best(self) -> int:
        least = self.slowest.min()
        return int(np.where(self.slowest <= least * (1 + ROUNDING), self.squares, np.inf).argmin())


def _between_fixed(units: Units) -> FloatArray:
    """Return the bytes per second that each executor fetches between floating stages."""
    between = (units.source >= units.size) & (units.source != units.target)
    return sum_by_index(np.where(between, units.target - units.size, -1), units.volume, units.cluster.size)


def _largest_of_others(values: FloatArray) -> FloatArray:
    """For each row and column the largest of the row's other columns, 0 where there is none."""
    if values.shape[1] == 1:
        return np.zeros(values.shape)
    rows, first = np.arange(len(values)), values.argmax(axis=1)
    result = np.repeat(values[rows, first][:, None], values.shape[1], axis=1)
    others = values.copy()
    others[rows, first] = -np.inf
    result[rows, first] = others.max(axis=1)
    return result


def _objective(cluster: Cluster, workload: Workload, placement: Placement, _parameters: object) -> Objective:
    return (bottleneck_time(cluster, workload, placement),)


BOTTLENECK = FunctionPolicy(
    name="bottleneck",
    scheduler=bottleneck,
    measure=_objective,
    parameters=BottleneckParameters,
    summary="Minimizes the slowest executor or link, so that most input can be served.",
    source="MT-Scheduler (Sinayyid and Zhu, The Journal of Supercomputing 76(12), 2020)",
)
