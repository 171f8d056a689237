from __future__ import annotations

from collections.abc import Hashable

import pytest

from rechannel.monitors.node.windows import (
    CLOCK_JUMPED,
    LATE,
    PAUSED,
    WENT_BACK,
    ClosedWindow,
    CounterReading,
    WindowAggregator,
)
from unit.monitors.fakes import START, FakeClock


def _windower(clock: FakeClock) -> WindowAggregator:
    return WindowAggregator(5.0, 1.0, clock)


def _old(value: float) -> dict[Hashable, CounterReading]:
    return {"a": CounterReading(value, 0.0)}


def _run(windower: WindowAggregator, clock: FakeClock, seconds: int, rate: float = 1.0) -> list[ClosedWindow]:
    closed = []
    for _ in range(seconds):
        window = windower.add(_old(clock.steady * rate))
        if window:
            closed.append(window)
        clock.pass_time(1.0)
    return closed


def test_windows_are_aligned_complete_and_hold_the_growth() -> None:
    clock = FakeClock(START + LATE)
    first, second, third = _run(_windower(clock), clock, 16, rate=2.0)
    assert (second.start, second.end, second.complete) == (START + 5, START + 10, 1.0)
    assert second.growth["a"] == pytest.approx(10.0)
    assert second.samples == {"a": 5}
    assert first.growth["a"] == pytest.approx(10.0, abs=2 * 2 * LATE)
    assert third.start == second.end


def test_the_first_window_is_as_long_as_it_was_watched() -> None:
    clock = FakeClock(START + 3)
    (window,) = _run(_windower(clock), clock, 3)
    assert (window.start, window.end, window.complete) == (START + 3, START + 5, 0.4)


def test_growth_is_split_at_the_edge_in_proportion_to_time() -> None:
    clock = FakeClock(START + 4.75)
    windower = _windower(clock)
    windower.add(_old(0.0))
    clock.pass_time(1.0)
    window = windower.add(_old(8.0))
    assert window is not None
    assert window.growth["a"] == pytest.approx(2.0)
    rest = windower.close()
    assert rest is not None
    assert rest.growth["a"] == pytest.approx(6.0)
    assert (rest.start, rest.end) == (START + 5, START + 5.75)


def test_a_counter_born_under_watch_counts_from_zero_an_older_one_from_its_first_value() -> None:
    clock = FakeClock()
    windower = _windower(clock)
    windower.add({})
    clock.pass_time(1.0)
    windower.add({"young": CounterReading(3.0, START + 0.5), "old": CounterReading(900.0, START - 500)})
    clock.pass_time(1.0)
    windower.add({"young": CounterReading(4.0, START + 0.5), "old": CounterReading(901.0, START - 500)})
    window = windower.close()
    assert window is not None
    assert window.growth == {"young": 4.0, "old": 1.0}
    assert window.samples == {"young": 2, "old": 2}


def test_a_counter_that_ends_keeps_what_it_grew_by() -> None:
    clock = FakeClock()
    windower = _windower(clock)
    windower.add(_old(1.0))
    clock.pass_time(1.0)
    windower.add(_old(3.0))
    clock.pass_time(1.0)
    windower.add({})
    window = windower.close()
    assert window is not None
    assert window.growth == {"a": 2.0}


def test_a_counter_that_goes_back_grows_by_nothing_and_is_counted() -> None:
    clock = FakeClock()
    windower = _windower(clock)
    windower.add(_old(5.0))
    clock.pass_time(1.0)
    windower.add(_old(2.0))
    window = windower.close()
    assert window is not None
    assert window.growth == {"a": 0.0}
    assert windower.skipped == {WENT_BACK: 1}


@pytest.mark.parametrize("jump", [-3600.0, -6.0, 6.0, 3600.0])
def test_a_jump_of_the_wall_clock_drops_the_window_and_is_counted(jump: float) -> None:
    clock = FakeClock()
    windower = _windower(clock)
    _run(windower, clock, 3)
    clock.now += jump
    assert _run(windower, clock, 1) == []
    assert windower.skipped == {CLOCK_JUMPED: 1}
    later = _run(windower, clock, 12)
    assert later[0].start == START + 3 + jump
    assert later[1].complete == 1.0
    assert later[1].growth["a"] == pytest.approx(5.0)


@pytest.mark.parametrize("step", [-0.4, 0.4])
def test_a_small_step_of_the_wall_clock_loses_no_growth(step: float) -> None:
    clock = FakeClock()
    windower = _windower(clock)
    closed = _run(windower, clock, 8)
    clock.now += step
    closed += _run(windower, clock, 13)
    last = windower.close()
    assert last is not None
    assert sum(window.growth["a"] for window in [*closed, last]) == pytest.approx(20.0)
    assert all(window.growth["a"] >= 0 and window.end > window.start for window in closed)
    assert windower.skipped == {}


def test_the_steps_of_a_window_add_up_to_it_and_end_where_samples_were_taken() -> None:
    clock = FakeClock(START + 0.3)
    for window in _run(_windower(clock), clock, 20):
        ends = [end for end, _ in window.steps]
        assert ends == sorted(ends)
        assert ends[-1] == window.end
        assert len(ends) <= 6
        assert sum(growth["a"] for _, growth in window.steps) == pytest.approx(window.growth["a"])


@pytest.mark.parametrize("step", [-4.0, -0.6, 0.6, 4.0])
def test_no_window_tells_a_rate_that_a_step_of_the_wall_clock_made(step: float) -> None:
    clock = FakeClock()
    windower = _windower(clock)
    closed = _run(windower, clock, 8)
    clock.now += step
    closed += _run(windower, clock, 13)
    assert all(window.growth["a"] == pytest.approx(window.end - window.start) for window in closed)
    assert windower.skipped == {CLOCK_JUMPED: 1}


def test_windows_that_passed_without_a_sample_are_dropped_and_counted() -> None:
    clock = FakeClock()
    windower = _windower(clock)
    _run(windower, clock, 3)
    clock.pass_time(17.0)  # now at 20; the last sample was at 2
    window = windower.add(_old(clock.steady))
    assert window is not None
    assert (window.end, window.complete) == (START + 5, 0.6)
    assert window.growth["a"] == pytest.approx(5.0)
    assert windower.skipped == {PAUSED: 3}


def test_nothing_seen_gives_no_last_window() -> None:
    clock = FakeClock()
    windower = _windower(clock)
    assert windower.close() is None
    windower.add({})
    assert windower.close() is None


def test_samples_are_due_just_behind_the_grid() -> None:
    clock = FakeClock(START + 0.25)
    assert _windower(clock).wait_time() == pytest.approx(0.75 + LATE)
