"""Shuffles between two stages, in bytes per second from each entry to each entry.

Shuffles of Spark are blocks, in which nearly every pair exchanges something; those of other engines and generated ones
can be sparse. :class:`DenseShuffle` and :class:`SparseShuffle` have the same methods, so only this module knows the
representation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from rechannel.policies.model.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    ModelError,
    check_lengths,
    float_array,
    read_only,
    sum_by_index,
)

_AT_ONCE = 1_000_000  # entries of a block that are taken together, where a copy of 64 bits is needed

Edges = tuple[IntArray, IntArray, FloatArray]
"""Upstream entry, downstream entry and bytes per second of each of n streams, shape (n,) each."""


def _below(level: float, dtype: np.dtype[Any], *, included: bool = True) -> Any:
    """Return the largest number of a type that is not above a level.

    Without the level itself unless it is ``included``. Numbers of the type are above it where they are above the level
    in 64 bits, and are compared many times faster.
    """
    with np.errstate(over="ignore"):
        number = dtype.type(level)
    if float(number) > level or (float(number) == level and not included):
        number = np.nextafter(number, dtype.type(-np.inf))
    return number


@dataclass(frozen=True, eq=False)
class _Shuffle(ABC):
    """One shuffle between two stages of U and D entries, named by their keys."""

    upstream: str
    downstream: str

    @abstractmethod
    def _values(self) -> tuple[FloatArray, IntArray]:
        """Rows of bytes per second of pairs, (K, n), and how often each row counts, (K,).

        Every pair that exchanges something is among them.
        """

    @abstractmethod
    def above(self, level: float) -> Edges:
        """Return the pairs that exchange more than ``level`` bytes per second.

        In the order of upstream, then downstream entries; ``level`` is 0 or more.
        """

    @abstractmethod
    def above_at(self, entry: int, level: float, *, received: bool) -> tuple[IntArray, FloatArray]:
        """Return the pairs `above` a level that one entry is in.

        Their other ends and bytes per second, (n,) each. ``received``: the entry is one downstream, else one upstream.
        """

    @abstractmethod
    def largest(self) -> FloatArray:
        """Return the most that each entry upstream sends to one entry, (U,) or fewer.

        In bytes per second; entries that send nothing may be left out.
        """

    def summary(self) -> tuple[int, float]:
        """Count the pairs that exchange something, and add up their volume."""
        values, times = self._values()
        return int(times @ np.count_nonzero(values, axis=1)), float(times @ values.sum(axis=1, dtype=np.float64))

    def count(self, level: float) -> int:
        """Count the pairs that exchange ``level`` bytes per second (above 0) or more."""
        values, times = self._values()
        return int(times @ np.count_nonzero(values > _below(level, values.dtype, included=False), axis=1))

    def beyond(self, level: float) -> float:
        """Add up what pairs exchange beyond ``level`` (above 0), over those that do."""
        (values, times), total = self._values(), 0.0
        step = max(1, _AT_ONCE // max(1, values[:1].size))  # in 64 bits, so not all together
        for start in range(0, len(values), step):
            part = slice(start, start + step)
            more = values[part] - np.array([level])
            total += float(times[part] @ np.maximum(more, 0.0, out=more).sum(axis=1))
        return total

    @abstractmethod
    def sent(self) -> FloatArray:
        """Bytes per second that leave each entry upstream, shape (U,)."""

    @abstractmethod
    def received(self) -> FloatArray:
        """Bytes per second that reach each entry downstream, shape (D,)."""

    @abstractmethod
    def forward(self, per_byte: FloatArray) -> FloatArray:
        """Return what reaches each entry downstream, (D,).

        Entry u sends ``per_byte[u]`` of it with each byte.
        """

    @abstractmethod
    def local_received(self, upstream: IntArray, downstream: IntArray) -> FloatArray:
        """Return what reaches each entry downstream from its own group, (D,).

        In bytes per second. An entry of a negative group is in no group, not even its own.
        """


@dataclass(frozen=True, eq=False)
class DenseShuffle(_Shuffle):
    """One shuffle as a block.

    Entry u upstream sends ``volume[row[u], d]`` bytes per second to entry d downstream; without ``row``, each entry has
    the row of its number. Entries that send alike can share a row: large blocks take most of the memory of a model, and
    one of 32-bit floats stays one. Sums over it are of 64 bits.
    """

    volume: FloatArray
    row: IntArray | None = None

    def __post_init__(self) -> None:
        name = f"shuffle {self.upstream!r} to {self.downstream!r}: "
        object.__setattr__(self, "volume", float_array(name + "volume", self.volume, ndim=2, single=True))
        if self.row is not None:
            object.__setattr__(self, "row", read_only(_indices(name + "row", self.row, len(self.volume))))

    @property
    def shape(self) -> tuple[int, int]:
        """Entries upstream and downstream."""
        return len(self.volume) if self.row is None else len(self.row), self.volume.shape[1]

    def matrix(self) -> FloatArray:
        """Return the block with a row for each entry upstream, (U, D)."""
        return self.volume if self.row is None else self.volume[self.row]

    def _values(self) -> tuple[FloatArray, IntArray]:
        return self.volume, self._times

    @cached_property
    def _times(self) -> IntArray:
        """Entries upstream that each row stands for."""
        if self.row is None:
            return np.ones(len(self.volume), dtype=np.int64)
        return np.bincount(self.row, minlength=len(self.volume))

    def _of_entries(self, by_row: FloatArray) -> FloatArray:
        return by_row if self.row is None else by_row[self.row]

    def above(self, level: float) -> Edges:
        """As in the base class."""
        row, down = np.divmod(np.flatnonzero(self.volume > _below(level, self.volume.dtype)), max(self.shape[1], 1))
        if self.row is None:
            return row, down, self.volume[row, down]
        count = np.bincount(row, minlength=len(self.volume))
        of_entry = count[self.row]
        begin = (np.cumsum(count) - count)[self.row] - (np.cumsum(of_entry) - of_entry)
        place = np.arange(of_entry.sum()) + np.repeat(begin, of_entry)
        return np.repeat(np.arange(len(self.row)), of_entry), down[place], self.volume[row[place], down[place]]

    def above_at(self, entry: int, level: float, *, received: bool) -> tuple[IntArray, FloatArray]:
        """As in the base class."""
        if received:
            values = self._of_entries(self.volume[:, entry])
        else:
            values = self.volume[entry if self.row is None else self.row[entry]]
        others = np.flatnonzero(values > _below(level, values.dtype))
        return others, values[others]

    def largest(self) -> FloatArray:
        """As in the base class."""
        return self._of_entries(np.asarray(self.volume.max(axis=1, initial=0.0), dtype=np.float64))

    def sent(self) -> FloatArray:
        """As in the base class."""
        return self._of_entries(np.asarray(self.volume.sum(axis=1, dtype=np.float64)))

    def received(self) -> FloatArray:
        """As in the base class."""
        shared = np.flatnonzero(self._times != 1)
        more = (self._times[shared] - 1.0) @ self.volume[shared].astype(np.float64)
        return np.asarray(self.volume.sum(axis=0, dtype=np.float64) + more)

    def forward(self, per_byte: FloatArray) -> FloatArray:
        """As in the base class."""
        if self.row is not None:
            per_byte = sum_by_index(self.row, per_byte, len(self.volume))
        largest = float(per_byte.max(initial=0.0)) or 1.0  # may be beyond 32 bits
        return np.asarray((per_byte / largest).astype(self.volume.dtype) @ self.volume, dtype=np.float64) * largest

    def local_received(self, upstream: IntArray, downstream: IntArray) -> FloatArray:
        """As in the base class."""
        received = np.zeros(self.shape[1])
        for group in np.intersect1d(upstream, downstream).tolist():
            if group >= 0:
                senders, receivers = np.flatnonzero(upstream == group), np.flatnonzero(downstream == group)
                rows = senders if self.row is None else self.row[senders]
                received[receivers] = self.volume[np.ix_(rows, receivers)].sum(axis=0, dtype=np.float64)
        return received


@dataclass(frozen=True, eq=False)
class SparseShuffle(_Shuffle):
    """One shuffle of which few pairs exchange anything.

    Entry ``sources[i]`` upstream sends ``bytes_per_second[i]`` to entry ``targets[i]`` downstream; each pair stands at
    most once. ``shape`` is the number of entries upstream and downstream.
    """

    shape: tuple[int, int]
    sources: IntArray
    targets: IntArray
    bytes_per_second: FloatArray

    def __post_init__(self) -> None:
        owner = f"shuffle {self.upstream!r} to {self.downstream!r}: "
        volumes = float_array(owner + "bytes_per_second", self.bytes_per_second)
        ends = {
            name: _indices(owner + name, getattr(self, name), size)
            for name, size in zip(("sources", "targets"), self.shape, strict=True)
        }
        check_lengths(owner, len(volumes), **ends)
        order = np.lexsort((ends["targets"], ends["sources"]))
        order = order[volumes[order] > 0]
        sources, targets = ends["sources"][order], ends["targets"][order]
        if ((sources[1:] == sources[:-1]) & (targets[1:] == targets[:-1])).any():
            raise ModelError(f"{owner}sources and targets: a pair stands twice")
        for name, values in (("sources", sources), ("targets", targets)):
            object.__setattr__(self, name, read_only(values))
        object.__setattr__(self, "bytes_per_second", read_only(volumes[order]))

    def _values(self) -> tuple[FloatArray, IntArray]:
        return self.bytes_per_second[None], np.ones(1, dtype=np.int64)

    def above(self, level: float) -> Edges:
        """As in the base class."""
        exchanging = np.flatnonzero(self.bytes_per_second > level)
        return self.sources[exchanging], self.targets[exchanging], self.bytes_per_second[exchanging]

    def above_at(self, entry: int, level: float, *, received: bool) -> tuple[IntArray, FloatArray]:
        """As in the base class."""
        if received:
            order, targets = self._by_target
            pairs = order[slice(*np.searchsorted(targets, (entry, entry + 1)))]
        else:
            pairs = np.arange(*np.searchsorted(self.sources, (entry, entry + 1)))
        pairs = pairs[self.bytes_per_second[pairs] > level]
        return (self.sources if received else self.targets)[pairs], self.bytes_per_second[pairs]

    @cached_property
    def _by_target(self) -> tuple[IntArray, IntArray]:
        """Pairs in the order of their targets, then sources, and these targets."""
        order = np.argsort(self.targets, kind="stable")
        return order, self.targets[order]

    def largest(self) -> FloatArray:
        """As in the base class."""
        begins = np.flatnonzero(np.diff(self.sources, prepend=-1))
        return np.maximum.reduceat(self.bytes_per_second, begins) if len(begins) else np.empty(0)

    def sent(self) -> FloatArray:
        """As in the base class."""
        return sum_by_index(self.sources, self.bytes_per_second, self.shape[0])

    def received(self) -> FloatArray:
        """As in the base class."""
        return sum_by_index(self.targets, self.bytes_per_second, self.shape[1])

    def forward(self, per_byte: FloatArray) -> FloatArray:
        """As in the base class."""
        return sum_by_index(self.targets, self.bytes_per_second * per_byte[self.sources], self.shape[1])

    def local_received(self, upstream: IntArray, downstream: IntArray) -> FloatArray:
        """As in the base class."""
        same = _same_group(upstream[self.sources], downstream[self.targets])
        return sum_by_index(self.targets[same], self.bytes_per_second[same], self.shape[1])


Shuffle: TypeAlias = DenseShuffle | SparseShuffle
"""One shuffle, in either representation."""


def _same_group(upstream: IntArray, downstream: IntArray) -> BoolArray:
    return np.asarray((upstream == downstream) & (upstream >= 0))


def _indices(name: str, values: ArrayLike, size: int) -> IntArray:
    array = np.asarray(values)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
        raise ModelError(f"{name}: expected a flat array of whole numbers")
    if array.size and (array.min() < 0 or array.max() >= size):
        raise ModelError(f"{name}: outside 0..{size - 1}")
    return array.astype(np.int64)
