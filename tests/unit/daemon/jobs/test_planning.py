"""Plans that take minutes: concurrent work, and plans that are discarded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.control.outcomes import PendingRollback
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest, Draft, PlanBasis
from rechannel.daemon.decide.rollback import find_rollback_target
from rechannel.daemon.decide.saved_plan import saved_plan_of
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.planning import BackgroundRunner, Mutex
from rechannel.wire import keys
from rechannel.wire.commands import Apply, Cancel, Drain, Pause
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import (
    APP,
    World,
    app,
    clocks,
    controller,
    cycle,
    decide,
    decisions,
    desired,
    go_on,
    leading,
    order,
    published_placement,
    request,
    ruled,
    state,
)

OTHER = "app-2"


class Scene:
    """A leader whose plans of one application take so many seconds."""

    def __init__(self, leader: Controller, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leader, self.world, self.clock = leader, world, world.clock
        self.store: FakeStore = world.store
        self.plans = 0
        self._patch = monkeypatch

    def slow_down(self, seconds: float, meanwhile: Callable[[], object], *, reports: bool = True) -> None:
        """In each second of a plan the link reports, and ``meanwhile`` is done."""
        real = pipeline.draft_decision

        def slow(request: DecisionRequest, basis: PlanBasis) -> Draft:
            draft = real(request, basis)
            if basis.messages.application == APP:
                self.plans += 1
                until = self.clock() + seconds
                while self.clock() < until:
                    self.clock.sleep(1)
                    if reports:
                        self.world.report()
                    meanwhile()
            return draft

        self._patch.setattr(pipeline, "draft_decision", slow)

    def run_jobs(self) -> None:
        """All jobs that run every second."""
        cycle(self.leader)
        self.leader.answer_requests()


@pytest.fixture
def scene(leader: Controller, world: World, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(leader, world, monkeypatch)


@pytest.mark.parametrize("stand_by", [False, True])
@pytest.mark.parametrize("seconds", [1, 12, 16, 120])
def test_a_plan_of_any_length_is_carried_out(scene: Scene, seconds: int, stand_by: bool) -> None:
    other = controller(scene.store, scene.clock, name="b")
    seen: list[str] = []

    def meanwhile() -> None:
        scene.run_jobs()
        if stand_by:
            seen.append(other.run_leader_cycle())

    scene.slow_down(seconds, meanwhile)
    (decision,) = scene.leader.decide_all()
    assert (decision.result, decision.reason) == ("applied", "ok")
    assert published_placement(scene.store).decision == decision.decision
    lead = scene.leader.lead
    assert lead.epoch == 1
    assert set(seen) <= {f"standing by: {lead.name} leads in epoch 1"}


def test_migrations_and_requests_of_others_go_on_during_a_plan(scene: Scene) -> None:
    leader, store = scene.leader, scene.store
    second = World(store, scene.clock, OTHER)
    second.ready()
    leader.run_leader_cycle()
    moved = decide(leader, application=OTHER, apply=True)
    assert moved.result == "applied"
    requests: list[str] = []

    def meanwhile() -> None:
        second.obey("steered")
        second.measure()
        requests.append(f"r{len(requests)}")
        if len(requests) % 2:
            request(store, "plan", name=requests[-1], application=OTHER)
        else:
            request(store, "resume", name=requests[-1])
        scene.run_jobs()
        assert store.get(keys.REPLY, requests[-1]) is not None
        actual = desired(store, OTHER)
        assert actual is not None
        assert actual.expires > scene.clock()
        assert published_placement(store, OTHER).decision == moved.decision
        assert state(store).applications[OTHER].endswith("0 of 3 moves landed")

    scene.slow_down(130, meanwhile)
    assert decide(leader, apply=True).result == "applied"
    assert len(requests) == 130
    second.obey("drained")
    leader.follow()
    assert app(leader).migrations.running is not None
    assert app(leader, OTHER).migrations.running is None


def test_a_plan_of_a_leader_that_was_stopped_meanwhile_is_discarded(scene: Scene) -> None:
    other = controller(scene.store, scene.clock, name="b")
    scene.slow_down(20, other.run_leader_cycle)  # the leader's process is suspended
    (decision,) = scene.leader.decide_all()
    assert (decision.result, decision.reason) == ("not-ready", "not-leading")
    assert desired(scene.store) is None
    assert decisions(scene.store) == []
    assert other.run_leader_cycle() == "leading in epoch 2"


def test_a_plan_of_a_lead_that_was_lost_and_won_again_is_discarded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    began = scene.clock()

    def meanwhile() -> None:
        if not 5 < scene.clock() - began < 25:
            seen.append(scene.leader.run_leader_cycle())

    scene.slow_down(30, meanwhile)
    (decision,) = scene.leader.decide_all()
    assert seen[-1] == "leading in epoch 2"
    assert decision.reason == "not-leading"
    assert desired(scene.store) is None
    monkeypatch.undo()
    scene.world.ready()
    assert scene.leader.decide_all()[0].result == "applied", "and nothing is left in the way"


def roll_back(leader: Controller, world: World) -> None:
    target = find_rollback_target(applied_decisions(read_decision_log(leader._context.store), APP))
    app(leader).rollback = PendingRollback(target, "u", "", leader._clock.steady())


def use_up_budget(leader: Controller, world: World) -> None:
    World(world.store, world.clock, OTHER).ready()
    leader.run_leader_cycle()
    decide(leader, trigger="timeout", application=OTHER, apply=True)


@pytest.mark.parametrize(
    ("event", "happens", "reason"),
    [
        ("drain", lambda leader, _: order(leader, Drain(nodes=["127.0.0.3"])), "overtaken"),
        ("pause", lambda leader, _: order(leader, Pause()), "paused"),
        ("rollback", roll_back, "overtaken"),
        ("budget", use_up_budget, "overtaken"),
        ("excluded", lambda leader, _: leader.reload(ruled(excluded=("00:00-23:59",))), "excluded"),
        ("gone", lambda *_: None, "no-report"),
    ],
)
def test_orders_and_events_during_a_plan_are_taken_into_account(
    store: FakeStore,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    event: str,
    happens: Callable[[Controller, World], object],
    reason: str,
) -> None:
    leader = leading(world, ruled(moves_per_hour=4 if event == "budget" else 0))
    if event == "rollback":
        decide(leader, apply=True, force=True)
        world.obey("drained")
        leader.follow()
        go_on(world, 400, leader)
    happened: list[str] = []

    def meanwhile() -> None:
        if not happened:
            happened.append(event)
            happens(leader, world)
        leader.run_leader_cycle()

    gone = event == "gone"
    Scene(leader, world, monkeypatch).slow_down(70 if gone else 3, meanwhile, reports=not gone)
    before = desired(store)
    decision = decide(leader, trigger="executors", apply=True)
    assert decision.reason == reason
    assert decision.result != "applied"
    assert desired(store) == before


def test_an_application_has_one_plan_at_a_time(scene: Scene) -> None:
    order(scene.leader, Drain(nodes=["127.0.0.2"]))
    scene.slow_down(30, scene.run_jobs)  # each of which asks for a decision again
    assert "running" in scene.leader.follow()
    assert scene.plans == 1


def test_a_plan_that_is_canceled_while_it_is_checked_is_not_begun(scene: Scene) -> None:
    leader = scene.leader
    plan = saved_plan_of(decide(leader), "default", APP)
    text = msgspec.json.encode(plan).decode()
    waiting = order(leader, Apply(plan=text, at="00:00-23:59", force=True)).data["scheduled_plan"]
    canceled: list[str] = []

    def meanwhile() -> None:
        if not canceled:
            canceled.append(order(leader, Cancel(scheduled_plan=waiting)).sentence)
        leader.run_leader_cycle()

    scene.slow_down(3, meanwhile)
    leader.follow()
    assert canceled
    assert desired(scene.store) is None
    assert leader._services.plans.plans == {}


# -- parts --


def test_a_mutex_is_reentrant_and_can_be_released() -> None:
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


def test_a_mutex_excludes_other_threads_and_is_reacquired_after_an_error() -> None:
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


def test_long_work_goes_on_in_a_thread_and_is_begun_once() -> None:
    runner, go_on = BackgroundRunner(patience=0.01), threading.Event()
    begun: list[int] = []

    def work() -> str:
        begun.append(1)
        assert go_on.wait(10)
        return "done"

    assert runner.run("follow", work) is None
    assert runner.run("follow", work) is None
    assert runner.run("observe", lambda: "another kind") == "another kind"
    future = runner._under_way["follow"]
    go_on.set()
    assert future.result(10) == "done"
    assert len(begun) == 1
    assert BackgroundRunner(patience=10).run("follow", work) == "done"


def test_work_whose_thread_could_not_start_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    runner = BackgroundRunner(patience=10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            runner.run("follow", lambda: "done")
    assert runner.run("follow", lambda: "done") == "done"


class Late:
    """A job whose work goes on after its runs, and ends when it is told to."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.go_on, self.ended = threading.Event(), threading.Event()
        self.monitor = JobMonitor(clocks(self.clock))
        self.runner = BackgroundRunner(0.01, self.monitor)
        self.errors: list[Exception] = []
        self.job = self.monitor.add("decide", 300.0, lambda: self.runner.run("decide", self.work))
        self.record = self.job.report_late
        self.job.report_late = self.report_late  # type: ignore[method-assign]

    def report_late(self, outcome: Future[Any]) -> None:
        self.record(outcome)
        self.ended.set()

    def work(self) -> str:
        assert self.go_on.wait(10)
        if self.errors:
            raise self.errors.pop()
        return "done"

    def run(self, seconds: float = 0.0) -> None:
        """Run the job, and let its work end so much later."""
        self.go_on.clear()
        self.ended.clear()
        self.job.run()
        self.clock.sleep(seconds)
        self.go_on.set()
        assert self.ended.wait(10)


def test_work_that_goes_on_succeeds_at_its_end() -> None:
    late = Late()
    late.job.run()
    late.job.run()
    assert (late.job.status.runs, late.job.sentence) == (2, ""), "it goes on"
    late.clock.sleep(7)
    late.go_on.set()
    assert late.ended.wait(10)
    status = late.job.status
    assert (status.runs, status.failures_in_a_row, late.job.sentence) == (2, 0, "done")


def test_late_failures_in_a_row_are_counted_and_rest_longer_each_time() -> None:
    late = Late()
    for number in range(3):
        late.errors = [ZeroDivisionError()]
        with capture_logs() as logs:
            late.run(seconds=2.0)
        assert [(line["event"], line["rest"]) for line in logs] == [("job-failed", 2.0**number)]
        assert (late.job.status.runs, late.job.status.failures_in_a_row) == (number + 1, number + 1)
        late.clock.sleep(2.0**number)
    assert "failed 3 times in a row" in late.monitor.stuck()
    late.run()
    assert (late.job.status.failures_in_a_row, late.job.failure_status, late.monitor.stuck()) == (0, "", "")


def test_a_late_answer_of_redis_is_no_defect() -> None:
    late = Late()
    late.errors = [StoreUnavailableError("gone")]
    with capture_logs():
        late.run()
    assert (late.job.status.is_defect, late.job.failure_status) == (False, "waits for Redis: gone")
