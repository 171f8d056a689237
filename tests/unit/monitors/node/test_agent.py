"""Agent: the loop of sampling and pushing."""

from __future__ import annotations

import dataclasses
import threading

import pytest
from structlog.testing import capture_logs

from rechannel.conf.settings import AgentSettings, Settings
from rechannel.monitors.node import agent
from rechannel.monitors.node.agent import AgentHost, run_agent
from rechannel.monitors.node.sender import Sender
from rechannel.wire.envelope import Envelope
from rechannel.wire.keys import KeyNameError, KeyRule
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.monitors.fakes import NODE, START, FakeClock, FakeProcess, FakeStore, FakeTable, backend

SETTINGS = dataclasses.replace(Settings(), agent=AgentSettings(node=NODE))


def test_an_agent_without_an_executor_logs_that_redis_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_agent_pushes_every_window_and_a_last_shorter_one() -> None:
    store = FakeStore()
    run_agent(
        SETTINGS,
        stop=threading.Event(),
        store_factory=lambda _: store,
        host=AgentHost(_StoppingClock(12.5), FakeTable(FakeProcess(10, arguments=backend()))),
    )
    windows = store.windows
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


def test_an_agent_whose_pushing_thread_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service manager starts it again; no probe would notice."""
    monkeypatch.setattr(Sender, "alive", property(lambda _: False))
    with pytest.raises(RuntimeError, match="the thread that pushes to Redis has failed"):
        run_agent(
            SETTINGS,
            stop=threading.Event(),
            store_factory=lambda _: FakeStore(),
            host=AgentHost(_StoppingClock(100), FakeTable()),
        )


def test_a_node_name_that_cannot_be_a_key_is_refused_at_once() -> None:
    settings = dataclasses.replace(SETTINGS, agent=AgentSettings(node="no such {node}"))
    with pytest.raises(KeyNameError):
        run_agent(
            settings, stop=threading.Event(), store_factory=lambda _: FakeStore(), host=AgentHost(table=FakeTable())
        )
