"""Arguments of `drain` and `undrain`, and the status of a drain."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest

from rechannel.conf.settings import Settings
from rechannel.daemon.cli import orders, status
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.cli.options import RedisPatience
from rechannel.daemon.view.status import ClusterStatus, DrainState
from rechannel.daemon.view.status_builder import drain_status
from rechannel.wire import commands
from rechannel.wire.commands import Plan, Undrain
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import DrainedNode, Reply
from rechannel.wire.redis.errors import StoreUnavailableError
from unit import sample_messages as samples
from unit.daemon.cli.command import run
from unit.daemon.fake_store import FakeClock
from unit.daemon.fakes import query, report


@pytest.fixture
def answered(monkeypatch):
    """Answers to all commands; code 6 stands for no answer."""
    answer = {"code": 0, "sentence": "n1: state of 1 application would leave", "data": {"plans": []}, "sent": []}

    def send(client, command):
        answer["sent"].append((command, client._reason))
        if answer["code"] == 6:
            raise CommandError(ExitCode.NO_ANSWER, "no controller answered")
        return Reply(request="r", code=answer["code"], sentence=answer["sentence"], data=answer["data"])

    monkeypatch.setattr(ControllerClient, "send", send)
    return answer


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["drain", "n1"], commands.Drain(nodes=["n1"])),
        (["drain", "n1", "--remove", "--deadline", "90"], commands.Drain(nodes=["n1"], remove=True, deadline=90.0)),
        (["drain", "n1", "--remove", "--deadline", "1h30m"], commands.Drain(nodes=["n1"], remove=True, deadline=5400)),
        (["drain", "n1", "n2"], commands.Drain(nodes=["n1", "n2"])),
        (["drain", "n1, n2"], commands.Drain(nodes=["n1", "n2"])),
        (["undrain", "n1"], Undrain(nodes=["n1"])),
        (["undrain", "n1,n2"], Undrain(nodes=["n1", "n2"])),
    ],
)
def test_arguments_become_a_command(answered, arguments, command):
    run(*arguments, "--reason", "why")
    first = [(Plan(drain=command.nodes), "")] if arguments[0] == "drain" else []
    assert answered["sent"] == [*first, (command, "why")], "what it means is said first"


def test_a_dry_run_sends_no_order(answered):
    run("drain", "n1", "n2", "--dry-run")
    assert answered["sent"] == [(Plan(drain=["n1", "n2"]), "")]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("drain", 2, "Missing argument"),
        ("drain n1 --deadline 10m", 2, "needs --remove"),
        ("drain n1 --dry-run --follow", 2, "needs a drain"),
        ("drain n1 --remove --deadline soon", 2, "is not a time"),
        ("drain n1 --remove --deadline -5s", 2, "is not a time"),
        ("drain n1 --remove --deadline nan", 2, "is not a time"),
        ("drain n1 --remove --deadline 0", 2, "0.0 is not in the range"),
        ("drain n1 --wait 2h", 2, "7200.0 is not in the range"),
        ("drain n1 --remove --deadline 1000000h", 1, "rechannel: --deadline: expected 0 to"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(answered, arguments, code, message):
    assert message in run(*arguments.split(), code=code).output
    assert answered["sent"] == []


GONE = samples.move_view(partition=3, source="3", target="0", state="released_idle")


def test_a_drain_names_queries_that_cannot_be_moved():
    status = drain_status(
        DrainedNode(node="127.0.0.5", since=0), [report([query("0123", problem="real-time mode")])], 10.0
    )
    assert status.sentence.endswith("name-of-q1 cannot be moved: real-time mode")


@pytest.mark.parametrize(
    ("drain", "where", "moves", "state", "phrase"),
    [
        ({}, "0123", [], "draining", "1 partition is left on 1 executor"),
        ({"deadline": 5}, "0123", [], "draining", "the deadline has passed"),
        ({}, "0123", [GONE], "empty", "1 executor still runs source and stateless tasks"),
        ({"remove": True}, "0120", [], "releasing", "to be released at a batch boundary"),
        ({"remove": True, "node": "127.0.0.9"}, "0123", [], "released", "no executor runs there"),
    ],
)
def test_states_of_a_drain(drain, where, moves, state, phrase):
    row = drain_status(
        DrainedNode(**{"node": "127.0.0.5", "since": 0} | drain), [report([query(where)], moves=moves)], 10.0
    )
    assert (row.state, phrase in row.sentence) == (state, True)


PLAN = {
    "application": "app-1",
    "decision": msgspec.to_builtins(samples.decision(sentence="executor 1 would be 156% busy: add executors")),
}


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_drain_warns_of_an_overload_first(answered, more):
    answered["data"] = {"nodes": ["n1"], "plans": [PLAN]}
    done = run("drain", "n1", *more)
    assert done.output.splitlines()[0] == "app-1: executor 1 would be 156% busy: add executors"
    assert [command.verb for command, _ in answered["sent"]] == (["plan"] if more else ["plan", "drain"])
    assert ("a dry run: nothing is drained" in done.output) == bool(more)
    assert json.loads(run("drain", "n1", "--json", *more).stdout)["plans"] == [PLAN]


@pytest.mark.parametrize(
    ("result", "reason", "code"),
    [("refused", "max-moves", 1), ("planned", "nothing-to-do", 3), ("not-ready", "too-few-batches", 4)],
)
def test_a_dry_run_ends_with_the_code_of_the_first_plan_that_could_not_begin(answered, result, reason, code):
    decision = samples.decision(result=result, reason=reason, sentence="no")
    refused = {"application": "app-2", "decision": msgspec.to_builtins(decision)}
    answered["data"] = {"nodes": ["n1"], "plans": [PLAN, refused]}
    done = run("drain", "n1", "--dry-run", code=code)
    assert "app-2: no" in done.stdout
    assert "would leave" not in done.stdout
    done = run("drain", "n1", "--dry-run", "--json", code=code)
    assert json.loads(done.stdout)["code"] == code
    assert done.stderr == "rechannel: app-2: no\n"
    run("drain", "n1")  # is ordered all the same: it is tried again


def test_a_drain_whose_plan_is_refused_is_not_ordered(answered):
    answered |= {"code": 1, "sentence": "unknown node n1"}
    assert "unknown node n1" in run("drain", "n1", code=1).stderr
    assert [command.verb for command, _ in answered["sent"]] == ["plan"]


def test_a_drain_does_not_depend_on_its_plan(answered):
    answered["code"] = 6
    run("drain", "n1", code=6)
    assert [command.verb for command, _ in answered["sent"]] == ["plan", "drain"]
    run("drain", "n1", "--dry-run", code=6)


def test_follow_ends_when_the_last_drain_is_empty(monkeypatch, capsys):
    def drained(node, state, sentence):
        status = drain_status(DrainedNode(node=node, since=0), [], 10.0)
        return msgspec.structs.replace(status, state=state, sentence=sentence)

    first = drained("n1", DrainState.EMPTY, "n1 leaves")
    leaving, empty = drained("n2", DrainState.DRAINING, "n2 leaves"), drained("n2", DrainState.EMPTY, "empty")
    reads = []

    def read_status(*_):
        reads.append(1)
        return ClusterStatus(drains=(first, empty if len(reads) > 2 else leaving))

    monkeypatch.setattr(status, "Store", lambda *_: None)
    monkeypatch.setattr(status, "read_status", read_status)
    stop = SimpleNamespace(wait=lambda _: False)
    status.follow_drain(Settings(), ("n1", "n2"), stop, as_json=False)
    assert len(reads) == 3
    assert capsys.readouterr().out.splitlines() == ["n1: n1 leaves", "n2: n2 leaves", "n2: empty"]


def test_a_drain_that_is_followed_and_interrupted_does_not_end_like_one_that_is_done(answered, monkeypatch):
    leaving = drain_status(DrainedNode(node="127.0.0.5", since=0), [report([query("0123")])], 10.0)
    stop = SimpleNamespace(wait=lambda _: True)
    monkeypatch.setattr(orders, "stop_on_signals", lambda: stop)
    monkeypatch.setattr(status, "Store", lambda *_: None)
    monkeypatch.setattr(status, "read_status", lambda *_: ClusterStatus(drains=(leaving,)))
    assert "1 partition is left" in run("drain", "127.0.0.5", "--follow", code=130).stdout


def test_follow_does_not_take_a_driver_that_reports_no_more_for_a_released_node(monkeypatch):
    released = drain_status(DrainedNode(node="n1", since=0), [], 10.0)
    assert released.sentence == "no driver reports, so no executor is known there"
    leaving = msgspec.structs.replace(released, state=DrainState.DRAINING)
    application = SimpleNamespace(application="app-1", executors=[SimpleNamespace(node="n1")])
    reads = [
        SimpleNamespace(drains=(leaving,), applications=[application]),
        SimpleNamespace(drains=(released,), applications=[]),
    ]
    monkeypatch.setattr(status, "Store", lambda *_: None)
    monkeypatch.setattr(status, "read_status", lambda *_: reads.pop(0))
    stop = SimpleNamespace(wait=lambda _: False)
    with pytest.raises(CommandError, match="app-1 had executors there and does not report any more") as raised:
        status.follow_drain(Settings(), ("n1",), stop, as_json=False)
    assert raised.value.code == ExitCode.NOT_READY


class Outage:
    """Statuses to be read one after another, with outages of Redis between them, under a clock to turn."""

    def __init__(self, monkeypatch, *reads):
        self.clock, self.reads = FakeClock(), list(reads)
        monkeypatch.setattr(status, "Store", lambda *_: None)
        monkeypatch.setattr(status, "read_status", lambda *_: self.read())
        monkeypatch.setattr(status, "RedisPatience", lambda: RedisPatience(self.clock))

    def read(self):
        result = self.reads.pop(0)
        if isinstance(result, float):
            self.clock.sleep(result)
            raise StoreUnavailableError("Redis is away")
        return result

    def follow(self):
        status.follow_drain(Settings(), ("n1",), SimpleNamespace(wait=lambda _: self.clock.sleep(1)), as_json=False)


def drained(state, *applications):
    row = msgspec.structs.replace(drain_status(DrainedNode(node="n1", since=0), [], 10.0), state=state, sentence=state)
    executors = [SimpleNamespace(node="n1")]
    return SimpleNamespace(
        drains=(row,), applications=[SimpleNamespace(application=name, executors=executors) for name in applications]
    )


LEAVING, EMPTY = drained(DrainState.DRAINING, "app-1"), drained(DrainState.EMPTY, "app-1")


def test_follow_goes_on_after_an_outage_of_redis_and_says_so_once(monkeypatch, capsys):
    nobody, no_orders = drained(DrainState.RELEASED), SimpleNamespace(drains=(), applications=[])
    Outage(monkeypatch, LEAVING, 5.0, 100.0, no_orders, nobody, EMPTY).follow()
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["n1: draining", "n1: empty"], "not released: the driver had to report again"
    assert shown.err == "rechannel: Redis is away; trying again for 5 minutes\n"
    Outage(monkeypatch, LEAVING, 5.0, LEAVING, 5.0, EMPTY).follow()
    assert capsys.readouterr().err.count("Redis is away") == 2, "once for each outage"


def test_follow_is_not_patient_for_ever(monkeypatch):
    with pytest.raises(StoreUnavailableError, match="Redis is away"):
        Outage(monkeypatch, LEAVING, 1.0, 298.0, 1.0, EMPTY).follow()
    late = [drained(DrainState.RELEASED)] * 31
    with pytest.raises(CommandError, match="does not report any more"):
        Outage(monkeypatch, LEAVING, 5.0, *late, EMPTY).follow()
