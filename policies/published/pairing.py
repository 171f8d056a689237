"""Pairs of items into bins, those with most volume first, so that little is between bins.

Source: both phases of L. Aniello, R. Baldoni, L. Querzoni, "Adaptive Online Scheduling in Storm" (DEBS 2013).
"""

from __future__ import annotations

import itertools

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.published.units import ROUNDING, Links

Pairs = tuple[IntArray, IntArray, FloatArray]
"""First items, second items and volumes of n distinct pairs, most volume first, (n,) each."""


class Bins:
    """N items that are put into M bins. For policies only: mutable and unchecked."""

    def __init__(
        self,
        load: FloatArray,  # of each item, (N,)
        kind: IntArray,  # of each item, (N,)
        room: IntArray,  # how many items of each kind a bin takes, (K, M)
        attraction: FloatArray,  # volume of each item to what is in a bin beforehand, (N, M)
        held: FloatArray,  # load of each bin beforehand, (M,)
        capacity: FloatArray | None = None,  # load of a full bin, (M,); None: no bound, and bins compare by load
    ) -> None:
        self.load, self.kind, self.room, self.attraction, self.held = load, kind, room, attraction, held
        self.bin_of = np.full(len(load), UNPLACED, dtype=np.int64)
        self._links = Links.by(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), len(load))
        self._beforehand = attraction.copy()
        size = len(held)
        self._limit = np.full(size, np.inf) if capacity is None else capacity * (1 + ROUNDING)
        self._scale = np.ones(size) if capacity is None else np.where(capacity > 0, capacity, 1.0)

    def fill(self, pairs: Pairs) -> None:
        """Place all items: pair by pair, then what is in no pair, the heaviest first."""
        firsts, seconds, volume = pairs
        both = np.concatenate((firsts, seconds)), np.concatenate((seconds, firsts))
        self._links = Links.by(*both, np.tile(volume, 2), len(self.load))
        for first, second, amount in zip(firsts.tolist(), seconds.tolist(), volume.tolist(), strict=True):
            if self.bin_of[first] == self.bin_of[second] == UNPLACED:
                self._start(first, second)
            else:
                self._improve(first, second, amount)
        for item in np.argsort(-self.load, kind="stable").tolist():
            if self.bin_of[item] == UNPLACED:
                self._place(item)

    def move(self, item: int, target: int) -> None:
        """Take an item to another bin."""
        self._remove(item)
        self._put(item, target)

    def _start(self, first: int, second: int) -> None:
        target = self._first(first, second)
        for item in (first, second):
            if target == UNPLACED:
                self._place(item)
            else:
                self._put(item, target)

    def _improve(self, first: int, second: int, volume: float) -> None:
        """Move a pair, one or both of it placed, to the best of its bins and the least loaded one."""
        old = int(self.bin_of[first]), int(self.bin_of[second])
        best = self._best_bins(first, second, volume)
        changed = [
            (item, target) for item, was, target in zip((first, second), old, best, strict=True) if was != target
        ]
        for item, _ in changed:
            if self.bin_of[item] != UNPLACED:
                self._remove(item)
        for item, target in changed:
            self._put(item, target)
        for item in (first, second):
            if self.bin_of[item] == UNPLACED:
                self._place(item)

    def _best_bins(self, first: int, second: int, volume: float) -> tuple[int, int]:
        """Return the bins of a pair that keep most volume inside; the old ones if none is better."""
        old = int(self.bin_of[first]), int(self.bin_of[second])
        # The spare bin is the least loaded for the item that is not placed, else for the lighter one.
        if old[0] == UNPLACED:
            spare = self._least(first)
        elif old[1] == UNPLACED:
            spare = self._least(second)
        else:
            spare = self._least(first if self.load[first] <= self.load[second] else second)
        bins = list(dict.fromkeys(target for target in (*old, spare) if target != UNPLACED))
        first_scores = [float(self.attraction[first, target]) - volume * (target == old[1]) for target in bins]
        second_scores = [float(self.attraction[second, target]) - volume * (target == old[0]) for target in bins]
        best, most = old, -np.inf
        if UNPLACED not in old:
            most = first_scores[bins.index(old[0])] + second_scores[bins.index(old[1])] + volume * (old[0] == old[1])
        for i, j in itertools.product(range(len(bins)), repeat=2):
            local = first_scores[i] + second_scores[j] + volume * (i == j)
            # A difference of less than rounding is no gain.
            better = most == -np.inf or local > most + ROUNDING * abs(most)
            if better and self._accepts((first, second), old, (bins[i], bins[j])):
                best, most = (bins[i], bins[j]), local
        return best

    def _put(self, item: int, target: int) -> None:
        self._count(item, target, 1)
        self.bin_of[item] = target

    def _remove(self, item: int) -> None:
        self._count(item, int(self.bin_of[item]), -1)
        self.bin_of[item] = UNPLACED

    def _count(self, item: int, target: int, sign: int) -> None:
        others, volumes = self._links.of(item)
        self.attraction[others, target] += sign * volumes
        self.room[self.kind[item], target] -= sign
        self.held[target] += sign * self.load[item]

    def _place(self, item: int) -> None:
        target = self._first(item)
        self._put(item, target if target != UNPLACED else self._emptiest(self.room[self.kind[item]] > 0))

    def _first(self, *items: int) -> int:
        """Return the bin that takes the items with most to exchange, else the least loaded one."""
        fits = self._roomy(*items)
        volume = np.where(fits, self._beforehand[list(items)].sum(axis=0), 0.0)
        return int(volume.argmax()) if volume.any() else self._emptiest(fits)

    def _least(self, *items: int) -> int:
        """Return the least loaded bin that takes all the items, :data:`UNPLACED` if none does."""
        return self._emptiest(self._roomy(*items))

    def _roomy(self, *items: int) -> BoolArray:
        kinds = [int(self.kind[item]) for item in items]
        fits = self.held + sum(float(self.load[item]) for item in items) <= self._limit
        for kind in sorted(set(kinds)):
            fits &= self.room[kind] >= kinds.count(kind)
        return np.asarray(fits)

    def _accepts(self, items: tuple[int, int], old: tuple[int, int], new: tuple[int, int]) -> bool:
        """Return whether the bins take what enters them when two items change places."""
        for item, was, target in zip(items, old, new, strict=True):
            if was == target:
                continue
            alike, held = 0, float(self.held[target])
            for other, origin, goal in zip(items, old, new, strict=True):
                change = int(goal == target) - int(origin == target)
                alike += change * int(self.kind[other] == self.kind[item])
                held += change * float(self.load[other])
            if self.room[self.kind[item], target] < alike or held > self._limit[target]:
                return False
        return True

    def _emptiest(self, allowed: BoolArray) -> int:
        return int(np.where(allowed, self.held / self._scale, np.inf).argmin()) if allowed.any() else UNPLACED
