"""Fair redistribution of partitions of drained and overloaded executors.

Source: the pipelined migration scheduling work (Souravlas and others): tasks that leave a node are shared out by the
free capacity of the others in three steps (:func:`~rechannel.policies.analysis.queueing.fair_shares`), near nodes
first, and through relay nodes to the next sub-cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.placement_cost import SATURATED, executor_busy
from rechannel.policies.analysis.queueing import ShareOverflowError, fair_shares
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy, Objective, check_choice, check_count, check_number
from rechannel.policies.published.units import ROUNDING, PartialPlacement, Units, best_of, flatten

INVERSE_DISTANCE = "inverse-distance"


@dataclass(frozen=True)
class FairRedistributionParameters:
    """Settings of ``fair-redistribution``.

    ``limit``: the utilization above which partitions leave an executor (0.95). ``weight``: "none", or
    "inverse-distance" for near executors to take more. ``sub_clusters``: ask the sub-cluster of the source first, then
    the next nearest; else ask all executors at once. ``max_moves``: the most partitions that leave overloaded
    executors, None for no bound; partitions that have to leave an unavailable executor do not count.
    """

    limit: float = SATURATED
    weight: str = "none"
    sub_clusters: bool = True
    max_moves: int | None = None

    def __post_init__(self) -> None:
        check_number("limit", self.limit, 0, above=True)
        check_choice("weight", self.weight, ("none", INVERSE_DISTANCE))
        check_count("max_moves", self.max_moves, 0)


def fair_redistribution(
    cluster: Cluster, workload: Workload, current: Placement, parameters: FairRedistributionParameters
) -> PolicyAnswer:
    """Share out partitions of unavailable executors, then the surplus of overloaded ones.

    For each source the candidates' shares are counted by :func:`~rechannel.policies.analysis.queueing.fair_shares`,
    capped by the memory they have for states of the mean size. Within the counts the partition with the largest load
    is placed first, on the candidate of lowest utilization with it, where its state fits if possible. What the shares
    of one sub-cluster do not hold goes on to the next. Nothing else moves.

    Readings and deviations: utilization counts all work, floating stages too. The paper does not say which partitions
    leave an overloaded executor: here the lightest that alone is enough, else the heaviest ones until the limit is
    kept. A partition stays if every candidate would exceed the limit with it. Candidates are all other executors; for
    an overloaded executor, those below the limit. Free capacity is counted in tasks, whatever their size, so it can be
    too small for one partition. What no share held goes one by one to the executor of lowest utilization: from an
    unavailable executor even above the limit (a note counts these), from an overloaded one only within it. Executors of
    the source's node are as near as the nearest other. A partition on no known executor has no neighbors, so all
    executors are candidates at once.

    Raises ``ScaleOutError`` where no partition has to leave, an executor is above the limit and no other is below it.
    """
    state = _Redistribution(flatten(cluster, workload, current), parameters)
    homeless = np.flatnonzero(state.assignment == UNPLACED)
    notes = list(state.place_homeless(homeless))
    if parameters.max_moves == 0:
        notes.append("overloaded executors are left alone: max_moves is 0")
    else:
        notes += state.relieve(homeless)
    return state.answer(*(notes or ["no executor is above the limit"]))


def surplus(load: FloatArray, excess: float) -> list[int]:
    """Return indices of the loads, (n,), that together reach ``excess``.

    The lightest that is enough alone, else the heaviest, and so on for the rest; ties: the first.
    """
    order = np.argsort(-load, kind="stable")
    falling = -load[order]
    chosen: list[int] = []
    for start in range(len(order)):
        enough = int(np.searchsorted(falling, -excess * (1 - ROUNDING), side="right"))
        if excess <= 0 or falling[start] == 0:
            break
        if enough > start:
            first = int(np.searchsorted(falling, falling[enough - 1], side="left"))
            return [*chosen, int(order[max(first, start)])]
        chosen.append(int(order[start]))
        excess += float(falling[start])
    return chosen


class _Redistribution(PartialPlacement):
    """Placement from which units are taken, and to which they return elsewhere."""

    def __init__(self, units: Units, parameters: FairRedistributionParameters) -> None:
        super().__init__(units, units.home())
        self.parameters = parameters

    def place_homeless(self, homeless: IntArray) -> Iterator[str]:
        """Place all units that are nowhere."""
        if not homeless.size:
            return
        yield f"{homeless.size} partitions had to be placed: their executor is unavailable or unknown"
        available, rest = self.units.cluster.available, []
        for source in np.unique(self.units.current[homeless]).tolist():
            leaving = homeless[self.units.current[homeless] == source]
            rest += self._share(leaving, source, available, np.inf)
        above = 0
        for unit in self._heaviest_first(rest):
            executor = self._best(unit, np.flatnonzero(available))
            self.put(unit, executor)
            above += bool(self.utilization[executor] > self.parameters.limit)
        if above:
            yield f"{above} of them are more than the free capacity and were put on the least utilized"

    def relieve(self, moved: IntArray) -> Iterator[str]:
        """Take off what executors have above the limit, as far as others take it; not ``moved``."""
        available, limit = self.units.cluster.available, self.parameters.limit
        over = available & (self.utilization > limit * (1 + ROUNDING))
        if not over.any():
            return
        below = available & (self.utilization < limit)
        if not below.any() and not moved.size:
            raise ScaleOutError(f"every executor is at {limit:.0%} of its capacity or more: add executors")
        left = self.parameters.max_moves
        movable = np.ones(self.units.size, np.bool_)
        movable[moved] = False
        relieved = 0
        for source in np.flatnonzero(over).tolist():
            leaving = self._surplus(source, below, movable)[:left]
            for unit in leaving:
                self.put(unit, UNPLACED)
            unshared = self._share(np.array(leaving, dtype=np.int64), source, below, limit)
            for unit in self._heaviest_first(unshared):
                executor = self._best(unit, self._within(unit, np.flatnonzero(below), limit))
                self.put(unit, source if executor == UNPLACED else executor)
            gone = sum(int(self.where[unit]) != source for unit in leaving)
            relieved += gone
            left = None if left is None else left - gone
        yield f"partitions that leave executors above {limit:.0%} of their capacity: {relieved}, of {int(over.sum())}"

    def _surplus(self, source: int, below: BoolArray, movable: BoolArray) -> list[int]:
        units, limit = self.units, self.parameters.limit
        room = float((limit * units.capacity - self.load)[below].max(initial=0.0))
        members = np.flatnonzero((self.assignment == source) & movable & (units.load <= room * (1 + ROUNDING)))
        excess = float(self.load[source] - limit * units.capacity[source])
        return [int(members[index]) for index in surplus(units.load[members], excess)]

    def _share(self, leaving: IntArray, source: int, candidates: BoolArray, limit: float) -> list[int]:
        """Place units by shares, one sub-cluster after the other; return those left over."""
        rest = self._heaviest_first(leaving.tolist())
        for group, distances in self._groups(source, candidates):
            if rest:
                rest = self._assign(rest, group, self._shares(rest, group, distances), limit)
        return rest

    def _groups(self, source: int, candidates: BoolArray) -> Iterator[tuple[IntArray, FloatArray | None]]:
        """Yield each sub-cluster's candidates with their distances, from the source's own on."""
        everyone = np.flatnonzero(candidates)
        if source == UNPLACED or not everyone.size:
            yield everyone, None
            return
        cluster = self.units.cluster
        distances = cluster.distances_from(source)
        if not self.parameters.sub_clusters:
            yield everyone, distances[everyone]
            return
        groups = [
            everyone[cluster.subcluster[everyone] == number] for number in np.unique(cluster.subcluster[everyone])
        ]
        own = cluster.subcluster[source]
        groups.sort(key=lambda group: (cluster.subcluster[group[0]] != own, distances[group].min(), group[0]))
        yield from ((group, distances[group]) for group in groups)

    def _shares(self, units: list[int], group: IntArray, distances: FloatArray | None) -> IntArray:
        """Return how many of the units each executor of the group gets."""
        count, cluster = len(units), self.units.cluster
        caps, mean = np.full(len(group), count), float(self.units.memory[units].mean())
        if mean > 0:
            spare = np.maximum(cluster.memory_bytes[group] - self.memory[group], 0.0) / mean
            caps = np.floor(np.minimum(spare * (1 + ROUNDING), count)).astype(np.int64)
        weights = None
        if self.parameters.weight == INVERSE_DISTANCE and distances is not None:
            nearest = distances[distances > 0].min(initial=np.inf)
            weights = 1.0 / np.maximum(distances, nearest) if np.isfinite(nearest) else None
        try:
            return fair_shares(count, self.utilization[group], weights=weights, caps=caps, distances=distances)
        except ShareOverflowError as error:
            return error.shares
        except ScaleOutError:
            return np.zeros(len(group), dtype=np.int64)

    def _assign(self, units: list[int], group: IntArray, shares: IntArray, limit: float) -> list[int]:
        counts, rest = shares.copy(), []
        for unit in units:
            executor = self._best(unit, self._within(unit, group[counts > 0], limit))
            if executor == UNPLACED:
                rest.append(unit)
            else:
                self.put(unit, executor)
                counts[group == executor] -= 1
        return rest

    def _within(self, unit: int, choices: IntArray, limit: float) -> IntArray:
        after = self.load[choices] + self.units.load[unit]
        within: IntArray = choices[after <= limit * self.units.capacity[choices] * (1 + ROUNDING)]
        return within

    def _best(self, unit: int, choices: IntArray) -> int:
        """Return the choice of lowest utilization with the unit, where its state fits if any."""
        if not choices.size:
            return UNPLACED
        units = self.units
        fits = self.memory + units.memory[unit] <= units.cluster.memory_bytes * (1 + ROUNDING)
        use = (self.load + units.load[unit]) / units.capacity
        return best_of(choices, ((~fits).astype(np.float64), use, self.memory))

    def _heaviest_first(self, units: list[int]) -> list[int]:
        return sorted(units, key=lambda unit: (-self.units.load[unit], -self.units.memory[unit], unit))


def overload(cluster: Cluster, workload: Workload, placement: Placement, _parameters: object = None) -> Objective:
    """Objective: load above 95 % of the cores, highest utilization, sum of its squares.

    The limit is the default one: a lower parameter ``limit`` is judged by the other two.
    """
    busy, available = executor_busy(cluster, workload, placement), cluster.available
    use = (busy / cluster.cores)[available]
    excess = np.maximum(busy - SATURATED * cluster.cores, 0.0)[available]
    return float(excess.sum()), float(use.max(initial=0.0)), float(use @ use)


FAIR_REDISTRIBUTION = FunctionPolicy(
    name="fair-redistribution",
    scheduler=fair_redistribution,
    measure=overload,
    parameters=FairRedistributionParameters,
    summary="Shares out what drained and overloaded executors have to give up, by free capacity.",
    source="pipelined migration scheduling (Souravlas and others)",
)
