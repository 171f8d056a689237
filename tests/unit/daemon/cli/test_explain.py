"""Output of `explain`, filters of `history`, and commands for plans that wait."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rechannel.daemon.cli import tables
from rechannel.daemon.cli.client import ControllerClient
from rechannel.daemon.cli.explain import lines
from rechannel.daemon.cli.history import HistoryFilter, HistoryReader, parse_time
from rechannel.daemon.cli.options import format_time
from rechannel.daemon.cli.tables import history_line
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.view.wording import format_bytes
from rechannel.wire import keys
from rechannel.wire.codes import Law, Trigger
from rechannel.wire.commands import Apply, Cancel, Command
from rechannel.wire.messages import Refusal
from rechannel.wire.redis.errors import StoreUnavailableError
from unit import sample_messages as samples
from unit.daemon.cli.command import run
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.daemon.fakes import APP, QUERY, World, app, decide, go_on, query


def test_a_decision_is_explained_with_all_its_numbers(leader: Controller) -> None:
    decision = decide(leader, user="ann", reason="skewed", apply=True)
    first = decision.moves[0]
    text = "\n".join(lines(APP, decision, None, {first.move: "drained"}))
    for phrase in (
        f"decision {decision.decision} on {APP}",
        "trigger:   operator ann asked: skewed",
        "result:    applied (ok): its moves were begun",
        "0 on 127.0.0.2: 6 -> ",
        "batch of name-of-q1: 5.00 s -> ",
        "95th percentile: {:.2f} s -> {:.2f} s (".format(*decision.batch_p95[QUERY]),
        f"differs from the measured batch of name-of-q1 by {decision.residuals[QUERY]:+.0%}",
        f"gain {decision.gain:.1f} s",
        "expected cost: ",
        f"step {first.step + 1}: name-of-q1/0 #{first.partition}, executor 0 -> {first.target}",
        "by the journal 1 drained",
        "frees executor 0, the critical one of name-of-q1: ",
    ):
        assert phrase in text, phrase


def test_explain_names_why_a_plan_was_not_begun(leader: Controller) -> None:
    decision = decide(leader, user="ann", apply=False)
    assert "result:    planned (ok): nothing was begun: a plan was asked for" in lines(APP, decision, None, {})[2]
    timed = msgspec.structs.replace(decision, trigger="timeout", user="")
    assert "nothing was begun: mode observe, or all was paused" in lines(APP, timed, None, {})[2]
    nothing = msgspec.structs.replace(decision, moves=[], reason="nothing-to-do")
    assert "nothing was begun: nothing was to be moved" in lines(APP, nothing, None, {})[2]


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (999, "999 bytes"), (3_000, "3.0 kB"), (2.5e6, "2.5 MB"), (4e9, "4.0 GB")]
)
def test_byte_sizes_have_a_suitable_unit(number: float, text: str) -> None:
    assert format_bytes(number) == text


def test_a_refusal_shows_its_distance_from_the_limit() -> None:
    refusal = Refusal(law="gate", scope="plan", detail="too little", measured=0.04, limit=0.1, unit="share", until=NOW)
    used = Refusal(law="budget", scope="plan", detail="used up", measured=10.0, limit=10.0, unit="moves")
    refused = samples.decision(result="refused", reason="gate", sentence="too little", refusals=[refusal, used])
    text = "\n".join(lines(APP, refused, None, {}))
    assert "refused by gate (whole plan): too little" in text
    assert "measured 0.04, limit 0.1 share: 0.06 below" in text
    assert "until 20" in text
    assert "measured 10, limit 10 moves: just at it" in text


def test_history_is_filtered_by_trigger_outcome_and_time(leader: Controller, store: FakeStore, world: World) -> None:
    planned = decide(leader, user="ann", reason="a look")
    go_on(world, 60)
    leader.run_leader_cycle()
    (applied,) = leader.decide_all()
    line = samples.transition(move=applied.moves[0].move, decision=applied.decision, at=world.clock())
    world._send(keys.JOURNAL, APP, line)

    def shown(selection: HistoryFilter, limit: int = 50) -> list[tuple[str, str]]:
        reader = HistoryReader(store, world.clock, selection)  # type: ignore[arg-type]
        return [(entry["type"], entry["decision"]) for entry in reader.first(limit)]

    by_time = [("decision", applied.decision), ("move", applied.decision)]
    assert shown(HistoryFilter()) == [("decision", planned.decision), *by_time]
    assert shown(HistoryFilter(trigger="timeout")) == by_time
    assert shown(HistoryFilter(trigger="operator"), 1) == [("decision", planned.decision)]
    assert shown(HistoryFilter(result="applied")) == by_time
    assert shown(HistoryFilter(result="gate")) == []
    assert shown(HistoryFilter(since=NOW + 30)) == by_time
    assert shown(HistoryFilter(verdict="confirmed")) == []
    outcome = samples.outcome(decision=applied.decision, verdict="confirmed", at=world.clock() + 1)
    world._send(keys.OUTCOMES, "", outcome)
    assert shown(HistoryFilter(verdict="confirmed", result="applied")) == [*by_time, ("outcome", applied.decision)]
    assert shown(HistoryFilter(verdict="regressed")) == []
    assert shown(HistoryFilter(verdict="confirmed", result="planned")) == []
    (entry,) = [entry for entry in HistoryReader(store, world.clock).first(50) if entry["decision"] == planned.decision]  # type: ignore[arg-type]
    assert "(operator by ann: a look, adaptive)" in history_line(entry)


def test_the_limit_counts_what_is_selected(leader: Controller, store: FakeStore, world: World) -> None:
    own = decide(leader)
    world.application = "app-2"
    for number in range(60):
        world._send(keys.DECISIONS, "", samples.decision(decision=f"other-{number}"))
    reader = HistoryReader(store, world.clock, HistoryFilter(application=APP))  # type: ignore[arg-type]
    assert [entry["decision"] for entry in reader.first(50)] == [own.decision]
    assert reader.decisions_read == 61


def test_queries_of_one_name_in_several_applications_are_all_selected(
    store: FakeStore, world: World, clock: FakeClock
) -> None:
    other = World(store, clock, "app-2")
    other.queries = [msgspec.structs.replace(query(world.placement, "q9"), name="name-of-q1")]
    for one, own in ((world, "q1"), (other, "q9")):
        one.ready()
        one._send(keys.JOURNAL, one.application, samples.transition(move=f"m-{own}", query=own))
    for selected, shown in (("name-of-q1", {"q1", "q9"}), ("q9", {"q9"})):
        reader = HistoryReader(store, clock, HistoryFilter(query=selected))  # type: ignore[arg-type]
        assert {entry["query"] for entry in reader.first(50)} == shown


def followed(reader: HistoryReader, *between: Callable[[], None]) -> list[str]:
    """The decisions of entries that are read while an outage, or something else, happens between two reads."""
    steps = iter(between)

    def wait(_: float) -> bool:
        step = next(steps, None)
        if step is not None:
            step()
        return step is None

    stop = SimpleNamespace(wait=wait)
    return [f"{entry['type']} {entry['decision']}" for more in reader.follow(stop) for entry in more]  # type: ignore[arg-type]


def test_a_followed_history_goes_on_after_an_outage_and_a_fail_over(
    store: FakeStore, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    store.register_application(APP, NOW)

    def decided(name: str) -> None:
        world.clock.sleep(1)
        world._send(keys.DECISIONS, "", samples.decision(decision=name, at=world.clock()))
        world._send(keys.JOURNAL, APP, samples.transition(decision=name, at=world.clock()))

    def redis_away() -> None:
        store.away = True

    def fail_over() -> None:
        store.away = False
        for stream in store.streams.values():
            del stream[-1:]

    for name in ("old", "d1", "d2"):
        decided(name)
    reader = HistoryReader(store, world.clock)  # type: ignore[arg-type]
    reader.first(2)
    shown = followed(reader, lambda: decided("d3"), redis_away, redis_away, fail_over, lambda: decided("d4"))
    assert shown == ["decision d3", "move d3", "decision d4", "move d4"], "nothing twice, and nothing of before"
    assert capsys.readouterr().err.count("trying again for 5 minutes") == 1


def test_what_is_lost_between_two_streams_is_read_again(
    store: FakeStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.register_application(APP, NOW)
    world._send(keys.DECISIONS, "", samples.decision(decision="d1"))
    world._send(keys.JOURNAL, APP, samples.transition(decision="d1"))
    reader = HistoryReader(store, world.clock)  # type: ignore[arg-type]
    reader.first(10)
    read = store.read

    def interrupted(rule: keys.KeyRule, *more: Any) -> Any:
        if rule is keys.JOURNAL:
            raise StoreUnavailableError("gone in between")
        return read(rule, *more)

    def lose() -> None:
        world.clock.sleep(1)
        world._send(keys.DECISIONS, "", samples.decision(decision="d2", at=world.clock()))
        monkeypatch.setattr(store, "read", interrupted)

    assert followed(reader, lose, lambda: monkeypatch.setattr(store, "read", read)) == ["decision d2"]


def test_a_followed_history_shows_what_was_stored_twice_once_and_remembers_a_bounded_number(
    store: FakeStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rechannel.daemon.cli.history._REMEMBERED", 20)
    reader = HistoryReader(store, world.clock, HistoryFilter(result="applied"))  # type: ignore[arg-type]
    reader.first(10)

    def decide_and_judge(name: str) -> None:
        for _ in range(2):
            world._send(keys.DECISIONS, "", samples.decision(decision=name, result="applied"))
            world._send(keys.OUTCOMES, "", samples.outcome(decision=name, at=world.clock()))
            world.clock.sleep(1)

    shown = followed(reader, *(partial(decide_and_judge, f"d{number}") for number in range(100)))
    assert shown == [f"{kind} d{number}" for number in range(100) for kind in ("decision", "outcome")]
    assert len(reader._shown) == len(reader._matching) == 20


def test_of_an_outcome_stored_twice_the_last_verdict_is_shown_and_filtered_by(store: FakeStore, world: World) -> None:
    world._send(keys.DECISIONS, "", samples.decision(decision="d", result="applied"))
    for verdict in ("not-judged", "regressed"):
        world._send(keys.OUTCOMES, "", samples.outcome(decision="d", verdict=verdict))
    for verdict, shown in (("", ["regressed"]), ("regressed", ["regressed"]), ("not-judged", [])):
        entries = HistoryReader(store, world.clock, HistoryFilter(verdict=verdict)).first(10)  # type: ignore[arg-type]
        assert [entry["verdict"] for entry in entries if entry["type"] == "outcome"] == shown


@pytest.fixture
def recorded(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fakes' store is the one that `history` and `explain` read."""
    monkeypatch.delenv("RECHANNEL_CONFIG", raising=False)
    for command in ("history", "explain"):
        monkeypatch.setattr(f"rechannel.daemon.cli.{command}.Store", lambda *_: store)


def explained() -> str:
    """The id of the decision that `explain` chooses."""
    return json.loads(run("explain", "--json").stdout)["decision"]["decision"]


def test_history_refuses_unknown_triggers_results_and_verdicts(leader: Controller, recorded: None) -> None:
    assert run("history").stdout == "nothing has been decided yet\n"
    decision = decide(leader, user="ann", apply=False)
    for arguments, message in (
        (("--trigger", "operater"), "unknown trigger operater; did you mean operator? known are timeout, executors, "),
        (("--result", "aplied"), "unknown result aplied; did you mean applied? known are applied, planned, "),
        (("--result", "foo"), "unknown result foo; known are applied, "),
        (("--verdict", "kept"), "unknown verdict kept; known are confirmed, regressed, not-judged"),
    ):
        done = run("history", *arguments, code=1)
        assert (done.stdout, message in done.stderr) == ("", True)
        run("history", *arguments, "--json", code=1)
    assert run("history", "--result", "gate").stdout == "the one decision does not match\n"
    decide(leader, user="bob", apply=False)
    assert run("history", "--trigger", "timeout").stdout == "none of 2 decisions matches\n"
    assert json.loads(run("history", "--trigger", "timeout", "--json").stdout) == {"entries": []}
    assert decision.decision in run("history", "--trigger", "operator").stdout


def test_unknown_applications_are_refused(leader: Controller, world: World, recorded: None) -> None:
    now = time.time()
    world.store.register_application(APP, now)
    assert "nothing has been decided yet" in run("explain", "--application", APP, code=3).stderr
    for command in ("history", "explain"):
        done = run(command, "--application", "ap-1", code=1)
        assert f"unknown application ap-1; known are {APP}" in done.stderr


def test_history_accepts_codes_of_later_releases(leader: Controller, recorded: None) -> None:
    later = dataclasses.replace(app(leader).new_request(Trigger.OPERATOR), trigger="moon")
    app(leader).refuse(later, Refusal(law="tide", scope="plan", detail="too high"))
    assert "too high" in run("history", "--trigger", "moon", "--result", "tide").stdout


def test_times_have_a_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert format_time(NOW) == "2023-11-15 07:13:20 JST"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("text", "ago"), [("90", 90), ("10m", 600), ("1h30m", 5400), ("3d", 259_200)])
def test_ages_are_parsed(text: str, ago: float) -> None:
    assert parse_time(text, lambda: 1e6) == 1e6 - ago


def test_dates_are_parsed_and_other_texts_refused() -> None:
    assert parse_time("2026-03-01T10:00") - parse_time("2026-03-01") == 36_000
    assert parse_time("20260301") == parse_time("2026-03-01"), "a date, though it is a number"
    assert parse_time("") == 0
    assert "'lately' is not a time; write 90m" in run("history", "--since", "lately", code=2).output


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Command]:
    commands: list[Command] = []
    monkeypatch.setattr(ControllerClient, "order", lambda _client, command: commands.append(command) or 0)
    monkeypatch.setattr("rechannel.daemon.decide.saved_plan.read_plan", lambda *_: None)
    return commands


def test_options_of_a_plan_that_waits(sent: list[Command], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    file = str(tmp_path / "plan.json")
    at, when = ("--at", "02:00-05:00"), ("--when", "off-peak")
    for arguments in (("apply", file, *at), ("apply", file, *when), ("cancel", "plan-1")):
        run(*arguments)
    timed = [Apply(plan="{}", at="02:00-05:00"), Apply(plan="{}", when="off-peak")]
    assert sent == [*timed, Cancel(scheduled_plan="plan-1")]
    assert "give one of them" in run("apply", file, *at, *when, code=2).output


def test_plan_shows_streams_with_verbose_only(leader: Controller, capsys: pytest.CaptureFixture[str]) -> None:
    decision = decide(leader, user="ann", apply=False)
    decision = msgspec.structs.replace(decision, streams={"high": 3}, hot_streams=["a → b: 0.3 kB/s, local"])
    for load in decision.executors:  # in --json, utilization is arrival over service
        assert load.utilization_before == pytest.approx(load.arrival_before / load.service_before)
        assert load.utilization_after == pytest.approx(load.arrival_after / load.service_after)
    tables.print_decision(APP, decision)
    shown = capsys.readouterr().out
    assert not any(phrase in shown for phrase in ("λ", "μ", "kB/s", "streams:"))
    assert "partitions  utilization" in shown
    tables.print_decision(APP, decision, verbose=True)
    shown = capsys.readouterr().out
    assert "streams: 3 high" in shown
    assert "0.3 kB/s" in shown


def test_a_cost_with_a_lower_peak_has_no_longer_batches(leader: Controller) -> None:
    cost = decide(leader, user="ann", apply=False).migration_cost
    assert cost is not None
    less = msgspec.structs.replace(cost, batch_before={"q1": 3.0}, peak={"q1": 2.78}, batch_after={"q1": 2.0}, moves=1)
    first, line = tables.cost_lines(less, {"q1": "join"})
    assert line == "batch of join: 3.00 s now, no longer meanwhile, 2.00 s afterwards"
    assert "learned from 1 move)" in first
    more = msgspec.structs.replace(less, peak={"q1": 3.5})
    assert "3.50 s at most meanwhile" in tables.cost_lines(more, {"q1": "join"})[1]


def test_explain_without_an_id_shows_the_last_decision_with_moves(leader: Controller, recorded: None) -> None:
    decision = decide(leader, user="ann", apply=True)
    busy = decide(leader, user="ann", apply=False)
    assert busy.result == "not-ready"
    assert explained() == decision.decision


def test_explain_shows_the_newest_decision_if_none_has_moves(
    leader: Controller, clock: FakeClock, recorded: None
) -> None:
    for _ in range(2):
        clock.sleep(1)
        refusal = Refusal(law=Law.EXCLUDED, scope="plan", detail="not now")
        newest = app(leader).refuse(app(leader).new_request(Trigger.TIMEOUT), refusal)
    assert explained() == newest.decision


def test_moves_in_the_history_show_query_names(leader: Controller, store: FakeStore, world: World) -> None:
    unknown = "895c1599-0c4d-4e3f-9d0e-1f2a3b4c5d6e"
    for name in ("q1", unknown):
        line = samples.transition(move=f"m-{name}", decision="link", query=name, stage=1, partition=2)
        world._send(keys.JOURNAL, APP, line)
    entries = [entry for entry in HistoryReader(store, lambda: NOW).first(10) if entry["type"] == "move"]  # type: ignore[arg-type]
    assert [entry["name"] for entry in entries] == ["name-of-q1", ""]
    shown = "\n".join(history_line(entry) for entry in entries)
    assert "name-of-q1/1 #2" in shown
    assert "query-895c1599/1 #2" in shown
