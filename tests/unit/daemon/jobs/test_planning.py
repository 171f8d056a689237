"""Plans that take minutes: what goes on meanwhile, and which of them count."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

import pytest

from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.decision_log import applied_decisions, find_undoable, read_decision_log
from rechannel.daemon.control.outcomes import PendingRollback
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest, Draft, PlanBasis
from rechannel.daemon.jobs.planning import Aside, Mutex, PlanningClock
from rechannel.wire import keys
from rechannel.wire.commands import Apply, Cancel, Drain, Pause
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import Request
from unit.daemon.fakes import (
    APP,
    CONFIG,
    FakeClock,
    FakeStore,
    World,
    app,
    controller,
    cycle,
    decide,
    decisions,
    desired,
    order,
    published_placement,
    state,
)

OTHER = "app-2"


class Slow:
    """Every plan of one application takes so many seconds, in each of which ``meanwhile`` is done."""

    def __init__(self, patch: pytest.MonkeyPatch, clock: FakeClock, seconds: float, meanwhile: Callable[[], object]):
        self.plans = 0
        real = pipeline.draft_decision

        def slow(request: DecisionRequest, basis: PlanBasis) -> Draft:
            draft = real(request, basis)
            if basis.messages.application == APP:
                self.plans += 1
                until = clock() + seconds
                while clock() < until:
                    clock.sleep(1)
                    meanwhile()
            return draft

        patch.setattr(pipeline, "draft_decision", slow)


def jobs(made: Controller) -> None:
    """Everything that a controller does every second."""
    cycle(made)
    made.answer_requests()


@pytest.mark.parametrize("stand_by", [False, True])
@pytest.mark.parametrize("seconds", [1, 12, 16, 120])
def test_a_plan_of_any_length_is_carried_out(
    leader: Controller,
    store: FakeStore,
    clock: FakeClock,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    seconds: int,
    stand_by: bool,
) -> None:
    other = controller(store, clock, name="b")
    seen: list[str] = []

    def meanwhile() -> None:
        world.report()
        jobs(leader)
        if stand_by:
            seen.append(other.run_leader_cycle())

    Slow(monkeypatch, clock, seconds, meanwhile)
    (decision,) = leader.decide_all()
    assert (decision.outcome, decision.reason) == ("applied", "ok")
    assert published_placement(store).decision == decision.decision
    assert leader.lead.epoch == 1
    assert set(seen) <= {f"standing by: {leader.lead.name} leads in epoch 1"}


def test_while_one_plans_the_migrations_and_requests_of_others_go_on(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = World(store, clock, OTHER)
    second.ready()
    leader.run_leader_cycle()
    moved = decide(leader, application=OTHER, apply=True)
    assert moved.outcome == "applied"
    author = EnvelopeFactory("default", "cli", clock)
    query: list[str] = []

    def meanwhile() -> None:
        world.report()
        second.obey("steered")
        second.measure()
        name = f"r{len(query)}"
        verb = "resume" if len(query) % 2 else "plan"
        fields = {"application": OTHER} if verb == "plan" else {}
        order = Request(request=name, user="u", reason="r", command={"verb": verb, **fields})
        store.append(keys.REQUESTS, "", author.envelope(order, ttl=60))
        query.append(name)
        jobs(leader)
        assert store.get(keys.REPLY, name) is not None
        actual = desired(store, OTHER)
        assert actual.expires > clock()
        assert published_placement(store, OTHER).decision == moved.decision
        assert state(store).applications[OTHER].endswith("0 of 3 moves landed")

    Slow(monkeypatch, clock, 130, meanwhile)
    made = decide(leader, apply=True)
    assert made.outcome == "applied"
    assert len(query) == 130
    second.obey("drained")
    leader.follow()
    assert app(leader).migrations.running is not None
    assert app(leader, OTHER).migrations.running is None


def test_a_leader_that_was_stopped_while_it_planned_throws_its_plan_away(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = controller(store, clock, name="b")

    def meanwhile() -> None:  # the whole process stands still
        world.report()
        other.run_leader_cycle()

    Slow(monkeypatch, clock, 20, meanwhile)
    (decision,) = leader.decide_all()
    assert (decision.outcome, decision.reason) == ("not-ready", "not-leading")
    assert desired(store) is None
    assert decisions(store) == []
    assert other.run_leader_cycle() == "leading in epoch 2"


def test_a_leader_that_lost_the_lead_and_has_it_again_throws_its_plan_away(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def meanwhile() -> None:
        world.report()
        if not 5 < clock() - began < 25:
            seen.append(leader.run_leader_cycle())

    began = clock()
    Slow(monkeypatch, clock, 30, meanwhile)
    (decision,) = leader.decide_all()
    assert seen[-1] == "leading in epoch 2"
    assert decision.reason == "not-leading"
    assert desired(store) is None
    monkeypatch.undo()
    world.ready()
    assert leader.decide_all()[0].outcome == "applied", "and nothing is left in the way"


@pytest.mark.parametrize("what", ["drain", "pause", "rollback", "budget", "excluded", "gone"])
def test_what_is_ordered_while_a_plan_is_made_counts(
    store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    limits = dataclasses.replace(CONFIG.reschedule, moves_per_hour=4 if what == "budget" else 0)
    config = dataclasses.replace(CONFIG, reschedule=limits)
    leader = controller(store, clock, config)
    second = World(store, clock, OTHER)
    world.ready()
    leader.run_leader_cycle()
    if what == "rollback":
        decide(leader, apply=True, force=True)
        world.obey("drained")
        leader.follow()
        clock.sleep(400)
        world.ready()
        leader.run_leader_cycle()
    orders: list[object] = []

    def meanwhile() -> None:
        if what != "gone":
            world.report()
        if not orders:
            orders.append(give_order())
        leader.run_leader_cycle()

    def give_order() -> object:
        if what == "drain":
            return order(leader, Drain(nodes=["127.0.0.3"]))
        if what == "pause":
            return order(leader, Pause())
        if what == "rollback":
            app(leader).rollback = _undo(leader)
        if what == "budget":
            second.ready()
            leader.run_leader_cycle()
            return decide(leader, trigger="timeout", application=OTHER, apply=True)
        if what == "excluded":
            rules = dataclasses.replace(CONFIG.reschedule, excluded=("00:00-23:59",))
            leader.reload(dataclasses.replace(CONFIG, reschedule=rules))
        return "ordered"

    Slow(monkeypatch, clock, 70 if what == "gone" else 3, meanwhile)
    before = desired(store)
    decision = decide(leader, trigger="executors", apply=True)
    expected = {"pause": "paused", "excluded": "excluded", "gone": "no-report"}
    assert decision.reason == expected.get(what, "overtaken")
    assert decision.outcome != "applied"
    assert desired(store) == before


def _undo(leader: Controller) -> PendingRollback:
    actual = find_undoable(applied_decisions(read_decision_log(leader._context.store), APP))
    return PendingRollback(actual, "u", "", leader._clock.steady())


def test_an_application_is_planned_for_once_at_a_time(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What asks for a decision again each second waits for the plan that is made."""
    order(leader, Drain(nodes=["127.0.0.2"]))

    def meanwhile() -> None:
        world.report()
        jobs(leader)

    slow = Slow(monkeypatch, clock, 30, meanwhile)
    assert "running" in leader.follow()
    assert slow.plans == 1


def test_a_canceled_plan_is_not_begun_though_it_was_being_checked(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    from rechannel.daemon.decide.requested_placement import saved_plan_of

    text = msgspec.json.encode(saved_plan_of(decide(leader), "default", APP)).decode()
    waiting = order(leader, Apply(plan=text, at="00:00-23:59", force=True)).data["scheduled_plan"]
    canceled: list[str] = []

    def meanwhile() -> None:
        world.report()
        if not canceled:
            canceled.append(order(leader, Cancel(scheduled_plan=waiting)).sentence)
        leader.run_leader_cycle()

    Slow(monkeypatch, clock, 3, meanwhile)
    leader.follow()
    assert canceled
    assert desired(store) is None
    assert leader._services.plans.plans == {}


# -- the parts --


def test_a_mutex_is_held_by_one_thread_as_often_as_it_likes_and_can_be_let_go_of() -> None:
    mutex, events = Mutex(), []
    let_go, taken = threading.Event(), threading.Event()

    def other() -> None:
        let_go.wait(10)
        with mutex, mutex:
            events.append("other")
        taken.set()

    thread = threading.Thread(target=other)
    thread.start()
    with mutex:
        with mutex:
            events.append("mine")
            with mutex.released():
                let_go.set()
                assert taken.wait(10)
            events.append("mine again")
        events.append("still mine")
    thread.join(10)
    assert events == ["mine", "other", "mine again", "still mine"]


def test_a_mutex_excludes_others_and_is_taken_back_after_an_error() -> None:
    mutex = Mutex()
    inside = threading.Event()

    def other() -> None:
        with mutex:
            inside.set()

    with mutex:
        with pytest.raises(ZeroDivisionError), mutex.released():
            raise ZeroDivisionError
        thread = threading.Thread(target=other)
        thread.start()
        assert not inside.wait(0.05)
    thread.join(10)
    assert inside.is_set()


def test_work_that_takes_long_goes_on_aside_and_is_begun_once() -> None:
    aside, go_on = Aside(patience=0.01), threading.Event()
    begun: list[int] = []

    def work() -> str:
        begun.append(1)
        assert go_on.wait(10)
        return "done"

    assert aside.run("act", work) is None
    assert aside.run("act", work) is None
    assert aside.run("look", lambda: "another kind") == "another kind"
    future = aside._under_way["act"]
    go_on.set()
    assert future.result(10) == "done"
    assert len(begun) == 1
    assert Aside(patience=10).run("act", work) == "done"


def test_what_failed_aside_is_told_at_the_next_run() -> None:
    aside, go_on = Aside(patience=0.01), threading.Event()

    def work() -> None:
        assert go_on.wait(10)
        raise ZeroDivisionError

    assert aside.run("act", work) is None
    future = aside._under_way["act"]
    go_on.set()
    assert isinstance(future.exception(10), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        aside.run("act", lambda: None)
    assert aside.run("act", lambda: "again") == "again" or aside.run("act", lambda: "again") == "again"


def test_a_running_plan_can_be_waited_for() -> None:
    planning = PlanningClock()
    with planning.plan(APP) as plan:
        assert not plan.ended.is_set()
    assert plan.ended.is_set()
    assert planning.overdue() == ""
