"""Views of a leader, a stand-by, and a controller without Redis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from rechannel.daemon.control.controller import Controller, ControllerSnapshot
from rechannel.daemon.control.decision_log import append_decision
from rechannel.daemon.control.leadership import Role
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view import status_builder
from rechannel.daemon.view.metrics import DECISIONS, MIGRATIONS, MOVES, REQUESTS, Counters
from rechannel.daemon.view.publisher import VIEW_EVERY, CurrentView, Publisher
from rechannel.daemon.view.status import ControllerView, LeaderStatus
from rechannel.wire import keys
from rechannel.wire.commands import Drain
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import ScheduledPlans
from rechannel.wire.redis.errors import StoreUnavailableError
from unit import sample_messages as samples
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import APP, World, clocks, controller, decide, go_on, order, query, request


class Shown:
    """A controller with its publisher, on fakes."""

    def __init__(
        self,
        controller: Controller,
        store: FakeStore,
        clock: FakeClock,
        snapshot: Callable[[], ControllerSnapshot] | None = None,
    ) -> None:
        self.controller = controller
        self.counters = Counters()
        self.cpu = FakeClock()
        monitor = JobMonitor(clocks(clock))
        monitor.add("view", VIEW_EVERY, lambda: None)
        self.publisher = Publisher(
            snapshot or controller.snapshot,
            store,  # type: ignore[arg-type]
            controller.settings,
            monitor,
            self.counters,
            Clock(clock, clock, clock, self.cpu),
        )

    def view(self) -> ControllerView:
        self.publisher.publish()
        return self.publisher.latest()


@pytest.fixture
def shown(leader: Controller, store: FakeStore, clock: FakeClock) -> Shown:
    return Shown(leader, store, clock)


def test_the_first_view_is_empty(shown: Shown) -> None:
    view = shown.publisher.latest()
    assert (view.role, view.redis_up, view.applications) == (Role.STARTING, False, ())


def test_a_leader_shows_what_status_shows(shown: Shown, world: World) -> None:
    view = shown.view()
    leader = view.leader
    assert (view.role, view.redis_up) == (Role.LEADING, True)
    assert (leader.epoch, leader.mode, leader.paused) == (1, "apply", False)
    assert leader.leader == view.name
    (application,) = view.applications
    assert (application.application, application.readiness.ready, application.coverage) == (APP, True, 1.0)
    assert [executor.partitions for executor in application.executors] == [6, 2, 2, 2]
    assert application.executors[0].node == "127.0.0.2"
    assert application.executors[0].utilization is not None
    (row,) = application.queries
    assert row.stages[0].placement["0"] == (0, 1, 2, 3, 4, 5)
    assert len(application.partitions) == 12
    assert {node.window_age for node in view.nodes} == {0.0}
    assert all(node.fresh for node in view.nodes)
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.name = ""  # type: ignore[misc]


def test_a_stand_by_shows_the_status_and_the_leader(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World
) -> None:
    other = Shown(controller(store, clock, name="b"), store, clock)
    other.controller.run_leader_cycle()
    view = other.view()
    assert (view.role, view.leader.leader, view.leader.epoch) == (Role.STANDING_BY, leader.lead.name, 1)
    assert view.applications[0].application == APP
    assert view.migrations == ()


def test_a_migration_is_shown_and_its_moves_are_counted_once(
    shown: Shown, store: FakeStore, world: World, clock: FakeClock
) -> None:
    shown.view()
    decision = decide(shown.controller, apply=True)
    assert decision.result == "applied"
    world.obey("steered")
    view = shown.view()
    (migration,) = view.migrations
    assert (migration.decision, migration.moves, migration.landed) == (decision.decision, len(decision.moves), 0)
    assert migration.steps == 1 + max(move.step for move in decision.moves)
    assert {move.state for move in view.applications[0].moves} == {"steered"}
    assert view.decisions[0].decision == decision
    assert view.last_decisions == {APP: decision}
    assert shown.counters.read(DECISIONS) == {("applied", decision.reason, "operator"): 1}

    expected = decision.moves[0]
    for after, reason in (("steered", "location-set"), ("drained", "landed"), ("killed", "closed")):
        line = samples.transition(
            move=expected.move, decision=decision.decision, partition=expected.partition, after=after, reason=reason
        )
        world._send(keys.JOURNAL, APP, line)
    shown.view()
    shown.view()
    counted = {("drained", "landed"): 1, ("killed", "closed"): 1}
    assert shown.counters.read(MOVES) == counted

    report = store.strings.pop(key := store.keys(keys.REPORT, APP))
    assert shown.view().applications == ()
    store.strings[key] = report
    assert len(shown.view().applications) == 1
    assert shown.counters.read(MOVES) == counted, "its journal is the one that was counted"


def test_what_was_stored_twice_is_shown_and_counted_once(shown: Shown, world: World) -> None:
    """As after a lost answer of Redis and a second try, within one view or over two."""
    shown.view()
    context = shown.controller._context
    decision = decide(shown.controller, apply=True)
    append_decision(context, APP, decision)
    later = decide(shown.controller)
    expected = [later.decision, decision.decision]
    assert [row.decision.decision for row in shown.view().decisions] == expected
    outcome = samples.outcome(decision=decision.decision, verdict="regressed")
    for _ in range(2):
        append_decision(context, APP, decision)
        context.store.append(keys.OUTCOMES, "", context.envelope(outcome, ttl=60, application=APP))
        view = shown.view()
    assert [row.decision.decision for row in view.decisions] == expected
    assert view.last_decisions == {APP: later}
    assert shown.counters.read(DECISIONS)["applied", decision.reason, "operator"] == 1
    assert shown.counters.read(MIGRATIONS) == {("regressed",): 1}
    assert list(shown.publisher._events._outcomes.values()) == [outcome]


def test_events_before_the_start_are_shown_but_not_counted(
    leader: Controller, store: FakeStore, clock: FakeClock, world: World
) -> None:
    decide(leader)
    clock.sleep(1)
    other = Shown(controller(store, clock, name="b"), store, clock)
    assert len(other.view().decisions) == 1
    assert other.counters.read(DECISIONS) == {}


def test_each_application_keeps_its_last_decision_and_outcome(
    shown: Shown, store: FakeStore, world: World, clock: FakeClock
) -> None:
    decision = decide(shown.controller)
    outcome = samples.outcome(decision=decision.decision)
    store.append(keys.OUTCOMES, "", world.author.envelope(outcome, ttl=600, application=APP))
    shown.view()
    World(store, clock, "app-2").ready()
    for number in range(60):
        other = samples.decision(decision=f"d{number}")
        store.append(keys.DECISIONS, "", world.author.envelope(other, ttl=600, application="app-2"))
        view = shown.view()
    assert {name: last.decision for name, last in view.last_decisions.items()} == {
        APP: decision.decision,
        "app-2": "d59",
    }
    assert view.last_outcomes == {APP: outcome}
    assert APP not in {row.application for row in view.decisions}


def test_applications_that_ended_leave_no_decisions_behind(shown: Shown, store: FakeStore, world: World) -> None:
    for number in range(200):
        ended = samples.decision(decision=f"d{number}")
        store.append(keys.DECISIONS, "", world.author.envelope(ended, ttl=600, application=f"ended-{number}"))
        assert shown.view().last_decisions == {}
    assert len(shown.publisher._events.last_decisions) == 50


def test_figures_stay_for_a_minute_without_redis(shown: Shown, store: FakeStore, clock: FakeClock) -> None:
    first = shown.view()
    store.away = True
    for seconds, applications in ((10, 1), (60, 0)):
        clock.sleep(seconds)
        with pytest.raises(StoreUnavailableError):
            shown.publisher.publish()
        view = shown.publisher.latest()
        assert (view.redis_up, view.redis_round_trip, len(view.applications)) == (False, None, applications)
        assert "cannot be reached" in view.redis_problem
        assert (view.read_at, view.at) == (first.at, clock())


def test_drains_are_shown(shown: Shown, world: World) -> None:
    order(shown.controller, Drain(nodes=["127.0.0.2"], deadline=60.0), reason="why")
    (drain,) = shown.view().drains
    assert (drain.node, drain.state, drain.partitions, drain.executors) == ("127.0.0.2", "draining", 6, ("0",))
    assert msgspec.convert(msgspec.to_builtins(drain), type(drain)) == drain


def test_waiting_plans_are_shown(shown: Shown, store: FakeStore, clock: FakeClock) -> None:
    plans = ScheduledPlans(plans=[samples.scheduled_plan()])
    store.put(keys.SCHEDULED_PLANS, "", EnvelopeFactory("default", "test", clock).envelope(plans, ttl=600))
    (scheduled,) = shown.view().scheduled_plans
    assert scheduled.scheduled_plan == "plan-1"
    assert "02:00-03:00" in scheduled.sentence


def test_a_defective_application_hides_no_other(
    shown: Shown, store: FakeStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    World(store, clock, "app-2").ready()
    real = status_builder._query

    def odd(item: object, model: object, *more: object) -> object:
        if model is not None and model.application == "app-2":  # type: ignore[attr-defined]
            raise ZeroDivisionError
        return real(item, model, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(status_builder, "_query", odd)
    message: list[str] = []
    log = SimpleNamespace(exception=lambda event, **text: message.append(text["application"]))
    monkeypatch.setattr(shown.publisher, "_log", log)
    assert [row.application for row in shown.view().applications] == [APP]
    shown.view()
    assert message == ["app-2"]


@pytest.mark.parametrize(("worked", "waited", "rest"), [(1.0, 0, 10.0), (60.0, 0, 20.0), (0.0, 45, 0.0)])
def test_an_expensive_view_is_made_less_often(
    leader: Controller, store: FakeStore, clock: FakeClock, worked: float, waited: float, rest: float
) -> None:
    def snapshot() -> ControllerSnapshot:
        shown.cpu.sleep(worked)
        clock.sleep(waited)  # for Redis, which is no work
        return leader.snapshot()

    shown = Shown(leader, store, clock, snapshot)
    (job,) = shown.view().jobs
    assert job.every == max(rest, VIEW_EVERY), "a reader can tell an old view from a long interval"
    if rest:
        assert shown.publisher.publish() == "rests"
        clock.sleep(rest - 0.1)
        assert shown.publisher.publish() == "rests"
        clock.sleep(0.1)
    assert "shown" in shown.publisher.publish()


def test_answers_are_counted_once_by_verb_and_outcome(store: FakeStore, clock: FakeClock, world: World) -> None:
    counters = Counters()
    leader = controller(store, clock, count_answer=counters.count_answer)
    leader.run_leader_cycle()
    request(store, "pause")
    request(store, "fly" * 50, name="r2")
    leader.answer_requests()
    leader.answer_requests()
    assert counters.read(REQUESTS) == {("pause", "done"): 1, ("unknown", "refused"): 1}


def test_a_snapshot_lag_is_that_of_the_worst_partition(shown: Shown, world: World, clock: FakeClock) -> None:
    row = query(world.placement)
    stage = msgspec.structs.replace(row.stages[0], snapshot_lag=[1, 7, -1] + [0] * 9)
    world.queries = [msgspec.structs.replace(row, stages=[stage])]
    go_on(world, 1)
    assert shown.view().applications[0].queries[0].snapshot_lag == 7


@pytest.mark.parametrize("role", [Role.LEADING, Role.STANDING_BY])
def test_a_view_is_unchanged_while_its_role_holds(leader: Controller, role: Role) -> None:
    view = ControllerView(at=1.0, role=role, redis_up=True)
    assert CurrentView(lambda: view, leader.lead).get() is view


def test_a_leader_whose_lease_ended_is_not_shown_as_leading(
    leader: Controller, store: FakeStore, clock: FakeClock
) -> None:
    view = ControllerView(at=1.0, role=Role.LEADING, controller=LeaderStatus(leader.lead.name, epoch=1), redis_up=True)
    current = CurrentView(lambda: view, leader.lead)
    clock.sleep(60)
    shown = current.get()
    assert (shown.role, shown.leader.leader, shown.leader.epoch) == (Role.STARTING, "", 1)
    assert current.get() is shown, "callers may cache by identity"
    other = controller(store, clock, name="b")
    other.run_leader_cycle()
    leader.run_leader_cycle()
    shown = current.get()
    assert (shown.role, shown.leader.leader) == (Role.STANDING_BY, other.lead.name)
