"""Memory that Redis needs when every key is at its bound, and trimming of streams.

`docs/redis-keys.md` has it for a few clusters; ``rechannel doctor`` compares ``maxmemory`` with it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rechannel.wire import keys

OVERHEAD = 1.3  # factor for the entry of a message and the rounding of the allocator
LEAST_BATCH_BUDGET = 32 * 2**20  # bytes of batches that every application may keep
LEAST_BATCHES = 3  # of every query, even if they take more
TASK_BYTES = 150  # of a task in a batch, rarely more
_PARTITION_BYTES = 16  # in a report or a placement
_EXECUTOR_BYTES = 200  # in a report
_MOVES_BYTES = 2**20  # of a desired placement; and of a report, which shows its moves
_SMALL = 16 * 2**20  # state, scheduled plans, orders, answers, and keys without messages
_CLUSTER = (keys.APPLICATIONS, keys.DECISIONS, keys.APPLIED, keys.OUTCOMES, keys.QUESTIONS, keys.REQUESTS)


@dataclass(frozen=True)
class Application:
    """Size of an application; its batches have twice as many tasks as ``partitions``."""

    executors: int
    queries: int
    partitions: int

    @property
    def size(self) -> float:
        """Bytes in Redis, without those of its nodes."""
        partitions = _PARTITION_BYTES * self.partitions
        tasks = 2 * self.partitions
        report = min(partitions + _EXECUTOR_BYTES * self.executors + _MOVES_BYTES, keys.REPORT.size)
        entry = 2**10 + TASK_BYTES * tasks / max(1, self.queries)
        batches = min(batch_budget(tasks), keys.BATCHES.bound * entry)
        return OVERHEAD * (report + batches + keys.JOURNAL.size + _MOVES_BYTES + partitions + 2**10 * self.queries)


def batch_budget(tasks: int) -> int:
    """Return the bytes for batches of an application whose newest have so many tasks."""
    return min(max(LEAST_BATCH_BUDGET, LEAST_BATCHES * TASK_BYTES * tasks), keys.BATCHES.size)


NODE = OVERHEAD * (keys.WINDOWS.size + keys.EVIDENCE.size)
CLUSTER = OVERHEAD * (sum(rule.size for rule in _CLUSTER) + _SMALL)


def required_memory(nodes: int, applications: list[Application]) -> float:
    """Return the bytes that Redis needs for a cluster."""
    return CLUSTER + NODE * nodes + sum(application.size for application in applications)


def format_mib(size: float) -> str:
    """Format a number of bytes in MiB."""
    return f"{size / 2**20:,.0f} MiB"


class StreamTrimmer:
    """Entries of a stream that fit into a number of bytes; Redis only bounds entries.

    It knows the sizes of the entries that this process wrote. Entries of an earlier writer count as large as the
    largest of these.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._sizes: deque[int] = deque()
        self._total = self._largest = 0
        self._owns_all = False  # all entries of earlier writers are gone

    def add(self, size: int, most: int) -> int:
        """Count an entry to be added, and return the number of entries to keep with it."""
        self._sizes.append(size)
        self._total += size
        self._largest = max(self._largest, size, 1)
        while len(self._sizes) > 1 and (self._total > most or len(self._sizes) > self._bound):
            self._total -= self._sizes.popleft()
            self._owns_all = True
        earlier = 0 if self._owns_all else max(0, most - self._total) // self._largest
        return min(self._bound, len(self._sizes) + earlier)
