"""Trigger for executors that join or leave."""

from __future__ import annotations

import pytest

from rechannel.conf.settings import RescheduleSettings, Settings
from rechannel.daemon.control.triggers import ExecutorSetTrigger, executors_in_use
from rechannel.wire.codes import Law
from rechannel.wire.messages import Decision, LinkReport
from unit import sample_messages as samples
from unit.daemon.fake_store import FakeClock
from unit.daemon.fakes import query, report

RULES = Settings(reschedule=RescheduleSettings(settle=5.0, timeout=30.0))
THREE, FOUR = frozenset("012"), frozenset("0123")


class Trigger(ExecutorSetTrigger):
    """One application's trigger, by a clock and under these settings."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.settings = clock, RULES

    def see(self, executors: frozenset[str]) -> None:
        self.observe(executors, self.clock())

    def is_due_now(self) -> bool:
        return self.is_due(self.clock(), self.settings)

    def decided(self, decision: Decision, report: LinkReport) -> None:
        self.record(decision, report, self.clock(), self.settings)


@pytest.fixture
def joining(clock: FakeClock) -> Trigger:
    trigger = Trigger(clock)
    trigger.see(THREE)
    trigger.mark_ready(THREE)
    return trigger


@pytest.fixture
def changed(clock: FakeClock, joining: Trigger) -> Trigger:
    """One executor more, for long enough."""
    joining.see(FOUR)
    clock.sleep(5)
    return joining


def answer(result: str, reason: str = "gate") -> Decision:
    return samples.decision(trigger="executors", result=result, reason=reason)


def test_the_executors_of_the_beginning_are_no_change(clock, joining):
    clock.sleep(100)
    assert not joining.is_due_now()


def test_a_change_waits_until_it_has_lasted(clock, joining):
    joining.see(FOUR)
    clock.sleep(4)
    joining.see(frozenset("01234"))
    clock.sleep(4)
    assert not joining.is_due_now()
    clock.sleep(1)
    assert joining.is_due_now()


def test_what_left_and_came_back_is_no_change(clock, joining):
    joining.see(FOUR)
    joining.see(THREE)
    clock.sleep(10)
    assert not joining.is_due_now()


@pytest.mark.parametrize(("result", "again"), [("applied", False), ("planned", False), ("refused", True)])
def test_only_a_refusal_with_an_empty_executor_is_no_answer(clock, changed, result, again):
    changed.decided(answer(result), report([query("0012")]))
    clock.sleep(10)
    assert changed.is_due_now() is again


def test_a_refusal_that_leaves_nobody_empty_is_an_answer(clock, changed):
    changed.decided(answer("refused"), report([query("0123")]))
    clock.sleep(1000)
    assert not changed.is_due_now()


def test_it_is_asked_again_at_growing_intervals(clock, changed):
    request = []
    for second in range(100):
        if changed.is_due_now():
            request.append(second)
            changed.decided(answer("refused"), report([query("0012")]))
        clock.sleep(1)
    assert request == [0, 10, 30, 60, 90]
    changed.see(frozenset("013"))
    clock.sleep(5)
    assert changed.is_due_now(), "another change is another question"


def test_what_is_not_ready_is_asked_again_at_the_same_interval(clock, changed):
    for _ in range(4):
        assert changed.is_due_now()
        changed.decided(answer("not-ready"), report([query("0012")]))
        assert not changed.is_due_now()
        clock.sleep(10)


def test_what_is_to_be_agreed_on_waits_for_other_figures(clock, joining):
    joining.settings = Settings()
    joining.see(FOUR)
    clock.sleep(joining.settings.reschedule.settle)
    joining.decided(answer("refused", Law.AGREEMENTS), report([query("0012")]))
    clock.sleep(14)
    assert not joining.is_due_now()
    clock.sleep(1)
    assert joining.is_due_now()


def test_an_idle_query_holds_nothing():
    assert executors_in_use(report([query("0011"), query("33", "q2", active=False)])) == frozenset("01")
