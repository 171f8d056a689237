"""Windows: the growth of counters in aligned spans of time.

Pure but for its clock. Time stamps come from the wall clock, and windows begin at its multiples of the window length,
so that those of different nodes can be compared. The monotonic clock checks the wall clock: a window in which the two
differ by more than `JUMP` of its length would have a wrong rate, and is dropped.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

LATE = 0.002  # seconds after a grid point at which a sample is taken: a timer may fire a little early
JUMP = 0.1
CLOCK_JUMPED = "window dropped: clock jumped"
PAUSED = "window dropped: agent was not running"
WENT_BACK = "counter went back"


class Clock:
    """The machine's clock."""

    def wall(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds on a clock that never jumps."""
        return time.monotonic()

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        """Wait so long or until ``stop`` is set; return whether it is."""
        return stop.wait(seconds)


@dataclass(frozen=True)
class CounterReading:
    """A counter's value, and when it began to count from zero (seconds since the epoch)."""

    value: float
    born: float


@dataclass(frozen=True)
class ClosedWindow:
    """A window that has ended; the first, the last, and one after a dropped one may be short."""

    start: float  # seconds since the epoch
    end: float
    complete: float  # share of its samples that were taken
    growth: dict[Hashable, float]  # increase of each counter
    samples: dict[Hashable, int]  # how often each was read
    steps: tuple[tuple[float, dict[Hashable, float]], ...] = ()  # end and growth of each sample's part of it


class WindowAggregator:
    """Aggregates counters, sample by sample, into their growth, window by window.

    The growth between two samples is split at a window's edge in proportion to time. A counter first seen counts from
    zero if it was born since the last sample, else from its first value: the key of a restarted
    counter must therefore differ from the one before. ``skipped`` counts drops by reason: a window in which the wall
    clock jumped, and windows that passed without a sample.
    """

    def __init__(self, window: float, sample: float, clock: Clock) -> None:
        self._window = window
        self._sample = sample
        self._samples_per_window = max(1, round(window / sample))
        self._clock = clock
        self.skipped: Counter[str] = Counter()
        self._last: dict[Hashable, float] = {}
        self._wall: float | None = None  # of the last sample
        self._monotonic = 0.0
        self._index = 0  # of the open window: it ends where the next one begins
        self._start = 0.0
        self._steps: list[tuple[float, dict[Hashable, float]]] = []
        self._samples: Counter[Hashable] = Counter()
        self._sample_count = 0

    def wait_time(self) -> float:
        """Return the seconds until the next sample, just behind the wall clock's grid."""
        return self._sample - self._clock.wall() % self._sample + LATE

    def add(self, readings: Mapping[Hashable, CounterReading]) -> ClosedWindow | None:
        """Add one sample; return the window that it closes, if any."""
        closed = self._advance(readings)
        self._sample_count += 1
        self._samples.update(readings.keys())
        return closed

    def _advance(self, readings: Mapping[Hashable, CounterReading]) -> ClosedWindow | None:
        wall, monotonic, before = self._clock.wall(), self._clock.monotonic(), self._wall
        jumped = before is not None and abs((wall - before) - (monotonic - self._monotonic)) > JUMP * self._window
        growth = {} if before is None or jumped else self._growth_since(readings, before)
        self._last = {key: reading.value for key, reading in readings.items()}
        self._wall, self._monotonic = wall, monotonic
        index = math.floor(wall / self._window)
        if before is None or jumped:
            if jumped:
                self.skipped[CLOCK_JUMPED] += 1
            self._begin(wall, index)
            return None
        if index <= self._index:
            self._add_step(growth, 1.0, wall)
            return None
        end, edge = (self._index + 1) * self._window, index * self._window
        span = wall - before
        self._add_step(growth, min(1.0, (end - before) / span) if span > 0 else 1.0, end)
        closed = self._build_window(end)
        if index - self._index > 1:
            self.skipped[PAUSED] += index - self._index - 1
        self._begin(edge, index)
        self._add_step(growth, min(1.0, (wall - edge) / span) if span > 0 else 0.0, wall)
        return closed

    def close(self) -> ClosedWindow | None:
        """Close the open window at its last sample and return it; None if it is empty."""
        if self._wall is None or self._wall <= self._start:
            return None
        closed = self._build_window(self._wall)
        self._begin(self._wall, self._index)
        return closed

    def _begin(self, start: float, index: int) -> None:
        self._start, self._index = start, index
        self._steps = []
        self._samples = Counter()
        self._sample_count = 0

    def _growth_since(self, readings: Mapping[Hashable, CounterReading], since: float) -> dict[Hashable, float]:
        growth = {}
        for key, reading in readings.items():
            before = self._last.get(key, 0.0 if reading.born >= since else reading.value)
            if reading.value < before:
                self.skipped[WENT_BACK] += 1
            growth[key] = max(0.0, reading.value - before)
        return growth

    def _add_step(self, growth: Mapping[Hashable, float], share: float, end: float) -> None:
        self._steps.append((end, {key: value * share for key, value in growth.items()}))

    def _build_window(self, end: float) -> ClosedWindow:
        growth: dict[Hashable, float] = {}
        for _, step in self._steps:
            for key, value in step.items():
                growth[key] = growth.get(key, 0.0) + value
        return ClosedWindow(
            start=self._start,
            end=end,
            complete=min(1.0, self._sample_count / self._samples_per_window),
            growth=growth,
            samples=dict(self._samples),
            steps=tuple(self._steps),
        )
