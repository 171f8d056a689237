"""How many partitions of a query one batch may take over, following what moving does to its batches.

Pure. The bound starts at the setting's. A batch in which partitions were taken over and which lasted longer than 1.5
times the median of the quiet ones halves it, down to one partition; each such batch that did not gives one partition,
or a tenth of the bytes, back.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rechannel.migration.moves import Move

SLOW = 1.5  # times the median of the batches without a move
_REMEMBERED = 21  # quiet batches that the median is of
_ENOUGH = 3  # quiet batches below which nothing is judged
_BACK = 0.1  # of the bytes' bound, for each batch that was not slow


@dataclass
class _Query:
    moves: float
    bytes: float
    quiet: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class MoveThrottle:
    """The bounds of each query. ``most_moves`` and ``most_bytes``: what one batch may take over at best."""

    def __init__(self, most_moves: int, most_bytes: float) -> None:
        self._most_moves, self._most_bytes = most_moves, most_bytes
        self._queries: dict[str, _Query] = {}

    def bounds(self, query: str) -> tuple[int, float]:
        """Partitions and bytes that one batch of the query may take over now."""
        known = self._queries.get(query)
        return (int(known.moves), known.bytes) if known else (self._most_moves, self._most_bytes)

    def allowed(self, query: str, due: Sequence[Move], under_way: Sequence[Move]) -> list[Move]:
        """Those of the moves, in their order, that go now; ``under_way``: those already said and not yet run.

        The first goes whatever it weighs if nothing else is under way: a partition that is larger than the bound would
        never move.
        """
        moves, size = self.bounds(query)
        chosen: list[Move] = []
        weight = sum(move.wanted.bytes for move in under_way)
        for move in due:
            alone = not chosen and not under_way
            if not alone and (len(chosen) + len(under_way) >= moves or weight + move.wanted.bytes > size):
                break
            chosen.append(move)
            weight += move.wanted.bytes
        return chosen

    def batch(self, query: str, seconds: float, landed: int) -> bool:
        """Take in a finished batch with the partitions that it took over; returns whether it was slow by them."""
        known = self._queries.setdefault(query, _Query(float(self._most_moves), self._most_bytes))
        if not landed:
            known.quiet.append(seconds)
            return False
        if len(known.quiet) < _ENOUGH:
            return False
        if seconds > SLOW * statistics.median(known.quiet):
            known.moves = max(1.0, known.moves // 2)
            known.bytes = max(1.0, known.bytes / 2)
            return True
        known.moves = min(float(self._most_moves), known.moves + 1)
        known.bytes = min(self._most_bytes, known.bytes + _BACK * self._most_bytes)
        return False

    def forget(self, query: str) -> None:
        """A query has ended."""
        self._queries.pop(query, None)
