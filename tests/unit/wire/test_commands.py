"""Commands: decoded as they were encoded; others are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from rechannel.wire import commands
from rechannel.wire.commands import COMMANDS, READ_ONLY_VERBS, Command, UnknownCommandError, decode, encode

EXAMPLES: list[Command] = [
    commands.Plan(application="app-1", policy="even", force=True, drain=["n1"]),
    commands.Rebalance(application="app-1"),
    commands.Apply(plan="{}", at="02:00-05:00"),
    commands.Cancel(scheduled_plan="plan-1"),
    commands.Rollback(decision="d"),
    commands.Stop(),
    commands.Pause(),
    commands.Resume(),
    commands.Drain(nodes=["n1", "n2"], remove=True, deadline=600.0),
    commands.Undrain(nodes=["n1"]),
]


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: command.verb)
def test_a_command_is_decoded_as_it_was_encoded(command: Command) -> None:
    data = encode(command)
    assert data["verb"] == command.verb
    assert decode(data) == command


def test_every_command_has_an_example_and_a_verb() -> None:
    assert sorted(COMMANDS) == sorted(command.verb for command in EXAMPLES)
    assert {"plan"} == READ_ONLY_VERBS
    assert {verb for verb, kind in COMMANDS.items() if kind.plans} == {"plan", "rebalance", "apply", "rollback"}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({}, "unknown verb None; known are apply, cancel, "),
        ({"verb": ["plan"]}, r"unknown verb \['plan'\]"),
        ({"verb": "stop", "nodes": []}, "stop: Object contains unknown field `nodes`"),
        ({"verb": "drain"}, "drain: Object missing required field `nodes`"),
        ({"verb": "drain", "nodes": "n1"}, r"Expected `array`, got `str` - at `\$.nodes`"),
        ({"verb": "drain", "nodes": ["n1"], "deadline": -1.0}, "deadline: expected 0 to 3.1536e"),
    ],
)
def test_an_unknown_command_has_a_reason(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownCommandError, match=sentence):
        decode(data)
