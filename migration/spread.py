"""Even division by count: a share for each executor, and as few moves as possible.

Used where nothing has been measured yet (a query's first batch) or nothing has to be (an executor was lost). Shares go
by cores and largest remainders; partitions left over stay where they are, else go to the executor that holds least.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


def spread_evenly(
    placement: Sequence[str],
    cores: Mapping[str, int],
    *,
    movable: Collection[int] | None = None,
    held: Mapping[str, int] | None = None,
) -> list[str]:
    """Return an executor for each partition of one stage.

    Partitions that are not movable stay. No movable partition stays above its executor's share while another executor
    is below its own. Without an executor the placement is returned as it is. ``cores``: of each executor that may hold
    partitions, others have to be left; ``movable``: all by default; ``held``: partitions of other stages on each
    executor.
    """
    if not cores:
        return list(placement)
    free = set(range(len(placement)) if movable is None else movable)
    result = list(placement)
    count = Counter(executor for executor in placement if executor in cores)
    share = _shares(len(placement), cores, count, held or {})
    homeless = [p for p in sorted(free) if placement[p] not in cores]
    for partition in sorted(free, reverse=True):
        executor = placement[partition]
        if executor in cores and count[executor] > share[executor]:
            count[executor] -= 1
            homeless.append(partition)
    for partition in homeless:
        # The emptiest against its share; unmovable partitions may leave no executor below its own.
        best = min(cores, key=lambda name: (count[name] - share[name], (held or {}).get(name, 0) / cores[name], name))
        count[best] += 1
        result[partition] = best
    return result


def _shares(partitions: int, cores: Mapping[str, int], count: Counter[str], held: Mapping[str, int]) -> dict[str, int]:
    total = sum(cores.values())
    exact = {name: partitions * number / total for name, number in cores.items()}
    share = {name: int(value) for name, value in exact.items()}
    unassigned = partitions - sum(share.values())

    def claim(name: str) -> tuple[float, int, float, str]:
        remainder = round(exact[name] - share[name], 9)
        return (-remainder, -int(count[name] > share[name]), held.get(name, 0) / cores[name], name)

    for name in sorted(cores, key=claim)[:unassigned]:
        share[name] += 1
    return share
