"""Parts of the link that need no Spark: event stream, drift, attaching without a driver."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace

import pytest

import rechannel
from rechannel.conf.loader import load
from rechannel.conf.settings import LinkSettings, Settings
from rechannel.migration.link import attach, initial_placement, loop
from rechannel.migration.link.initial_placement import StartWatcher
from rechannel.migration.link.loop import LinkCycle
from rechannel.migration.spark import hooks
from rechannel.migration.spark.adapter import (
    SparkAdapter,
    _host,
    trigger_problem,
)
from rechannel.migration.spark.gateway import LinkError, UnsupportedSparkError
from rechannel.migration.spark.hooks import START_WAIT, StartHook
from rechannel.monitors.spark.event_log import EventStream
from rechannel.monitors.spark.task_table import PartitionMoved, TaskTable
from rechannel.wire.messages import DrainedNode, ExecutorInfo


@pytest.fixture(autouse=True)
def _loggers_stay(monkeypatch):
    """Attaching has all of Rechannel's loggers write elsewhere, for good: other tests look at what they log."""
    monkeypatch.setattr(attach, "log_to_standard_error", lambda: None)


def part(directory, number):
    return directory / "eventlog_v2_rechannel" / f"events_{number}_rechannel"


def test_the_stream_is_read_across_its_parts_and_each_part_is_deleted(tmp_path):
    stream = EventStream(tmp_path)
    assert stream.read() == []
    part(tmp_path, 1).parent.mkdir()
    (tmp_path / "eventlog_v2_rechannel" / "appstatus_rechannel.inprogress").touch()
    part(tmp_path, 1).write_bytes(b"one\ntwo\nthr")
    assert stream.read() == [b"one", b"two"]
    with part(tmp_path, 1).open("ab") as file:
        file.write(b"ee\n")
    assert stream.read() == [b"three"]
    with part(tmp_path, 1).open("ab") as file:
        file.write(b"four\n")
    part(tmp_path, 2).write_bytes(b"five\n")
    part(tmp_path, 10).write_bytes(b"six\n")
    lines = []
    for _ in range(10):
        lines += stream.read()
    assert lines == [b"four", b"five", b"six"]
    assert not part(tmp_path, 1).exists()
    assert not part(tmp_path, 2).exists()
    stream.close()


@pytest.mark.parametrize(
    ("before", "after", "drifted"),
    [("0", "1", 1), ("0", "2", 0), ("gone", "1", 0), ("1", "0", 0)],
    ids=["by spark", "as asked", "its executor is gone", "off a drained node"],
)
def test_what_spark_runs_elsewhere_counts_as_drifted(before, after, drifted):
    cycle = object.__new__(LinkCycle)  # its parts need a session
    hosts = {"0": "a", "1": "b", "2": "c"}
    infos = {name: ExecutorInfo(executor=name, host=host, cores=1, added=1.0) for name, host in hosts.items()}
    cycle._table = SimpleNamespace(executors=infos)
    cycle._reconciler = SimpleNamespace(was_steered_to=lambda _unit, executor: executor == "2")
    cycle._releaser = SimpleNamespace(releasing=set())
    cycle._check, cycle._drains, cycle._drifted = SimpleNamespace(releasing=set()), {"b"}, 0
    cycle._count_drift(PartitionMoved("q", 0, 3, before, after))
    assert cycle._drifted == drifted


@pytest.mark.parametrize("caught_up", [True, False])
def test_doubtful_places_are_read_in_every_cycle_that_has_caught_up(caught_up):
    cycle, read = object.__new__(LinkCycle), []
    cycle._catch_up_with_events, cycle._exchange_messages = lambda: caught_up, lambda now: None
    cycle._handle_boundaries = lambda: None
    cycle._next_check = cycle._next_tick = cycle._next_report = float("inf")
    cycle._openings, cycle._feed = 1, SimpleNamespace(openings=1, beat=lambda _: None)
    cycle._drains, cycle._releaser, cycle._transitions = {}, SimpleNamespace(active=False), deque()
    cycle._reconciler, cycle._settings = SimpleNamespace(moving={"a move"}, units_up_next=[], paused=True), Settings()
    cycle._stages, cycle._snapshot_lag = SimpleNamespace(mapped={}), SimpleNamespace(advance=lambda *_: None)
    cycle._table = SimpleNamespace(unconfirmed={("q", 0, 0)})
    cycle._check = SimpleNamespace(confirm_placements=read.append)
    for _ in range(2):
        cycle.run()
    assert read == [{"a move"}] * 2 * caught_up


@pytest.mark.parametrize(
    ("caught_up", "compared", "paused", "released"),
    [(True, True, False, 1), (False, True, False, 0), (True, False, False, 0), (True, True, True, 0)],
    ids=["all is seen", "events are to be read", "Spark's queries were never read", "paused"],
)
def test_executors_are_released_by_a_link_that_has_seen_what_runs(caught_up, compared, paused, released):
    cycle, advanced = object.__new__(LinkCycle), []
    cycle._catch_up_with_events, cycle._exchange_messages = lambda: caught_up, lambda now: None
    cycle._handle_boundaries = lambda: None
    cycle._next_check = cycle._next_tick = cycle._next_report = float("inf")
    cycle._openings, cycle._feed = 1, SimpleNamespace(openings=1, beat=lambda _: None)
    cycle._reconciler = SimpleNamespace(moves=[], units_up_next=[], paused=paused)
    cycle._settings, cycle._table, cycle._transitions = Settings(link=LinkSettings(spread=False)), TaskTable(), deque()
    cycle._stages, cycle._snapshot_lag = SimpleNamespace(mapped={}), SimpleNamespace(advance=lambda *_: None)
    cycle._check = SimpleNamespace(compared=compared, queries={"q": None}, others={"run": "of another session"})
    cycle._drains = {"b": DrainedNode(node="b", since=10.0, remove=True)}
    cycle._releaser = SimpleNamespace(active=False, advance=lambda inputs, _: advanced.append(inputs))
    cycle.run()
    assert [set(inputs.unseen) for inputs in advanced] == [{"q", "of another session"}] * released


@pytest.mark.parametrize(("caught_up", "compared"), [(True, 1), (False, 0)])
def test_what_is_due_is_due_though_the_clock_was_set_back(caught_up, compared, monkeypatch):
    """Nor is Spark's state compared with events that are still to be read: they would count as lost."""
    done: list[str] = []
    cycle = object.__new__(LinkCycle)
    cycle._catch_up_with_events, cycle._exchange_messages = lambda: caught_up, lambda now: None
    cycle._handle_boundaries = lambda: None
    cycle._next_check = cycle._next_tick = cycle._next_report = 100.0
    cycle._openings, cycle._feed = 1, SimpleNamespace(openings=1, beat=lambda _: None)
    cycle._drains, cycle._releaser, cycle._transitions = {}, SimpleNamespace(active=False), deque()
    cycle._reconciler = SimpleNamespace(units_up_next=[], paused=True, tick=lambda *_: done.append("tick"))
    cycle._driver_state, cycle._journal, cycle._report = lambda: None, lambda _: None, lambda: None
    cycle._initial_placement = SimpleNamespace(restore_wait=lambda _: None)
    cycle._settings, cycle._evidence_nodes = Settings(), set
    cycle._stages, cycle._snapshot_lag = SimpleNamespace(mapped={}), SimpleNamespace(advance=lambda *_: None)
    cycle._table = SimpleNamespace(unconfirmed=(), placement={})
    cycle._mailbox = SimpleNamespace(post_report=lambda *_: done.append("report"))
    cycle._steering = SimpleNamespace(remove_final=lambda: None)
    cycle._check_against_spark = lambda now: done.append("check")
    wall, steady = [5000.0], [100.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(time=lambda: wall[0], monotonic=lambda: steady[0]))
    cycle.run()
    assert sorted(done) == ["check"] * compared + ["report", "tick"]
    wall[0], steady[0] = 1400.0, 104.0
    cycle.run()
    assert sorted(done) == ["check"] * 2 * compared + ["report"] * 2 + ["tick"] * 2


def catching_up(feed):
    """A cycle that has no part but its events."""
    cycle = object.__new__(LinkCycle)
    cycle._event_lines, cycle._stop, cycle._feed = deque(), threading.Event(), feed
    return cycle


def test_events_beyond_the_time_of_a_cycle_wait_for_the_next_in_their_order(monkeypatch):
    now, folded, pages = [0.0], [], [[b"1", b"2", b"3"], [b"4"], []]
    cycle = catching_up(SimpleNamespace(read=lambda: pages.pop(0)))

    def fold(line, _):
        now[0] += loop._MAX_CATCH_UP / 2.5
        folded.append(line)

    cycle._fold_line = fold
    monkeypatch.setattr(loop, "time", SimpleNamespace(time=lambda: 0.0, monotonic=lambda: now[0]))
    assert not cycle._catch_up_with_events(), "a query that looks quiet may not be"
    assert folded == [b"1", b"2", b"3"]
    assert cycle._catch_up_with_events()
    assert folded == [b"1", b"2", b"3", b"4"]
    pages.append([b"5"])
    cycle._stop.set()
    assert not cycle._catch_up_with_events() and len(folded) == 4


def test_an_event_that_fails_costs_itself_alone_and_counts_as_lost():
    marks, folded, pages = [], [], [[b"1", b"2", b"3"], []]
    cycle = catching_up(SimpleNamespace(read=lambda: pages.pop(0), mark_incomplete=lambda: marks.append(True)))
    cycle._garbage = 0

    def fold(event, _):
        folded.append(event)
        if event == 2:
            raise KeyError("something of ours")

    cycle._fold_event = fold
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "events", SimpleNamespace(parse=int, EventError=ValueError))
        with pytest.raises(KeyError):
            cycle._catch_up_with_events()
        assert cycle._catch_up_with_events()
    assert folded == [1, 2, 3] and marks == [True] and cycle._garbage == 0


def test_starts_that_could_not_be_watched_are_watched_in_the_next_cycle():
    cycle, tries = object.__new__(LinkCycle), []

    def watch():
        tries.append(1)
        if len(tries) == 1:
            raise LinkError("no answer within 30 s")

    cycle._openings, cycle._feed, cycle._settings = 1, SimpleNamespace(openings=2), Settings()
    cycle._start_watcher = SimpleNamespace(watch=watch)
    with pytest.raises(LinkError):
        cycle._watch_starts()
    assert cycle._openings == 1
    cycle._watch_starts()
    assert cycle._openings == 2


class Flag:
    """Java's AtomicBoolean."""

    def __init__(self) -> None:
        self.value = True

    def getAndSet(self, value):  # noqa: N802
        before, self.value = self.value, value
        return before


def test_a_start_that_waits_no_more_is_not_steered_before_its_first_batch(monkeypatch):
    """Two queries start at once and one later; the first takes six seconds, and a query waits five."""
    now, placed = [1000.0], []
    hook = object.__new__(StartHook)
    hook.waits_since, hook._alive, hook.event, hook.release = 0.0, Flag(), lambda start: start, lambda start: None
    clock = SimpleNamespace(time=lambda: now[0])
    monkeypatch.setattr(initial_placement, "time", clock)
    monkeypatch.setattr(hooks, "time", clock)

    def place(query, run, checkpoint, waited):
        placed.append((query, waited))
        if query == "slow":
            now[0] += 6.0
            hook._alive.value = False  # so the second has given up, and the third has not even waited

    adapter = SimpleNamespace(started_query=lambda start: (start[0], "run", "file:/c/state", start[1]))
    watcher = StartWatcher(adapter, SimpleNamespace(place_before_first_batch=place), threading.Event())
    for start in (("slow", 999.5), ("queued", 999.5), ("third", 1005.5), ("fourth", 1006.5)):
        now[0] = max(now[0], start[1])
        watcher._place(hook, start)
    assert placed == [("slow", 0.5), ("queued", START_WAIT), ("third", START_WAIT), ("fourth", 0.0)]


def test_the_time_of_a_start_is_read_from_sparks_event():
    adapter = object.__new__(SparkAdapter)
    adapter._execution = lambda query: SimpleNamespace(resolvedCheckpointRoot=lambda: "file:/c")
    event = SimpleNamespace(id=lambda: Text("q"), runId=lambda: Text("r"), timestamp=lambda: "1970-01-02T00:00:01.250Z")
    assert adapter.started_query(event) == ("q", "r", "file:/c/state", 86_401.25)


class Text(str):
    """A Java object that is shown as this text."""

    toString = str.__str__  # noqa: N815


class Remote:
    """A Spark Connect session has no driver JVM."""

    version = "4.3.0"


Remote.__module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize(
    "session",
    [Remote(), object()],
    ids=["Spark Connect", "no session"],
)
def test_attaching_to_an_unsupported_session_gives_an_inactive_link_with_a_problem(session):
    link = rechannel.attach(session, load(None, {}))
    assert not link.active
    with pytest.raises(UnsupportedSparkError, match="Spark Connect"):
        SparkAdapter(session)
    assert link.problem
    link.detach()
    with pytest.raises(UnsupportedSparkError):
        rechannel.attach(session, load(None, {}), strict=True)


def test_a_wrong_configuration_never_fails_the_script(monkeypatch, tmp_path):
    monkeypatch.setenv("RECHANNEL_CONFIG", str(tmp_path / "none.toml"))
    assert "cannot be read" in rechannel.attach(object()).problem


@pytest.mark.parametrize(
    ("text", "host"),
    [("10.0.0.1:7077", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]")],
)
def test_an_executors_host_is_read_with_and_without_its_port(text, host):
    assert _host(text) == host


@pytest.mark.parametrize(
    ("execution", "trigger", "movable"),
    [
        ("MicroBatchExecution", "ProcessingTimeTrigger", True),
        ("MicroBatchExecution", "AvailableNowTrigger$", True),
        ("MicroBatchExecution", "RealTimeTrigger", False),
        ("ContinuousExecution", "ContinuousTrigger", False),
    ],
)
def test_a_query_without_batch_boundaries_is_not_moved(execution, trigger, movable):
    assert (trigger_problem(execution, trigger) == "") is movable
