"""The time that the leader spends on planning, in which its other jobs rightly wait for its lock.

A plan for tens of thousands of tasks may take a policy minutes. What judges the jobs by when they came back last goes
by `Planning.clock`, which stands still meanwhile: then neither the watchdog nor ``/healthz`` takes a healthy controller
for one that hangs. For no more than `LONGEST` in one go, since a policy that never ends is a hang too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

LONGEST = 600.0  # seconds


class Planning:
    """Entered while one plan is made, by whoever holds the controller's lock; read by any thread, without a lock.

    ``steady``: seconds that nobody sets.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        # Seconds in plans that are made, and since when there is one under way; replaced as a whole.
        self._spent: tuple[float, float | None] = (0.0, None)

    def __enter__(self) -> Self:
        self._spent = (self._spent[0], self._steady())
        return self

    def __exit__(self, *_: object) -> None:
        self._spent = (self._total(), None)

    @property
    def lasts(self) -> bool:
        """Whether a plan is being made, and not for longer than any may take."""
        began = self._spent[1]
        return began is not None and self._steady() - began < LONGEST

    def clock(self) -> float:
        """Return seconds that stand still while a plan is made."""
        return self._steady() - self._total()

    def _total(self) -> float:
        before, began = self._spent
        return before if began is None else before + min(self._steady() - began, LONGEST)
