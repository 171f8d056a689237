"""Whoever asks waits through a fail-over, and what is said twice is done once."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from rechannel.daemon.cli import client
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.control.controller import Controller
from rechannel.wire import keys
from rechannel.wire.commands import Command, Pause, Plan, Rebalance
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, Reply
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.daemon.fakes import CONFIG, NOW, FakeClock, FakeStore, World


class Asked:
    """A command line that asks, and a controller that looks once a second unless Redis is away."""

    def __init__(self, store: FakeStore, clock: FakeClock, leader: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.clock, self.leader = store, clock, leader
        self.away: tuple[float, float] = (0.0, 0.0)
        self.began = clock()
        monkeypatch.setattr(client, "Store", lambda *_: store)

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(1.0)
        since = self.clock() - self.began
        self.store.away = self.away[0] <= since < self.away[1]
        if not self.store.away:
            self.leader.run_leader_cycle()
            self.leader.answer_requests()

    def ask(self, command: Command, wait: float = 20.0) -> Reply:
        return ControllerClient(CONFIG, wait=wait).ask(command, clock=self.clock, sleep=self.sleep)


@pytest.fixture
def session(
    store: FakeStore, clock: FakeClock, leader: Controller, world: World, monkeypatch: pytest.MonkeyPatch
) -> Asked:
    return Asked(store, clock, leader, monkeypatch)


@pytest.mark.parametrize("command", [Pause(), Plan()])
def test_a_fail_over_is_waited_for(session: Asked, command: Command) -> None:
    session.away = (0.0, 8.0)
    assert session.ask(command).code == ExitCode.DONE


def test_what_was_lost_on_the_way_back_is_said_again_and_done_once(
    session: Asked, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sent = store.append, []

    def append(rule: Any, name: str, *envelopes: Any) -> None:
        real(rule, name, *envelopes)
        if rule is keys.REQUESTS:
            sent.append(envelopes)
            if len(sent) == 1:
                raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(store, "append", append)
    done: list[bool] = []
    monkeypatch.setattr(session.leader.lead, "pause", done.append)
    assert session.ask(Pause()).code == ExitCode.DONE
    assert (len(sent), done) == (2, [True])


def test_an_order_whose_fate_is_not_known_says_so(session: Asked) -> None:
    session.away = (0.0, 1e9)
    with pytest.raises(CommandError, match="may have been taken up") as caught:
        session.ask(Pause(), wait=5.0)
    assert caught.value.code == ExitCode.UNCLEAR


def test_a_redis_that_is_away_is_said_at_once(session: Asked, store: FakeStore, clock: FakeClock) -> None:
    store.away = True
    before = clock()
    with pytest.raises(StoreUnavailableError):
        session.ask(Pause())
    assert clock() == before


@pytest.mark.parametrize("terminal", [False, True])
def test_on_a_terminal_a_sentence_is_said_once(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = Decision(
        decision="d",
        at=NOW,
        trigger="operator",
        user="",
        policy="even",
        outcome="not-ready",
        reason="no-state",
        sentence="not yet",
    )
    data = {"application": "app", "decision": msgspec.to_builtins(decision)}
    monkeypatch.setattr(
        ControllerClient, "ask", lambda *_, **__: Reply(request="r", code=4, sentence="not yet", data=data)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert ControllerClient(CONFIG).decide(Rebalance()) == 4
    captured = capsys.readouterr()
    assert "not yet" in captured.out
    assert captured.err == ("" if terminal else "rechannel: not yet\n")


@pytest.mark.parametrize(
    ("silent", "leader_state"),
    [
        (1.0, " leads and was heard 3 s ago: is it stuck, or are the clocks apart?"),
        (6.0, " led and was last heard 8 s ago. Its lease runs out in 7 s; then a stand-by takes over, or start one"),
        (30.0, "was last heard 32 s ago, its lease has run out and no stand-by took over: start one with"),
        (60.0, ": none leads; start one with `rechannel controller`"),
    ],
)
def test_without_an_answer_it_is_said_who_leads_or_led(
    store: FakeStore,
    clock: FakeClock,
    leader: Controller,
    monkeypatch: pytest.MonkeyPatch,
    silent: float,
    leader_state: str,
) -> None:
    monkeypatch.setattr(client, "Store", lambda *_: store)
    clock.sleep(silent)
    with pytest.raises(CommandError) as error:
        ControllerClient(CONFIG, wait=2.0).ask(Pause(), clock=clock, sleep=lambda _: clock.sleep(1.0))
    assert error.value.code == ExitCode.NO_ANSWER
    assert leader_state in error.value.sentence
