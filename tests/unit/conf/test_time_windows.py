"""Periods of the week by the wall clock of a time zone."""

from __future__ import annotations

import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.conf.time_windows import Calendar, parse

BERLIN = "Europe/Berlin"
ZONES = st.sampled_from([BERLIN, "UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"])
MOMENTS = st.integers(1_700_000_000, 1_900_000_000)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
CLOCK = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))
PERIODS = st.builds("{}-{} {}-{}".format, st.sampled_from(DAYS), st.sampled_from(DAYS), CLOCK, CLOCK)


def at(text: str, zone: str = BERLIN, fold: int = 0) -> float:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


@pytest.mark.parametrize(
    ("text", "days", "start", "end"),
    [
        ("Mon-Fri 09:00-18:00", {0, 1, 2, 3, 4}, 540, 1080),
        ("Sat,Sun 00:00-24:00", {5, 6}, 0, 1440),
        ("Fri-Mon 22:00-06:00", {4, 5, 6, 0}, 1320, 360),
        ("02:00-05:00", {0, 1, 2, 3, 4, 5, 6}, 120, 300),
    ],
)
def test_a_period_is_read(text: str, days: set[int], start: int, end: int) -> None:
    result = parse(text)
    assert (result.days, result.start, result.end) == (days, start, end)


@pytest.mark.parametrize(
    "text", ["", "Mon", "9:00-18:00", "Mon 09:00-25:00", "Foo 09:00-10:00", "Mon 09:00", "24:00-01:00"]
)
def test_what_is_no_period_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="Mon-Fri 09:00-18:00"):
        parse(text)


def test_a_period_across_midnight_belongs_to_the_day_it_begins_on() -> None:
    nights = Calendar(["Fri 22:00-06:00"], BERLIN)
    for moment, within in (
        ("2026-06-05 21:59:59", False),  # a Friday
        ("2026-06-05 22:00:00", True),
        ("2026-06-06 05:59:59", True),
        ("2026-06-06 06:00:00", False),
        ("2026-06-06 23:00:00", False),
        ("2026-06-05 03:00:00", False),
    ):
        assert (nights.inside(at(moment)) is not None) is within, moment
    result = nights.inside(at("2026-06-06 00:30"))
    assert (result.begin, result.end) == (at("2026-06-05 22:00"), at("2026-06-06 06:00"))


@pytest.mark.parametrize(
    ("zone", "text", "since", "begin"),
    [
        (BERLIN, "Sun 02:00-03:00", "2027-03-22 12:00", "2027-04-04 02:00"),
        ("America/New_York", "Sun 02:00-02:30", "2027-03-08 12:00", "2027-03-21 02:00"),
        ("Australia/Lord_Howe", "Sun 02:00-02:30", "2026-09-28 12:00", "2026-10-11 02:00"),
    ],
)
def test_a_period_that_falls_into_a_gap_comes_a_week_later(zone: str, text: str, since: str, begin: str) -> None:
    result = Calendar([text], zone).coming(at(since, zone))
    assert result.begin == at(begin, zone)


def test_what_follows_without_a_gap_counts_in() -> None:
    result = Calendar(["Mon 22:00-24:00", "Tue 00:00-03:00"], "UTC").inside(at("2026-06-01 23:00", "UTC"))
    assert result.end == at("2026-06-02 03:00", "UTC")


def test_the_clock_put_forward_shortens_a_night_and_skips_what_falls_into_the_gap() -> None:
    result = Calendar(["01:00-05:00"], BERLIN).inside(at("2026-03-29 01:30"))
    assert result.end - result.begin == 3 * 3600
    gap = Calendar(["02:00-03:00"], BERLIN)
    assert gap.inside(at("2026-03-29 03:00")) is None
    half = Calendar(["02:30-04:00"], BERLIN).inside(at("2026-03-29 03:10"))
    assert (half.begin, half.end) == (at("2026-03-29 03:00"), at("2026-03-29 04:00"))


def test_the_hour_that_comes_twice_is_in_the_period_both_times() -> None:
    nights = Calendar(["02:00-03:00"], BERLIN)
    for fold in (0, 1):
        result = nights.inside(at("2026-10-25 02:30", fold=fold))
        assert result.end - result.begin == 2 * 3600


def test_the_next_one_is_found_over_a_week_and_none_without_periods() -> None:
    sunday = Calendar(["Sun 02:00-05:00"], BERLIN)
    result = sunday.coming(at("2026-06-07 05:00"))
    assert result.begin == at("2026-06-14 02:00")
    assert sunday.coming(at("2026-06-07 03:00")) == sunday.inside(at("2026-06-07 03:00"))
    assert Calendar([], BERLIN).coming(0.0) is None


@given(text=PERIODS, zone=ZONES, moment=MOMENTS)
def test_it_agrees_with_the_clock_on_the_wall(text: str, zone: str, moment: int) -> None:
    period, local = parse(text), datetime.datetime.fromtimestamp(moment, ZoneInfo(zone))
    minute, today, before = local.hour * 60 + local.minute, local.weekday(), (local.weekday() - 1) % 7
    if period.end > period.start:
        holds = today in period.days and period.start <= minute < period.end
    else:
        holds = (today in period.days and minute >= period.start) or (before in period.days and minute < period.end)
    near = [datetime.datetime.fromtimestamp(moment + hours * 3600, ZoneInfo(zone)).utcoffset() for hours in (-26, 26)]
    result = Calendar([text], zone).inside(moment)
    if near[0] == near[1]:  # where the clock is set a time may come twice or never: the tests above say what is so then
        assert (result is not None) is holds
    if result is not None:
        assert result.begin <= moment < result.end


@given(text=PERIODS, zone=ZONES, moment=MOMENTS)
def test_what_comes_begins_just_where_it_says(text: str, zone: str, moment: int) -> None:
    periods = Calendar([text], zone)
    result = periods.coming(moment)
    assert result.end > moment
    assert periods.inside(result.begin) is not None
    assert periods.inside(result.end) is None or result.end > moment + 9 * 86_400
    if result.begin > moment:
        assert periods.inside(moment) is None
        assert periods.inside(result.begin - 1) is None
