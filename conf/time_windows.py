"""Time windows of weekly periods such as ``Mon-Fri 09:00-18:00``.

Pure. A period belongs to the day on which it begins; one whose end is not later than its start ends on the next day.
Its times are local times of a zone. A time in the gap of a clock that is put forward is taken as the end of the gap; an
hour that comes twice is in the period both times.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from zoneinfo import ZoneInfo

from rechannel.conf.settings import PERIOD

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = datetime.timedelta(days=1)
_AHEAD = 16  # days in which every period comes at least once: of two weeks one may fall into a gap of the clocks


@dataclass(frozen=True)
class WeeklyPeriod:
    """Period of the week.

    ``days``: on which it begins, 0 is Monday; ``start`` and ``end``: minutes of the day.
    """

    text: str
    days: frozenset[int]
    start: int
    end: int


@dataclass(frozen=True)
class TimeWindow:
    """One occurrence of a period: from ``begin`` to before ``end``, seconds since the epoch."""

    begin: float
    end: float
    text: str


def parse(text: str) -> WeeklyPeriod:
    """Parse a period; ValueError with the cure if it is none."""
    match = re.fullmatch(PERIOD, text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no period; write it as in Mon-Fri 09:00-18:00, or 02:00-05:00 for every day")
    days: set[int] = set()
    for part in (match[1] or "Mon-Sun").split(","):
        first, _, last = part.partition("-")
        begin, end = _DAYS.index(first), _DAYS.index(last or first)
        days |= {day % 7 for day in range(begin, end + 1 if end >= begin else end + 8)}
    return WeeklyPeriod(text.strip(), frozenset(days), _minutes(match[2]), _minutes(match[3]))


class Calendar:
    """Periods in one time zone, both as in the settings; ValueError if one is invalid."""

    def __init__(self, periods: Iterable[str], zone: str) -> None:
        self._periods = tuple(parse(text) for text in periods)
        self._zone = ZoneInfo(zone)

    def inside(self, at: float) -> TimeWindow | None:
        """Return the window at a moment, with those that follow without a gap, or None."""
        present = self._holding(at)
        if present is None:
            return None
        end = present.end
        while end < at + _AHEAD * _DAY.total_seconds() and (more := self._holding(end)) is not None:
            end = more.end
        return TimeWindow(present.begin, end, present.text)

    def coming(self, at: float) -> TimeWindow | None:
        """Return the window at a moment, or else the next one; None without periods."""
        later = [span for span in self._spans(at, _AHEAD) if span.end > at]
        first = min((span.begin for span in later), default=None)
        return None if first is None else self.inside(max(at, first))

    def _holding(self, at: float) -> TimeWindow | None:
        spans = [span for span in self._spans(at, 1) if span.begin <= at < span.end]
        return max(spans, key=lambda span: span.end, default=None)

    def _spans(self, at: float, days: int) -> list[TimeWindow]:
        """Return the windows that begin from two days before a moment until ``days`` after it."""
        today = datetime.datetime.fromtimestamp(at, self._zone).date()
        windows = []
        for offset in range(-2, days + 1) if self._periods else ():
            day = today + offset * _DAY
            for period in self._periods:
                if day.weekday() in period.days:
                    begin = _moment(day, period.start, self._zone, last=False)
                    end = _moment(day if period.end > period.start else day + _DAY, period.end, self._zone, last=True)
                    if begin < end:
                        windows.append(TimeWindow(begin, end, period.text))
        return windows


@lru_cache(maxsize=16)
def calendar_of(periods: tuple[str, ...], zone: str) -> Calendar:
    """Return the calendar of periods in a zone, cached."""
    return Calendar(periods, zone)


def clock_time(at: float, zone: str) -> str:
    """Return day and time of a moment in a time zone, for people."""
    return datetime.datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%a %H:%M %Z")


def _minutes(text: str) -> int:
    hours, _, minutes = text.partition(":")
    return 60 * int(hours) + int(minutes)


def _moment(day: datetime.date, minutes: int, zone: ZoneInfo, *, last: bool) -> float:
    """Return the moment of a local time: of two the ``last``, of a gap the end."""
    midnight = datetime.datetime.combine(day, datetime.time())
    wall = midnight + datetime.timedelta(minutes=minutes)
    first, second = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if first <= second:
        return second if last else first
    low, high = int(second) - 1, int(first) + 1  # the clock is put forward in between
    before = _offset(low, zone)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
    return float(high)


def _offset(at: int, zone: ZoneInfo) -> datetime.timedelta | None:
    return datetime.datetime.fromtimestamp(at, zone).utcoffset()
