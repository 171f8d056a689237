"""A clock that is set is noticed; one that drifts is not."""

from __future__ import annotations

import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.control.migrations import MigrationTracker
from rechannel.daemon.service import ClockJumpDetector, after_step
from unit.daemon.fakes import NOW, FakeClock


@pytest.mark.parametrize("step", [3600.0, -3600.0, 1.5])
def test_a_clock_that_is_set_is_noticed_once(step: float) -> None:
    clock, steady = FakeClock(), FakeClock()
    steps = ClockJumpDetector(clock, steady)
    clock.now += 10 + step
    steady.now += 10
    assert steps.seen() == pytest.approx(step)
    clock.now += 1
    steady.now += 1
    assert steps.seen() == 0


def test_drift_is_not_a_step_however_long_it_lasts() -> None:
    clock, steady = FakeClock(), FakeClock()
    steps = ClockJumpDetector(clock, steady)
    for _ in range(100):
        clock.now += 1.01
        steady.now += 1
        assert steps.seen() == 0


def test_the_rest_after_a_migration_is_never_longer_than_the_rest_though_the_clock_was_set_back() -> None:
    settings = Settings()
    migrations = MigrationTracker(settings, *[None] * 5)  # type: ignore[arg-type]  # it needs none of them to count
    migrations.ended["app"] = NOW + 3600
    assert migrations.resting("app", NOW) == settings.gate.cooldown
    assert migrations.resting("app", NOW + 3600 + settings.gate.cooldown / 2) == settings.gate.cooldown / 2


@pytest.mark.parametrize(
    ("left", "step", "then"),
    [(30.0, -3600.0, 30.0), (30.0, 3600.0, 30.0), (300.0, 2.0, 300.0), (-10.0, 0.0, 0.0), (3630.0, 3600.0, 300.0)],
)
def test_a_job_is_due_after_as_long_as_before_the_clock_was_set(left: float, step: float, then: float) -> None:
    now = NOW + step
    assert after_step(NOW + left, step, now, 300.0) - now == pytest.approx(then)
