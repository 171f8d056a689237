"""Jobs and plans that hang."""

from __future__ import annotations

import dataclasses

from rechannel.conf.settings import RedisSettings, Settings
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.running_plans import LONGEST
from rechannel.daemon.jobs.watchdog import patience
from unit.daemon.fake_store import FakeClock
from unit.daemon.fakes import APP, clocks


def test_a_job_is_not_stuck_while_redis_may_delay_it() -> None:
    clock = FakeClock()
    allowed = patience(dataclasses.replace(Settings(), redis=RedisSettings(timeout=10.0)))
    monitor = JobMonitor(clocks(clock), patience=allowed)
    monitor.add("observe", 1.0, lambda: None)
    clock.sleep(allowed)
    assert monitor.stuck() == ""
    clock.sleep(4)
    assert monitor.stuck().startswith("job observe has not ended")


def test_a_plan_that_never_ends_is_a_hang() -> None:
    clock = FakeClock()
    monitor = JobMonitor(clocks(clock))
    observe = monitor.add("observe", 1.0, lambda: None)
    with monitor.running_plans.record(APP):
        clock.sleep(LONGEST)
        observe.run()
        assert monitor.stuck() == ""
        clock.sleep(1)
        assert monitor.stuck() == f"the plan for {APP} has not ended for 601 s; 600 s are allowed"
    assert monitor.stuck() == ""
