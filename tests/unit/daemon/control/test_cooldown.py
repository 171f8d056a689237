"""The cool-down after a migration."""

from __future__ import annotations

import dataclasses

import pytest

from rechannel.daemon.control.cooldown import CooldownTimer
from rechannel.wire.codes import DecisionResult, Trigger
from rechannel.wire.messages import Decision
from unit import sample_messages
from unit.daemon.control.test_outcomes import land, moved, outcomes
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import CONFIG, app, cycle, decide, go_on, leading


def test_a_cooldown_is_never_longer_than_planned_though_the_clock_was_set_back() -> None:
    cooldown = CooldownTimer(migration_ended=NOW + 3600)
    assert cooldown.time_left(NOW, 300.0) == 300.0
    assert cooldown.time_left(NOW + 3600 + 150.0, 300.0) == 150.0


def test_an_operators_stop_leaves_the_whole_cool_down() -> None:
    cooldown = CooldownTimer()
    for decision, stops, left in (("d1", False, 0.0), ("d2", True, 250.0), ("d3", False, 0.0)):
        cooldown.note_applied(sample_messages.decision(decision=decision))
        cooldown.start(decision, NOW)
        if stops:
            cooldown.stop()
        cooldown.confirm(decision)
        cooldown.restore([sample_messages.decision(decision=decision)], {decision})
        assert cooldown.time_left(NOW + 50.0, 300.0) == left


def test_a_drain_that_is_stopped_begins_no_cool_down() -> None:
    cooldown = CooldownTimer()
    cooldown.note_applied(sample_messages.decision(decision="d1"))
    cooldown.start("d1", NOW)
    cooldown.confirm("d1")
    cooldown.note_applied(sample_messages.decision(decision="d2", trigger=Trigger.DRAIN))
    cooldown.stop()
    assert cooldown.time_left(NOW + 50.0, 300.0) == 0.0


def test_the_cool_down_after_an_automatic_rollback_stays_until_the_executors_change(clock):
    cooldown, rollback = CooldownTimer(), sample_messages.decision(decision="d2", rollback_of="d1")
    cooldown.note_applied(rollback)
    cooldown.start("d2", clock())
    cooldown.observe(frozenset("01"))
    cooldown.observe(frozenset("012"))
    assert cooldown.time_left(clock(), 300.0) == 1200.0, "its effect is not known yet"
    cooldown.confirm("d2")
    cooldown.observe(frozenset("012"))
    assert cooldown.time_left(clock(), 300.0) == 1200.0, "the same figures would lead to the same plan"
    cooldown.observe(frozenset("0123"))
    assert cooldown.time_left(clock(), 300.0) == 0.0
    another = sample_messages.decision(decision="d3", rollback_of="d1")
    cooldown.note_applied(another)
    cooldown.start("d3", clock())
    cooldown.observe(frozenset("01"))
    assert cooldown.time_left(clock(), 300.0) == 4800.0, "the next rollback has one of its own"


def test_the_cool_down_ends_with_the_executors_that_the_migration_was_decided_for(clock):
    cooldown = CooldownTimer()
    cooldown.observe(frozenset("01"))
    cooldown.note_applied(A)
    cooldown.observe(frozenset("012"))  # while it runs
    cooldown.start("a", clock())
    assert cooldown.time_left(clock(), 300.0) == 0.0, "the executor that came waits for no effect"
    cooldown.observe(frozenset("01"))
    assert cooldown.time_left(clock(), 300.0) == 300.0, "it was away for a moment"
    cooldown.observe(frozenset("02"))
    cooldown.note_applied(B)
    cooldown.start("b", clock())
    assert cooldown.time_left(clock(), 300.0) == 300.0, "the next migration has one of its own"


def test_executors_end_the_cool_down_of_an_earlier_leader_only_if_they_change_after_it_is_over(clock):
    regained, new = CooldownTimer(), CooldownTimer()
    regained.observe(frozenset("01"))
    regained.note_applied(A)
    for cooldown in (regained, new):  # meanwhile another leader decided for one executor more
        cooldown.restore([B, A])
        cooldown.start("b", clock())
        cooldown.observe(frozenset("012"))
        assert cooldown.time_left(clock(), 300.0) == 300.0
        cooldown.observe(frozenset("0123"))
        assert cooldown.time_left(clock(), 300.0) == 0.0
        cooldown.restore([B, A])  # the lead was lost for a moment
        cooldown.observe(frozenset("0123"))
        assert cooldown.time_left(clock(), 300.0) == 0.0, "it does not begin again"


def test_a_confirmed_drain_does_not_end_the_cool_down_of_the_migration_before_it(clock):
    cooldown = CooldownTimer()
    for name, trigger in (("d1", "timeout"), ("d2", "drain")):
        made = sample_messages.decision(decision=name, trigger=trigger)
        cooldown.note_applied(made)
        cooldown.start(name, clock())
    cooldown.confirm("d2")
    assert cooldown.time_left(clock(), 300.0) == 300.0
    cooldown.confirm("d1")
    assert cooldown.time_left(clock(), 300.0) == 0.0
    cooldown.start("d1", clock())
    assert cooldown.time_left(clock(), 300.0) == 0.0, "an own earlier lead's, taken over again"


def applied(name: str, trigger: str = Trigger.TIMEOUT, rollback_of: str = "", user: str = "") -> Decision:
    return Decision(
        decision=name,
        at=NOW,
        trigger=trigger,
        policy="adaptive",
        result=DecisionResult.APPLIED,
        reason="ok",
        sentence="",
        rollback_of=rollback_of,
        user=user,
    )


A, B, C = applied("a"), applied("b"), applied("c")
BACK_A, BACK_B = (applied(f"back-{name}", Trigger.ROLLBACK, name) for name in "ab")
BY_USER = applied("back-a", Trigger.ROLLBACK, "a", user="ann")
DRAIN = applied("drain", Trigger.DRAIN)


@pytest.mark.parametrize(
    ("oldest_first", "seconds"),
    [
        ([A], 300.0),
        ([A, BACK_A], 1200.0),
        ([A, BACK_A, B, BACK_B], 4800.0),
        ([A, BACK_A, B, C, applied("back-c", Trigger.ROLLBACK, "c")], 1200.0),
        ([A, BACK_A, DRAIN, B, BACK_B], 4800.0),
        ([A, BY_USER], 300.0),
    ],
    ids=["no rollback", "one", "two in a row", "one that held between", "a drain between", "an operator's"],
)
def test_a_new_leader_learns_how_long_the_cooldown_after_rollbacks_is(
    oldest_first: list[Decision], seconds: float
) -> None:
    same, new = CooldownTimer(), CooldownTimer()
    for decision in oldest_first:
        same.note_applied(decision)
        same.start(decision.decision, NOW)
        if decision is B and C in oldest_first:
            same.confirm(decision.decision)
    for _ in range(2):  # a lead that is won again learns nothing new
        new.restore(oldest_first[::-1])
    assert new.length(300.0) == same.length(300.0)
    assert new.length(300.0)[0] == seconds


def test_after_a_rollback_the_cooldown_begins_with_its_decision_where_nothing_else_is_known() -> None:
    cooldown = CooldownTimer()
    cooldown.restore([BACK_A, A])
    assert cooldown.time_left(NOW + 200.0, 300.0) == 1000.0
    cooldown.restore([])
    assert cooldown.time_left(NOW + 200.0, 300.0) == 1000.0


def test_a_new_leader_learns_that_a_migration_was_confirmed(leader, world, clock):
    moved(leader, world)
    assert app(leader).migrations.cooldown_left(clock()) == 0
    leader.close()
    assert app(leading(world, CONFIG, "b")).migrations.cooldown_left(clock()) == 0


def test_under_a_new_leader_changed_executors_end_the_cooldown_after_a_confirmed_rollback(leader, store, world, clock):
    moved(leader, world, settled=8.0)
    leader.follow()
    land(world, 5.0, number=40)
    cycle(leader)
    assert outcomes(store)[-1].verdict == "confirmed"
    leader.close()
    other = leading(world, CONFIG, "b")
    other.follow()
    cooldown = app(other).migrations.cooldown_timer
    assert cooldown.time_left(clock(), 300.0) > 300.0
    cooldown.observe(cooldown._executors | {"9"})
    assert cooldown.time_left(clock(), 300.0) == 0


def test_a_reloaded_cooldown_holds_at_once(leader, world):
    moved(leader, world, settled=8.0, rows=600)  # not judged
    go_on(world, 20, leader)
    assert "gate.cooldown is 300 s" in decide(leader, apply=True).sentence
    leader.reload(dataclasses.replace(CONFIG, gate=dataclasses.replace(CONFIG.gate, cooldown=10.0)))
    assert "gate.cooldown is 300 s" not in decide(leader, apply=True).sentence
