"""When executors that join or leave ask for a decision."""

from __future__ import annotations

import msgspec
import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.control.executor_set import ExecutorSetTrigger, holding
from rechannel.daemon.control.guard import AGREEMENTS
from rechannel.daemon.decide.pipeline import DecisionRequest, refused
from rechannel.wire.messages import Decision, Refusal
from unit.daemon.fakes import APP, FakeClock, query, report

THREE, FOUR = frozenset("012"), frozenset("0123")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def joining(clock: FakeClock) -> ExecutorSetTrigger:
    found = ExecutorSetTrigger(clock, settle=5.0, longest_pause=30.0)
    found.see(APP, THREE)
    found.ready(APP, THREE)
    return found


def answer(outcome: str) -> Decision:
    decision = refused(
        DecisionRequest("d", 0.0, "executors", "adaptive"), Refusal(law="gate", scope="plan", detail="too little")
    )
    return msgspec.structs.replace(decision, outcome=outcome)


def test_the_executors_of_the_beginning_are_no_change(clock, joining):
    clock.sleep(100)
    assert not joining.due(APP)


def test_a_change_waits_until_it_has_lasted(clock, joining):
    joining.see(APP, FOUR)
    clock.sleep(4)
    joining.see(APP, frozenset("01234"))
    clock.sleep(4)
    assert not joining.due(APP)
    clock.sleep(1)
    assert joining.due(APP)


def test_what_left_and_came_back_is_no_change(clock, joining):
    joining.see(APP, FOUR)
    joining.see(APP, THREE)
    clock.sleep(10)
    assert not joining.due(APP)


@pytest.mark.parametrize(("outcome", "again"), [("applied", False), ("planned", False), ("refused", True)])
def test_only_a_refusal_with_an_empty_executor_is_no_answer(clock, joining, outcome, again):
    joining.see(APP, FOUR)
    clock.sleep(5)
    joining.decided(APP, answer(outcome), report([query("0012")]))
    clock.sleep(10)
    assert joining.due(APP) is again


def test_a_refusal_that_leaves_nobody_empty_is_an_answer(clock, joining):
    joining.see(APP, FOUR)
    clock.sleep(5)
    joining.decided(APP, answer("refused"), report([query("0123")]))
    clock.sleep(1000)
    assert not joining.due(APP)


def test_it_is_asked_again_at_growing_intervals(clock, joining):
    joining.see(APP, FOUR)
    clock.sleep(5)
    asked = []
    for second in range(100):
        if joining.due(APP):
            asked.append(second)
            joining.decided(APP, answer("refused"), report([query("0012")]))
        clock.sleep(1)
    assert asked == [0, 10, 30, 60, 90]
    joining.see(APP, frozenset("013"))
    clock.sleep(5)
    assert joining.due(APP), "another change is another question"


def test_what_is_not_ready_is_asked_again_at_the_same_interval(clock, joining):
    joining.see(APP, FOUR)
    clock.sleep(5)
    for _ in range(4):
        assert joining.due(APP)
        joining.decided(APP, answer("not-ready"), report([query("0012")]))
        assert not joining.due(APP)
        clock.sleep(10)


def test_what_is_to_be_agreed_on_waits_for_other_figures(clock, joining):
    joining.take(Settings())
    joining.see(APP, FOUR)
    clock.sleep(joining.settle)
    agreements = msgspec.structs.replace(answer("refused"), reason=AGREEMENTS)
    joining.decided(APP, agreements, report([query("0012")]))
    clock.sleep(14)
    assert not joining.due(APP)
    clock.sleep(1)
    assert joining.due(APP)


def test_an_idle_query_holds_nothing():
    assert holding(report([query("0011"), query("33", "q2", active=False)])) == frozenset("01")
