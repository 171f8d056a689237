"""The measured situations: every pair of two factors' values at least once, in few rows.

Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PARTITIONS = 11  # over four executors: whatever share is moved, they hold 3, 3, 3 and 2 before and after
FACTORS: dict[str, tuple[Any, ...]] = {
    "keys": (10_000, 100_000, 1_000_000, 5_000_000),
    "share": (0.0, 0.25, 1.0),  # of the partitions; 0: one partition
    "provider": ("HDFS-backed", "RocksDB"),
    "disk": ("local", "slow"),
}


@dataclass(frozen=True)
class Row:
    """One situation. ``share``: of the partitions that are moved, 0 for one partition."""

    keys: int
    share: float
    provider: str
    disk: str

    @property
    def name(self) -> str:
        """A name for files and tables."""
        keys = f"{self.keys // 1_000_000}M" if self.keys >= 1_000_000 else f"{self.keys // 1000}k"
        return f"{keys}-{self.provider.split('-')[0].lower()}-{moved(self.share)}of{PARTITIONS}-{self.disk}"

    def as_dict(self) -> dict[str, Any]:
        """Return the row for the result file."""
        return asdict(self) | {"name": self.name, "moves": moved(self.share)}


# Two stores, every share, small and large state: some minutes.
QUICK = (
    Row(10_000, 1.0, "RocksDB", "local"),
    Row(100_000, 0.25, "HDFS-backed", "slow"),
    Row(1_000_000, 0.0, "HDFS-backed", "local"),
)


def moved(share: float) -> int:
    """Return how many partitions a share is; at least one."""
    return max(1, round(share * PARTITIONS))


def rows(*, quick: bool, slow_disk: bool) -> list[Row]:
    """Return the rows of a run; without a slow disk all are on the local one."""
    factors = dict(FACTORS) if slow_disk else FACTORS | {"disk": ("local",)}
    if not quick:
        return [Row(**case) for case in cover(factors)]
    return [row if slow_disk else Row(row.keys, row.share, row.provider, "local") for row in QUICK]


def cover(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return cases in which every two values of two factors meet at least once; the same factors give the same cases.

    Of all cases the one that covers most pairs not met yet comes next, the first of them where several do.
    """
    cases = _cases(factors)
    left = set().union(*map(_pairs, cases))
    chosen: list[dict[str, Any]] = []
    while left:
        best = max(cases, key=lambda case: len(_pairs(case) & left))
        chosen.append(best)
        left -= _pairs(best)
    return sorted(chosen, key=cases.index)


def uncovered(cases: Sequence[Mapping[str, Any]], factors: Mapping[str, Sequence[Any]]) -> set[Any]:
    """Return the pairs of values that no case has together."""
    return set().union(*map(_pairs, _cases(factors))).difference(*map(_pairs, cases))


def _cases(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*factors.values())]


def _pairs(case: Mapping[str, Any]) -> set[Any]:
    return set(itertools.combinations(case.items(), 2))
