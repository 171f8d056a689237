"""Array types of the model, the checks its fields share, and the errors they raise."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_DENSE = 4  # times as many numbers as values, up to which they are counted, not sorted
_Scalar = TypeVar("_Scalar", bound=np.generic)


class ModelError(ValueError):
    """Value that describes no possible cluster, workload, placement or parameter.

    The message names the field.
    """


class ScaleOutError(RuntimeError):
    """Valid input whose work the executors cannot take: add executors and ask again."""


def float_array(
    name: str, values: ArrayLike, *, ndim: int = 1, infinite: bool = False, single: bool = False
) -> FloatArray:
    """Return a read-only, non-negative float64 array of that many dimensions.

    Infinity only where the field allows it. ``single``: an array of 32-bit floats stays one.
    """
    stays = single and isinstance(values, np.ndarray) and values.dtype == np.float32
    try:
        array = np.asarray(values, dtype=None if stays else np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name}: expected numbers") from error
    if array.ndim != ndim:
        raise ModelError(f"{name}: expected {ndim} dimension(s), got {array.ndim}")
    lowest, highest = float(array.min(initial=0.0)), float(array.max(initial=0.0))  # nan where any number is nan
    if math.isnan(highest) or not (infinite or (math.isfinite(lowest) and math.isfinite(highest))):
        raise ModelError(f"{name}: must be finite")
    if lowest < 0:
        raise ModelError(f"{name}: must not be negative")
    return read_only(array)


def read_only(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Return the array if it is read-only and owns its data, else a read-only copy."""
    if array.flags.writeable or not array.flags.owndata:
        array = array.copy()
        array.setflags(write=False)
    return array


def check_lengths(owner: str, expected: int, **arrays: NDArray[np.generic]) -> None:
    """Raise :class:`ModelError` unless every array has that many entries.

    Each is named by its keyword after ``owner``.
    """
    for name, array in arrays.items():
        if len(array) != expected:
            raise ModelError(f"{owner}{name}: expected {expected} entries, got {len(array)}")


def sum_by_index(index: IntArray, values: FloatArray, size: int) -> FloatArray:
    """Return the sum of the values of each index, shape (size,), as floats.

    Entries of a negative index count nowhere.
    """
    try:
        return np.asarray(np.bincount(index, values, size), dtype=np.float64)
    except ValueError:  # an index is negative: looking for one first takes as long as the sum
        return np.asarray(np.bincount(index[index >= 0], values[index >= 0], size), dtype=np.float64)


def sum_rows_by_index(index: IntArray, rows: FloatArray, size: int) -> FloatArray:
    """Return the sum of the rows of each index, (size, columns); no index is negative."""
    if (np.diff(index) < 0).any():
        order = np.argsort(index, kind="stable")
        index, rows = index[order], rows[order]
    begins = np.flatnonzero(np.diff(index, prepend=-1))
    result = np.zeros((size, rows.shape[1]))
    if len(index):
        result[index[begins]] = np.add.reduceat(rows, begins)  # many times faster than np.add.at
    return result


def is_in(values: IntArray, ordered: IntArray) -> BoolArray:
    """Return which values are among others, which are in ascending order, (n,)."""
    if not len(ordered):
        return np.zeros(len(values), dtype=np.bool_)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[place] == values)


def median_of_numbers(values: FloatArray, axis: int) -> FloatArray:
    """Return the median along an axis without NaN; NaN where there is nothing else.

    As `numpy.nanmedian`, which takes many times as long for small arrays.
    """
    ordered, count = np.sort(values, axis=axis), np.count_nonzero(~np.isnan(values), axis=axis)  # NaN comes last
    middle = [np.expand_dims(place, axis) for place in (np.maximum(count - 1, 0) // 2, count // 2)]
    low, high = (np.take_along_axis(ordered, place, axis) for place in middle)
    return np.asarray((low + high).squeeze(axis) / 2)


def numbered(values: IntArray) -> IntArray:
    """Return the number of each value among the different ones, in their order, (n,).

    No value is negative.
    """
    if values.max(initial=0) > _DENSE * (len(values) + 1):
        return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)
    return np.asarray((np.cumsum(np.bincount(values) > 0) - 1)[values], dtype=np.int64)  # without sorting


def ranks(values: IntArray) -> IntArray:
    """Return how many equal values stand before each one, (n,)."""
    order = np.argsort(values, kind="stable")
    ordered, differs = values[order], np.ones(len(values), dtype=np.bool_)
    differs[1:] = ordered[1:] != ordered[:-1]
    begins = np.flatnonzero(differs)
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - np.repeat(begins, np.diff(begins, append=len(values)))
    return result
