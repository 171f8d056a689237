"""What `explain` and the filters of `history` show, and the words that make plans wait."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rechannel.daemon import cli, cli_request
from rechannel.daemon.cli_explain import lines
from rechannel.daemon.cli_history import Reader, Wanted, moment
from rechannel.daemon.cli_tables import history_line
from rechannel.daemon.controller import Controller
from rechannel.wire import keys
from rechannel.wire.messages import Decision, MoveTransition, Refusal
from rechannel.wire.store import Author
from unit.daemon.fakes import APP, NOW, FakeStore, World, go_on


def test_a_decision_is_explained_with_all_its_numbers(leader: Controller) -> None:
    made = leader.decide("operator", application=APP, user="ann", reason="skewed", apply=True)
    first = made.moves[0]
    text = "\n".join(lines(APP, made, None, {first.move: "drained"}))
    for words in (
        f"decision {made.decision} on {APP}",
        "why then:  an operator asked ann: skewed",
        "result:    applied (ok): its moves were begun",
        "0 on 127.0.0.2: 6 -> ",
        "critical path of name-of-q1: ",
        f"gain {made.gain:.1f} s",
        "expected cost: ",
        f"step {first.step}: name-of-q1/0 #{first.partition}, executor 0 -> {first.target}",
        "by the journal 1 drained",
        "frees executor 0, the critical one of name-of-q1: ",
    ):
        assert words in text, words


def test_a_refusal_says_how_far_it_was() -> None:
    refusal = Refusal(law="gate", reach="plan", detail="too little", measured=0.04, limit=0.1, unit="share", until=NOW)
    made = Decision(
        decision="d",
        at=NOW,
        trigger="timeout",
        user="",
        policy="adaptive",
        outcome="refused",
        reason="gate",
        sentence="too little",
        refusals=[refusal],
    )
    text = "\n".join(lines(APP, made, None, {}))
    assert "gate, which reaches the plan: too little" in text
    assert "measured 0.04, limit 0.1 share: 0.06 below" in text
    assert "until 20" in text


def test_history_is_filtered_by_trigger_outcome_and_time(leader: Controller, store: FakeStore, world: World) -> None:
    planned = leader.decide("operator", application=APP, user="ann", reason="a look")
    go_on(world, 60)
    leader.observe()
    (applied,) = leader.decide_all()
    line = MoveTransition(
        move=applied.moves[0].move,
        decision=applied.decision,
        query="q1",
        stage=0,
        partition=0,
        source="0",
        target="1",
        step=0,
        before="planned",
        after="prepared",
        reason="",
        evidence="",
        batch=9,
        at=world.clock(),
    )
    store.append(keys.JOURNAL, APP, Author("default", "link", world.clock).envelope(line, ttl=60, application=APP))

    def shown(wanted: Wanted, limit: int = 50) -> list[tuple[str, str]]:
        reader = Reader(store, world.clock)  # type: ignore[arg-type]
        reader.wanted = wanted
        return [(entry["type"], entry["decision"]) for entry in reader.first(limit)]

    by_time = [("decision", applied.decision), ("move", applied.decision)]
    assert shown(Wanted()) == [("decision", planned.decision), *by_time]
    assert shown(Wanted(trigger="timeout")) == by_time
    assert shown(Wanted(trigger="operator"), 1) == [("decision", planned.decision)]
    assert shown(Wanted(outcome="applied")) == by_time
    assert shown(Wanted(outcome="gate")) == []
    assert shown(Wanted(since=NOW + 30)) == by_time
    (entry,) = [entry for entry in Reader(store, world.clock).first(50) if entry["decision"] == planned.decision]  # type: ignore[arg-type]
    assert "(operator by ann: a look, adaptive)" in history_line(entry)


@pytest.mark.parametrize(("text", "ago"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("3d", 259_200)])
def test_a_time_ago(text: str, ago: float) -> None:
    assert moment(text, lambda: 1e6) == 1e6 - ago


def test_a_date_and_what_is_none() -> None:
    assert moment("2026-03-01T10:00") - moment("2026-03-01") == 36_000
    assert moment("") == 0
    done = CliRunner().invoke(cli.main, ["history", "--since", "lately"])
    assert done.exit_code == 2
    assert "'lately' is no time; write 90m" in done.output


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    found: list[tuple[str, dict[str, str]]] = []

    def order(settings: object, verb: str, arguments: dict[str, str], **rest: object) -> int:
        found.append((verb, arguments))
        return 0

    monkeypatch.setattr(cli_request, "order", order)
    return found


def test_words_that_make_a_plan_wait(asked: list[tuple[str, dict[str, str]]], tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    Path(file).write_text("{}")
    for words in (["apply", file, "--at", "02:00-05:00"], ["apply", file, "--when", "off-peak"], ["cancel", "wait-1"]):
        done = CliRunner().invoke(cli.main, words)
        assert done.exit_code == 0, done.output
    empty = {"at": "", "when": "", "plan": "{}", "force": ""}
    assert asked == [
        ("apply", {**empty, "at": "02:00-05:00"}),
        ("apply", {**empty, "when": "off-peak"}),
        ("cancel", {"pending": "wait-1"}),
    ]
    both = CliRunner().invoke(cli.main, ["apply", file, "--at", "02:00-05:00", "--when", "off-peak"])
    assert both.exit_code == 2
    assert "give one of them" in both.output
