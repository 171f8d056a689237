"""Fakes of the clock, the processes and the store, and samples of executors."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import Executor, ProcessDeniedError, ProcessGoneError, Usage
from rechannel.monitors.node.shuffle import ShuffleReader
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.keys import AGENT_LIMITS, KeyRule
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.messages import AgentLimits

NODE = "127.0.0.2"
START = 1_000_000.0  # a multiple of every window length used here


class FakeClock:
    def __init__(self, wall: float = START) -> None:
        self.now = wall
        self.steady = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.steady

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.pass_time(seconds)
        return stop.is_set()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.steady += seconds


class NoWatch(DirectoryWatch):
    """A system without inotify: directories are listed."""

    def watch(self, path: str) -> bool:
        return False


def listing_reader() -> ShuffleReader:
    return ShuffleReader(NoWatch(), lambda: START)


def reasons(reader: ShuffleReader) -> dict[str, int]:
    return {reason: count for reason, count in reader.skipped.items() if "cannot be watched" not in reason}


@dataclass
class FakeProcess:
    pid: int
    ppid: int = 1
    arguments: Sequence[str] = ()
    created: float = START
    cpu: float = 0.0
    rss: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/nowhere"
    denied: frozenset[str] = frozenset()
    ended: bool = False

    def _checked(self, what: str) -> None:
        if self.ended:
            raise ProcessGoneError
        if what in self.denied:
            raise ProcessDeniedError

    def parent(self) -> int:
        self._checked("parent")
        return self.ppid

    def command_line(self) -> list[str]:
        self._checked("command_line")
        return list(self.arguments)

    def environment(self) -> Mapping[str, str]:
        self._checked("environment")
        return self.environ

    def directory(self) -> str:
        self._checked("directory")
        return self.cwd

    def usage(self) -> Usage:
        self._checked("usage")
        return Usage(self.cpu, self.rss)


class FakeTable:
    def __init__(self, *processes: FakeProcess) -> None:
        self.processes = {process.pid: process for process in processes}
        self.opened = 0

    def add(self, process: FakeProcess) -> FakeProcess:
        self.processes[process.pid] = process
        return process

    def pids(self) -> Sequence[int]:
        return list(self.processes)

    def open(self, pid: int) -> FakeProcess:
        self.opened += 1
        return self.processes[pid]


def backend(host: str = NODE, executor: str = "0") -> list[str]:
    return [
        *("java", "-cp", "jars/*", "org.apache.spark.executor.CoarseGrainedExecutorBackend"),
        *("--driver-url", "spark://CoarseGrainedScheduler@127.0.0.1:4040", "--executor-id", executor),
        *("--hostname", host, "--cores", "2", "--app-id", "app-1", "--resourceProfileId", "0"),
    ]


DAEMON = ["python3", "-m", "pyspark.daemon", "pyspark.worker"]


def executor(root: Path | None = None, *, name: str = "0", pid: int = 10, started: float = START) -> Executor:
    return Executor(
        application="app-1",
        executor=name,
        host=NODE,
        pid=pid,
        started=started,
        cores=2,
        directories=() if root is None else (root,),
        log=None if root is None else root / "stderr",
    )


class FakeStore:
    def __init__(self) -> None:
        self.pushed: list[tuple[KeyRule, str, Envelope]] = []
        self.trouble: Exception | None = None
        self.closed = 0
        self.checked = threading.Semaphore(0)
        self.limits: AgentLimits | Exception | None = None

    def get(self, rule: KeyRule) -> Envelope | None:
        assert rule is AGENT_LIMITS
        if isinstance(self.limits, Exception):
            raise self.limits
        author = EnvelopeFactory("default", "controller", lambda: 0.0)
        return None if self.limits is None else author.envelope(self.limits, ttl=60)

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

    @property
    def windows(self) -> list[AgentWindow]:
        return [envelope.body for _, _, envelope in self.pushed if isinstance(envelope.body, AgentWindow)]
