"""The two placements between which partitions move to and fro. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

Placement = Mapping[int, str]  # partition -> executor
_HOPS = {1: [(0, -1)], 3: [(0, -1), (0, 1), (1, 0)]}  # by rank in the number of partitions, most first


def balanced(placement: Placement, executors: Sequence[str]) -> dict[int, str]:
    """Return a placement with as many partitions everywhere, but for one, with few moves."""
    result = dict(placement)
    while True:
        counts = Counter(dict.fromkeys(executors, 0))
        counts.update(result.values())
        most = max(executors, key=lambda executor: counts[executor])
        least = min(executors, key=lambda executor: counts[executor])
        strangers = [partition for partition, executor in result.items() if executor not in executors]
        if strangers:
            result[strangers[0]] = least
        elif counts[most] - counts[least] > 1:
            result[max(partition for partition, executor in result.items() if executor == most)] = least
        else:
            return result


def shifted(placement: Placement, executors: Sequence[str], count: int) -> dict[int, str]:
    """Move ``count`` partitions so that executors that hold one more or less than each other go on doing so.

    One goes from an executor with most to one with least. Three go so that one executor gives two, which takes two
    steps. Any other number goes along the ring. ValueError where an executor has none left to give.
    """
    held = {executor: sorted(at for at, holder in placement.items() if holder == executor) for executor in executors}
    order = sorted(executors, key=lambda executor: (-len(held[executor]), executor))
    ring = [(number % len(order), (number + 1) % len(order)) for number in range(count)]
    result = dict(placement)
    for giver, taker in _HOPS.get(count, ring):
        if not held[order[giver]]:
            raise ValueError(f"executor {order[giver]} has no further partition to give")
        result[held[order[giver]].pop(0)] = order[taker]
    return result


def differences(now: Placement, target: Placement) -> dict[int, str]:
    """Return the partitions that are not on their target, with the target."""
    return {partition: executor for partition, executor in target.items() if now.get(partition) != executor}
