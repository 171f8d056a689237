"""Plans that wait for their window: begun, checked, canceled, expired, and continued by the next leader."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from rechannel.daemon.control import scheduled_plans
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.decide.saved_plan import PlanFileError, saved_plan_of
from rechannel.wire import keys
from rechannel.wire.commands import Apply, Cancel, Pause
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import ScheduledPlans
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.daemon.control.test_triggers import LATER, NOW_AND_NEXT, last
from unit.daemon.fakes import (
    APP,
    World,
    app,
    ask,
    cycle,
    decide,
    decisions,
    desired,
    go_on,
    leading,
    order,
    query,
    read_reply,
    refuses,
    request,
    ruled,
)


@pytest.fixture
def observing(world: World) -> Controller:
    """A leader in mode observe over an application that is ready."""
    return leading(world, ruled("observe"))


def saved(leader: Controller) -> str:
    decision = decide(leader, user="ann")
    assert decision.moves
    return msgspec.json.encode(saved_plan_of(decision, "default", APP)).decode()


def schedule(leader: Controller, at: str, plan: str = "", reason: str = "") -> SimpleNamespace:
    """Schedule a plan, by default one of this moment, and return what the reply has of it."""
    result = order(leader, Apply(plan=plan or saved(leader), at=at), user="ann", reason=reason)
    assert result.code == ExitCode.DONE, result.sentence
    return SimpleNamespace(**result.data, name=result.data["scheduled_plan"])


def test_a_plan_waits_and_is_checked_and_begun_in_its_window(observing, store, clock, world):
    result = ask(observing, store, "apply", plan=saved(observing), at=LATER)
    assert result.code == ExitCode.DONE
    name = result.data["scheduled_plan"]
    assert f"`rechannel cancel {name}` ends that" in result.sentence
    stored = store.get(keys.SCHEDULED_PLANS)
    assert isinstance(stored.body, ScheduledPlans)
    assert [plan.scheduled_plan for plan in stored.body.plans] == [name]
    cycle(observing, world, 60)
    assert desired(store) is None
    while clock() < stored.body.plans[0].begin:
        cycle(observing, world, 600)
    assert (last(store).trigger, last(store).result, last(store).user) == ("scheduled", "applied", "root")
    assert desired(store) is not None
    left = store.get(keys.SCHEDULED_PLANS)
    assert left.body.plans == []  # type: ignore[union-attr]


def test_a_plan_that_fits_no_more_ends_with_its_reason(observing, store, world):
    plan = msgspec.json.decode(saved(observing))
    plan["runs"] = {"q1": "another"}
    schedule(observing, NOW_AND_NEXT, msgspec.json.encode(plan).decode())
    cycle(observing, world, 1)
    assert (last(store).trigger, last(store).reason) == ("scheduled", "plan-expired")
    assert observing._services.plans.plans == {}


def test_a_plan_of_another_release_ends_with_its_reason(observing, store, world, monkeypatch):
    def refuse(*_):
        raise PlanFileError("format: 9; this release reads 1: make the plan anew")

    schedule(observing, NOW_AND_NEXT)
    monkeypatch.setattr(scheduled_plans, "read_plan", refuse)
    cycle(observing, world, 1)
    assert (last(store).trigger, last(store).reason) == ("scheduled", "plan-expired")
    assert "cannot be read: format: 9" in last(store).sentence
    assert observing._services.plans.plans == {}


def test_what_is_not_ready_is_tried_until_the_window_is_over(observing, store, clock, world):
    schedule(observing, NOW_AND_NEXT, reason="tonight")
    before = len(decisions(store))
    clock.sleep(60)
    world.queries = [query(world.placement, active=False)]
    world.report()
    while observing._services.plans.plans:
        clock.sleep(30)
        world.report()
        cycle(observing)
    result = decisions(store)[before:]
    assert [made.reason for made in result] == ["no-active-query", "window-passed"], "each is told once"
    assert "last: not ready" in result[-1].sentence
    assert (result[-1].user, result[-1].operator_reason) == ("ann", "tonight")


def begin_cooldown(leader: Controller) -> None:
    """A cool-down of a day begins: that after nine rollbacks in a row."""
    cooldown = app(leader).migrations.cooldown_timer
    cooldown.migration_ended, cooldown._is_longer, cooldown._rollbacks_in_a_row = leader._clock.wall(), True, 9


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("paused", "Rechannel is paused: `rechannel resume` first"),
        ("cool-down", "the cool-down after the last migration had "),
        ("no driver", "no link reports for application app-1"),
    ],
)
def test_a_plan_that_was_never_tried_in_its_window_ends_with_the_cause(observing, store, clock, world, why, cause):
    schedule(observing, NOW_AND_NEXT)
    if why == "paused":
        order(observing, Pause())
    elif why == "cool-down":
        begin_cooldown(observing)
    while observing._services.plans.plans:
        clock.sleep(600)
        if why != "no driver":
            world.ready()
        cycle(observing)
    assert last(store).reason == "window-passed"
    assert f"; last: {cause}" in last(store).sentence


def test_a_forced_plan_does_not_wait_in_a_cool_down_behind_one_that_is_not(observing, store, clock, world):
    plan = saved(observing)
    schedule(observing, NOW_AND_NEXT, plan)
    clock.sleep(1)
    order(observing, Apply(plan=plan, at=NOW_AND_NEXT, force=True), user="bob")
    begin_cooldown(observing)
    cycle(observing, world, 10)
    assert (last(store).result, last(store).user) == ("applied", "bob")


def test_a_plan_outlives_its_controller_and_can_be_canceled(store, world):
    first = leading(world, ruled("observe"))
    plan = schedule(first, LATER)
    first.close()
    other = leading(world, ruled("observe"), "b")
    assert list(other._services.plans.plans) == [plan.name]
    refuses(other, Cancel(scheduled_plan="x"), f"no plan x is scheduled; scheduled are {plan.name}")
    assert (
        "is canceled by bob: no need"
        in order(other, Cancel(scheduled_plan=plan.name), user="bob", reason="no need").sentence
    )
    assert (last(store).reason, last(store).user) == ("canceled", "bob")
    first.run_leader_cycle()
    other.close()
    first.run_leader_cycle()
    assert first._services.plans.plans == {}, "what the other leader took away does not come back"


def test_what_was_taken_away_does_not_come_back_with_an_emptied_redis(store, world):
    first = leading(world, ruled("observe"))
    plan = schedule(first, NOW_AND_NEXT)
    first.close()
    other = leading(world, ruled("observe"), "b")
    first.run_leader_cycle()
    order(other, Cancel(scheduled_plan=plan.name), user="bob", reason="never")
    store.empty()
    cycle(first, world, 1)
    go_on(world, 1)
    cycle(first)
    assert first._services.plans.plans == {}
    assert desired(store) is None


def test_a_lead_that_is_lost_and_won_again_finds_the_plans(world):
    first = leading(world, ruled("observe"))
    plan = schedule(first, LATER)
    first.close()
    other = leading(world, ruled("observe"), "b")
    first.run_leader_cycle()
    other.close()
    first.run_leader_cycle()
    assert list(first._services.plans.plans) == [plan.name]


@pytest.mark.parametrize("next_leader", [False, True])
def test_a_plan_is_begun_once_though_it_could_not_be_taken_off_the_list(store, clock, world, next_leader):
    leader = leading(world, ruled("observe"))
    plan = schedule(leader, NOW_AND_NEXT)
    before = len(decisions(store))
    go_on(world, 1, leader)
    store.unsendable = keys.SCHEDULED_PLANS
    with pytest.raises(StoreUnavailableError):
        leader.follow()
    store.unsendable = None
    assert (last(store).result, last(store).scheduled_plan) == ("applied", plan.name)
    refuses(leader, Cancel(scheduled_plan=plan.name), f"no plan {plan.name} is scheduled; scheduled are none")
    if next_leader:
        leader.close()
        leader = leading(world, ruled("observe"), "b")
    start = list(world.placement)
    for move in app(leader).migrations.running.desired.moves:
        world.placement[move.partition] = move.target
    world.obey()
    cycle(leader, world, 5)
    world.placement = start  # as somebody else would have it: the plan fits again
    while clock() < plan.end:
        cycle(leader, world, 400)
    assert [made.result for made in decisions(store)[before:] if made.trigger == "scheduled"] == ["applied"]
    assert leader._services.plans.plans == {}


@pytest.mark.parametrize("rule", [keys.DECISIONS, keys.SCHEDULED_PLANS])
def test_a_plan_expires_with_a_trace_though_redis_went_away_meanwhile(observing, store, clock, world, rule):
    plan = schedule(observing, NOW_AND_NEXT)
    clock.now = plan.end
    world.ready()
    observing.run_leader_cycle()
    before = len(decisions(store))
    store.unsendable = rule
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            observing.follow()
    store.unsendable = None
    observing.follow()
    assert [made.reason for made in decisions(store)[before:]] == ["window-passed"]
    assert observing._services.plans.plans == {}


@pytest.mark.parametrize("rule", [keys.DECISIONS, keys.SCHEDULED_PLANS])
def test_a_plan_is_canceled_once_and_with_a_trace_though_redis_went_away_meanwhile(store, observing, rule):
    plan = schedule(observing, LATER)
    before = len(decisions(store))
    request(store, "cancel", scheduled_plan=plan.name)
    store.unsendable = rule
    with pytest.raises(StoreUnavailableError):
        observing.answer_requests()
    store.unsendable = None
    observing.answer_requests()
    assert read_reply(store).code == ExitCode.DONE
    assert [(made.reason, made.scheduled_plan) for made in decisions(store)[before:]] == [("canceled", plan.name)]
    assert observing._services.plans.plans == {}


def test_an_emptied_redis_gets_the_plans_back(observing, store, world):
    schedule(observing, LATER)
    store.empty()
    cycle(observing, world, 1)
    assert store.get(keys.SCHEDULED_PLANS) is not None


def test_pending_plans_that_nobody_signed_are_passed_over(observing, store, clock, world):
    schedule(observing, NOW_AND_NEXT)
    observing.close()
    plans = ScheduledPlans(plans=list(observing._services.plans.plans.values()))
    store.put(
        keys.SCHEDULED_PLANS, "", EnvelopeFactory("default", "evil", clock).envelope(plans, ttl=1000, epoch=10**6)
    )
    other = leading(world, ruled("observe"), "b")
    cycle(other, world, 1)
    assert other._services.plans.plans == {}
    assert desired(store) is None


def test_an_order_to_wait_that_redis_did_not_take_is_no_order(store, observing):
    text = saved(observing)
    store.unsendable = keys.SCHEDULED_PLANS
    with pytest.raises(StoreUnavailableError):
        order(observing, Apply(plan=text, at=LATER), user="ann")
    assert observing._services.plans.plans == {}


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"at": "tonight"}, "--at: 'tonight' is no period; write it as in"),
        ({"when": "off-peak"}, "set reschedule.off_peak, or give a period with --at"),
        ({"when": "never"}, "when: 'never' is not known"),
    ],
)
def test_a_time_that_cannot_be_is_refused_with_the_cure(store, observing, arguments, phrase):
    result = ask(observing, store, "apply", plan=saved(observing), **arguments)
    assert result.code == ExitCode.REFUSED
    assert phrase in result.sentence
