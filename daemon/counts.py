"""What one controller counted since it started; any thread may count. Sums over controllers are the cluster's."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum
from typing import Any

from rechannel.daemon.exits import Exit
from rechannel.daemon.requests import Desk
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Envelope, Reply, Request

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

    def add(self, kind: Counted, *sort: str) -> None:
        """Count one of this sort."""
        with self._lock:
            known = self._counted[kind]
            known[sort if sort in known or len(known) < _MOST else ("other",) * len(sort)] += 1

    def read(self, kind: Counted) -> dict[tuple[str, ...], int]:
        """Return how many there were of each sort."""
        with self._lock:
            return dict(self._counted[kind])


class CountingDesk(Desk):
    """The desk, with its answers counted by verb and outcome; each request once."""

    def __init__(self, counts: Counts, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counts = counts

    def _ordered(self, request: Request, envelope: Envelope, stream: KeyRule) -> Reply:
        return self._counted(request, super()._ordered(request, envelope, stream))

    def _asked_for(self, request: Request, stream: KeyRule) -> Reply:
        return self._counted(request, super()._asked_for(request, stream))

    def _counted(self, request: Request, reply: Reply) -> Reply:
        verb = request.verb if request.verb in self._verbs else "unknown"  # anybody may ask for anything
        self._counts.add(Counted.REQUESTS, verb, Exit(reply.code).name.lower().replace("_", "-"))
        return reply
