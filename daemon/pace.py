"""How long work that is done again and again has to rest, so that it takes no more than a share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self


class Pace:
    """Entered for each part of the work, by one thread at a time.

    ``share``: of a core, over time; ``longest``: seconds from one beginning to the next that are never exceeded for
    it; ``busy``: seconds for which the asking thread had a core. Waiting is no work, and no reason to rest.
    """

    def __init__(self, share: float, longest: float, busy: Callable[[], float] = time.thread_time) -> None:
        self._share = share
        self._longest = longest
        self._busy = busy
        self._spent = 0.0
        self._entered = 0.0

    def __enter__(self) -> Self:
        self._entered = self._busy()
        return self

    def __exit__(self, *_: object) -> None:
        self._spent += self._busy() - self._entered

    def begin(self) -> None:
        """The work begins anew."""
        self._spent = 0.0

    @property
    def rest(self) -> float:
        """Seconds from when the work began to when it is to begin again."""
        return min(self._spent / self._share, self._longest)
