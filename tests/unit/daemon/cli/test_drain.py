"""The words of `drain` and `undrain`, and what status says of a drain."""

from __future__ import annotations

import json
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner

from rechannel.conf.settings import Settings
from rechannel.daemon.cli import main as cli
from rechannel.daemon.cli import status
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.view.status import ClusterStatus, DrainState
from rechannel.daemon.view.status_builder import drain_status
from rechannel.wire import commands
from rechannel.wire.commands import Plan, Undrain
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import DrainedNode, MoveView, Reply
from unit.daemon.fakes import query, report


@pytest.fixture
def answered(monkeypatch):
    """Answer every command with what stands here; a code of 6 is no answer."""
    answer = {"code": 0, "sentence": "n1: state of 1 application would leave", "data": {"plans": []}, "sent": []}

    def ask(client, command):
        answer["sent"].append((command, client._reason))
        if answer["code"] == 6:
            raise CommandError(ExitCode.NO_ANSWER, "no controller answered")
        return Reply(request="r", code=answer["code"], sentence=answer["sentence"], data=answer["data"])

    monkeypatch.setattr(ControllerClient, "ask", ask)
    return answer


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["drain", "n1"], commands.Drain(nodes=["n1"])),
        (["drain", "n1", "--remove", "--deadline", "90"], commands.Drain(nodes=["n1"], remove=True, deadline=90.0)),
        (["drain", "n1", "--remove", "--deadline", "10m"], commands.Drain(nodes=["n1"], remove=True, deadline=600.0)),
        (["drain", "n1", "n2"], commands.Drain(nodes=["n1", "n2"])),
        (["drain", "n1, n2"], commands.Drain(nodes=["n1", "n2"])),
        (["undrain", "n1"], Undrain(nodes=["n1"])),
        (["undrain", "n1,n2"], Undrain(nodes=["n1", "n2"])),
    ],
)
def test_words_become_a_command(answered, arguments, command):
    done = CliRunner().invoke(cli.main, [*arguments, "--reason", "why"])
    assert done.exit_code == 0, done.output
    first = [(Plan(drain=command.nodes), "")] if arguments[0] == "drain" else []
    assert answered["sent"] == [*first, (command, "why")], "what it means is said first"


def test_a_dry_run_orders_nothing(answered):
    done = CliRunner().invoke(cli.main, ["drain", "n1", "n2", "--dry-run"])
    assert (done.exit_code, answered["sent"]) == (0, [(Plan(drain=["n1", "n2"]), "")])


def test_a_deadline_that_no_message_can_hold_is_refused(answered):
    done = CliRunner().invoke(cli.main, ["drain", "n1", "--remove", "--deadline", "1000000h"])
    assert (done.exit_code, answered["sent"]) == (1, [])
    assert done.stderr.startswith("rechannel: --deadline: expected 0 to")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drain"], "Missing argument"),
        (["drain", "n1", "--deadline", "10m"], "needs --remove"),
        (["drain", "n1", "--dry-run", "--follow"], "drains nothing"),
        (["drain", "n1", "--remove", "--deadline", "soon"], "is not a time"),
        (["drain", "n1", "--remove", "--deadline", "-5s"], "is not a time"),
        (["drain", "n1", "--remove", "--deadline", "nan"], "is not a time"),
    ],
)
def test_mistakes_are_wrong_usage(answered, arguments, message):
    done = CliRunner().invoke(cli.main, arguments)
    assert (done.exit_code, answered["sent"]) == (2, [])
    assert message in done.output


GONE = MoveView(move="m", query="q1", stage=0, partition=3, source="3", target="0", step=0, state="released_idle")


def test_a_drain_says_what_cannot_be_moved():
    status = drain_status(
        DrainedNode(node="127.0.0.5", since=0), [report([query("0123", problem="real-time mode")])], 10.0
    )
    assert status.sentence.endswith("name-of-q1 cannot be moved: real-time mode")


@pytest.mark.parametrize(
    ("drain", "where", "moves", "state", "phrase"),
    [
        (DrainedNode(node="127.0.0.5", since=0), "0123", [], "draining", "1 partition is left on 1 executor"),
        (DrainedNode(node="127.0.0.5", since=0, deadline=5), "0123", [], "draining", "the deadline has passed"),
        (
            DrainedNode(node="127.0.0.5", since=0),
            "0123",
            [GONE],
            "empty",
            "1 executor still runs source and stateless tasks",
        ),
        (
            DrainedNode(node="127.0.0.5", since=0, remove=True),
            "0120",
            [],
            "releasing",
            "to be released at a batch boundary",
        ),
        (DrainedNode(node="127.0.0.9", since=0, remove=True), "0123", [], "released", "no executor runs there"),
    ],
)
def test_how_far_a_drain_is(drain, where, moves, state, phrase):
    row = drain_status(drain, [report([query(where)], moves=moves)], 10.0)
    assert (row.state, phrase in row.sentence) == (state, True)


PLAN = {"application": "app-1", "decision": {"sentence": "executor 1 would be 156% busy: add executors", "notes": []}}


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_an_overload_is_the_first_line_of_a_drain(answered, more):
    answered["data"] = {"nodes": ["n1"], "plans": [PLAN]}
    done = CliRunner().invoke(cli.main, ["drain", "n1", *more])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == "app-1: executor 1 would be 156% busy: add executors"
    assert [command.verb for command, _ in answered["sent"]] == (["plan"] if more else ["plan", "drain"])
    assert ("a dry run: nothing is drained" in done.output) == bool(more)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_drain_is_one_json_document_with_its_plans(answered, more):
    answered["data"] = {"nodes": ["n1"], "plans": [PLAN]}
    done = CliRunner().invoke(cli.main, ["drain", "n1", "--json", *more])
    assert json.loads(done.stdout)["plans"] == [PLAN]


def test_a_drain_that_is_refused_is_not_ordered(answered):
    answered |= {"code": 1, "sentence": "unknown node n1"}
    done = CliRunner().invoke(cli.main, ["drain", "n1"])
    assert (done.exit_code, [command.verb for command, _ in answered["sent"]]) == (1, ["plan"])
    assert "unknown node n1" in done.stderr


def test_a_drain_waits_for_no_plan(answered):
    answered["code"] = 6
    CliRunner().invoke(cli.main, ["drain", "n1"])
    assert [command.verb for command, _ in answered["sent"]] == ["plan", "drain"]
    dry = CliRunner().invoke(cli.main, ["drain", "n1", "--dry-run"])
    assert dry.exit_code == 6


def test_several_drains_are_followed_until_the_last_is_empty(monkeypatch, capsys):
    drains = {
        node: msgspec.structs.replace(
            drain_status(DrainedNode(node=node, since=0), [], 10.0),
            state=DrainState.DRAINING,
            sentence=f"{node} leaves",
        )
        for node in ("n1", "n2")
    }
    reads = []

    def read_status(*_):
        reads.append(1)
        drains["n1"] = msgspec.structs.replace(drains["n1"], state=DrainState.EMPTY)
        if len(reads) > 2:
            drains["n2"] = msgspec.structs.replace(drains["n2"], state=DrainState.EMPTY, sentence="empty")
        return ClusterStatus(drains=tuple(drains.values()))

    monkeypatch.setattr(status, "Store", lambda *_: None)
    monkeypatch.setattr(status, "read_status", read_status)
    stop = SimpleNamespace(wait=lambda _: False)
    status.follow_drain(Settings(), ("n1", "n2"), stop, as_json=False)
    assert len(reads) == 3
    assert capsys.readouterr().out.splitlines() == ["n1: n1 leaves", "n2: n2 leaves", "n2: empty"]
