"""Client of the controller: fail-over, repeated requests, and missing answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rechannel.daemon.cli import client
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.control.controller import Controller
from rechannel.wire import keys
from rechannel.wire.commands import Command, Pause, Plan, Rebalance
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Reply
from rechannel.wire.redis.errors import StoreUnavailableError
from unit import sample_messages as samples
from unit.daemon.cli.command import run, write_config
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import CONFIG


class Session:
    """A client, and a controller that runs once a second unless Redis is away."""

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

    def send(self, command: Command, wait: float = 20.0) -> Reply:
        return ControllerClient(CONFIG, wait=wait).send(command, clock=self.clock, sleep=self.sleep)


@pytest.fixture
def session(store: FakeStore, clock: FakeClock, leader: Controller, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(store, clock, leader, monkeypatch)


@pytest.mark.parametrize("command", [Pause(), Plan()])
def test_a_request_waits_during_a_fail_over(session: Session, command: Command) -> None:
    session.away = (0.0, 8.0)
    assert session.send(command).code == ExitCode.DONE


def test_a_request_sent_twice_is_carried_out_once(
    session: Session, store: FakeStore, monkeypatch: pytest.MonkeyPatch
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
    assert session.send(Pause()).code == ExitCode.DONE
    assert (len(sent), done) == (2, [True])


def test_an_order_without_a_known_result_is_reported_as_unclear(session: Session) -> None:
    session.away = (0.0, 1e9)
    with pytest.raises(CommandError, match="may have been accepted") as caught:
        session.send(Pause(), wait=5.0)
    assert caught.value.code == ExitCode.UNCLEAR


def test_a_redis_that_is_away_is_reported_at_once(session: Session, store: FakeStore, clock: FakeClock) -> None:
    store.away = True
    before = clock()
    with pytest.raises(StoreUnavailableError):
        session.send(Pause())
    assert clock() == before


@pytest.mark.parametrize("terminal", [False, True])
def test_on_a_terminal_the_sentence_is_printed_once(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = samples.decision(result="not-ready", reason="no-state", sentence="not yet")
    data = {"application": "app", "decision": msgspec.to_builtins(decision)}
    monkeypatch.setattr(
        ControllerClient, "send", lambda *_, **__: Reply(request="r", code=4, sentence="not yet", data=data)
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert ControllerClient(CONFIG).decide(Rebalance()) == 4
    captured = capsys.readouterr()
    assert "not yet" in captured.out
    assert captured.err == ("" if terminal else "rechannel: not yet\n")


def test_a_plan_that_cannot_be_saved_is_one_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    decision = msgspec.to_builtins(samples.decision(moves=[samples.desired_move()]))
    reply = Reply(request="r", code=0, sentence="ok", data={"application": "app-1", "decision": decision})
    monkeypatch.setattr(ControllerClient, "send", lambda *_: reply)
    config = write_config(tmp_path, "")
    done = run("plan", "--config", config, "--json", "--save", tmp_path / "none" / "plan.json", code=1)
    assert "the plan cannot be written" in json.loads(done.stdout)["error"]
    assert "the plan cannot be written" in done.stderr
    run("plan", "--config", config, "--json", "--save", tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("silent", "leader_state"),
    [
        (1.0, " leads and reported 3 s ago; its requests may be stuck, or the clocks differ"),
        (6.0, " led and last reported 8 s ago. Its lease runs out in 7 s; then a stand-by takes over, or start one"),
        (30.0, "last reported 32 s ago, its lease has run out and no stand-by took over: start one with"),
        (60.0, ": none leads; start one with `rechannel controller`"),
    ],
)
def test_a_missing_answer_names_the_last_leader(session: Session, silent: float, leader_state: str) -> None:
    session.clock.sleep(silent)
    with pytest.raises(CommandError) as error:
        ControllerClient(CONFIG, wait=2.0).send(Pause(), clock=session.clock, sleep=lambda _: session.clock.sleep(1.0))
    assert error.value.code == ExitCode.NO_ANSWER
    assert leader_state in error.value.sentence
