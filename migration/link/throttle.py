"""Bound on the partitions that one batch of a query takes over, adapted to its slow-down.

Pure. The bound starts at the setting's value. A batch that took over partitions and lasted longer than 1.5 times the
median of the batches without a move halves it, down to one partition. Each batch that took over partitions and was not
slow gives back one partition, and a tenth of the bytes.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rechannel.migration.moves import TrackedMove

SLOW = 1.5  # times the median of the batches without a move
_WINDOW = 21  # batches without a move that the median is taken of
_MIN_SAMPLES = 3  # of them, below which no batch counts as slow
_RECOVERY = 0.1  # of the bytes' bound, for each batch that was not slow


@dataclass
class _Bounds:
    moves: float
    bytes: float
    without_moves: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))  # seconds of such batches


class MoveThrottle:
    """The bounds of each query, at most ``max_moves`` and ``max_bytes`` for one batch."""

    def __init__(self, max_moves: int, max_bytes: float) -> None:
        self._max_moves = max_moves
        self._max_bytes = max_bytes
        self._queries: dict[str, _Bounds] = {}

    def bounds(self, query: str) -> tuple[int, float]:
        """Return the partitions and bytes that one batch of the query may take over now."""
        bounds = self._queries.get(query)
        return (int(bounds.moves), bounds.bytes) if bounds else (self._max_moves, self._max_bytes)

    def select(self, query: str, due: Sequence[TrackedMove], loading: Sequence[TrackedMove]) -> list[TrackedMove]:
        """Return the moves that go now, in order; ``loading``: those steered and not yet run.

        If nothing else is loading, the first one goes whatever its size: a partition larger than the bound would
        otherwise never move.
        """
        max_moves, max_bytes = self.bounds(query)
        selected: list[TrackedMove] = []
        size = sum(move.desired.bytes for move in loading)
        for move in due:
            alone = not selected and not loading
            if not alone and (len(selected) + len(loading) >= max_moves or size + move.desired.bytes > max_bytes):
                break
            selected.append(move)
            size += move.desired.bytes
        return selected

    def record_batch(self, query: str, seconds: float, landed: int) -> None:
        """Adapt the bounds to a batch that took over ``landed`` partitions."""
        bounds = self._queries.setdefault(query, _Bounds(float(self._max_moves), self._max_bytes))
        if not landed:
            bounds.without_moves.append(seconds)
        elif len(bounds.without_moves) < _MIN_SAMPLES:
            return
        elif seconds > SLOW * statistics.median(bounds.without_moves):
            bounds.moves = max(1.0, bounds.moves // 2)
            bounds.bytes = max(1.0, bounds.bytes / 2)
        else:
            bounds.moves = min(float(self._max_moves), bounds.moves + 1)
            bounds.bytes = min(self._max_bytes, bounds.bytes + _RECOVERY * self._max_bytes)

    def remove_query(self, query: str) -> None:
        """Drop the bounds of a query that has ended."""
        self._queries.pop(query, None)
