"""The cool-down after a migration."""

from __future__ import annotations

import pytest

from rechannel.daemon.control.cooldown import CooldownTimer
from rechannel.wire.codes import DecisionResult, Trigger
from rechannel.wire.messages import Decision
from unit.daemon.fake_store import NOW


def test_a_cooldown_is_never_longer_than_planned_though_the_clock_was_set_back() -> None:
    cooldown = CooldownTimer(ended=NOW + 3600)
    assert cooldown.left(NOW, 300.0) == 300.0
    assert cooldown.left(NOW + 3600 + 150.0, 300.0) == 150.0


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
        same.schedule(decision, 300.0)
        same.start(decision.decision, NOW)
        if decision is B and C in oldest_first:
            same.confirm(decision.decision)
    for _ in range(2):  # a lead that is won again learns nothing new
        new.restore(oldest_first[::-1], 300.0)
    assert new.length(300.0) == same.length(300.0)
    assert new.length(300.0)[0] == seconds


def test_after_a_rollback_the_cooldown_begins_with_its_decision_where_nothing_else_is_known() -> None:
    cooldown = CooldownTimer()
    cooldown.restore([BACK_A, A], 300.0)
    assert cooldown.left(NOW + 200.0, 300.0) == 1000.0
    cooldown.restore([], 300.0)
    assert cooldown.left(NOW + 200.0, 300.0) == 1000.0
