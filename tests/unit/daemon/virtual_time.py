"""Several processes in one virtual time: each runs in a thread, one at a time, and nothing but `sleep` takes time."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable


class VirtualTime:
    """Runs what is due, in the order of time. ``watch`` is called after every step; ``now`` in seconds from 0."""

    def __init__(self, watch: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.watch = watch
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._back = threading.Semaphore(0)
        self._failed: list[BaseException] = []

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have something done at a time."""
        heapq.heappush(self._due, (when, next(self._order), do))

    def process(self, body: Callable[[], None]) -> None:
        """Begin a process now; it runs while `run` does."""

        def whole() -> None:
            try:
                body()
            except BaseException as error:  # noqa: BLE001  raised again where the test can see it
                self._failed.append(error)
            self._back.release()

        thread = threading.Thread(target=whole, daemon=True)
        self.at(self.now, lambda: self._let(thread.start))

    def sleep(self, seconds: float) -> None:
        """Let time pass for the process that calls."""
        mine = threading.Semaphore(0)
        self.at(self.now + seconds, lambda: self._let(mine.release))
        self._back.release()
        mine.acquire()

    def run(self) -> None:
        """Go on until nothing is due any more."""
        while self._due:
            self.now, _, do = heapq.heappop(self._due)
            do()
            if self._failed:
                raise self._failed[0]
            self.watch()

    def _let(self, go_on: Callable[[], object]) -> None:
        go_on()
        self._back.acquire()
