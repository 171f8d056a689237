"""The agent against a real server: windows arrive, and outlive an outage, a hang and a refusal."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from integration.common import PATIENCE, until
from structlog.testing import capture_logs

from rechannel.conf.settings import AgentSettings, RedisSettings, Settings
from rechannel.monitors.node import agent, sender
from rechannel.monitors.node.agent import run_agent
from rechannel.wire.keys import WINDOWS
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(120)]
NODE = "127.0.0.2"


@pytest.fixture
def server(group: ProcessGroup) -> Iterator[RedisServer]:
    """A server that each test starts when it wants to."""
    made = RedisServer(group)
    yield made
    made.close()


@pytest.fixture
def settings(server: RedisServer) -> Settings:
    return dataclasses.replace(
        Settings(),
        redis=RedisSettings(url=server.url, timeout=0.3),
        agent=AgentSettings(node=NODE, window=0.5),
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


def test_windows_arrive_and_the_last_one_on_stop(server: RedisServer, settings: Settings) -> None:
    server.start()
    with _running(settings):
        until(lambda: len(_windows(settings)) >= 3)
        before = len(_windows(settings))
    windows = _windows(settings)
    assert len(windows) > before
    assert all(0 < window.complete <= 1 and window.memory_total > 0 for window in windows)
    assert all(former.end <= latter.start + 1e-6 for former, latter in pairwise(windows))


def test_windows_outlive_a_killed_redis(server: RedisServer, settings: Settings) -> None:
    server.start()
    with capture_logs() as logs, _running(settings):
        until(lambda: len(_windows(settings)) >= 2)
        server.kill()
        killed = time.time()
        until(lambda: time.time() - killed > 3.0)
        server.start()
        until(lambda: len(_windows(settings)) >= 5)
    windows = _windows(settings)
    during = [window for window in windows if killed < window.end < killed + 3.0]
    assert len(during) >= 3
    assert [entry["event"] for entry in logs if "redis" in entry["event"]] == ["redis is away", "redis is back"]


def test_a_full_buffer_drops_the_oldest_and_says_so(
    server: RedisServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "BUFFERED_WINDOWS", 2)
    with capture_logs(), _running(settings):
        begun = time.time()
        until(lambda: time.time() - begun > 3.0)
        server.start()
        until(lambda: any("buffer full" in reason for window in _windows(settings) for reason in window.skipped))


def test_a_hung_redis_does_not_stop_the_sampling(server: RedisServer, settings: Settings) -> None:
    started = server.start()
    with capture_logs(), _running(settings):
        until(lambda: len(_windows(settings)) >= 2)
        hanging = started.process
        assert hanging is not None
        hanging.popen.send_signal(signal.SIGSTOP)
        hung = time.time()
        until(lambda: time.time() - hung > 3.0)
        hanging.popen.send_signal(signal.SIGCONT)
        until(lambda: any(window.end > hung + 3.0 for window in _windows(settings)))
    during = {window.end: window.complete for window in _windows(settings) if hung + 0.5 < window.end < hung + 3.0}
    assert len(during) >= 2
    assert sum(during.values()) / len(during) > 0.2


def test_a_wrong_password_is_said_and_mended_without_a_restart(
    server: RedisServer, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "REFUSED_DELAY", 0.2)
    file = tmp_path / "password"
    file.write_text("wrong")
    server.password = "right"
    server.start()
    settings = dataclasses.replace(settings, redis=dataclasses.replace(settings.redis, password_file=str(file)))
    with capture_logs() as logs, _running(settings):
        until(lambda: any(entry["event"] == "redis refuses" for entry in logs))
        file.write_text("right")
        until(lambda: _windows(settings))
    refusals = [entry for entry in logs if entry["event"] == "redis refuses"]
    assert len(refusals) == 1
    assert "password_file" in refusals[0]["problem"]
