"""What one controller counted since it started; any thread may count. Sums over controllers are the cluster's."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum

from rechannel.wire.exit_codes import Exit

_MOST = 1000  # sorts of one kind; what comes beyond is counted as other, whoever may have named it


class Counted(StrEnum):
    """What is counted, with what each is sorted by."""

    DECISIONS = "decisions"  # outcome, reason, trigger
    MOVES = "moves"  # state, reason
    MIGRATIONS = "migrations"  # verdict
    REQUESTS = "requests"  # verb, outcome


class Counts:
    """Counters that only grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[Counted, Counter[tuple[str, ...]]] = {kind: Counter() for kind in Counted}

    def answered(self, verb: str, code: int) -> None:
        """Count a request's answer."""
        self.add(Counted.REQUESTS, verb, Exit(code).name.lower().replace("_", "-"))

    def add(self, kind: Counted, *sort: str) -> None:
        """Count one of this sort."""
        with self._lock:
            known = self._counted[kind]
            known[sort if sort in known or len(known) < _MOST else ("other",) * len(sort)] += 1

    def read(self, kind: Counted) -> dict[tuple[str, ...], int]:
        """Return how many there were of each sort."""
        with self._lock:
            return dict(self._counted[kind])
