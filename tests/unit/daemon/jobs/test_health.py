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
    loops = JobMonitor(clocks(clock), patience=allowed)
    loops.add("observe", 1.0, lambda: None)
    clock.sleep(allowed)
    assert loops.stuck() == ""
    clock.sleep(4)
    assert loops.stuck().startswith("job observe has not ended")


def test_a_plan_that_never_ends_is_a_hang() -> None:
    clock = FakeClock()
    loops = JobMonitor(clocks(clock))
    observe = loops.add("observe", 1.0, lambda: None)
    with loops.running_plans.record(APP):
        clock.sleep(LONGEST)
        observe.run()
        assert loops.stuck() == ""
        clock.sleep(1)
        assert loops.stuck() == f"the plan for {APP} has not ended for 601 s; 600 s are allowed"
    assert loops.stuck() == ""
