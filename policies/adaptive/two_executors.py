"""Division of tasks between two executors."""

from __future__ import annotations

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray

_DIVIDED = 18  # units of which every division is tried: two halves of 512


def divide(busy: FloatArray, mine: int, speed: float, other_speed: float) -> BoolArray:
    """Divide units between two executors so that the later one is done soonest.

    Returns True for the units of the first one, shape (n,).

    ``busy`` (n,): units, the first ``mine`` of which are with the first executor now. All divisions of the 18 smallest
    units are tried (meeting in the middle, Horowitz and Sahni 1974); larger ones stay where they are, so the
    answer is the best one for up to 18 units.
    """
    first = np.arange(len(busy)) < mine
    order = np.argsort(busy, kind="stable")
    free, fixed = order[:_DIVIDED], order[_DIVIDED:]
    total = float(busy.sum())
    held = float(busy[fixed][first[fixed]].sum())
    left, right = free[: len(free) // 2], free[len(free) // 2 :]
    left_sums, right_sums = _subset_sums(busy[left]), _subset_sums(busy[right])
    by_size = np.argsort(right_sums, kind="stable")
    ordered = right_sums[by_size]
    # Both are done at the same time when the first has this much.
    ideal = total * speed / (speed + other_speed) - held
    above = np.searchsorted(ordered, ideal - left_sums)
    best, chosen = np.inf, (0, 0)
    for index in (np.minimum(above, len(ordered) - 1), np.maximum(above - 1, 0)):
        has = held + left_sums + ordered[index]
        later = np.maximum(has / speed, (total - has) / other_speed)
        at = int(later.argmin())
        if later[at] < best:
            best, chosen = float(later[at]), (at, int(by_size[index[at]]))
    result = np.zeros(len(busy), dtype=np.bool_)
    result[fixed] = first[fixed]
    for units, mask in ((left, chosen[0]), (right, chosen[1])):
        result[units] = (mask >> np.arange(len(units))) & 1
    return result


def _subset_sums(values: FloatArray) -> FloatArray:
    """Return the sum of every subset; bit i of the index is set where value i is in it."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums
