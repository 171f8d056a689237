"""The words of `drain` and `undrain`, and what status says of a drain."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from rechannel.daemon import cli, cli_request
from rechannel.daemon.cli_status import _drain
from rechannel.wire.messages import Drain, MoveView
from unit.daemon.fakes import query, report


@pytest.fixture
def asked(monkeypatch):
    found = []

    def order(settings, verb, arguments, *, reason, wait, as_json):
        found.append((verb, arguments, reason))
        return 0

    monkeypatch.setattr(cli_request, "order", order)
    return found


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["drain", "n1"], {"node": "n1", "remove": "", "deadline": ""}),
        (["drain", "n1", "--remove", "--deadline", "90"], {"node": "n1", "remove": "yes", "deadline": "90"}),
        (["drain", "n1", "--remove", "--deadline", "10m"], {"node": "n1", "remove": "yes", "deadline": "600"}),
        (["undrain", "n1"], {"node": "n1"}),
    ],
)
def test_words_become_a_request(asked, words, arguments):
    done = CliRunner().invoke(cli.main, [*words, "--reason", "why"])
    assert done.exit_code == 0, done.output
    assert asked == [(words[0], arguments, "why")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["drain"], "Missing argument"),
        (["drain", "n1", "--deadline", "10m"], "needs --remove"),
        (["drain", "n1", "--remove", "--deadline", "soon"], "is no time"),
        (["drain", "n1", "--remove", "--deadline", "-5s"], "is no time"),
        (["drain", "n1", "--remove", "--deadline", "nan"], "is no time"),
    ],
)
def test_mistakes_are_wrong_usage(asked, words, said):
    done = CliRunner().invoke(cli.main, words)
    assert (done.exit_code, asked) == (2, [])
    assert said in done.output


GONE = MoveView(move="m", query="q1", stage=0, partition=3, source="3", target="0", step=0, state="released_idle")


def test_a_drain_says_what_cannot_be_moved():
    row = _drain(Drain(node="127.0.0.5", since=0), [report([query("0123", problem="real-time mode")])], 10.0)
    assert row["sentence"].endswith("name-of-q1 cannot be moved: real-time mode")


@pytest.mark.parametrize(
    ("drain", "where", "moves", "state", "words"),
    [
        (Drain(node="127.0.0.5", since=0), "0123", [], "draining", "1 partition is left on 1 executor"),
        (Drain(node="127.0.0.5", since=0, deadline=5), "0123", [], "draining", "the deadline has passed"),
        (Drain(node="127.0.0.5", since=0), "0123", [GONE], "empty", "1 executor still runs source and stateless tasks"),
        (Drain(node="127.0.0.5", since=0, remove=True), "0120", [], "releasing", "to be released at a batch boundary"),
        (Drain(node="127.0.0.9", since=0, remove=True), "0123", [], "released", "no executor runs there"),
    ],
)
def test_how_far_a_drain_is(drain, where, moves, state, words):
    row = _drain(drain, [report([query(where)], moves=moves)], 10.0)
    assert (row["state"], words in row["sentence"]) == (state, True)
