"""Array types of the model, the checks its fields share, and the errors they raise."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "BoolArray",
    "FloatArray",
    "IntArray",
    "ModelError",
    "ScaleOutError",
    "checked_floats",
    "frozen",
    "same_length",
    "summed",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class ModelError(ValueError):
    """A value does not describe a possible cluster, workload, placement or parameter; the message names the field."""


class ScaleOutError(RuntimeError):
    """The input is sound, but the executors there are cannot take the work: add executors and ask again."""


def checked_floats(name: str, values: ArrayLike, *, ndim: int = 1, infinite: bool = False) -> FloatArray:
    """Read-only, non-negative float64 array of that many dimensions; infinity only where the field allows it."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{name}: expected numbers") from error
    if array.ndim != ndim:
        raise ModelError(f"{name}: expected {ndim} dimension(s), got {array.ndim}")
    if np.isnan(array).any() or not (infinite or np.isfinite(array).all()):
        raise ModelError(f"{name}: must be finite")
    if (array < 0).any():
        raise ModelError(f"{name}: must not be negative")
    return frozen(array)


def frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """The array if nobody can write to it any more, else a read-only copy."""
    if array.flags.writeable or not array.flags.owndata:
        array = array.copy()
        array.setflags(write=False)
    return array


def same_length(owner: str, expected: int, **arrays: NDArray[np.generic]) -> None:
    """Raise :class:`ModelError` unless every array, named by its keyword after ``owner``, has that many entries."""
    for name, array in arrays.items():
        if len(array) != expected:
            raise ModelError(f"{owner}{name}: expected {expected} entries, got {len(array)}")


def summed(index: IntArray, values: FloatArray, size: int) -> FloatArray:
    """The sum of the values of each index, shape (size,); floats also where there is nothing to sum."""
    return np.asarray(np.bincount(index, values, size), dtype=np.float64)
