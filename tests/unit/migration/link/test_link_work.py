"""Work of a link whose queries are idle: instructions of Python, calls into Spark, messages to Redis."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from rechannel.conf.settings import LinkSettings, Settings
from rechannel.migration.link import loop, mailbox
from rechannel.migration.link.loop import LinkCycle
from rechannel.migration.moves import OwnMoves
from rechannel.migration.spark.adapter import ActiveQuery, PlannedOperator
from rechannel.migration.spark.coordinator import StoreId
from rechannel.migration.spark.gateway import SparkCallError
from rechannel.migration.spark.hooks import WATCHDOG_TICK
from rechannel.migration.spark.warm_up import ExecutorWarmUp
from rechannel.monitors.spark import events
from rechannel.monitors.spark.event_gaps import SparkState
from rechannel.wire.messages import ExecutorInfo
from unit.daemon import fakes
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.migration.samples import a_move
from unit.monitors import spark_lines

PARTITIONS = 4
SECONDS, SECONDS_OF_WAITING = 6, 2
HUNDREDTH = 300_000  # instructions a second: a core does some 30 million
LONG_JOB = 10_000  # of a batch that goes on


class IdleSpark:
    """An adapter whose queries run no batch any more; it counts what it is asked."""

    version, name, application, reports_snapshots = "4.3.0", "idle", "app-1", False

    def __init__(self, queries: int, nodes: int) -> None:
        self.calls: Counter[str] = Counter()
        self.names = [f"q{number}" for number in range(queries)]
        self.infos = [
            ExecutorInfo(executor=str(number), host=f"node-{number}", cores=1, added=NOW) for number in range(nodes)
        ]
        self.executor_control = SimpleNamespace(releasing=partial(self._count, "releasing"))
        self.checkpoints = SimpleNamespace(store_names=lambda *_: ["default"])
        self.locality_wait = SimpleNamespace(is_short=False)
        self.coordinator = self
        self.warm_up = ExecutorWarmUp(lambda *_: set(), lambda _: None, lambda: NOW)

    def __getattr__(self, name: str) -> Any:
        return partial(self._count, name)

    def _count(self, name: str, *arguments: Any) -> Any:
        self.calls[name] += 1
        answer = getattr(type(self), f"_{name}", None)
        return answer(self, *arguments) if answer is not None else None

    def _setting(self, _: str, default: str) -> str:
        return default

    def _executors(self) -> list[ExecutorInfo]:
        return self.infos

    def _spark_state(self) -> SparkState:
        runs = {f"run-{name}": name for name in self.names}
        return SparkState(frozenset(info.executor for info in self.infos), frozenset(), runs)

    def _query(self, name: str) -> ActiveQuery:
        return ActiveQuery(name, f"run-{name}", name, "")

    def _operators(self, name: str, run: str) -> list[PlannedOperator]:
        return [PlannedOperator(0, "stateStoreSave", PARTITIONS, f"file:/{name}/state", run, frozenset({1}))]

    def _releasing(self) -> set[str]:
        return set()

    def _dropped_events(self) -> int:
        return 0

    def _locations(self, stores: Sequence[StoreId]) -> list[str]:
        return [""] * len(stores)

    def _send_heartbeat(self) -> bool:
        return True


class WaitingSpark(IdleSpark):
    """Query q0 runs a batch that goes on."""

    def _spark_state(self) -> SparkState:
        return replace(super()._spark_state(), jobs=frozenset({LONG_JOB}))


def one_batch(number: int, query: str, nodes: int) -> list[events.Event]:
    rows = [fakes.task(number, part, str((number + part) % nodes)) for part in range(PARTITIONS)]
    return [
        events.JobStarted(number, query, f"run-{query}", 0, NOW, (events.StageInfo(number, (), PARTITIONS, True),)),
        *(events.TaskEnded(number, 0, "", row, True) for row in rows),
        events.StageEnded(number, 0, "", frozenset({1}), PARTITIONS),
        events.JobEnded(number, NOW),
        events.QueryProgressed(query, f"run-{query}", 0, 10, 1.0),
    ]


def a_cycle(spark: Any, directory: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LinkCycle, FakeClock]:
    """Return a link's cycle on an adapter, and the clock of all its parts."""
    clock = FakeClock()
    store = FakeStore(clock)
    monkeypatch.setattr(mailbox, "Store", lambda *_: store)
    monkeypatch.setattr(loop, "time", SimpleNamespace(time=clock, monotonic=clock))
    return LinkCycle(spark, Settings(link=LinkSettings(directory=str(directory))), threading.Event()), clock


class Work:
    """What a link does in some seconds in which nothing happens; a move may wait for the end of a batch."""

    def __init__(
        self, directory: Path, monkeypatch: pytest.MonkeyPatch, queries: int, nodes: int, *, waits: bool = False
    ) -> None:
        self.instructions = self.cycles = 0
        self.clock = FakeClock()
        store = FakeStore(self.clock)
        monkeypatch.setattr(mailbox, "Store", lambda *_: store)
        monkeypatch.setattr(loop, "time", SimpleNamespace(time=self.clock, monotonic=self.clock))
        spark: Any = (WaitingSpark if waits else IdleSpark)(queries, nodes)
        cycle = LinkCycle(spark, Settings(link=LinkSettings(directory=str(directory))), threading.Event())
        for number, query in enumerate(spark.names):
            for event in one_batch(number, query, nodes):
                cycle._fold_event(event, self.clock())
        self._pass(cycle, 10)  # the batches are sent, and the queries are known
        if waits:
            stage = events.StageInfo(LONG_JOB, (), PARTITIONS, True)
            cycle._fold_event(events.JobStarted(LONG_JOB, "q0", "run-q0", 1, self.clock(), (stage,)), self.clock())
            moves = [a_move(("q0", 0, 0), "0", "1")]
            cycle._reconciler.add_own_moves(OwnMoves("d", "run-q0", "test", moves), self.clock())
        self.cycles = 0
        spark.calls.clear()
        store.writes.clear()
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            self._pass(cycle, SECONDS_OF_WAITING if waits else SECONDS)
        finally:
            sys.settrace(before)
        self.spark, self.redis = Counter(spark.calls), Counter(store.writes)
        cycle._feed.close()
        report = cycle._report()
        assert len(report.queries) == queries and len(report.executors) == nodes
        begun = [int(waits and query.query == "q0") for query in report.queries]
        assert [query.batch for query in report.queries] == begun
        assert all(len(query.stages) == 1 for query in report.queries)

    def _pass(self, cycle: LinkCycle, seconds: int) -> None:
        until, next_exchange = self.clock() + seconds, 0.0
        while self.clock() < until:
            cycle.run()
            self.cycles += 1
            if self.clock() >= next_exchange:
                next_exchange = self.clock() + mailbox._PERIOD
                cycle._mailbox._exchange()
            self.clock.sleep(cycle.pause())

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.instructions += event == "opcode"
        return self._trace


def test_the_work_for_idle_queries_and_nodes_is_linear_and_spark_is_asked_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, queries, nodes = (Work(tmp_path, monkeypatch, *size) for size in ((200, 500), (400, 500), (200, 1000)))
    for larger in (queries, nodes):
        assert larger.instructions <= 2 * small.instructions
        assert larger.spark == small.spark
        assert larger.redis == small.redis
    assert sum(small.spark.values()) <= 3 * SECONDS
    assert sum(small.redis.values()) <= 3 * SECONDS
    assert small.instructions <= HUNDREDTH * SECONDS
    assert nodes.instructions <= HUNDREDTH * SECONDS


def test_the_work_while_a_move_waits_for_the_end_of_a_batch_is_bounded_and_spark_is_asked_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, monkeypatch, 200, 500, waits=True)
    seconds = SECONDS_OF_WAITING
    assert work.cycles == pytest.approx(seconds / loop._SHORT_PAUSE, rel=0.01), "the move waits all the time"
    assert work.instructions <= 4 * HUNDREDTH * seconds
    assert sum(work.spark.values()) <= 3 * seconds
    assert sum(work.redis.values()) <= 3 * seconds


def test_only_a_query_with_state_is_watched_closely_until_it_is_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = IdleSpark(2, 1)
    cycle, clock = a_cycle(spark, tmp_path, monkeypatch)
    cycle.run()
    stateless, stateful = spark.names
    pauses = []
    for number, (query, state) in enumerate(((stateless, False), (stateful, True))):
        cycle._initial_placement._new_runs[f"run-{query}"] = {}
        job = events.JobStarted(number, query, f"run-{query}", 0, NOW, (events.StageInfo(number, (), 1, state),))
        row = fakes.task(number, 0, "0")
        ends = events.TaskEnded(number, 0, "", row, state), events.StageEnded(number, 0, "", frozenset(), 1)
        for event in (job, *ends, events.QueryProgressed(query, f"run-{query}", 0, 10, 1.0)):
            cycle._fold_event(event, clock())
            pauses.append(cycle._has_own_moves_due())
    cycle._feed.close()
    assert pauses == [False] * 4 + [True] * 3 + [False], "from the begin of its first batch to the end"


def test_queries_without_state_are_not_handled_as_long_as_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(mailbox, "Store", lambda *_: FakeStore(clock))
    monkeypatch.setattr(loop, "time", SimpleNamespace(time=clock, monotonic=clock))
    spark: Any = IdleSpark(3, 1)
    cycle = LinkCycle(spark, Settings(link=LinkSettings(directory=str(tmp_path))), threading.Event())
    for number, query in enumerate(spark.names):
        cycle._initial_placement._new_runs[f"run-{query}"] = {}
        for event in one_batch(number, query, 1):
            if query != "q0" and isinstance(event, events.JobStarted):
                stateless = events.StageInfo(number, (), PARTITIONS, False)
                event = msgspec.structs.replace(event, stages=(stateless,))
            elif query != "q0" and isinstance(event, events.TaskEnded):
                event = events.TaskEnded(number, 0, "", event.row, False)
            cycle._fold_event(event, clock())
    handled: list[str] = []
    monkeypatch.setattr(cycle._steering, "handle_boundary", lambda query, *_: handled.append(query))
    for _ in range(20):
        cycle.run()
        clock.sleep(cycle.pause())
    cycle._feed.close()
    assert handled == ["q0"], "it has state, and is spread once"


class OtherSession(IdleSpark):
    """Query q0 is of the link's session, every other one of another."""

    jobs: frozenset[int] = frozenset()

    def _query(self, name: str) -> Any:
        return super()._query(name) if name == "q0" else None

    def _spark_state(self) -> SparkState:
        return replace(super()._spark_state(), jobs=self.jobs)

    def _is_idle(self, _: str) -> bool:
        return False


def other_job(number: int, at: float) -> events.JobStarted:
    return events.JobStarted(number, "q1", "run-q1", number, at, (events.StageInfo(number, (), 1, True),))


def test_jobs_of_another_session_cost_no_comparison_with_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = OtherSession(2, 1)
    cycle, clock = a_cycle(spark, tmp_path, monkeypatch)
    cycle.run()
    spark.calls.clear()
    for number in range(30):  # three seconds
        clock.sleep(0.1)
        cycle._fold_event(other_job(number, clock()), clock())
        cycle._fold_event(events.JobEnded(number, clock()), clock())
        cycle.run()
    compared = spark.calls["spark_state"]
    assert compared <= 1
    cycle._fold_event(events.QueryStarted("q0", "new"), clock())
    cycle._fold_event(events.JobStarted(30, "q0", "new", 0, clock(), ()), clock())
    cycle.run()
    cycle._feed.close()
    assert spark.calls["spark_state"] == compared + 1, "a run that is not known is looked up at once"


def test_events_that_are_late_are_not_lost_however_often_spark_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = OtherSession(2, 1)
    cycle, clock = a_cycle(spark, tmp_path, monkeypatch)
    cycle.run()
    cycle._fold_event(events.JobStarted(100, "q0", "run-q0", 0, clock(), (events.StageInfo(9, (), 1, True),)), clock())
    for number in range(3):  # job 100 has ended; its last events are still in Spark's queue, behind these
        clock.sleep(0.1)
        cycle._fold_event(other_job(number, clock()), clock())
        spark.jobs = frozenset(range(number + 1))
        cycle._next_check = 0.0
        cycle.run()
    for event in (
        events.TaskEnded(9, 0, "", fakes.task(9, 0, "0"), True),
        events.StageEnded(9, 0, "", frozenset({1}), 1),
        events.JobEnded(100, clock()),
    ):
        cycle._fold_event(event, clock())
    cycle._feed.close()
    assert (cycle._check.gaps.healed, cycle._table.placement.get(("q0", 0))) == (0, ["0"])


def test_a_link_that_is_busy_with_the_plans_of_many_queries_sends_its_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = IdleSpark(60, 2)
    cycle, clock = a_cycle(spark, tmp_path, monkeypatch)

    def read_slowly(*_: Any) -> list[PlannedOperator]:
        clock.sleep(1.5)  # a plan, and a checkpoint in an object store
        return []

    monkeypatch.setattr(cycle._stages, "_operators", read_slowly)
    cycle.watch_spark()
    for number, query in enumerate(spark.names):  # the last stages of all their batches end at about the same time
        cycle._event_lines += [
            spark_lines.job_start(number, [(number, [], True)], query, group=f"run-{query}", tasks=1),
            spark_lines.task_end(number, 0, "0", number),
            spark_lines.stage_end(number, tasks=1),
        ]
    beats, until = [clock()], clock() + 100
    while clock() < until:
        before = spark.calls["send_heartbeat"]
        cycle.run()
        if spark.calls["send_heartbeat"] > before:
            beats.append(clock())
        clock.sleep(0.1)
    cycle._feed.close()
    assert len(cycle._stages._attempts) == 60 and beats[-1] - NOW >= 90
    assert max(later - earlier for earlier, later in pairwise(beats)) <= WATCHDOG_TICK / 2


def test_a_link_reports_though_the_coordinator_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark: Any = IdleSpark(1, 1)
    monkeypatch.setattr(IdleSpark, "reports_snapshots", True)
    cycle, clock = a_cycle(spark, tmp_path, monkeypatch)

    def fail(_: Any) -> Any:
        clock.sleep(30)
        raise SparkCallError("a call into the driver's JVM took longer than 30 s")

    cycle._snapshot_lag._latest_snapshots = fail
    cycle.watch_spark()
    posted: list[float] = []
    monkeypatch.setattr(cycle._mailbox, "post_report", lambda *_: posted.append(clock()))
    for number in range(10):  # a batch a minute
        for event in one_batch(number, "q0", 1):
            cycle._fold_event(event, clock())
        cycle._table.committed["run-q0"] = number
        until = clock() + 60
        while clock() < until:
            with suppress(SparkCallError):
                cycle.run()
            clock.sleep(cycle.pause())
    cycle._feed.close()
    assert len(posted) > 200, "some in each minute"
    assert max(later - earlier for earlier, later in pairwise(posted)) < 35
