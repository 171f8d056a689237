"""Monitor: windows, evidence and limits of one node."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from rechannel.conf.settings import AgentSettings, Settings
from rechannel.monitors.node import monitor
from rechannel.monitors.node.monitor import HOST_MISMATCH_AFTER, NodeMonitor
from rechannel.monitors.node.processes import MachineUsage
from rechannel.wire.envelope import EnvelopeFactory, encode
from rechannel.wire.keys import MAX_MESSAGE_BYTES
from rechannel.wire.measurements import AgentEvidence, AgentWindow, MapOutput
from unit.monitors.fakes import DAEMON, NODE, START, FakeClock, FakeProcess, FakeTable, backend
from unit.wire.samples import sample


def _settings(**agent: int) -> Settings:
    return Settings(agent=AgentSettings(node=NODE, **agent))  # type: ignore[arg-type]


class _Node:
    """A node with one executor that burns 1.5 CPU seconds a second, its worker 0.5, and writes shuffle files."""

    def __init__(self, tmp_path: Path) -> None:
        self.clock = FakeClock()
        self.root = tmp_path
        (tmp_path / "stderr").write_text("")
        self.java = FakeProcess(
            10, arguments=backend(), rss=100, cwd=str(tmp_path), environ={"SPARK_EXECUTOR_DIRS": str(tmp_path)}
        )
        self.daemon = FakeProcess(11, ppid=10, arguments=DAEMON, rss=10)
        self.worker = FakeProcess(12, ppid=11, arguments=DAEMON, rss=20)
        self.table = FakeTable(self.java, self.daemon, self.worker)
        machine = lambda: MachineUsage(2 * self.clock.steady, 8, 64, 32, 0.25 * self.clock.steady)  # noqa: E731
        self.proc = tmp_path / "proc"
        self.monitor = NodeMonitor(_settings(), clock=self.clock, table=self.table, machine=machine, proc=self.proc)
        self.evidence: list[AgentEvidence] = []

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

    def limit(self, group: str, cores: float, throttled: float, periods: float) -> None:
        """Write the files of a control group of the executor, ``/a`` or ``/a/b``; counters in seconds."""
        directory = self.proc / "10/root/sys/fs/cgroup" / group
        directory.mkdir(parents=True, exist_ok=True)
        (self.proc / "10/cgroup").write_text("0::/a/b\n")
        (self.proc / "10/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        (directory / "cpu.max").write_text(f"{cores * 100_000:.0f} 100000\n")
        stat = f"nr_throttled {periods * 10:.0f}\nthrottled_usec {throttled * 1e6:.0f}\n"
        (directory / "cpu.stat").write_text(stat)

    def write(self, task: int) -> None:
        leaf = self.root / "blockmgr-1/0c"
        leaf.mkdir(parents=True, exist_ok=True)
        (leaf / "temporary").write_bytes(struct.pack(">3q", 0, 10, 30))
        (leaf / "temporary").rename(leaf / f"shuffle_0_{task}_0.index")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[_Node]:
    result = _Node(tmp_path)
    yield result
    result.monitor.finish()


def test_a_window_has_usage_and_map_outputs_of_the_node(node: _Node) -> None:
    assert list(node.run(5)) == []
    node.write(7)
    (window,) = node.run(1)
    assert (window.start, window.end, window.complete) == (START, START + 5, 1.0)
    assert (window.node, window.cores, window.node_cpu) == (NODE, 8, 10.0)
    (usage,) = window.executors
    assert (usage.application, usage.executor, usage.pid, usage.cores) == ("app-1", "0", 10, 2)
    assert (usage.jvm_cpu, usage.python_cpu, usage.samples) == (7.5, 2.5, 5)
    assert (usage.jvm_rss, usage.python_rss, usage.python_workers) == (100, 30, 1)
    assert [(output.map_task, output.sizes) for output in window.map_outputs] == [(7, [10, 20])]
    assert window.skipped == {}
    (later,) = node.run(5)
    assert later.map_outputs == []


def test_a_window_has_what_limits_and_the_hypervisor_took(node: _Node) -> None:
    """Of two counters that bound the throttled time the lower one counts, and of groups the most throttled one."""
    list(node.run(1))
    for second in range(5):
        node.limit("a", 4.0, throttled=1000.0 + 0.1 * second, periods=1000.0 + 0.5 * second)
        node.limit("a/b", 0.5, throttled=50.0 + 3.2 * second, periods=7.0 + 0.8 * second)
        windows = list(node.run(1))
    (window,) = windows
    (usage,) = window.executors
    assert usage.cpu_limit == 0.5
    assert usage.throttled == pytest.approx(0.8 * 4), "its first reading was there before"
    assert window.stolen == 1.25
    assert window.skipped == {}


def test_an_executor_without_a_limit_is_not_throttled(node: _Node) -> None:
    (window,) = node.run(6)
    assert [(usage.throttled, usage.cpu_limit) for usage in window.executors] == [(0.0, 0.0)]


def test_evidence_is_returned_with_its_sample(node: _Node) -> None:
    list(node.run(1))
    run = "64704fd1-ee7d-46f1-bdcb-39a5a5a98401"
    with (node.root / "stderr").open("a") as file:
        file.write("INFO StateStore: Closed StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=4, ")
        file.write(f"storeName=default ], queryRunId={run} ]\n")
    list(node.run(2))
    (evidence,) = node.evidence
    assert [(closed.run, closed.partition) for closed in evidence.closed] == [(run, 4)]


def test_map_outputs_over_the_limit_are_counted_not_sent(node: _Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "MAX_WINDOW_OUTPUTS", 2)
    for task in range(5):
        node.write(task)
    (window,) = node.run(6)
    assert len(window.map_outputs) == 2
    assert list(window.skipped.values()) == [3]


def test_the_largest_window_is_within_the_largest_message() -> None:
    output = MapOutput("app-20261121000000-0000", "100", 9999, 10**9, [10**11] * 200)
    outputs = [output] * (monitor.MAX_WINDOW_SIZES // 200)
    envelope = EnvelopeFactory("default", "agent").envelope(sample(AgentWindow, map_outputs=[]), ttl=1)
    assert len(encode(envelope)) + sum(len(msgspec.json.encode(output)) + 1 for output in outputs) < MAX_MESSAGE_BYTES


def test_an_executor_that_ended_in_the_window_is_still_in_it(node: _Node) -> None:
    list(node.run(3))
    node.table.processes.clear()
    (window,) = node.run(3)
    assert [(usage.jvm_cpu, usage.samples) for usage in window.executors] == [(3.0, 3)]
    (window,) = node.run(5)
    assert window.executors == []


def test_the_last_window_ends_with_the_last_sample(node: _Node) -> None:
    list(node.run(3))
    window = node.monitor.finish()
    assert window is not None
    assert (window.end - window.start, window.complete) == (2.0, 0.6)


def test_a_node_name_of_no_executor_is_logged_once(node: _Node) -> None:
    node.java.arguments = backend("worker-7.example")
    with capture_logs() as logs:
        list(node.run(int(HOST_MISMATCH_AFTER)))
        assert logs == []
        list(node.run(60))
    (entry,) = logs
    assert "agent.node" in entry["cure"]
    assert entry["executors_here_carry"] == ["worker-7.example"]
    assert NODE in entry["problem"]


def test_there_is_no_warning_between_two_applications(node: _Node) -> None:
    with capture_logs() as logs:
        list(node.run(3))
        node.java.arguments = backend("127.0.0.3")
        node.java.ended = True
        node.table.add(FakeProcess(20, arguments=backend("127.0.0.3")))
        list(node.run(100))
    assert logs == []
