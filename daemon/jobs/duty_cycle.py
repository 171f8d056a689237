"""How long work that is done again and again has to rest, so that it takes no more than a share of a core."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self


class DutyCycle:
    """Entered while a piece of work is done, once; then `rest` is known.

    ``share``: of a core, over time; ``longest``: seconds of rest that are never exceeded for it; ``busy``: seconds for
    which the asking thread had a core. Waiting is no work, and no reason to rest.
    """

    def __init__(self, share: float, longest: float, busy: Callable[[], float] = time.thread_time) -> None:
        self.rest = 0.0  # seconds from when the work began to when it is to begin again
        self._share = share
        self._longest = longest
        self._busy = busy
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = self._busy()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest = min((self._busy() - self._began) / self._share, self._longest)
