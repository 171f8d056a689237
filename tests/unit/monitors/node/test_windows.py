"""Windows: alignment, growth at the edges, and steps of the clock."""

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


class _Bench:
    """Aggregator of windows of 5 s, with a clock that is moved by hand."""

    def __init__(self, at: float = START) -> None:
        self.clock = FakeClock(at)
        self.aggregator = WindowAggregator(5.0, 1.0, self.clock)

    def run(self, seconds: int, rate: float = 1.0) -> list[ClosedWindow]:
        """Sample a counter once a second; return the closed windows."""
        closed = []
        for _ in range(seconds):
            closed.append(self.aggregator.add(_old(self.clock.steady * rate)))
            self.clock.pass_time(1.0)
        return [window for window in closed if window is not None]

    def run_with_step(self, step: float) -> list[ClosedWindow]:
        """Run 21 s with a step of the wall clock after 8 s."""
        closed = self.run(8)
        self.clock.now += step
        return closed + self.run(13)

    def last(self, *samples: dict[Hashable, CounterReading]) -> ClosedWindow:
        """Close the window of these samples, one a second."""
        for readings in samples:
            self.clock.pass_time(1.0)
            self.aggregator.add(readings)
        window = self.aggregator.close()
        assert window is not None
        return window


@pytest.fixture
def bench() -> _Bench:
    return _Bench()


def _old(value: float) -> dict[Hashable, CounterReading]:
    return {"a": CounterReading(value, 0.0)}


def test_windows_are_aligned_complete_and_hold_the_growth() -> None:
    first, second, third = _Bench(START + LATE).run(16, rate=2.0)
    assert (second.start, second.end, second.complete) == (START + 5, START + 10, 1.0)
    assert second.growth["a"] == pytest.approx(10.0)
    assert second.samples == {"a": 5}
    assert first.growth["a"] == pytest.approx(10.0, abs=2 * 2 * LATE)
    assert third.start == second.end


def test_the_first_window_begins_with_the_first_sample() -> None:
    (window,) = _Bench(START + 3).run(3)
    assert (window.start, window.end, window.complete) == (START + 3, START + 5, 0.4)


def test_growth_is_split_at_the_edge_in_proportion_to_time() -> None:
    bench = _Bench(START + 4.75)
    bench.aggregator.add(_old(0.0))
    bench.clock.pass_time(1.0)
    window, rest = bench.aggregator.add(_old(8.0)), bench.last()
    assert window is not None
    assert window.growth["a"] == pytest.approx(2.0)
    assert rest.growth["a"] == pytest.approx(6.0)
    assert (rest.start, rest.end) == (START + 5, START + 5.75)


def test_a_counter_counts_from_zero_only_if_born_since_the_last_sample(bench: _Bench) -> None:
    def readings(young: float, old: float) -> dict[Hashable, CounterReading]:
        return {"young": CounterReading(young, START + 1.5), "old": CounterReading(old, START - 500)}

    window = bench.last({}, readings(3.0, 900.0), readings(4.0, 901.0))
    assert window.growth == {"young": 4.0, "old": 1.0}
    assert window.samples == {"young": 2, "old": 2}


def test_the_growth_of_an_ended_counter_is_in_the_window(bench: _Bench) -> None:
    assert bench.last(_old(1.0), _old(3.0), {}).growth == {"a": 2.0}


def test_a_counter_that_goes_back_grows_by_nothing_and_is_counted(bench: _Bench) -> None:
    assert bench.last(_old(5.0), _old(2.0)).growth == {"a": 0.0}
    assert bench.aggregator.skipped == {WENT_BACK: 1}


@pytest.mark.parametrize("jump", [-3600.0, -6.0, 6.0, 3600.0])
def test_a_jump_of_the_wall_clock_drops_the_window_and_is_counted(bench: _Bench, jump: float) -> None:
    bench.run(3)
    bench.clock.now += jump
    assert bench.run(1) == []
    assert bench.aggregator.skipped == {CLOCK_JUMPED: 1}
    later = bench.run(12)
    assert later[0].start == START + 3 + jump
    assert later[1].complete == 1.0
    assert later[1].growth["a"] == pytest.approx(5.0)


@pytest.mark.parametrize("step", [-0.4, 0.4])
def test_a_small_step_of_the_wall_clock_loses_no_growth(bench: _Bench, step: float) -> None:
    closed = bench.run_with_step(step)
    assert sum(window.growth["a"] for window in [*closed, bench.last()]) == pytest.approx(20.0)
    assert all(window.growth["a"] >= 0 and window.end > window.start for window in closed)
    assert bench.aggregator.skipped == {}


@pytest.mark.parametrize("step", [-4.0, -0.6, 0.6, 4.0])
def test_a_larger_step_of_the_wall_clock_makes_no_wrong_rate(bench: _Bench, step: float) -> None:
    assert all(window.growth["a"] == pytest.approx(window.end - window.start) for window in bench.run_with_step(step))
    assert bench.aggregator.skipped == {CLOCK_JUMPED: 1}


def test_the_steps_of_a_window_add_up_to_it_and_end_with_their_samples() -> None:
    for window in _Bench(START + 0.3).run(20):
        ends = [end for end, _ in window.steps]
        assert ends == sorted(ends)
        assert ends[-1] == window.end
        assert len(ends) <= 6
        assert sum(growth["a"] for _, growth in window.steps) == pytest.approx(window.growth["a"])


def test_windows_without_a_sample_are_dropped_and_counted(bench: _Bench) -> None:
    bench.run(3)
    bench.clock.pass_time(17.0)  # now at 20; the last sample was at 2
    window = bench.aggregator.add(_old(bench.clock.steady))
    assert window is not None
    assert (window.end, window.complete) == (START + 5, 0.6)
    assert window.growth["a"] == pytest.approx(5.0)
    assert bench.aggregator.skipped == {PAUSED: 3}


def test_there_is_no_last_window_without_two_samples(bench: _Bench) -> None:
    assert bench.aggregator.close() is None
    bench.aggregator.add({})
    assert bench.aggregator.close() is None


def test_samples_are_due_just_behind_the_grid() -> None:
    assert _Bench(START + 0.25).aggregator.wait_time() == pytest.approx(0.75 + LATE)
