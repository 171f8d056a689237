"""Last step of ``adaptive``: changes that are evaluated by the objective of all stages.

Stages of different queries lengthen each other, and the place of a partition changes what others fetch; a search that
looks at one stage at a time does not see that. Pricing every change for all stages takes long, so the number of changes
is limited. The first improvement is made, out of the executors that hold a stage up; in a local optimum some changes at
random follow (iterated local search, Lourenço, Martin and Stützle 2003), as long as the budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rechannel.policies.adaptive.context import SearchContext
from rechannel.policies.analysis.placement_cost import (
    SATURATED,
    Cost,
    fetch_seconds,
    finish_time,
    finish_times,
    state_bytes_held,
    unit_executors,
)
from rechannel.policies.model.arrays import FloatArray, IntArray, sum_by_index
from rechannel.policies.model.placement import Placement

_Changes = tuple[tuple[int, int, int], ...]  # stage, unit, executor
_SAME = 1e-9
_PERTURBED = 4  # units that change place at random
_PATIENCE = 10  # perturbations in a row without a gain
_SWAPS = 8  # partners of a unit on one executor that are tried, those of about the same size


def local_search(context: SearchContext, placement: Placement, min_gain: float, budget: int) -> Placement:
    """Change the placement as long as that lowers its cost and that of its moves.

    The cost is :func:`placement_cost` under the limit of the context's parameters. ``placement`` has every partition on
    an available executor. ``min_gain``: least share of the stage time that a change must gain; ``budget``: most changes
    that are evaluated.
    """
    objective = _IncrementalObjective(context, placement)
    best, budget = _descend(objective, min_gain, budget)
    random = np.random.default_rng(0)  # a fixed seed keeps the policy deterministic
    patience = _PATIENCE
    while budget > 0 and patience > 0 and context.cluster.available.sum() > 1:
        before = objective.placement()
        budget -= _PERTURBED
        objective.apply(objective.perturbation(random))
        cost, budget = _descend(objective, min_gain, budget)
        if cost.improves(best, min_gain):
            best, patience = cost, _PATIENCE
        else:
            patience -= 1
            objective.restore(before)
    return objective.placement()


def _descend(objective: _IncrementalObjective, min_gain: float, budget: int) -> tuple[Cost, int]:
    """Make changes until none helps; return the cost and the rest of the budget."""
    best = objective.cost()
    improved = True
    while improved and budget > 0:
        improved = False
        for changes in objective.candidates():
            if budget <= 0:
                break
            budget -= 1
            undo = objective.apply(changes)
            cost = objective.cost()
            if cost.improves(best, min_gain):
                best, improved = cost, True
                break
            objective.apply(undo)
    return best, budget


class _IncrementalObjective:
    """Objective of a placement, updated with each change.

    Arrays have rows for the S placeable stages or the Q queries, and a column for each of the E executors.
    """

    def __init__(self, context: SearchContext, placement: Placement) -> None:
        cluster, workload = context.cluster, context.workload
        self._cluster, self._workload, self._limit = cluster, workload, context.parameters.limit
        self._stages, self._home = context.stages, context.home
        self._slots, self._capacity = context.slots, context.capacity
        # Seconds per second that it costs to move each partition from its home.
        self._move_cost = {
            stage.key: np.array([context.move_cost(1, size) for size in stage.state_bytes.tolist()])
            for stage in self._stages
        }
        self._paid = sum(
            float(cost[(self._home[key] >= 0) & (placement[key] != self._home[key])].sum())
            for key, cost in self._move_cost.items()
        )
        self._at = {stage.key: placement[stage.key].copy() for stage in self._stages}
        self._query = np.array([context.query[stage.query] for stage in self._stages])
        self._rate = np.array([stage.batches_per_second for stage in self._stages])
        self._load = np.zeros((len(context.query), cluster.size))
        self._held = state_bytes_held(cluster, workload, placement)
        self._fixed = 0.0
        for stage in workload.stages:
            work = sum_by_index(unit_executors(cluster, stage, placement), stage.busy, cluster.size)
            self._load[context.query[stage.query]] += stage.batches_per_second * work
            if not stage.placeable:
                self._fixed += stage.batches_per_second * float((stage.busy / self._capacity).max())
        self._makespan = np.array([finish_times(cluster, stage.busy, self._at[stage.key]) for stage in self._stages])
        self._fetching = bool(np.isfinite(cluster.bandwidth).any() and workload.shuffles)
        self._fetch_seconds = np.zeros(self._makespan.shape)
        self._after: dict[str, list[int]] = {}  # stage -> indices of the stages whose fetching it changes
        number = {stage.key: index for index, stage in enumerate(self._stages)}
        if self._fetching:
            for index, stage in enumerate(self._stages):
                self._fetch_seconds[index] = fetch_seconds(cluster, workload, stage, self._at)
            for shuffle in workload.shuffles:
                for end in (shuffle.upstream, shuffle.downstream):
                    if shuffle.downstream in number and end in number:
                        self._after.setdefault(end, []).append(number[shuffle.downstream])

    def placement(self) -> Placement:
        """Return the placement as it is now."""
        return Placement(self._at)

    def cost(self) -> Cost:
        """Return :func:`placement_cost`, with the cost of the moves on top of the stage time."""
        cluster = self._cluster
        load = self._load.sum(axis=0)
        over = np.maximum(self._held - cluster.memory_bytes, 0.0)
        short = np.maximum(load / cluster.speed - self._limit * cluster.cores, 0.0)
        path = self._fixed + float(self._rate @ self._seconds().max(axis=1))
        return Cost(
            float(over[over > _SAME * cluster.memory_bytes].sum()),
            float(short[short > _SAME].sum()),
            path + self._paid,
        )

    def apply(self, changes: _Changes) -> _Changes:
        """Make the changes; return those that undo them."""
        undo = tuple((stage, unit, int(self._at[self._stages[stage].key][unit])) for stage, unit, _ in changes)
        touched: set[tuple[int, int]] = set()
        for (index, unit, executor), (_, _, old) in zip(changes, undo, strict=True):
            stage = self._stages[index]
            self._at[stage.key][unit] = executor
            home = int(self._home[stage.key][unit])
            if home >= 0:
                self._paid += float(self._move_cost[stage.key][unit]) * (int(executor != home) - int(old != home))
            for where, sign in ((old, -1.0), (executor, 1.0)):
                self._load[self._query[index], where] += sign * stage.batches_per_second * stage.busy[unit]
                self._held[where] += sign * stage.state_bytes[unit]
                touched.add((index, where))
        for index, executor in touched:
            stage = self._stages[index]
            units = np.flatnonzero(self._at[stage.key] == executor)
            self._makespan[index, executor] = finish_time(stage.busy[units].tolist(), int(self._slots[executor]))
        for index in {number for stage, _, _ in changes for number in self._after.get(self._stages[stage].key, ())}:
            self._fetch_seconds[index] = fetch_seconds(self._cluster, self._workload, self._stages[index], self._at)
        return undo

    def perturbation(self, random: np.random.Generator) -> _Changes:
        """Draw some changes at random, to leave a local optimum."""
        targets = np.flatnonzero(self._cluster.available)
        chosen: dict[tuple[int, int], int] = {}
        for _ in range(_PERTURBED):
            index = int(random.integers(len(self._stages)))
            chosen[index, int(random.integers(self._stages[index].n))] = int(random.choice(targets))
        return tuple((index, unit, executor) for (index, unit), executor in chosen.items())

    def restore(self, placement: Placement) -> None:
        """Return to a placement."""
        self.apply(
            tuple(
                (index, unit, int(placement[stage.key][unit]))
                for index, stage in enumerate(self._stages)
                for unit in np.flatnonzero(placement[stage.key] != self._at[stage.key]).tolist()
            )
        )

    def candidates(self) -> Iterator[_Changes]:
        """Yield moves and swaps out of the slowest executor of each stage.

        First of the stage's own units, then of the units that other queries have on that executor.
        """
        seconds = self._seconds()
        for index in np.argsort(-self._rate * seconds.max(axis=1), kind="stable").tolist():
            slowest = int(seconds[index].argmax())
            others = np.flatnonzero(self._cluster.available & (np.arange(self._cluster.size) != slowest))
            by_time = others[np.argsort(seconds[index][others], kind="stable")].tolist()
            yield from self._out_of(index, slowest, by_time)
            use = self._load.sum(axis=0) / self._capacity
            by_use = others[np.argsort(use[others], kind="stable")].tolist()
            for other in np.flatnonzero(self._query != self._query[index]).tolist():
                yield from self._out_of(other, slowest, by_use)

    def _out_of(self, index: int, source: int, targets: list[int]) -> Iterator[_Changes]:
        stage = self._stages[index]
        at = self._at[stage.key].copy()
        units = np.flatnonzero(at == source)
        units = units[np.argsort(-stage.busy[units], kind="stable")]
        for unit in units.tolist():
            for target in targets:
                yield ((index, unit, target),)
        for unit in units.tolist():
            for target in targets:
                for partner in _swap_partners(stage.busy, np.flatnonzero(at == target), unit):
                    yield ((index, unit, target), (index, partner, source))

    def _seconds(self) -> FloatArray:
        left = 1.0 - (self._load.sum(axis=0) - self._load[self._query]) / self._capacity
        left = np.minimum(np.maximum(left, 1.0 - SATURATED), 1.0)
        return np.asarray(self._makespan / (self._cluster.speed * left) + self._fetch_seconds)


def _swap_partners(busy: FloatArray, partners: IntArray, unit: int) -> list[int]:
    """Return partners for a swap, those that are a little smaller than the unit first."""
    smaller = partners[busy[partners] < busy[unit]]
    closest: list[int] = smaller[np.argsort(busy[unit] - busy[smaller], kind="stable")][:_SWAPS].tolist()
    return closest
