"""The controller with all that makes it decide by itself and holds it back, and with plans that wait."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from rechannel.conf.settings import MigrationSettings, Settings
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.control.rollback import find_undoable
from rechannel.daemon.decide.requested_placement import saved_plan_of
from rechannel.daemon.model import snapshot
from rechannel.policies.model.workload import Workload
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Decision, PendingPlans
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.daemon.fakes import (
    APP,
    CONFIG,
    NOW,
    FakeClock,
    FakeStore,
    World,
    controller,
    decisions,
    desired,
    go_on,
    query,
    reply,
    request,
    settings,
)

HOUR = 3600.0
# Whatever the time of the fakes is, these are the hours around it, in UTC.
_HOUR_OF_DAY = int(NOW // HOUR) % 24
NOW_AND_NEXT = f"{_HOUR_OF_DAY:02d}:00-{(_HOUR_OF_DAY + 2) % 24:02d}:00"
LATER = f"{(_HOUR_OF_DAY + 2) % 24:02d}:00-{(_HOUR_OF_DAY + 3) % 24:02d}:00"


def config(mode: str = "apply", **rules: object) -> Settings:
    return dataclasses.replace(CONFIG, reschedule=settings(mode, **rules).reschedule)


def leading(store: FakeStore, clock: FakeClock, world: World, made: Settings, name: str = "a") -> Controller:
    world.ready()
    result = controller(store, clock, made, name)
    result.run_leader_cycle()
    return result


def saved(leader: Controller) -> str:
    decision = leader.decide("operator", application=APP, user="ann")
    assert decision.moves
    return msgspec.json.encode(saved_plan_of(decision, "default", APP)).decode()


def cycle(leader: Controller, world: World, seconds: float) -> None:
    go_on(world, seconds)
    leader.run_leader_cycle()
    leader.follow()


def last(store: FakeStore) -> Decision:
    return decisions(store)[-1]


# -- held back --


def test_in_an_excluded_period_nothing_begins_by_itself_and_that_is_kept_once(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    leader = leading(store, clock, world, config(excluded=(NOW_AND_NEXT,)))
    (refused,) = leader.decide_all()
    assert (refused.outcome, refused.reason, refused.trigger) == ("refused", "excluded", "timeout")
    for _ in range(3):
        go_on(world, 300)
        leader.run_leader_cycle()
        assert leader.decide_all() == []
    assert decisions(store) == [refused]
    assert desired(store) is None
    result = store.get(keys.STATE)
    assert result is not None
    assert "excluded period" in result.body.applications[APP]  # type: ignore[union-attr]


def test_an_operator_and_a_drain_go_with_a_warning(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config(excluded=(NOW_AND_NEXT,)))
    message = leader.drain("127.0.0.5", user="ann", reason="old", remove=False, patience=0.0)
    assert "warning: this is in the excluded period" in message
    leader.follow()
    assert (last(store).trigger, last(store).outcome) == ("drain", "applied")
    assert "warning: this is in the excluded period" in last(store).sentence


def test_an_operators_rebalance_is_warned(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config(excluded=(NOW_AND_NEXT,), moves_per_hour=1))
    done = leader.decide("operator", application=APP, user="ann", reason="now", apply=True)
    assert done.outcome == "applied"
    assert "warning: this is in the excluded period" in done.sentence
    assert "reschedule.moves_per_hour is 1" in done.sentence
    assert (done.operator_reason, done.notes[0]) == ("now", "asked by ann: now")


def test_a_plan_is_cut_to_what_is_left_of_the_hour(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config(moves_per_hour=2))
    (made,) = leader.decide_all()
    assert (made.outcome, len(made.moves)) == ("applied", 2)
    world.obey()
    cycle(leader, world, 1000)
    (held,) = leader.decide_all()
    assert (held.outcome, held.reason, held.refusals[0].measured, held.refusals[0].limit) == ("refused", "budget", 2, 2)


def test_the_budget_is_known_to_the_next_leader(store: FakeStore, clock: FakeClock, world: World) -> None:
    first = leading(store, clock, world, config(moves_per_hour=2))
    first.decide_all()
    world.obey()
    first.follow()
    first.close()
    other = leading(store, clock, world, config(moves_per_hour=2), "b")
    assert [made.reason for made in other.decide_all()] == ["budget"]


def test_viewers_push_neither_the_budget_nor_what_can_be_undone_out(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    first = leading(store, clock, world, config(moves_per_hour=2))
    (made,) = first.decide_all()
    world.obey()
    first.follow()
    requested = first.decide("operator", application=APP)
    logged = EnvelopeFactory("default", "c", clock).envelope(requested, ttl=1000, application=APP)
    store.append(keys.DECISIONS, "", *[logged] * keys.DECISIONS.bound)
    first.close()
    other = leading(store, clock, world, config(moves_per_hour=2), "b")
    assert made not in decisions(store)
    assert other._cluster.limits.moves_left(clock()) == 0
    assert find_undoable(applied_decisions(read_decision_log(other._context.store), APP)) == made


def test_a_costly_plan_waits_for_agreement(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config(costly_share=0.0))
    (first,) = leader.decide_all()
    assert (first.outcome, first.reason) == ("refused", "agreements")
    assert "recommended 1 of 2 times in a row" in first.sentence
    assert first.moves
    assert desired(store) is None
    go_on(world, 60)
    leader.run_leader_cycle()
    result = store.get(keys.STATE)
    assert result is not None
    assert "a costly plan was recommended 1 of 2 times" in result.body.applications[APP]  # type: ignore[union-attr]
    assert leader.decide_all()[0].reason == "agreements", "no batch was measured since"
    world.queries = [msgspec.structs.replace(query(world.placement), batch=10)]
    world.report()
    assert leader.decide_all()[0].outcome == "applied"


def test_the_first_run_only_looks_on_and_says_how_to_change_that(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    leader = leading(store, clock, world, config("observe"))
    (made,) = leader.decide_all()
    assert made.outcome == "planned"
    assert any('reschedule.mode = "apply"' in note for note in made.notes)


def test_an_overload_is_decided_on_without_waiting_for_the_timeout(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    leader = leading(store, clock, world, config(overload_utilization=0.05))
    for _ in range(4):
        cycle(leader, world, 5)
    made = decisions(store)[0]
    assert (made.trigger, made.outcome) == ("overload", "applied")
    assert "busy, reschedule.overload_utilization is 5%, 3 windows in a row" in made.operator_reason
    assert len(decisions(store)) == 1


def overloaded(store: FakeStore, clock: FakeClock, world: World, **rules: object) -> Controller:
    """A leader that looked at two windows of an executor that is too busy; the third is to come."""
    leader = leading(store, clock, world, config(overload_utilization=0.05, **rules))
    cycle(leader, world, 5)
    return leader


@pytest.mark.parametrize("silent", ["agents", "queries"])
def test_an_overload_of_what_is_not_ready_is_let_go(
    store: FakeStore, clock: FakeClock, world: World, silent: str
) -> None:
    leader = overloaded(store, clock, world, overload_windows=2)
    world.queries = [] if silent == "queries" else None
    clock.sleep(60)
    for _ in range(600):
        clock.sleep(1)
        world.report()
        leader.run_leader_cycle()
        leader.follow()
    assert len(decisions(store)) <= 1


def test_what_is_not_ready_for_long_is_told_once_for_each_reason(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    leader = leading(store, clock, world, config(overload_windows=0))
    leader.application(APP).executors.decided_for = frozenset({"0"})
    clock.sleep(60)
    world.queries = []
    for _ in range(30):
        clock.sleep(10)
        world.report()
        leader.run_leader_cycle()
        leader.follow()
    assert [(made.trigger, made.reason) for made in decisions(store)] == [("executors", "no-active-query")]


def test_a_window_counts_once(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = overloaded(store, clock, world)
    leader.application(APP).invalidate_sentence()
    leader.run_leader_cycle()
    leader.follow()
    assert decisions(store) == []
    cycle(leader, world, 5)
    assert [made.trigger for made in decisions(store)] == ["overload"]


def test_the_cool_down_of_another_trigger_does_not_hold_an_overload_back(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    leader = overloaded(store, clock, world, executors_cooldown=3600.0)
    leader.decide("executors", application=APP)
    watched = leader.application(APP).executors
    watched.decided_for, watched.since = frozenset({"0"}), 0.0
    cycle(leader, world, 5)
    assert [made.trigger for made in decisions(store)] == ["executors", "executors", "overload"]
    assert decisions(store)[1].reason == "trigger-cooldown"


def test_an_overload_is_measured_and_not_expected(
    store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grown(workload: Workload, _: object) -> Workload:
        return Workload(tuple(dataclasses.replace(it, busy=it.busy * 100) for it in workload.stages), workload.streams)

    monkeypatch.setattr(snapshot, "apply_forecasts", grown)
    leader = leading(store, clock, world, config())
    for _ in range(6):
        cycle(leader, world, 5)
    assert decisions(store) == []


def test_a_new_leader_knows_the_cool_downs_of_who_reports_a_little_later(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    leader = leading(store, clock, world, config("observe", timeout_cooldown=3600.0))
    leader.decide_all()
    leader.close()
    clock.sleep(keys.REPORT.ttl + 1)
    other = controller(store, clock, config("observe", timeout_cooldown=3600.0), "b")
    other.run_leader_cycle()
    world.ready()
    other.run_leader_cycle()
    assert [made.reason for made in other.decide_all()] == ["trigger-cooldown"]


def test_who_is_silent_for_an_hour_is_forgotten(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = overloaded(store, clock, world)
    clock.sleep(3599)
    leader.run_leader_cycle()
    existing = leader.application(APP)
    clock.sleep(1)
    leader.run_leader_cycle()
    assert leader.application(APP) is not existing


def test_why_each_partition_goes_is_kept(store: FakeStore, clock: FakeClock, world: World) -> None:
    (made,) = leading(store, clock, world, config()).decide_all()
    assert set(made.move_reasons) == {move.move for move in made.moves}
    assert all(
        text.startswith("frees executor 0, the critical one of name-of-q1: ") for text in made.move_reasons.values()
    )


def test_a_law_of_numbers_says_how_far_it_was(store: FakeStore, clock: FakeClock, world: World) -> None:
    capped = dataclasses.replace(config(), migration=MigrationSettings(max_moves=1))
    capped = dataclasses.replace(capped, policies={"adaptive": {"max_moves": 100}})
    leader = leading(store, clock, world, capped)
    made = leader.decide("operator", application=APP, policy="round-robin", force=True)
    (refusal,) = made.refusals
    assert (refusal.law, refusal.limit, refusal.unit) == ("max-moves", 1, "moves")
    assert refusal.measured is not None
    assert refusal.measured > 1


# -- plans that wait --


def test_a_plan_waits_and_is_checked_and_begun_in_its_window(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config("observe"))
    text = saved(leader)
    request(store, "apply", plan=text, at=LATER)
    leader.answer_requests()
    result = reply(store)
    assert result is not None
    assert result.code == ExitCode.DONE
    waiting = result.data["pending"]
    assert f"`rechannel cancel {waiting}` ends that" in result.sentence
    stored = store.get(keys.PENDING)
    assert stored is not None
    assert isinstance(stored.body, PendingPlans)
    assert [plan.pending for plan in stored.body.plans] == [waiting]
    cycle(leader, world, 60)
    assert desired(store) is None
    while clock() < stored.body.plans[0].begin:
        cycle(leader, world, 600)
    assert (last(store).trigger, last(store).outcome, last(store).user) == ("pending", "applied", "root")
    assert desired(store) is not None
    left = store.get(keys.PENDING)
    assert left is not None
    assert left.body.plans == []  # type: ignore[union-attr]


def test_a_plan_that_fits_no_more_ends_with_its_reason(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config("observe"))
    plan = msgspec.json.decode(saved(leader))
    plan["runs"] = {"q1": "another"}
    leader.wait(msgspec.json.encode(plan).decode(), at=NOW_AND_NEXT, when="", user="ann", reason="", force=False)
    cycle(leader, world, 1)
    assert (last(store).trigger, last(store).reason) == ("pending", "plan-expired")
    assert leader._cluster.plans.plans == {}


def test_what_is_not_ready_is_tried_until_the_window_is_over(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config("observe"))
    leader.wait(saved(leader), at=NOW_AND_NEXT, when="", user="ann", reason="tonight", force=False)
    before = len(decisions(store))
    clock.sleep(60)
    world.queries = [query(world.placement, active=False)]
    world.report()
    while leader._cluster.plans.plans:
        clock.sleep(30)
        world.report()
        leader.run_leader_cycle()
        leader.follow()
    result = decisions(store)[before:]
    assert [made.reason for made in result] == ["no-active-query", "window-passed"], "each is told once"
    assert "last: not ready" in result[-1].sentence
    assert (result[-1].user, result[-1].operator_reason) == ("ann", "tonight")


def test_a_plan_outlives_its_controller_and_can_be_canceled(store: FakeStore, clock: FakeClock, world: World) -> None:
    first = leading(store, clock, world, config("observe"))
    _, waiting = first.wait(saved(first), at=LATER, when="", user="ann", reason="", force=False)
    first.close()
    other = leading(store, clock, world, config("observe"), "b")
    assert list(other._cluster.plans.plans) == [waiting.pending]
    with pytest.raises(ValueError, match=f"no plan x waits; waiting are {waiting.pending}"):
        other.cancel("x", user="bob", reason="")
    assert "is canceled by bob: no need" in other.cancel(waiting.pending, user="bob", reason="no need")
    assert (last(store).reason, last(store).user) == ("canceled", "bob")
    first.run_leader_cycle()
    other.close()
    first.run_leader_cycle()
    assert first._cluster.plans.plans == {}, "what the other leader took away does not come back"


def test_what_was_taken_away_does_not_come_back_with_an_emptied_redis(
    store: FakeStore, clock: FakeClock, world: World
) -> None:
    first = leading(store, clock, world, config("observe"))
    _, waiting = first.wait(saved(first), at=NOW_AND_NEXT, when="", user="ann", reason="", force=False)
    first.close()
    other = leading(store, clock, world, config("observe"), "b")
    first.run_leader_cycle()
    other.cancel(waiting.pending, user="bob", reason="never")
    store.empty()
    cycle(first, world, 1)
    cycle(first, world, 1)
    assert first._cluster.plans.plans == {}
    assert desired(store) is None


def test_a_lead_that_is_lost_and_won_again_finds_the_plans(store: FakeStore, clock: FakeClock, world: World) -> None:
    first = leading(store, clock, world, config("observe"))
    _, waiting = first.wait(saved(first), at=LATER, when="", user="ann", reason="", force=False)
    first.close()
    other = leading(store, clock, world, config("observe"), "b")
    first.run_leader_cycle()
    other.close()
    first.run_leader_cycle()
    assert list(first._cluster.plans.plans) == [waiting.pending]


@pytest.mark.parametrize("next_leader", [False, True])
def test_a_plan_is_begun_once_though_it_could_not_be_taken_off_the_list(
    store: FakeStore, clock: FakeClock, world: World, next_leader: bool
) -> None:
    leader = leading(store, clock, world, config("observe"))
    _, waiting = leader.wait(saved(leader), at=NOW_AND_NEXT, when="", user="ann", reason="", force=False)
    before = len(decisions(store))
    go_on(world, 1)
    leader.run_leader_cycle()
    store.unsendable = keys.PENDING
    with pytest.raises(StoreUnavailableError):
        leader.follow()
    store.unsendable = None
    assert (last(store).outcome, last(store).pending_plan) == ("applied", waiting.pending)
    with pytest.raises(ValueError, match=f"no plan {waiting.pending} waits; waiting are none"):
        leader.cancel(waiting.pending, user="bob", reason="")
    if next_leader:
        leader.close()
        leader = leading(store, clock, world, config("observe"), "b")
    start = list(world.placement)
    for move in leader.application(APP).migrations.running.desired.moves:
        world.placement[move.partition] = move.target
    world.obey()
    cycle(leader, world, 5)
    world.placement = start  # as somebody else would have it: the plan fits again
    while clock() < waiting.end:
        cycle(leader, world, 400)
    assert [made.outcome for made in decisions(store)[before:] if made.trigger == "pending"] == ["applied"]
    assert leader._cluster.plans.plans == {}


@pytest.mark.parametrize("rule", [keys.DECISIONS, keys.PENDING])
def test_a_plan_expires_with_a_trace_though_redis_went_away_meanwhile(
    store: FakeStore, clock: FakeClock, world: World, rule: KeyRule
) -> None:
    leader = leading(store, clock, world, config("observe"))
    _, waiting = leader.wait(saved(leader), at=NOW_AND_NEXT, when="", user="ann", reason="", force=False)
    clock.now = waiting.end
    world.ready()
    leader.run_leader_cycle()
    before = len(decisions(store))
    store.unsendable = rule
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            leader.follow()
    store.unsendable = None
    leader.follow()
    assert [made.reason for made in decisions(store)[before:]] == ["window-passed"]
    assert leader._cluster.plans.plans == {}


@pytest.mark.parametrize("rule", [keys.DECISIONS, keys.PENDING])
def test_a_plan_is_canceled_once_and_with_a_trace_though_redis_went_away_meanwhile(
    store: FakeStore, clock: FakeClock, world: World, rule: KeyRule
) -> None:
    leader = leading(store, clock, world, config("observe"))
    _, waiting = leader.wait(saved(leader), at=LATER, when="", user="ann", reason="", force=False)
    before = len(decisions(store))
    request(store, "cancel", pending=waiting.pending)
    store.unsendable = rule
    with pytest.raises(StoreUnavailableError):
        leader.answer_requests()
    store.unsendable = None
    leader.answer_requests()
    result = reply(store)
    assert result is not None
    assert result.code == ExitCode.DONE
    assert [(made.reason, made.pending_plan) for made in decisions(store)[before:]] == [("canceled", waiting.pending)]
    assert leader._cluster.plans.plans == {}


def test_an_emptied_redis_gets_the_plans_back(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config("observe"))
    leader.wait(saved(leader), at=LATER, when="", user="ann", reason="", force=False)
    store.empty()
    cycle(leader, world, 1)
    assert store.get(keys.PENDING) is not None


def test_pending_plans_that_nobody_signed_are_passed_over(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config("observe"))
    leader.wait(saved(leader), at=NOW_AND_NEXT, when="", user="ann", reason="", force=False)
    leader.close()
    plans = PendingPlans(plans=list(leader._cluster.plans.plans.values()))
    store.put(keys.PENDING, "", EnvelopeFactory("default", "evil", clock).envelope(plans, ttl=1000, epoch=10**6))
    other = leading(store, clock, world, config("observe"), "b")
    cycle(other, world, 1)
    assert other._cluster.plans.plans == {}
    assert desired(store) is None


def test_an_order_to_wait_that_redis_did_not_take_is_no_order(store: FakeStore, clock: FakeClock, world: World) -> None:
    leader = leading(store, clock, world, config("observe"))
    text = saved(leader)
    store.unsendable = keys.PENDING
    with pytest.raises(StoreUnavailableError):
        leader.wait(text, at=LATER, when="", user="ann", reason="", force=False)
    assert leader._cluster.plans.plans == {}


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"at": "tonight"}, "--at: 'tonight' is no period; write it as in"),
        ({"when": "off-peak"}, "set reschedule.off_peak, or say a period with --at"),
        ({"when": "never"}, "when: 'never' is not known"),
    ],
)
def test_a_time_that_cannot_be_is_refused_with_the_cure(
    store: FakeStore, clock: FakeClock, world: World, arguments: dict[str, str], phrase: str
) -> None:
    leader = leading(store, clock, world, config("observe"))
    request(store, "apply", plan=saved(leader), **arguments)
    leader.answer_requests()
    result = reply(store)
    assert result is not None
    assert result.code == ExitCode.REFUSED
    assert phrase in result.sentence
