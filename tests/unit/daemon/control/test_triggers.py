"""The controller with all that makes it decide by itself and holds it back."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from rechannel.conf.settings import MigrationSettings, Settings
from rechannel.daemon.control import guard
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.decide.rollback import find_rollback_target
from rechannel.daemon.model import snapshot
from rechannel.policies.model.workload import Workload
from rechannel.wire import keys
from rechannel.wire.commands import Drain
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import Decision
from unit.daemon.fake_store import NOW, FakeStore
from unit.daemon.fakes import (
    APP,
    GATE,
    World,
    app,
    cycle,
    decide,
    decisions,
    desired,
    go_on,
    leading,
    order,
    query,
    ruled,
)

HOUR = 3600.0
# Whatever the time of the fakes is, these are the hours around it, in UTC.
_HOUR_OF_DAY = int(NOW // HOUR) % 24
NOW_AND_NEXT = f"{_HOUR_OF_DAY:02d}:00-{(_HOUR_OF_DAY + 2) % 24:02d}:00"
LATER = f"{(_HOUR_OF_DAY + 2) % 24:02d}:00-{(_HOUR_OF_DAY + 3) % 24:02d}:00"


def last(store: FakeStore) -> Decision:
    return decisions(store)[-1]


# -- held back --


def test_in_an_excluded_period_nothing_begins_automatically_and_that_is_logged_once(store, world):
    leader = leading(world, ruled(excluded=(NOW_AND_NEXT,)))
    (refused,) = leader.decide_all()
    assert (refused.result, refused.reason, refused.trigger) == ("refused", "excluded", "timeout")
    for _ in range(3):
        go_on(world, 300, leader)
        assert leader.decide_all() == []
    assert decisions(store) == [refused]
    assert desired(store) is None
    result = store.get(keys.STATE)
    assert "excluded period" in result.body.applications[APP]  # type: ignore[union-attr]


def test_an_operator_and_a_drain_go_with_a_warning(store, world):
    leader = leading(world, ruled(excluded=(NOW_AND_NEXT,)))
    message = order(leader, Drain(nodes=["127.0.0.5"]), reason="old").sentence
    assert "warning: this is in the excluded period" in message
    leader.follow()
    assert (last(store).trigger, last(store).result) == ("drain", "applied")
    assert "warning: this is in the excluded period" in last(store).sentence


def test_an_operators_rebalance_is_warned(world):
    leader = leading(world, ruled(excluded=(NOW_AND_NEXT,), moves_per_hour=1))
    done = decide(leader, user="ann", reason="now", apply=True)
    assert done.result == "applied"
    assert "warning: this is in the excluded period" in done.sentence
    assert "reschedule.moves_per_hour is 1" in done.sentence
    assert (done.operator_reason, done.notes[0]) == ("now", "asked by ann: now")


def test_a_plan_is_cut_to_what_is_left_of_the_hour(world):
    leader = leading(world, ruled(moves_per_hour=2))
    (made,) = leader.decide_all()
    assert (made.result, len(made.moves)) == ("applied", 2)
    world.obey()
    cycle(leader, world, 1000)
    (held,) = leader.decide_all()
    assert (held.result, held.reason, held.refusals[0].measured, held.refusals[0].limit) == ("refused", "budget", 2, 2)


def test_the_budget_is_known_to_the_next_leader(world):
    first = leading(world, ruled(moves_per_hour=2))
    first.decide_all()
    world.obey()
    first.follow()
    first.close()
    other = leading(world, ruled(moves_per_hour=2), "b")
    assert [made.reason for made in other.decide_all()] == ["budget"]


def test_viewers_push_neither_the_budget_nor_what_can_be_undone_out(store, clock, world):
    first = leading(world, ruled(moves_per_hour=2))
    (made,) = first.decide_all()
    world.obey()
    first.follow()
    requested = decide(first)
    logged = EnvelopeFactory("default", "c", clock).envelope(requested, ttl=1000, application=APP)
    store.append(keys.DECISIONS, "", *[logged] * keys.DECISIONS.bound)
    first.close()
    other = leading(world, ruled(moves_per_hour=2), "b")
    assert made not in decisions(store)
    assert other._services.limits.moves_left(clock()) == 0
    assert find_rollback_target(applied_decisions(read_decision_log(other._context.store), APP)) == made


def test_a_costly_plan_waits_for_agreement(store, world, monkeypatch):
    monkeypatch.setattr(guard, "COSTLY_SHARE", 0.0)
    leader = leading(world, ruled())
    (first,) = leader.decide_all()
    assert (first.result, first.reason) == ("refused", "agreements")
    assert "recommended 1 of 2 times in a row" in first.sentence
    assert first.moves
    assert desired(store) is None
    go_on(world, 60, leader)
    result = store.get(keys.STATE)
    assert "a costly plan was recommended 1 of 2 times" in result.body.applications[APP]  # type: ignore[union-attr]
    assert leader.decide_all()[0].reason == "agreements", "no batch was measured since"
    world.queries = [msgspec.structs.replace(query(world.placement), batch=10)]
    world.report()
    assert leader.decide_all()[0].result == "applied"


def test_the_first_run_only_looks_on_and_says_how_to_change_that(world):
    (made,) = leading(world, ruled("observe")).decide_all()
    assert made.result == "planned"
    assert any('reschedule.mode = "apply"' in note for note in made.notes)


def crowded(**rules: object) -> Settings:
    """Settings by which an executor is soon too busy."""
    return dataclasses.replace(ruled(**rules), gate=dataclasses.replace(GATE, max_utilization=0.05))


def test_an_overload_is_decided_on_without_waiting_for_the_timeout(store, world):
    leader = leading(world, crowded(trigger_windows=3))
    for _ in range(4):
        cycle(leader, world, 5)
    made = decisions(store)[0]
    assert (made.trigger, made.result) == ("overload", "applied")
    assert "busy, gate.max_utilization is 5%, 3 windows in a row" in made.operator_reason
    assert len(decisions(store)) == 1


def test_an_imbalance_is_decided_on_without_waiting_for_the_timeout(store, world):
    leader = leading(world, ruled())
    for number in range(10, 14):
        world.measure(newest=number)
        cycle(leader, world, 5)
    made = decisions(store)[0]
    assert (made.trigger, made.result) == ("imbalance", "applied")
    assert "times in a row; 1.00 times can be reached" in made.operator_reason
    assert len(decisions(store)) == 1


def test_an_imbalance_is_decided_on_in_the_cycle_that_sees_its_second_batch(store, world):
    leader = leading(world, ruled())
    for number in range(10, 20):
        go_on(world, 5, leader)
        world.measure(newest=number)
        leader.follow()
        if decisions(store):
            break
    assert (number, decisions(store)[0].trigger) == (11, "imbalance")


@pytest.mark.parametrize("why", ["settle", "outcome"])
def test_an_imbalance_waits_for_stable_executors_and_the_last_outcome(store, world, why):
    leader = leading(world, ruled(settle=60.0 if why == "settle" else 0.0))
    if why == "outcome":
        app(leader).outcome.start_tracking(decide(leader))
    for number in range(10, 15):
        world.measure(newest=number)
        cycle(leader, world, 5)
    assert [made.reason for made in decisions(store) if made.trigger == "imbalance"] == (
        [] if why == "settle" else ["outcome-awaited"]
    )


def test_an_operators_plan_does_not_accept_an_imbalance(store, world):
    leader = leading(world, ruled())
    assert decide(leader, user="ann").result == "planned"
    for number in range(10, 13):
        world.measure(newest=number)
        cycle(leader, world, 5)
    assert [(made.trigger, made.result) for made in decisions(store)] == [
        ("operator", "planned"),
        ("imbalance", "applied"),
    ]


def overloaded(world: World, **rules: object) -> Controller:
    """A leader that looked at two windows of an executor that is too busy; by default the third is to come."""
    leader = leading(world, crowded(**{"trigger_windows": 3, **rules}))
    cycle(leader, world, 5)
    return leader


@pytest.mark.parametrize("silent", ["agents", "queries"])
def test_an_overload_of_what_is_not_ready_is_let_go(store, clock, world, silent):
    leader = overloaded(world, trigger_windows=2)
    world.queries = [] if silent == "queries" else None
    clock.sleep(60)
    for _ in range(600):
        clock.sleep(1)
        world.report()
        cycle(leader)
    assert len(decisions(store)) <= 1


def test_what_is_not_ready_for_long_is_told_once_for_each_reason(store, clock, world):
    leader = leading(world, ruled(trigger_windows=0))
    app(leader).executors.decided_for = frozenset({"0"})
    clock.sleep(60)
    world.queries = []
    for _ in range(30):
        clock.sleep(10)
        world.report()
        cycle(leader)
    assert [(made.trigger, made.reason) for made in decisions(store)] == [("executors", "no-active-query")]


def test_a_window_counts_once(store, world):
    leader = overloaded(world)
    app(leader).invalidate_sentence()
    cycle(leader)
    assert decisions(store) == []
    cycle(leader, world, 5)
    assert [made.trigger for made in decisions(store)] == ["overload"]


def test_an_overload_is_measured_and_not_expected(store, world, monkeypatch):
    def grown(workload: Workload, applied: object) -> Workload:
        if not applied:
            return workload
        return Workload(tuple(dataclasses.replace(it, busy=it.busy * 100) for it in workload.stages), workload.shuffles)

    monkeypatch.setattr(snapshot, "apply_forecasts", grown)
    leader = leading(world, ruled())
    for _ in range(6):
        cycle(leader, world, 5)
    assert decisions(store) == []


def test_who_is_silent_for_an_hour_is_forgotten(clock, world):
    leader = overloaded(world)
    clock.sleep(3599)
    leader.run_leader_cycle()
    existing = app(leader)
    clock.sleep(1)
    leader.run_leader_cycle()
    assert app(leader) is not existing


def test_why_each_partition_goes_is_kept(world):
    (made,) = leading(world, ruled()).decide_all()
    assert set(made.move_reasons) == {move.move for move in made.moves}
    assert all(
        text.startswith("frees executor 0, the critical one of name-of-q1: ") for text in made.move_reasons.values()
    )


def test_a_law_of_numbers_says_how_far_it_was(world):
    capped = dataclasses.replace(ruled(), migration=MigrationSettings(max_moves=1))
    capped = dataclasses.replace(capped, policies={"adaptive": {"max_moves": 100}})
    leader = leading(world, capped)
    made = decide(leader, policy="round-robin", force=True)
    (refusal,) = made.refusals
    assert (refusal.law, refusal.limit, refusal.unit) == ("max-moves", 1, "moves")
    assert refusal.measured is not None
    assert refusal.measured > 1
