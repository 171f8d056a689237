from __future__ import annotations

import dataclasses
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rechannel.conf.settings import AgentSettings, Settings
from rechannel.monitors.node import agent, monitor, sender
from rechannel.monitors.node.agent import AgentHost, run_agent
from rechannel.monitors.node.monitor import HOST_MISMATCH_AFTER, NodeMonitor
from rechannel.monitors.node.processes import MachineUsage
from rechannel.monitors.node.sender import FIRST_DELAY, LONGEST_DELAY, REFUSED_DELAY, REFUSED_EVERY, Sender
from rechannel.wire.envelope import Envelope, EnvelopeFactory, encode
from rechannel.wire.keys import EVIDENCE, MAX_MESSAGE_BYTES, WINDOWS, KeyNameError, KeyRule
from rechannel.wire.measurements import AgentEvidence, AgentWindow, StreamRow
from rechannel.wire.redis.errors import StoreRefusedError, StoreUnavailableError
from unit.monitors.fakes import DAEMON, START, FakeClock, FakeProcess, FakeTable, backend

NODE = "127.0.0.2"
SETTINGS = dataclasses.replace(Settings(), agent=AgentSettings(node=NODE))


class FakeStore:
    def __init__(self) -> None:
        self.pushed: list[tuple[KeyRule, str, Envelope]] = []
        self.trouble: Exception | None = None
        self.closed = 0
        self.checked = threading.Semaphore(0)

    def check(self) -> str:
        self.checked.release()
        if self.trouble:
            raise self.trouble
        return "7.2.4"

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        if self.trouble:
            raise self.trouble
        self.pushed += [(rule, name, envelope) for envelope in envelopes]

    def close(self) -> None:
        self.closed += 1

    def bodies(self, rule: KeyRule) -> list[AgentWindow | AgentEvidence]:
        return [envelope.body for its, _, envelope in self.pushed if its is rule]  # type: ignore[misc]


def _window(number: int = 0, rows: int = 0, width: int = 1) -> AgentWindow:
    return AgentWindow(
        node=NODE,
        start=float(number),
        end=number + 5.0,
        complete=1.0,
        cores=2,
        node_cpu=0.0,
        memory_total=1,
        memory_used=1,
        executors=[],
        streams=[StreamRow("app-1", "0", 0, task, [1] * width) for task in range(rows)],
    )


class _Bench:
    """A sender that is driven by hand, without its thread."""

    def __init__(self, bound: int = 3) -> None:
        self.store = FakeStore()
        self.clock = FakeClock()
        self.author = EnvelopeFactory("default", "agent", self.clock.wall)
        self.sender = Sender(NODE, lambda: self.store, bound, monotonic=self.clock.monotonic)

    def offer(self, body: AgentWindow | AgentEvidence) -> None:
        self.sender.offer(self.author.envelope(body, ttl=60))

    def starts(self) -> list[float]:
        return [body.start for body in self.store.bodies(WINDOWS) if isinstance(body, AgentWindow)]


def test_windows_and_evidence_go_to_their_keys_evidence_first() -> None:
    bench = _Bench()
    bench.offer(_window(1))
    bench.offer(AgentEvidence(node=NODE, closed=[]))
    assert bench.sender.push() == 0.0
    assert [(rule, name) for rule, name, _ in bench.store.pushed] == [(EVIDENCE, NODE), (WINDOWS, NODE)]
    assert bench.sender.push() == 0.0
    assert len(bench.store.pushed) == 2


def test_while_redis_is_away_windows_are_kept_and_the_oldest_dropped_and_counted() -> None:
    bench = _Bench(bound=3)
    bench.store.trouble = StoreUnavailableError("away")
    for number in range(5):
        bench.offer(_window(number))
        bench.sender.push()
    bench.store.trouble = None
    assert bench.sender.push() == 0.0
    assert bench.starts() == [2.0, 3.0, 4.0]
    assert list(bench.sender.pop_dropped().values()) == [2]
    assert bench.sender.pop_dropped() == {}


def test_an_outage_and_its_end_are_logged_once_and_attempts_grow_rarer() -> None:
    bench = _Bench()
    bench.store.trouble = StoreUnavailableError("away")
    bench.offer(_window())
    with capture_logs() as logs:
        delays = [bench.sender.push() for _ in range(20)]
        bench.store.trouble = None
        bench.sender.push()
        bench.sender.push()
    assert delays[0] == FIRST_DELAY
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY
    assert [entry["event"] for entry in logs] == ["redis is away", "redis is back"]


def test_a_refusal_is_said_once_a_minute_and_the_store_opened_anew_each_time() -> None:
    bench = _Bench()
    bench.store.trouble = StoreRefusedError("wrong password")
    bench.offer(_window())
    with capture_logs() as logs:
        for _ in range(int(2 * REFUSED_EVERY / REFUSED_DELAY)):
            assert bench.sender.push() == REFUSED_DELAY
            bench.clock.pass_time(REFUSED_DELAY)
    assert [entry["problem"] for entry in logs] == ["wrong password"] * 2
    assert bench.store.closed == 12


def test_another_cause_is_said_too_but_no_more_than_once_a_minute() -> None:
    bench = _Bench()
    with capture_logs() as logs:
        for trouble in (
            StoreUnavailableError("nobody there"),
            StoreUnavailableError("too slow"),  # in the same minute
            StoreRefusedError("wrong password"),
            StoreUnavailableError("nobody there"),
        ):
            bench.store.trouble = trouble
            bench.sender.push()
        bench.clock.pass_time(REFUSED_EVERY)
        bench.store.trouble = StoreUnavailableError("too slow")
        bench.sender.push()
        bench.sender.push()
    assert [entry["problem"] for entry in logs] == ["nobody there", "wrong password", "nobody there", "too slow"]


def test_redis_is_asked_without_anything_to_push() -> None:
    bench = _Bench()
    with capture_logs() as logs:
        assert bench.sender.push() == 0.0
        assert bench.sender.reachable
        bench.store.trouble = StoreUnavailableError("away")
        assert bench.sender.push() == FIRST_DELAY
        assert not bench.sender.reachable
    assert [entry["event"] for entry in logs] == ["redis is away"]
    assert bench.store.pushed == []


def test_an_agent_that_waits_for_an_executor_says_that_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its executor it has no node, and nothing to push; without this nobody would know."""
    monkeypatch.setattr(agent, "own_names", lambda: {"here"})
    monkeypatch.setattr(agent, "HOST_EVERY", 0.0)
    store, stop = FakeStore(), threading.Event()
    store.trouble = StoreUnavailableError("nobody there")

    class Table(FakeTable):
        def pids(self) -> list[int]:
            if store.checked.acquire(timeout=20):  # asked before an executor came
                stop.set()
            return []

    with capture_logs() as logs:
        run_agent(Settings(), stop=stop, store_factory=lambda _: store, host=AgentHost(table=Table()))
    assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == ["redis is away"]
    assert [entry["problem"] for entry in logs if "problem" in entry] == ["nobody there"]


def test_a_store_that_cannot_be_opened_is_retried() -> None:
    clock = FakeClock()

    def refuse() -> FakeStore:
        raise StoreRefusedError("redis.password_file: cannot be read")

    sender = Sender(NODE, refuse, 3, monotonic=clock.monotonic)
    with capture_logs() as logs:
        assert sender.push() == REFUSED_DELAY
    assert "password_file" in logs[0]["problem"]


def test_a_window_dropped_while_it_is_pushed_takes_no_other_with_it() -> None:
    bench = _Bench(bound=2)
    append = bench.store.append

    def slow(rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        append(rule, name, *envelopes)
        bench.store.append = append  # type: ignore[method-assign]
        bench.offer(_window(2))
        bench.offer(_window(3))

    bench.store.append = slow  # type: ignore[method-assign]
    bench.offer(_window(0))
    bench.offer(_window(1))
    assert bench.sender.push() == 0.0
    assert bench.starts() == [0.0, 1.0, 2.0, 3.0]


def test_buffered_stream_rows_are_bounded_newest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "BUFFERED_SIZES", 50)
    bench = _Bench(bound=10)
    for number in range(4):
        bench.offer(_window(number, rows=2, width=10))
    bench.sender.push()
    bodies = [body for body in bench.store.bodies(WINDOWS) if isinstance(body, AgentWindow)]
    assert [len(body.streams) for body in bodies] == [0, 0, 2, 2]
    assert list(bodies[0].skipped.values()) == [2]


def test_evidence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "BUFFERED_EVIDENCE", 2)
    bench = _Bench()
    for _ in range(5):
        bench.offer(AgentEvidence(node=NODE, closed=[]))
    bench.sender.push()
    assert len(bench.store.bodies(EVIDENCE)) == 2
    assert list(bench.sender.pop_dropped().values()) == [3]


_opened: list[NodeMonitor] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().finish()


class _Node:
    """A node with one executor that burns 1.5 CPU seconds a second, its worker 0.5, and writes shuffle files."""

    def __init__(self, tmp_path: Path, settings: Settings = SETTINGS) -> None:
        self.clock = FakeClock()
        self.root = tmp_path
        (tmp_path / "stderr").write_text("")
        self.java = FakeProcess(
            10, arguments=backend(), rss=100, cwd=str(tmp_path), environ={"SPARK_EXECUTOR_DIRS": str(tmp_path)}
        )
        self.daemon = FakeProcess(11, ppid=10, arguments=DAEMON, rss=10)
        self.worker = FakeProcess(12, ppid=11, arguments=DAEMON, rss=20)
        self.table = FakeTable(self.java, self.daemon, self.worker)
        self.monitor = NodeMonitor(
            settings, clock=self.clock, table=self.table, machine=lambda: MachineUsage(2 * self.clock.steady, 8, 64, 32)
        )
        self.evidence: list[AgentEvidence] = []
        _opened.append(self.monitor)

    def run(self, seconds: int) -> Iterator[AgentWindow]:
        for _ in range(seconds):
            window, evidence = self.monitor.sample()
            if evidence:
                self.evidence.append(evidence)
            if window:
                yield window
            self.clock.pass_time(1.0)
            self.java.cpu += 1.5
            self.worker.cpu += 0.5

    def write(self, task: int) -> None:
        leaf = self.root / "blockmgr-1/0c"
        leaf.mkdir(parents=True, exist_ok=True)
        (leaf / "temporary").write_bytes(struct.pack(">3q", 0, 10, 30))
        (leaf / "temporary").rename(leaf / f"shuffle_0_{task}_0.index")


def test_a_window_holds_what_the_node_used_and_sent(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    assert list(node.run(5)) == []
    node.write(7)
    (window,) = node.run(1)
    assert (window.start, window.end, window.complete) == (START, START + 5, 1.0)
    assert (window.node, window.cores, window.node_cpu) == (NODE, 8, 10.0)
    (usage,) = window.executors
    assert (usage.application, usage.executor, usage.pid, usage.cores) == ("app-1", "0", 10, 2)
    assert (usage.jvm_cpu, usage.python_cpu, usage.samples) == (7.5, 2.5, 5)
    assert (usage.jvm_rss, usage.python_rss, usage.python_workers) == (100, 30, 1)
    assert [(row.map_task, row.sizes) for row in window.streams] == [(7, [10, 20])]
    assert window.skipped == {}
    (later,) = node.run(5)
    assert later.streams == []


def test_evidence_is_there_with_the_sample_that_saw_it(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    list(node.run(1))
    run = "64704fd1-ee7d-46f1-bdcb-39a5a5a98401"
    with (tmp_path / "stderr").open("a") as file:
        file.write("INFO StateStore: Closed StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=4, ")
        file.write(f"storeName=default ], queryRunId={run} ]\n")
    list(node.run(2))
    (evidence,) = node.evidence
    assert [(closed.run, closed.partition) for closed in evidence.closed] == [(run, 4)]


def test_stream_rows_over_the_limit_are_counted_not_sent(tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, agent=AgentSettings(node=NODE, stream_rows=2))
    node = _Node(tmp_path, settings)
    for task in range(5):
        node.write(task)
    (window,) = node.run(6)
    assert len(window.streams) == 2
    assert list(window.skipped.values()) == [3]


def test_the_largest_window_is_within_the_largest_message() -> None:
    rows = [StreamRow("app-20261121000000-0000", "100", 9999, 10**9, [10**11] * 200)] * (monitor.WINDOW_SIZES // 200)
    body = _window()
    envelope = EnvelopeFactory("default", "agent").envelope(body, ttl=1)
    assert len(encode(envelope)) + sum(len(agent.msgspec.json.encode(row)) + 1 for row in rows) < MAX_MESSAGE_BYTES


def test_an_executor_that_ended_in_the_window_is_still_in_it(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    list(node.run(3))
    node.table.processes.clear()
    (window,) = node.run(3)
    assert [(usage.jvm_cpu, usage.samples) for usage in window.executors] == [(3.0, 3)]
    (window,) = node.run(5)
    assert window.executors == []


def test_the_last_window_is_as_long_as_it_came(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    list(node.run(3))
    window = node.monitor.finish()
    assert window is not None
    assert (window.end - window.start, window.complete) == (2.0, 0.6)


def test_a_node_name_no_executor_carries_is_warned_of_once(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    node.java.arguments = backend("worker-7.example")
    with capture_logs() as logs:
        list(node.run(int(HOST_MISMATCH_AFTER)))
        assert logs == []
        list(node.run(60))
    (entry,) = logs
    assert "agent.node" in entry["cure"]
    assert entry["executors_here_carry"] == ["worker-7.example"]
    assert NODE in entry["problem"]


def test_a_node_between_two_applications_is_not_warned_of(tmp_path: Path) -> None:
    node = _Node(tmp_path)
    with capture_logs() as logs:
        list(node.run(3))
        node.java.arguments = backend("127.0.0.3")
        node.java.ended = True
        node.table.add(FakeProcess(20, arguments=backend("127.0.0.3")))
        list(node.run(100))
    assert logs == []


class _StoppingClock(FakeClock):
    """Sets ``stop`` once so much time has passed."""

    def __init__(self, after: float) -> None:
        super().__init__()
        self.after = after

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.pass_time(seconds)
        if self.steady >= self.after:
            stop.set()
        return stop.is_set()


def test_the_loop_pushes_every_window_and_a_last_shorter_one() -> None:
    store = FakeStore()
    run_agent(
        SETTINGS,
        stop=threading.Event(),
        store_factory=lambda _: store,
        host=AgentHost(_StoppingClock(12.5), FakeTable(FakeProcess(10, arguments=backend()))),
    )
    windows = [body for body in store.bodies(WINDOWS) if isinstance(body, AgentWindow)]
    assert [(window.start - START, round(window.end - START)) for window in windows] == [(0, 5), (5, 10), (10, 12)]
    assert all(len(window.executors) == 1 for window in windows)
    sequences = [envelope.sequence for _, _, envelope in store.pushed]
    assert sequences == sorted(sequences)
    assert store.closed == 1


def test_a_store_that_hangs_does_not_stop_the_sampling() -> None:
    never = threading.Event()

    class Hanging(FakeStore):
        def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
            never.wait()

    settings = dataclasses.replace(SETTINGS, redis=dataclasses.replace(SETTINGS.redis, timeout=0.05))
    clock = _StoppingClock(100)
    try:
        run_agent(
            settings, stop=threading.Event(), store_factory=lambda _: Hanging(), host=AgentHost(clock, FakeTable())
        )
    finally:
        never.set()
    assert clock.steady >= 100


def test_a_node_name_that_cannot_be_a_key_is_refused_at_once() -> None:
    settings = dataclasses.replace(SETTINGS, agent=AgentSettings(node="no such {node}"))
    with pytest.raises(KeyNameError):
        run_agent(
            settings, stop=threading.Event(), store_factory=lambda _: FakeStore(), host=AgentHost(table=FakeTable())
        )
