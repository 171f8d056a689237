"""Repair of the task table within ten seconds after the loss of any event."""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from rechannel.migration.link import loop
from rechannel.migration.link.state_check import StateCheck
from rechannel.migration.spark.adapter import ActiveQuery
from rechannel.migration.spark.gateway import SparkCallError
from rechannel.monitors.spark import events
from rechannel.monitors.spark.event_gaps import EventGaps, GapKind, SparkState, healing_event
from rechannel.monitors.spark.task_table import TaskTable
from rechannel.wire.messages import ExecutorInfo
from unit.daemon import fakes

CHECK_EVERY = loop._CHECK_EVERY
PROMISE = 10.0  # seconds in which a lost event is healed
POLL = loop._PAUSE
ANSWER = 0.001  # seconds that the place of one partition costs, by py4j
PARTITIONS = 4
CASES = 3000
MANY = 600  # partitions of each query, up to 1,800 in all
MANY_CASES = 100
HAPPENINGS = ["start", *["begin", "finish", "commit"] * 2, "stop", "other", "other_ends", "gain", "lose"]


@dataclass
class Query:
    run: str
    batch: int = -1
    job: int | None = None
    committed: bool = True


@dataclass
class Spark:
    """A driver that runs queries at random and tells of it in events; the adapter's questions, answered truly."""

    rng: random.Random
    partitions: int = PARTITIONS
    gains: int = 1  # executors that come at once
    hosts: dict[str, str] = field(default_factory=lambda: {"0": "a", "1": "b", "2": "c"})
    queries: dict[str, Query] = field(default_factory=dict)
    unnamed_jobs: dict[int, bool] = field(default_factory=dict)  # jobs that name no query -> whether they open state
    places: dict[tuple[str, int], str] = field(default_factory=dict)
    pending: list[events.Event] = field(default_factory=list)
    now: float = 0.0
    listings: int = 0
    _numbers: int = 0

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- what happens --

    def go_on(self) -> None:
        getattr(self, self.rng.choice(HAPPENINGS))()

    def start(self) -> None:
        name = self.rng.choice("pqr")
        if name not in self.queries:
            self.queries[name] = Query(f"{name}{self.number()}")

    def begin(self) -> None:
        for name, query in self.queries.items():
            if query.job is None and query.committed:
                query.batch, query.job, query.committed = query.batch + 1, self.number(), False
                self.pending.append(self.started(name, query))
                return

    def started(self, name: str, query: Query) -> events.JobStarted:
        stages = (
            events.StageInfo(10 * query.job, (), 2, False),
            events.StageInfo(10 * query.job + 1, (10 * query.job,), self.partitions, True),
        )
        return events.JobStarted(query.job, name, query.run, query.batch, self.now, stages)

    def finish(self) -> None:
        for name, query in self.queries.items():
            if query.job is not None:
                source, state = 10 * query.job, 10 * query.job + 1
                for partition in range(2):
                    self.pending.append(events.TaskEnded(source, 0, "", fakes.task(1, partition, self.anyone()), False))
                self.pending.append(events.StageEnded(source, 0, "", frozenset(), 2))
                for partition in range(self.partitions):
                    where = self.places[name, partition] = self.anyone()
                    self.pending.append(events.TaskEnded(state, 0, "", fakes.task(1, partition, where), True))
                self.pending.append(events.StageEnded(state, 0, "", frozenset({1}), self.partitions))
                self.pending.append(events.JobEnded(query.job, self.now))
                query.job = None
                return

    def anyone(self) -> str:
        return self.rng.choice(sorted(self.hosts))

    def commit(self) -> None:
        for name, query in self.queries.items():
            if query.job is None and not query.committed:
                query.committed = True
                self.pending.append(events.QueryProgressed(name, query.run, query.batch, 10, 1.0))
                return

    def stop(self) -> None:
        idle = [name for name, query in self.queries.items() if query.job is None]
        if idle:
            name = self.rng.choice(idle)
            self.pending.append(events.QueryTerminated(name, self.queries.pop(name).run))
            for key in [key for key in self.places if key[0] == name]:
                del self.places[key]

    def other(self) -> None:
        job, stateful = self.number(), self.rng.random() < 0.5
        self.unnamed_jobs[job] = stateful
        self.pending.append(self.other_started(job))

    def other_started(self, job: int) -> events.JobStarted:
        return events.JobStarted(job, "", "", -1, self.now, (events.StageInfo(-1, (), 1, self.unnamed_jobs[job]),))

    def other_ends(self) -> None:
        if self.unnamed_jobs:
            job = self.rng.choice(sorted(self.unnamed_jobs))
            del self.unnamed_jobs[job]
            self.pending.append(events.JobEnded(job, self.now))

    def gain(self) -> None:
        for _ in range(self.gains):
            name = str(100 + self.number())
            self.hosts[name] = "d"
            self.pending.append(events.ExecutorAdded(name, "d", 1, self.now))

    def lose(self) -> None:
        if len(self.hosts) > 2:
            name = self.anyone()
            del self.hosts[name]
            self.pending.append(events.ExecutorRemoved(name))

    # -- what the adapter is asked --

    @property
    def jobs(self) -> frozenset[int]:
        return frozenset(self.unnamed_jobs) | {query.job for query in self.queries.values() if query.job is not None}

    def spark_state(self) -> SparkState:
        runs = {query.run: name for name, query in self.queries.items()}
        return SparkState(frozenset(self.hosts), self.jobs, runs)

    def query(self, name: str) -> ActiveQuery:
        return ActiveQuery(name, self.queries[name].run, name, "")

    def is_idle(self, name: str) -> bool:
        return name in self.queries and self.queries[name].committed

    def executors(self) -> list[ExecutorInfo]:
        self.listings += 1
        return [ExecutorInfo(executor=name, host=host, cores=1, added=0.0) for name, host in self.hosts.items()]

    def job(self, number: int) -> events.JobStarted | None:
        for name, query in self.queries.items():
            if query.job == number:
                return events.JobStarted(number, name, query.run, query.batch, 0.0, ())
        return self.other_started(number) if number in self.unnamed_jobs else None

    def locations(self, stores: list[tuple[str, int]]) -> list[str]:
        self.now += ANSWER * len(stores)
        return [self.places.get((run[:1], partition), "") for run, partition in stores]

    executor_control = SimpleNamespace(releasing=set)

    @property
    def coordinator(self) -> Spark:
        return self


class Link:
    """The link's part: folds in what arrives, and compares with Spark as often as it does."""

    def __init__(self, spark: Spark) -> None:
        self.spark = spark
        self.table = TaskTable()
        self.table.executors.update({info.executor: info for info in spark.executors()})
        stages = SimpleNamespace(stores_of_partition=lambda run, stage, partition: [(run, partition)])
        self.check = StateCheck(spark, self.table, stages, lambda: spark.now)
        self.next_check = CHECK_EVERY
        self.lost = False

    def fold(self, losing) -> None:
        for event in self.spark.pending:
            if losing(event):
                self.lost = True
            else:
                self.table.add(event)
        self.spark.pending.clear()

    def cycle(self, *, counted: bool) -> None:
        if self.spark.now >= self.next_check:
            self.next_check = self.spark.now + CHECK_EVERY
            for event in self.check.find_lost_events(self.spark.now, events_lost=self.lost and counted):
                self.table.add(event)
            self.lost = False
        self.check.confirm_placements(())


def disagreements(link: Link, *, placement: bool) -> list[str]:
    spark, table = link.spark, link.table
    wrong = []
    if set(table.executors) != set(spark.hosts):
        wrong.append(f"executors {set(table.executors)} != {set(spark.hosts)}")
    if table.jobs != spark.jobs:
        wrong.append(f"jobs {table.jobs} != {set(spark.jobs)}")
    if not set(table.runs) <= {query.run for query in spark.queries.values()}:
        wrong.append(f"runs {table.runs}")
    unnamed = any(spark.unnamed_jobs.values())
    for name, query in spark.queries.items():
        quiet = query.job is None and not unnamed
        if table.is_quiet(name) not in (None, quiet):
            wrong.append(f"{name} quiet: {table.is_quiet(name)} != {quiet}")
        if query.committed and table.in_batch(name):
            wrong.append(f"{name} counts as in a batch")
        where = table.placement.get((name, 0), [])
        if placement and quiet and table.is_quiet(name):
            true = [spark.places.get((name, partition), "") for partition in range(len(where))]
            if where != true:
                wrong.append(f"{name} placement {where} != {true}")
    return wrong


def run_case(seed: int, *, counted: bool, partitions: int = PARTITIONS, gains: int = 1) -> tuple[list[str], int]:
    rng = random.Random(seed)
    spark = Spark(rng, partitions, gains)
    link = Link(spark)
    share = rng.choice([0.02, 0.1, 0.5])
    lost = 0

    def losing(event: events.Event) -> bool:
        nonlocal lost
        drops = rng.random() < share
        lost += drops
        return drops

    for _ in range(rng.randrange(5, 60)):
        spark.go_on()
        spark.now += rng.random()
        link.fold(losing)
        link.cycle(counted=counted)
    if rng.random() < 0.5:  # all jobs end: only places in quiet queries are compared
        while spark.jobs:
            spark.finish()
            spark.other_ends()
        link.fold(losing)
    until = spark.now + PROMISE  # nothing happens and nothing is lost any more
    while spark.now < until:
        spark.now += POLL
        link.cycle(counted=counted)
    return disagreements(link, placement=counted), lost


@pytest.mark.parametrize("counted", [True, False], ids=["drops are counted", "a listener failed"])
def test_any_lost_event_is_healed_within_ten_seconds(counted):
    total = 0
    for seed in range(CASES):
        wrong, lost = run_case(seed, counted=counted)
        assert not wrong, (seed, wrong)
        total += lost
    assert total > CASES, "each case loses some events"


@pytest.mark.parametrize("counted", [True, False], ids=["drops are counted", "a listener failed"])
def test_so_it_is_with_many_partitions_and_executors(counted):
    for seed in range(MANY_CASES):
        wrong, _ = run_case(seed, counted=counted, partitions=MANY, gains=100)
        assert not wrong, (seed, wrong)


def test_executors_are_listed_once_however_many_events_were_lost():
    spark = Spark(random.Random(7), gains=1000)
    link = Link(spark)
    spark.gain()
    spark.pending.clear()
    before = spark.listings
    for _ in range(2):
        spark.now += CHECK_EVERY
        link.cycle(counted=False)
    assert set(link.table.executors) == set(spark.hosts)
    assert spark.listings - before == 1


def unconfirmed(partitions: int) -> tuple[Spark, Link]:
    """A link that has to ask Spark where these partitions are, as of one batch."""
    spark = Spark(random.Random(7), partitions=partitions)
    link = Link(spark)
    for happens in (spark.start, spark.begin, spark.finish, spark.commit):
        happens()
    link.fold(lambda event: False)
    spark.now = CHECK_EVERY
    link.cycle(counted=True)
    link.table.unconfirm_placement()
    return spark, link


def test_a_cycle_reads_as_many_places_as_it_has_time_for():
    spark, link = unconfirmed(1000)
    left = [1000]
    while link.table.unconfirmed and len(left) < 10:
        start = spark.now
        link.check.confirm_placements(())
        assert spark.now - start < 0.3, "events and orders wait no longer for it"
        left.append(len(link.table.unconfirmed))
    assert left == pytest.approx([1000, 800, 600, 400, 200, 0], abs=5)


def test_without_losses_nothing_is_healed():
    spark = Spark(random.Random(7))
    link = Link(spark)
    for _ in range(2000):
        spark.go_on()
        spark.now += 0.3
        link.fold(lambda event: False)
        link.cycle(counted=True)
    assert link.check.gaps.healed == 0
    assert disagreements(link, placement=True) == []


def test_that_events_were_lost_is_not_forgotten_if_spark_does_not_answer():
    marks = []

    def fail():
        raise SparkCallError("no answer within 30 s")

    table = TaskTable()
    table.unconfirm_placement = lambda: marks.append("doubted")
    check = StateCheck(SimpleNamespace(spark_state=fail), table, SimpleNamespace())
    with pytest.raises(SparkCallError):
        check.find_lost_events(0.0, events_lost=True)
    assert marks == ["doubted"]


def test_queries_of_other_sessions_are_known_and_their_idle_triggers_too():
    spark = Spark(random.Random(7), queries={"p": Query("p1"), "q": Query("q1")})
    link = Link(spark)
    own, spark.query = spark.query, lambda name: own(name) if name == "p" else None
    assert not link.check.compared
    link.spark.now = CHECK_EVERY
    link.cycle(counted=True)
    assert (link.check.compared, set(link.check.queries), link.check.others) == (True, {"p"}, {"q1": "q"})
    assert link.table.is_quiet("p") is link.table.is_quiet("q") is True
    link.check.remove_run("q1")
    assert link.check.others == {}


def test_a_difference_counts_only_once_it_has_lasted():
    gaps = EventGaps(TaskTable())
    state = SparkState(frozenset({"1"}), frozenset(), {})
    confirmed = {now: gaps.confirmed_differences(state, now) for now in (0.0, 0.1, 1.9, 2.0, 2.1)}
    assert confirmed.pop(2.0) == [(GapKind.EXECUTOR_ADDED, "1")]
    assert not any(confirmed.values()) and gaps.healed == 1


def test_late_commits_of_two_batches_are_not_taken_for_one_that_was_lost():
    table = TaskTable()
    gaps = EventGaps(table)
    state = SparkState(frozenset(), frozenset(), {"run": "q"}, frozenset({"q"}))
    for batch in range(2):
        table.add(events.JobStarted(batch, "q", "run", batch, 0.0, (events.StageInfo(batch, (), 1, True),)))
        table.add(events.JobEnded(batch, 0.0))
        assert gaps.confirmed_differences(state, 3.0 * batch) == []
        if not batch:
            table.add(events.QueryProgressed("q", "run", batch, 1, 1.0))
    (gap,) = gaps.confirmed_differences(state, 6.0)
    assert healing_event(gap, table, 6.0) == events.QueryProgressed("q", "run", 1, -1, 0.0)


def test_a_place_that_spark_does_not_tell_is_read_again_after_as_long_a_rest():
    spark, link = unconfirmed(1)
    calls = []

    def fail(_):
        calls.append(spark.now)
        spark.now += 30.0
        raise SparkCallError("no answer within 30 s")

    spark.locations, start = fail, spark.now
    for second in (0.0, 31.0, 59.0, 61.0):
        spark.now = start + second
        with contextlib.suppress(SparkCallError):
            link.check.confirm_placements(())
    assert calls == [start, start + 61.0]
