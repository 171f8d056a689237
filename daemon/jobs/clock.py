"""Clocks of a process, detection of clock changes, and limits of rate and duty cycle."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

COMPLAIN_EVERY = 60.0  # seconds between two tracebacks about one application
_STEP = 1.0  # seconds; a smaller difference is drift between the clocks


def boot_seconds() -> float:
    """Return seconds that cannot be set and that go on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Clock:
    """Clocks of one process; each is called without arguments and returns seconds.

    ``wall`` time, since the epoch, may be set at any time; it is for people, and for times that other processes read.
    ``steady`` time cannot be set and goes on while the machine sleeps; for leases, waits and intervals. ``monotonic``
    time stands still while the machine sleeps; for the supervision of jobs. ``cpu``: of the calling thread.
    """

    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = boot_seconds
    monotonic: Callable[[], float] = time.monotonic
    cpu: Callable[[], float] = time.thread_time


class ClockJumpDetector:
    """Detector of changes of the wall clock: it no longer agrees with the monotonic one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.monotonic()

    def pop_jump(self) -> float:
        """Return by how many seconds the wall clock was set since the last call.

        0 for less than a second.
        """
        offset = self._clock.wall() - self._clock.monotonic()
        jump, self._offset = offset - self._offset, offset
        return jump if abs(jump) >= _STEP else 0.0


def due_after_jump(due: float, jump: float, now: float, every: float) -> float:
    """Return when a job is due after the clock was set, within one interval from now.

    ``due`` and ``now``: seconds since the epoch; ``jump``: seconds by which the clock was set forward.
    """
    return min(max(due + jump, now), now + every)


class RateLimit:
    """Limit of a repeated event: once in ``every`` seconds of any one clock."""

    def __init__(self, every: float) -> None:
        self._every = every
        self._next = -math.inf

    def allows(self, now: float) -> bool:
        """Return whether the event may happen now, and begin the pause if it may."""
        if now < self._next:
            return False
        self._next = now + self._every
        return True


class DutyCycle:
    """Limiter that keeps repeated work below a share of one core.

    A context manager around one piece of work. Afterwards ``rest`` holds the seconds from the start of the work to the
    next time it may start. Waiting is not counted as work.
    """

    def __init__(self, share: float, longest: float, cpu: Callable[[], float]) -> None:
        self.rest = 0.0
        self._share = share
        self._longest = longest
        self._cpu = cpu
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = self._cpu()
        return self

    def __exit__(self, *_: object) -> None:
        self.rest = min((self._cpu() - self._began) / self._share, self._longest)
