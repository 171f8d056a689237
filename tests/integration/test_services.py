"""The real daemons under a socket that stands for the service manager, with a real Redis that comes and goes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from integration.common import PATIENCE, configured, until

from testbed.processes import ManagedProcess, ProcessGroup
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]
WATCHDOG = 8.0  # seconds; the daemons may ask for more

# A controller whose job takes the lock and never lets it go, once a file is there.
HANGS = """
import sys, threading
from pathlib import Path
from rechannel.daemon.cli.main import main
from rechannel.daemon.control.controller import Controller
follow = Controller.follow
def hang(self):
    with self._lock:
        if Path(FILE).exists():
            threading.Event().wait()
    return follow(self)
FILE = sys.argv.pop()
Controller.follow = hang
main()
"""


class Manager:
    """The service manager's end: what it heard, and when."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.received: list[tuple[float, dict[str, str]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._socket.settimeout(0.1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                text = self._socket.recv(65_536).decode()
                self.received.append((time.monotonic(), dict(line.split("=", 1) for line in text.split("\n"))))

    def values(self, name: str) -> list[str]:
        return [message[name] for _, message in list(self.received) if name in message]

    @property
    def patience(self) -> float:
        """Seconds without a heartbeat after which it would restart the daemon."""
        request = self.values("WATCHDOG_USEC")
        return int(request[-1]) / 1e6 if request else WATCHDOG

    def longest_silence(self) -> float:
        """Seconds between two heartbeats, until now, since the daemon was ready."""
        times = [at for at, message in self.received if "READY" in message or "WATCHDOG" in message]
        times.append(time.monotonic())
        return max(later - earlier for earlier, later in pairwise(times))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server(group: ProcessGroup) -> Iterator[RedisServer]:
    with RedisServer(group) as server:
        yield server


@pytest.fixture
def manager(server: RedisServer) -> Iterator[Manager]:
    made = Manager(str(server.directory / "notify"))  # tmp_path may be too long for a socket
    yield made
    made.close()


@pytest.fixture
def environment(tmp_path: Path, server: RedisServer, manager: Manager) -> dict[str, str]:
    sections = {
        "redis": {"timeout": 0.5},
        "controller": {"lease": 6},
        "agent": {"node": "127.0.0.2", "window": 1.0},
    }
    config = configured(tmp_path, server, sections, password="")
    return os.environ | {
        "RECHANNEL_CONFIG": str(config),
        "NOTIFY_SOCKET": manager.path,
        "WATCHDOG_USEC": str(int(WATCHDOG * 1e6)),
    }


Start = Callable[..., ManagedProcess]


@pytest.fixture
def start(group: ProcessGroup, environment: dict[str, str]) -> Start:
    def begin(daemon: str, hang: str = "") -> ManagedProcess:
        program = ["-c", HANGS, daemon, hang] if hang else ["-m", "rechannel", daemon]
        return group.start(daemon, [sys.executable, *program], env=environment)

    return begin


@pytest.mark.parametrize("daemon", ["controller", "agent"])
def test_a_daemon_is_ready_beats_on_while_redis_stands_still_and_says_that_it_ends(
    daemon: str, start: Start, manager: Manager, server: RedisServer
) -> None:
    process = start(daemon)
    until(lambda: manager.values("READY"))
    until(lambda: len(manager.values("WATCHDOG")) >= 2)
    assert server.process is not None
    server.process.popen.send_signal(signal.SIGSTOP)
    try:
        until(lambda: any("Redis" in text for text in manager.values("STATUS")))
        beats = len(manager.values("WATCHDOG"))
        until(lambda: len(manager.values("WATCHDOG")) >= beats + 6)  # longer than the watchdog's patience
    finally:
        server.process.popen.send_signal(signal.SIGCONT)
    until(lambda: "Redis" not in manager.values("STATUS")[-1])
    assert manager.longest_silence() < manager.patience
    process.popen.terminate()
    assert process.popen.wait(PATIENCE) == 0
    assert manager.values("STOPPING") == ["1"]


@pytest.mark.parametrize("daemon", ["controller", "agent"])
def test_a_daemon_that_finds_no_redis_is_up_all_the_same(
    daemon: str, start: Start, manager: Manager, server: RedisServer
) -> None:
    server.stop()
    start(daemon)
    until(lambda: manager.values("READY"))
    until(lambda: any("Redis" in text for text in manager.values("STATUS")))
    until(lambda: len(manager.values("WATCHDOG")) >= 3)


def test_a_reload_is_told(start: Start, manager: Manager) -> None:
    process = start("controller")
    until(lambda: manager.values("READY"))
    process.popen.send_signal(signal.SIGHUP)
    until(lambda: manager.values("RELOADING"))
    until(lambda: len(manager.values("READY")) == 2)


def test_a_controller_whose_job_hangs_stops_beating_and_its_end_shows_where(
    start: Start, manager: Manager, tmp_path: Path
) -> None:
    process = start("controller", str(tmp_path / "hang"))
    until(lambda: len(manager.values("WATCHDOG")) >= 2)
    (tmp_path / "hang").touch()
    until(lambda: any(text.startswith("hangs: ") for text in manager.values("STATUS")))
    until(lambda: manager.longest_silence() > manager.patience)
    process.popen.send_signal(signal.SIGABRT)  # as the service manager does then
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.popen.wait(PATIENCE)
    output = process.log.read_text()
    assert '"event": "jobs-hang"' in output
    assert " in hang" in output  # the stack of the thread that hangs
