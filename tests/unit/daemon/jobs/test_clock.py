"""A clock that is set is noticed; one that drifts is not."""

from __future__ import annotations

import pytest

from rechannel.daemon.jobs.clock import Clock, ClockJumpDetector, due_after_jump
from unit.daemon.fake_store import NOW, FakeClock


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1.5])
def test_a_clock_that_is_set_is_noticed_once(step: float) -> None:
    clock, steady = FakeClock(), FakeClock()
    steps = ClockJumpDetector(Clock(wall=clock, monotonic=steady))
    clock.now += 10 + step
    steady.now += 10
    assert steps.pop_jump() == pytest.approx(step)
    clock.now += 1
    steady.now += 1
    assert steps.pop_jump() == 0


def test_drift_is_not_a_step_however_long_it_lasts() -> None:
    clock, steady = FakeClock(), FakeClock()
    steps = ClockJumpDetector(Clock(wall=clock, monotonic=steady))
    for _ in range(100):
        clock.now += 1.01
        steady.now += 1
        assert steps.pop_jump() == 0


@pytest.mark.parametrize(
    ("left", "step", "then"),
    [(30.0, -3600.0, 30.0), (30.0, 3600.0, 30.0), (300.0, 2.0, 300.0), (-10.0, 0.0, 0.0), (3630.0, 3600.0, 300.0)],
)
def test_a_job_is_due_after_as_long_as_before_the_clock_was_set(left: float, step: float, then: float) -> None:
    now = NOW + step
    assert due_after_jump(NOW + left, step, now, 300.0) - now == pytest.approx(then)
