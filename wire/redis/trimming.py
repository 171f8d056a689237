"""How many entries of a stream stay, so that it holds no more than so many bytes. Pure.

Redis bounds a stream by entries alone, so whoever writes it counts the bytes of what was written last.
"""

from __future__ import annotations

from collections import deque


class Trimming:
    """The sizes of the newest entries of one stream, as far as they were written from here.

    Entries of an earlier writer are taken to be as large as the largest of ours.
    """

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._sizes: deque[int] = deque()
        self._total = self._largest = 0
        self._alone = False  # what an earlier writer left is gone

    def add(self, size: int, most: int) -> int:
        """Count an entry that is about to be added; returns how many are to stay, at least that one."""
        self._sizes.append(size)
        self._total += size
        self._largest = max(self._largest, size, 1)
        while len(self._sizes) > 1 and (self._total > most or len(self._sizes) > self._bound):
            self._total -= self._sizes.popleft()
            self._alone = True
        earlier = 0 if self._alone else max(0, most - self._total) // self._largest
        return min(self._bound, len(self._sizes) + earlier)
