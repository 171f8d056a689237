"""What one controller counted since it started; any thread may count. Sums over controllers are the cluster's."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum

from rechannel.wire.exit_codes import ExitCode

_MOST = 1000  # sorts of one kind; what comes beyond is counted as other, whoever may have named it


class CounterKind(StrEnum):
    """What is counted, with what each is sorted by."""

    DECISIONS = "decisions"  # outcome, reason, trigger
    MOVES = "moves"  # state, reason
    MIGRATIONS = "migrations"  # verdict
    REQUESTS = "requests"  # verb, outcome


class Counters:
    """Counters that only grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[CounterKind, Counter[tuple[str, ...]]] = {kind: Counter() for kind in CounterKind}

    def answered(self, verb: str, code: int) -> None:
        """Count a request's answer."""
        self.add(CounterKind.REQUESTS, verb, ExitCode(code).name.lower().replace("_", "-"))

    def add(self, kind: CounterKind, *sort: str) -> None:
        """Count one of this sort."""
        with self._lock:
            known = self._counted[kind]
            known[sort if sort in known or len(known) < _MOST else ("other",) * len(sort)] += 1

    def read(self, kind: CounterKind) -> dict[tuple[str, ...], int]:
        """Return how many there were of each sort."""
        with self._lock:
            return dict(self._counted[kind])
