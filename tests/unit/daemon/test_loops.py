"""What counts as a job that gets nowhere, and what it may rightly wait for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rechannel.conf.settings import RedisSettings, Settings
from rechannel.daemon import deciding
from rechannel.daemon.controller import Controller
from rechannel.daemon.heartbeat import patience
from rechannel.daemon.loops import Loops
from rechannel.daemon.planning import LONGEST, Planning
from rechannel.wire.messages import Decision
from unit.daemon.fakes import APP, FakeClock


def test_a_job_is_not_stuck_as_long_as_redis_may_keep_it() -> None:
    clock = FakeClock()
    allowed = patience(dataclasses.replace(Settings(), redis=RedisSettings(timeout=10.0)))
    loops = Loops(clock, clock, patience=allowed)
    loops.watch("observe", 1.0, lambda: None)
    clock.sleep(allowed)
    assert loops.stuck() == ""
    clock.sleep(4)
    assert loops.stuck().startswith("job observe has not ended")


def test_a_job_that_waits_for_a_plan_is_not_stuck_but_its_word_grows_old() -> None:
    clock = FakeClock()
    planning = Planning(clock)
    loops = Loops(clock, clock, planning=planning)
    loops.watch("observe", 1.0, lambda: None)()
    with planning:
        clock.sleep(LONGEST)
        assert loops.stuck() == ""
        assert loops.heard("observe", 15.0) == f"job observe has not ended for {LONGEST:.0f} s"
        clock.sleep(64)
        assert loops.stuck() == "job observe has not ended for 64 s; it is to run every 1 s"


def test_times_of_plans_add_up() -> None:
    clock = FakeClock()
    planning = Planning(clock)
    began = planning.clock()
    for seconds in (5.0, 7.0, LONGEST + 1.0):
        with planning:
            assert planning.lasts
            clock.sleep(seconds)
        assert not planning.lasts
        clock.sleep(1.0)
    assert planning.clock() - began == 4.0  # the second beyond the longest too


def test_the_controller_says_while_it_plans_and_not_before_or_after(
    leader: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    decide = deciding.decide

    def watched(*arguments: Any, **more: Any) -> Decision:
        seen.append(leader.planning.lasts)
        return decide(*arguments, **more)

    monkeypatch.setattr(deciding, "decide", watched)
    assert not leader.planning.lasts
    leader.decide("operator", application=APP)
    assert seen == [True]
    assert not leader.planning.lasts
