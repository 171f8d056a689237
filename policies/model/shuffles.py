"""Shuffles between two stages, in bytes per second from each entry to each entry.

Shuffles of Spark are blocks, in which nearly every pair exchanges something; those of other engines and generated ones
can be sparse. :class:`DenseShuffle` and :class:`SparseShuffle` have the same methods, so only this module knows the
representation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
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
    def _values(self) -> FloatArray:
        """Bytes per second of pairs, any shape; every pair that exchanges something is among them."""

    @abstractmethod
    def above(self, level: float) -> Edges:
        """Return the pairs that exchange more than ``level`` bytes per second.

        In the order of upstream, then downstream entries; ``level`` is 0 or more.
        """

    def summary(self) -> tuple[int, float]:
        """Count the pairs that exchange something, and add up their volume."""
        return int(np.count_nonzero(self._values())), float(self._values().sum(dtype=np.float64))

    def count(self, level: float) -> int:
        """Count the pairs that exchange ``level`` bytes per second (above 0) or more."""
        values = self._values()
        return int(np.count_nonzero(values > _below(level, values.dtype, included=False)))

    def beyond(self, level: float) -> float:
        """Add up what pairs exchange beyond ``level`` (above 0), over those that do."""
        values, total = self._values(), 0.0
        step = max(1, _AT_ONCE // max(1, values[:1].size))  # in 64 bits, so not all together
        for start in range(0, len(values), step):
            more = values[start : start + step] - np.array([level])
            total += float(np.maximum(more, 0.0, out=more).sum())
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

    Entry u upstream sends ``volume[u, d]`` bytes per second to entry d downstream. A block of 32-bit floats stays one:
    large ones take most of the memory of a model. Sums over it are of 64 bits.
    """

    volume: FloatArray

    def __post_init__(self) -> None:
        name = f"shuffle {self.upstream!r} to {self.downstream!r}: volume"
        object.__setattr__(self, "volume", float_array(name, self.volume, ndim=2, single=True))

    @property
    def shape(self) -> tuple[int, int]:
        """Entries upstream and downstream."""
        return self.volume.shape[0], self.volume.shape[1]

    def _values(self) -> FloatArray:
        return self.volume

    def above(self, level: float) -> Edges:
        """As in the base class."""
        up, down = np.divmod(np.flatnonzero(self.volume > _below(level, self.volume.dtype)), max(self.shape[1], 1))
        return up, down, self.volume[up, down]

    def sent(self) -> FloatArray:
        """As in the base class."""
        return np.asarray(self.volume.sum(axis=1, dtype=np.float64))

    def received(self) -> FloatArray:
        """As in the base class."""
        return np.asarray(self.volume.sum(axis=0, dtype=np.float64))

    def forward(self, per_byte: FloatArray) -> FloatArray:
        """As in the base class."""
        largest = float(per_byte.max(initial=0.0)) or 1.0  # may be beyond 32 bits
        return np.asarray((per_byte / largest).astype(self.volume.dtype) @ self.volume, dtype=np.float64) * largest

    def local_received(self, upstream: IntArray, downstream: IntArray) -> FloatArray:
        """As in the base class."""
        received = np.zeros(self.shape[1])
        for group in np.intersect1d(upstream, downstream).tolist():
            if group >= 0:
                senders, receivers = np.flatnonzero(upstream == group), np.flatnonzero(downstream == group)
                received[receivers] = self.volume[np.ix_(senders, receivers)].sum(axis=0, dtype=np.float64)
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

    def _values(self) -> FloatArray:
        return self.bytes_per_second

    def above(self, level: float) -> Edges:
        """As in the base class."""
        exchanging = np.flatnonzero(self.bytes_per_second > level)
        return self.sources[exchanging], self.targets[exchanging], self.bytes_per_second[exchanging]

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
