"""The last touch of ``adaptive``: moves and swaps priced by the whole objective, not by one stage's.

Stages of different queries lengthen each other, and where a partition goes changes what others fetch; looking at one
stage at a time does not see that. Here every change is priced for all stages together, which only small problems have
the time for. First improvement, over the executors that hold a stage up, and from a dead end on after some changes at
random (iterated local search, Lourenço, Martin and Stützle 2003), as long as the budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rechannel.policies.adaptive.two_executors import finish
from rechannel.policies.analysis.placement_cost import (
    SATURATED,
    fetch_seconds,
    improves,
    scheduled,
    task_slots,
    unit_executors,
)
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload

__all__ = ["polished"]

Cost = tuple[float, float, float]
_Changes = tuple[tuple[int, int, int], ...]  # stage, unit, executor
_SAME = 1e-9
_KICK = 4  # units that change place at random
_PATIENCE = 10  # kicks in a row that may lead nowhere
_SWAPS = 8  # partners on one executor, those of about the same size


def polished(
    cluster: Cluster,
    workload: Workload,
    placement: Placement,
    least: float,
    budget: int,
    limit: float,
    home: Mapping[str, IntArray],
    price: Mapping[str, FloatArray],
) -> Placement:
    """The placement with every change that lowers :func:`placement_cost` by more than the share ``least``.

    At most ``budget`` changes are priced. Every partition must be on an available executor. ``price``: what it costs
    for each partition of a stage, in seconds per second, not to be on its ``home`` (negative: it has none).
    """
    books = _IncrementalObjective(cluster, workload, placement, limit, home, price)
    best, budget = _descended(books, least, budget)
    random = np.random.default_rng(0)  # a fixed seed: the same question has the same answer
    patience = _PATIENCE
    while budget > 0 and patience > 0 and cluster.available.sum() > 1:
        kept = books.placement()
        budget -= _KICK
        books.make(books.kick(random))
        found, budget = _descended(books, least, budget)
        if improves(found, best, least):
            best, patience = found, _PATIENCE
        else:
            patience -= 1
            books.restore(kept)
    return books.placement()


def _descended(books: _IncrementalObjective, least: float, budget: int) -> tuple[Cost, int]:
    """Make changes until none helps; returns the cost and what is left of the budget."""
    best = books.cost()
    improved = True
    while improved and budget > 0:
        improved = False
        for changes in books.candidates():
            if budget <= 0:
                break
            budget -= 1
            undo = books.make(changes)
            cost = books.cost()
            if improves(cost, best, least):
                best, improved = cost, True
                break
            books.make(undo)
    return best, budget


class _IncrementalObjective:
    """The objective of a placement, kept while it changes. S placeable stages, Q queries, E executors."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        placement: Placement,
        limit: float,
        home: Mapping[str, IntArray],
        price: Mapping[str, FloatArray],
    ) -> None:
        self._cluster, self._workload, self._limit = cluster, workload, limit
        self._stages = workload.placeable
        self._home, self._price = home, price
        self._paid = sum(
            float(price[stage.key][(home[stage.key] >= 0) & (placement[stage.key] != home[stage.key])].sum())
            for stage in self._stages
        )
        self._at = {stage.key: placement[stage.key].copy() for stage in self._stages}
        self._slots, self._capacity = task_slots(cluster), cluster.cores * cluster.speed
        queries = {query: index for index, query in enumerate(workload.queries)}
        self._query = np.array([queries[stage.query] for stage in self._stages])
        self._rate = np.array([stage.batches_per_second for stage in self._stages])
        self._load = np.zeros((len(queries), cluster.size))
        self._held = np.zeros(cluster.size)
        self._fixed = 0.0
        for stage in workload.stages:
            executors = unit_executors(cluster, stage, placement)
            work = np.bincount(executors, stage.busy, cluster.size)
            self._load[queries[stage.query]] += stage.batches_per_second * work
            if stage.placeable:
                self._held += np.bincount(executors, stage.state_bytes, cluster.size)
            else:
                self._fixed += stage.batches_per_second * float((stage.busy / self._capacity).max())
        self._busy = np.array([scheduled(cluster, stage.busy, self._at[stage.key]) for stage in self._stages])
        self._fetching = bool(np.isfinite(cluster.bandwidth).any() and workload.streams)
        self._fetch = np.zeros(self._busy.shape)
        self._after: dict[str, list[int]] = {}  # stage -> numbers of those whose fetching it changes
        number = {stage.key: index for index, stage in enumerate(self._stages)}
        if self._fetching:
            for index, stage in enumerate(self._stages):
                self._fetch[index] = fetch_seconds(cluster, workload, stage, self._at)
            for stream in workload.streams:
                for end in (stream.upstream, stream.downstream):
                    if stream.downstream in number and end in number:
                        self._after.setdefault(end, []).append(number[stream.downstream])

    def placement(self) -> Placement:
        """Where everything is now."""
        return Placement(self._at)

    def cost(self) -> Cost:
        """The same as :func:`placement_cost`, with the price of the moves on top of the stage time."""
        cluster = self._cluster
        load = self._load.sum(axis=0)
        over = np.maximum(self._held - cluster.memory_bytes, 0.0)
        short = np.maximum(load / cluster.speed - self._limit * cluster.cores, 0.0)
        path = self._fixed + float(self._rate @ self._seconds().max(axis=1))
        return (
            float(over[over > _SAME * cluster.memory_bytes].sum()),
            float(short[short > _SAME].sum()),
            path + self._paid,
        )

    def make(self, changes: _Changes) -> _Changes:
        """Make the changes; returns those that undo them."""
        undo = tuple((stage, unit, int(self._at[self._stages[stage].key][unit])) for stage, unit, _ in changes)
        touched: set[tuple[int, int]] = set()
        for (index, unit, executor), (_, _, old) in zip(changes, undo, strict=True):
            stage = self._stages[index]
            self._at[stage.key][unit] = executor
            home = int(self._home[stage.key][unit])
            if home >= 0:
                self._paid += float(self._price[stage.key][unit]) * (int(executor != home) - int(old != home))
            for where, sign in ((old, -1.0), (executor, 1.0)):
                self._load[self._query[index], where] += sign * stage.batches_per_second * stage.busy[unit]
                self._held[where] += sign * stage.state_bytes[unit]
                touched.add((index, where))
        for index, executor in touched:
            stage = self._stages[index]
            units = np.flatnonzero(self._at[stage.key] == executor)
            self._busy[index, executor] = finish(stage.busy[units].tolist(), int(self._slots[executor]))
        for index in {number for stage, _, _ in changes for number in self._after.get(self._stages[stage].key, ())}:
            self._fetch[index] = fetch_seconds(self._cluster, self._workload, self._stages[index], self._at)
        return undo

    def kick(self, random: np.random.Generator) -> _Changes:
        """Some changes at random, to get out of a dead end."""
        targets = np.flatnonzero(self._cluster.available)
        chosen: dict[tuple[int, int], int] = {}
        for _ in range(_KICK):
            index = int(random.integers(len(self._stages)))
            chosen[index, int(random.integers(self._stages[index].n))] = int(random.choice(targets))
        return tuple((index, unit, executor) for (index, unit), executor in chosen.items())

    def restore(self, placement: Placement) -> None:
        """Go back to a placement."""
        self.make(
            tuple(
                (index, unit, int(placement[stage.key][unit]))
                for index, stage in enumerate(self._stages)
                for unit in np.flatnonzero(placement[stage.key] != self._at[stage.key]).tolist()
            )
        )

    def candidates(self) -> Iterator[_Changes]:
        """Moves and swaps out of each stage's slowest executor: of its own units, then of other queries' there."""
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
                for partner in _alike(stage.busy, np.flatnonzero(at == target), unit):
                    yield ((index, unit, target), (index, partner, source))

    def _seconds(self) -> FloatArray:
        left = 1.0 - (self._load.sum(axis=0) - self._load[self._query]) / self._capacity
        left = np.minimum(np.maximum(left, 1.0 - SATURATED), 1.0)
        return np.asarray(self._busy / (self._cluster.speed * left) + self._fetch)


def _alike(busy: FloatArray, partners: IntArray, unit: int) -> list[int]:
    """Partners a little smaller than the unit first: what a swap shifts is then small."""
    smaller = partners[busy[partners] < busy[unit]]
    near: list[int] = smaller[np.argsort(busy[unit] - busy[smaller], kind="stable")][:_SWAPS].tolist()
    return near
