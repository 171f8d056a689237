"""Forecast of the load of each partition, where the past shows that it can be forecast.

The past is cut into equal slots; the forecast is the mean load of the next few slots. Two methods compete with the
last value:

* *trend*: an exponentially smoothed level with a damped trend (Holt; damped as Gardner and McKenzie, 1985);
* *season*: the value of one period ago, where a period is evident.

Both are tried on the past first: at each earlier slot they forecast the slots that followed, and their mean absolute
error is scaled to that of the last value (Hyndman and Koehler's MASE, over the same horizon). A method is used for a
partition only where it was clearly better than the last value, and than the plain mean of the last slots: smoothing
beats the last value on mere noise, which is no drift. Every other partition keeps its last value.

No state is kept between two calls: the same past always gives the same forecast, on every controller.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from rechannel.policies.model.arrays import FloatArray, ModelError

_SINGLE = np.float32  # loads are not known to seven digits, and it takes half the time
_Floats: TypeAlias = NDArray[np.float32]

_SAMPLE = 256  # largest entries that are searched for a period: all of them would take too long
_CYCLES = 3  # periods that the past must hold
_EVIDENT = 0.5  # largest difference of values a period apart, as a share of the difference of neighbors
_AT_ONCE = 16_384  # entries of one pass, which stay in the cache
_NEWEST = 12  # comparisons that count: older ones say little, and take time
_FLAT = 8  # slots of the plain mean
_FEWEST = 4  # slots before the first comparison: fewer show no trend
_LEVEL, _TREND = 0.5, 0.3  # weights of a new slot
_DAMPING = 0.9  # share of the trend that is left one slot on
_WINS = 0.75  # least share of comparisons that a method in use has won

MIN_COMPARISONS = 8
"""Least number of comparisons before a method is used."""

BETTER = 0.8
"""Largest scaled error that counts as better than the last value."""

LARGEST_GROWTH = 2.0
"""Largest forecast, as a multiple of the largest value seen."""


class Method(IntEnum):
    """Method by which the load of a partition is forecast."""

    LAST = 0
    TREND = 1
    SEASON = 2


@dataclass(frozen=True, eq=False)
class Forecast:
    """Expected load, and the errors of the forecasts of the past.

    ``values``: mean over the next ``ahead`` slots, shape (n,); ``method``: a `Method` for each entry, (n,);
    ``error``: the scaled error of the better way, used or not, (n,): below 1 it was better than the last value,
    infinity where nothing was compared or the last value was never wrong. ``pooled``: the same over all entries
    together, weighed by their load. ``period``: in slots, 0 where none is evident.
    """

    values: FloatArray
    method: NDArray[np.int8]
    error: FloatArray
    pooled: float
    comparisons: int
    ahead: int
    period: int = 0

    @property
    def used(self) -> int:
        """Number of entries that are not forecast by their last value."""
        return int(np.count_nonzero(self.method))


def slots_ahead(slots: int, requested: int) -> int:
    """Return the forecast horizon in slots: at most a quarter of the slots seen.

    Beyond that, too little of the past could be compared.
    """
    return max(1, min(requested, slots // 4))


def look_ahead(past: FloatArray, ahead: int) -> Forecast:
    """Forecast the mean load of the next ``ahead`` slots of each entry.

    ``past``: load by slot and entry, oldest first, shape (slots, n), finite and not negative.
    """
    past = np.ascontiguousarray(past, dtype=np.float64)
    if past.ndim != 2 or not len(past):
        raise ModelError(f"past: expected at least one slot of entries, got shape {past.shape}")
    if ahead < 1:
        raise ModelError(f"ahead: expected at least one slot, got {ahead}")
    if past.size and not (past.min() >= 0 and past.max() < np.inf):
        raise ModelError("past: loads must be finite and not negative")
    slots, entries = past.shape
    values, method, error = past[-1].copy(), np.zeros(entries, np.int8), np.full(entries, np.inf)
    comparisons = max(0, min(slots - ahead - _FEWEST + 1, _NEWEST))
    if not entries or comparisons < MIN_COMPARISONS:
        return Forecast(values, method, error, np.inf, comparisons, ahead)
    period = period_of(past)
    wrong = np.zeros((len(Method), 2))
    for start in range(0, entries, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        trial = _Trial(past[:, part].astype(_SINGLE), ahead, period)
        for way in trial.run():
            trial.choose(way, values[part], method[part], error[part])
            wrong[way] += trial.scores[way].miss.sum(), trial.scores[way].last_miss.sum()
    ratios = [forecast / last for forecast, last in wrong if last > 0]
    return Forecast(values, method, error, float(min(ratios, default=np.inf)), comparisons, ahead, period)


def period_of(past: FloatArray) -> int:
    """Return the slots of the period that the largest entries show, 0 where none is evident."""
    longest = len(past) // _CYCLES
    if longest < 2:
        return 0
    size = past.sum(axis=0)
    chosen = past[:, np.argsort(size)[-_SAMPLE:]]
    near = np.abs(np.diff(chosen, axis=0)).mean()
    far = np.array([np.abs(chosen[lag:] - chosen[:-lag]).mean() for lag in range(2, longest + 1)])
    if not far.min() < _EVIDENT * near:
        return 0
    # A multiple of a period is one too: take the shortest of those that fit about equally well.
    return int(np.flatnonzero(far <= 1.2 * far.min())[0]) + 2


class _Score:
    """Errors of one method, of the last value and of the plain mean, and its wins."""

    def __init__(self, entries: int) -> None:
        self.miss, self.last_miss, self.flat_miss = np.zeros((3, entries), _SINGLE)
        self.wins = np.zeros(entries, np.int32)
        self.count = 0

    def add(self, miss: _Floats, last_miss: _Floats, flat_miss: _Floats) -> None:
        self.miss += miss
        self.last_miss += last_miss
        self.flat_miss += flat_miss
        self.wins += miss < last_miss
        self.count += 1


class _Trial:
    """Trial of the methods on the past of some entries."""

    def __init__(self, past: _Floats, ahead: int, period: int) -> None:
        self.past, self.ahead, self.period = past, ahead, period
        slots, entries = past.shape
        self.sums = np.zeros((slots + 1, entries), _SINGLE)  # of all slots before
        for slot in range(slots):  # np.cumsum along this axis takes sixty times as long
            np.add(self.sums[slot], past[slot], out=self.sums[slot + 1])
        self.ceiling = LARGEST_GROWTH * past.max(axis=0)
        self.reach = _reach(ahead)
        self.scores = {way: _Score(entries) for way in (Method.TREND, Method.SEASON)}
        self.answers: dict[Method, _Floats] = {}

    def run(self) -> list[Method]:
        """Compare at each slot whose future is known; return the methods with enough comparisons."""
        slots, entries = self.past.shape
        first = max(_FEWEST - 1, slots - self.ahead - _NEWEST)
        level, trend, room = self.past[0].copy(), np.zeros(entries, _SINGLE), np.empty(entries, _SINGLE)
        for slot in range(slots):
            if slot:
                _smooth(level, trend, self.past[slot], room)
            if first <= slot < slots - self.ahead:
                self._compare(slot, level, trend)
        self.answers[Method.TREND] = self._bounded(level + self.reach * trend)
        if self.period:
            self.answers[Method.SEASON] = _season(self.sums, slots, self.period, self.ahead)
        return [way for way in self.answers if self.scores[way].count >= MIN_COMPARISONS]

    def choose(self, way: Method, values: FloatArray, method: NDArray[np.int8], error: FloatArray) -> None:
        """Take the method where it has enough evidence and is the best so far.

        The arrays are written to.
        """
        score = self.scores[way]
        scaled = np.full_like(error, np.inf)
        # In double precision: an error over a tiny one is beyond the range of single precision.
        np.divide(score.miss, score.last_miss, out=scaled, where=score.last_miss > 0, dtype=np.float64)
        good = (scaled <= BETTER) & (score.wins >= _WINS * score.count) & (scaled < error)
        if way is Method.TREND:  # noise may look like a trend, but not like a season
            good &= score.miss <= BETTER * score.flat_miss
        values[good] = self.answers[way][good]
        method[good] = way
        np.minimum(error, scaled, out=error)

    def _compare(self, slot: int, level: _Floats, trend: _Floats) -> None:
        end = slot + 1
        actual = (self.sums[end + self.ahead] - self.sums[end]) / self.ahead
        last_miss = np.abs(self.past[slot] - actual)
        since = max(0, end - _FLAT)
        flat_miss = np.abs((self.sums[end] - self.sums[since]) / (end - since) - actual)
        forecast = self._bounded(level + self.reach * trend)
        self.scores[Method.TREND].add(np.abs(forecast - actual), last_miss, flat_miss)
        if self.period and end >= self.period:
            forecast = _season(self.sums, end, self.period, self.ahead)
            self.scores[Method.SEASON].add(np.abs(forecast - actual), last_miss, flat_miss)

    def _bounded(self, forecast: _Floats) -> _Floats:
        np.maximum(forecast, 0.0, out=forecast)
        np.minimum(forecast, self.ceiling, out=forecast)
        return forecast


def _smooth(level: _Floats, trend: _Floats, new: _Floats, room: _Floats) -> None:
    """Take one more slot into level and trend, in place; ``room`` is overwritten."""
    trend *= _DAMPING
    np.add(level, trend, out=room)  # what was expected
    np.subtract(new, room, out=room)
    level += trend
    level += _LEVEL * room
    # The new trend is trend + b * (step of the level - trend), and that difference is a share of the surprise.
    trend += _TREND * _LEVEL * room


def _reach(ahead: int) -> float:
    """Return the factor of the trend in the mean of the next slots."""
    sums = np.cumsum(_DAMPING ** np.arange(1, ahead + 1, dtype=np.float64))
    return float(sums.mean())


def _season(until: _Floats, slots: int, period: int, ahead: int) -> _Floats:
    """Return the mean of the next slots if they repeat those of one period ago.

    ``until`` are the running sums of the past.
    """
    whole, rest = divmod(ahead, period)
    start = slots - period
    total = whole * (until[slots] - until[start]) + (until[start + rest] - until[start])
    mean: _Floats = np.divide(total, ahead, dtype=_SINGLE)
    return mean
