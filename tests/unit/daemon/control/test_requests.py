"""Answers to operators: each request once, by the leader."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from rechannel.daemon.control.controller import Collaborators, Controller
from rechannel.wire import keys
from rechannel.wire.commands import Drain, Pause, Resume
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import Decision, Reply, Request
from rechannel.wire.redis.errors import StoreDeposedError, StoreTooLargeError, StoreUnavailableError
from unit.daemon.control.test_outcomes import moved
from unit.daemon.fake_store import FakeClock
from unit.daemon.fakes import (
    APP,
    CONFIG,
    SIGNER,
    World,
    app,
    ask,
    clocks,
    controlled,
    controller,
    decisions,
    desired,
    go_on,
    leading,
    order,
    read_reply,
    request,
)

VERBS = "apply, cancel, drain, pause, plan, rebalance, resume, rollback, stop, undrain"


@pytest.mark.parametrize(("verb", "result", "sent"), [("plan", "planned", False), ("rebalance", "applied", True)])
def test_a_request_gets_its_decision(leader, store, verb, result, sent):
    request(store, verb)
    assert leader.answer_requests() == 1
    answer = read_reply(store)
    assert (answer.code, answer.data["application"]) == (ExitCode.DONE, APP)
    decision = msgspec.convert(answer.data["decision"], Decision)
    assert (decision.result, decision.trigger, decision.user) == (result, "operator", "root")
    assert answer.sentence == decision.sentence
    assert (desired(store) is not None) == sent
    assert leader.answer_requests() == 0


@pytest.mark.parametrize(
    ("verb", "fields", "code", "phrase"),
    [
        ("fly", {}, ExitCode.REFUSED, f"unknown verb 'fly'; known are {VERBS}"),
        (["plan"], {}, ExitCode.REFUSED, f"unknown verb ['plan']; known are {VERBS}"),
        ("plan", {"depth": 3}, ExitCode.REFUSED, "plan: Object contains unknown field `depth`"),
        ("plan", {"force": "yes"}, ExitCode.REFUSED, "plan: Expected `bool`, got `str` - at `$.force`"),
        ("plan", {"application": "x"}, ExitCode.REFUSED, "unknown application x; known are app-1"),
        ("stop", {"application": "x"}, ExitCode.REFUSED, "unknown application x; known are app-1"),
        ("stop", {"application": "app-1"}, ExitCode.NOTHING, "no migration of app-1 is running"),
        ("stop", {}, ExitCode.NOTHING, "no migration of any application is running"),
        (
            "rollback",
            {"decision": "x"},
            ExitCode.REFUSED,
            "no decision x moved anything in app-1; `rechannel history` lists them",
        ),
        ("pause", {}, ExitCode.DONE, "paused"),
        ("resume", {}, ExitCode.DONE, "resumed"),
    ],
)
def test_replies(leader, store, verb, fields, code, phrase):
    answer = ask(leader, store, verb, **fields)
    assert (answer.code, answer.sentence) == (code, phrase)


def test_a_request_without_a_command_is_answered_too(leader, store):
    """As of an older release, whose fields are others."""
    body = Request(request="r1", user="root")
    store.append(keys.REQUESTS, "", EnvelopeFactory("default", "cli", store.clock).envelope(body, ttl=20))
    leader.answer_requests()
    answer = read_reply(store)
    assert (answer.code, answer.sentence) == (ExitCode.REFUSED, f"unknown verb None; known are {VERBS}")


def test_several_applications_need_a_name(leader, store, clock):
    World(store, clock, "app-2").ready()
    leader.run_leader_cycle()
    request(store, "plan")
    request(store, "plan", name="r2", application="app-2")
    assert leader.answer_requests() == 2
    first, second = read_reply(store), read_reply(store, "r2")
    assert (first.code, first.sentence) == (
        ExitCode.REFUSED,
        "there are several applications, name one with --application: app-1, app-2",
    )
    assert (second.code, second.data["application"]) == (ExitCode.DONE, "app-2")


def test_no_application_is_not_ready(store, clock):
    late_leader = controller(store, clock, lead=True)
    assert ask(late_leader, store, "plan").code == ExitCode.NOT_READY


def test_a_rollback_that_is_refused_again_is_in_the_history_under_its_id(leader, store, world):
    decision = moved(leader, world)
    for move in decision.moves:
        world.placement[move.partition] = next(name for name in "3120" if name not in (move.source, move.target))
    world.ready()
    for name in ("r1", "r2"):
        go_on(world, 400, leader)
        result = ask(leader, store, "rollback", name=name)
        assert result.code == ExitCode.REFUSED
        assert result.data["decision"]["decision"] == decisions(store)[-1].decision


def test_stale_requests_are_passed_over(leader, store, clock):
    request(store, "rebalance", ttl=5)
    clock.sleep(6)
    leader.run_leader_cycle()
    assert leader.answer_requests() == 0
    assert store.get(keys.REPLY, "r1") is None
    assert desired(store) is None


def test_a_new_leader_does_not_answer_again(leader, store, clock):
    ask(leader, store, "pause")
    order(leader, Resume())
    leader.close()
    other = controller(store, clock, name="b", lead=True)
    assert other.answer_requests() == 0
    assert not store.is_paused()


def test_a_reply_that_could_not_be_sent_is_sent_later_and_nothing_done_twice(leader, store):
    store.unsendable = keys.REPLY
    request(store, "rebalance")
    with pytest.raises(StoreUnavailableError):
        leader.answer_requests()
    store.unsendable = None
    assert leader.answer_requests() == 1
    assert read_reply(store).code == ExitCode.DONE
    assert len(decisions(store)) == 1


@pytest.mark.parametrize("verb", ["rebalance", "pause"])
def test_an_order_that_a_leader_took_up_and_did_not_answer_is_not_carried_out_again(leader, store, clock, world, verb):
    store.unsendable = keys.REPLY
    request(store, verb, ttl=60)
    with pytest.raises(StoreUnavailableError):
        leader.answer_requests()
    store.unsendable = None
    done = (desired(store), store.is_paused(), len(decisions(store)))
    clock.sleep(16)  # and the leader is dead
    other = leading(world, name="b")
    store.set_paused(False)
    assert other.answer_requests() == 1
    answer = read_reply(store)
    assert answer.code == ExitCode.UNCLEAR
    assert "`rechannel history`" in answer.sentence
    assert (desired(store), len(decisions(store))) == (done[0], done[2])
    assert not store.is_paused()
    assert other.answer_requests() == 0
    # The dead one was only slow: what it still does changes nothing.
    with pytest.raises(StoreDeposedError):
        order(leader, Pause())
    assert not store.is_paused()


def test_a_claim_whose_answer_was_lost_is_the_same_leaders(leader, store, monkeypatch):
    view = leader.lead.store
    real = view.claim

    def lost(*arguments: Any) -> Any:
        real(*arguments)
        raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(view, "claim", lost)
    request(store, "rebalance")
    with pytest.raises(StoreUnavailableError):
        leader.answer_requests()
    monkeypatch.setattr(view, "claim", real)
    assert leader.answer_requests() == 1
    assert read_reply(store).code == ExitCode.DONE


def test_a_question_is_answered_by_every_leader_that_is_asked(leader, store):
    store.fenced(leader.lead.lease).claim("r1", 100)
    assert ask(leader, store, "plan").code == ExitCode.DONE
    assert store.claims.keys() == {store.keys(keys.CLAIM, "r1")}


def test_an_order_is_heard_no_longer_than_its_claim_is_kept(leader, store, clock):
    request(store, "pause", ttl=1e9)
    clock.sleep(keys.REQUESTS.ttl + 1)
    leader.run_leader_cycle()
    assert leader.answer_requests() == 0
    assert not store.is_paused()


def test_a_leader_whose_clock_is_behind_carries_out_nothing_that_is_over(leader, store, clock):
    request(store, "pause", ttl=20)
    assert leader.answer_requests() == 1
    order(leader, Resume())
    leader.close()
    clock.sleep(700)  # the reply is gone, the request stands in its stream
    behind = FakeClock(clock.now - 700)
    other = Controller(CONFIG, Collaborators(store, SIGNER, clocks(behind), "b"))  # type: ignore[arg-type]
    other.run_leader_cycle()
    assert other.answer_requests() == 0
    assert not store.is_paused()


def test_a_reply_stands_as_long_as_its_request_may_be_answered(leader, store, clock):
    ask(leader, store, "pause", ttl=3600)
    leader.close()
    clock.sleep(3000)
    other = controller(store, clock, name="b", lead=True)
    assert other.answer_requests() == 0
    assert read_reply(store).code == ExitCode.DONE


def test_a_flood_of_questions_is_answered_in_parts_and_told_of_in_a_few_lines(store, clock, tmp_path):
    file = tmp_path / "audit.jsonl"
    leader = controller(store, clock, controlled(audit_file=str(file)), lead=True)
    for number in range(200):
        request(store, "pause", name=f"q{number}", stream=keys.QUESTIONS)
    assert leader.answer_requests() == 50
    assert not store.is_paused()
    for _ in range(3):
        clock.sleep(1)
        leader.run_leader_cycle()
        leader.answer_requests()
    assert len(file.read_text().splitlines()) <= 5
    clock.sleep(61)
    leader.run_leader_cycle()
    request(store, "pause", name="last", stream=keys.QUESTIONS)
    leader.answer_requests()
    assert "more refusals like it were not recorded" in file.read_text().splitlines()[-1]


def test_questions_that_come_one_after_the_other_are_all_answered(leader, store, world, clock, monkeypatch):
    """A plan takes 12 s, and whenever one is ready somebody asks for the next."""
    handler, number = leader._requests, iter(range(1, 100))

    def slow(question):
        clock.sleep(12)
        world.ready()
        leader.run_leader_cycle()
        if (following := next(number)) < 8:
            request(store, "plan", name=f"q{following}", stream=keys.QUESTIONS, ttl=60)
        handler.handle_requests()
        return Reply(request=question.request, code=0, sentence="planned")

    monkeypatch.setattr(handler, "_execute", slow)
    request(store, "plan", name="q0", stream=keys.QUESTIONS, ttl=60)
    leader.answer_requests()
    assert [read_reply(store, f"q{at}").code for at in range(8)] == [ExitCode.DONE] * 8


def test_questions_that_are_read_again_after_an_outage_are_not_too_many(leader, store):
    for number in range(5):
        request(store, "plan", name=f"q{number}", stream=keys.QUESTIONS)
    request(store, "pause", name="q5", stream=keys.QUESTIONS)
    store.unsendable = keys.REPLY
    with pytest.raises(StoreUnavailableError):
        leader.answer_requests()
    store.unsendable = None
    leader.answer_requests()
    assert [read_reply(store, f"q{number}").code for number in range(5)] == [ExitCode.DONE] * 5


def test_nothing_is_answered_before_it_is_known_what_was_ordered(store, clock, world):
    first = leading(world)
    order(first, Drain(nodes=["127.0.0.4"]))
    first.close()
    other = controller(store, clock, name="b")
    store.unreadable = keys.ORDERS
    with pytest.raises(StoreUnavailableError):
        other.run_leader_cycle()
    store.unreadable = None
    request(store, "drain", nodes=["127.0.0.5"])
    assert other.answer_requests() == 0
    assert other.follow() == "not leading"
    assert other.decide_all() == []
    other.run_leader_cycle()
    assert other.answer_requests() == 1
    assert set(other._services.standing_orders.drains) == {"127.0.0.4", "127.0.0.5"}


def test_a_request_with_an_id_that_is_no_key_is_passed_over(leader, store):
    request(store, "pause", name="../../x y")
    request(store, "plan", name="r2")
    assert leader.answer_requests() == 1
    assert not store.is_paused()


def test_whoever_asks_is_told_of_a_defect(leader, store, monkeypatch):
    monkeypatch.setattr(app(leader), "decide", lambda _: 1 / 0)
    with capture_logs():
        question, command = ask(leader, store, "plan"), ask(leader, store, "rebalance", name="r2")
    assert (question.code, command.code) == (ExitCode.REFUSED, ExitCode.UNCLEAR), "an order may be carried out halfway"
    assert "ZeroDivisionError" in question.sentence and "ZeroDivisionError" in command.sentence


@pytest.mark.parametrize(("verb", "code"), [("plan", ExitCode.REFUSED), ("rebalance", ExitCode.DONE)])
def test_a_reply_that_is_too_large_comes_without_its_details(leader, store, monkeypatch, verb, code):
    put = store.put

    def checked(rule, name, envelope, ttl=None):
        if rule is keys.REPLY and envelope.body.data:
            raise StoreTooLargeError("too much")
        put(rule, name, envelope, ttl)

    monkeypatch.setattr(store, "put", checked)
    answer = ask(leader, store, verb)
    assert (answer.code, answer.data) == (code, {})
    assert answer.sentence.endswith("the details are too large for a reply (too much)")
    assert leader.answer_requests() == 0, "once"


def test_requests_are_heard_after_redis_was_emptied_and_its_clock_set_back(leader, store, clock):
    ask(leader, store, "pause")
    store.empty()
    clock.now -= 5
    leader.run_leader_cycle()
    leader.answer_requests()
    assert ask(leader, store, "resume", name="r2").code == ExitCode.DONE
