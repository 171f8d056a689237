from __future__ import annotations

import dataclasses
import sys

import msgspec
import pytest
from structlog.testing import capture_logs

from rechannel.conf.settings import GateSettings
from rechannel.daemon.control.cluster_state import MAX_CLUSTER_SIZES
from rechannel.daemon.control.triggers import LoadTrigger
from rechannel.daemon.decide import pipeline
from rechannel.wire import keys
from rechannel.wire.commands import Pause, Resume, Rollback, Stop
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.redis.errors import StoreUnavailableError
from unit import sample_messages as samples
from unit.daemon.control.test_outcomes import moved
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import (
    APP,
    CONFIG,
    World,
    app,
    batch,
    controller,
    cycle,
    decide,
    decisions,
    desired,
    go_on,
    leading,
    order,
    published_placement,
    refuses,
    request,
    ruled,
    state,
)


def test_a_skewed_application_is_rebalanced(leader, store):
    (decision,) = leader.decide_all()
    ends = (decision.result, decision.reason, decision.trigger, decision.policy)
    assert ends == ("applied", "ok", "timeout", "adaptive")
    assert decision.sentence.startswith("moving ")
    assert [load.partitions_before for load in decision.executors] == [6, 2, 2, 2]
    assert max(load.partitions_after for load in decision.executors) < 6
    assert decision.batch_time_after["q1"] < decision.batch_time_before["q1"]
    assert decision.gain > decision.cost
    placed = published_placement(store)
    assert (placed.decision, placed.runs, placed.moves) == (decision.decision, {"q1": "run-1"}, decision.moves)
    result = desired(store)
    assert (result.application, result.epoch, result.expires) == (APP, 1, NOW + 120)
    assert decisions(store) == [decision]


@pytest.mark.parametrize("way", ["decide_all", "answer_requests"])
def test_a_decision_and_an_order_enter_the_controller_once(leader, store, way):
    entered = []

    def record(frame, event, _):
        name, caller = frame.f_code.co_qualname, frame.f_back
        if event == "call" and name.startswith("Controller.") and "Controller." not in caller.f_code.co_qualname:
            entered.append(name)

    request(store, "rebalance")
    sys.setprofile(record)
    try:
        result = getattr(leader, way)()
    finally:
        sys.setprofile(None)
    assert (bool(result), entered) == (True, [f"Controller.{way}"])


UNMEASURED = "not ready: query name-of-q1 has 2 measured batches, 3 are needed (reschedule.batches); ready in about 5 s"
MODERATE = dataclasses.replace(CONFIG, gate=GateSettings(min_gain=0.9))
EVEN = "000111222333"
SKEWED = "000000112233"


@pytest.mark.parametrize(
    ("config", "where", "batches", "end", "code", "sentence"),
    [
        (ruled("observe"), SKEWED, 3, ("planned", "ok"), ExitCode.DONE, "would move "),
        (CONFIG, EVEN, 3, ("planned", "nothing-to-do"), ExitCode.NOTHING, "nothing to move: no better placement"),
        (MODERATE, SKEWED, 3, ("refused", "gate"), ExitCode.NOTHING, "gate.min_gain asks for 90.0%"),
        (CONFIG, SKEWED, 2, ("not-ready", "too-few-batches"), ExitCode.NOT_READY, UNMEASURED),
        (ruled(policy="magic"), SKEWED, 3, ("refused", "policy"), ExitCode.REFUSED, "adaptive"),
    ],
    ids=["observe", "even", "gate", "unmeasured", "unknown policy"],
)
def test_a_decision_that_moves_nothing(store, clock, config, where, batches, end, code, sentence):
    world = World(store, clock, where=where)
    world.report()
    world.measure(batches)
    leader = controller(store, clock, config, lead=True)
    (decision,) = leader.decide_all()
    assert (decision.result, decision.reason, sentence in decision.sentence) == (*end, True), decision.sentence
    assert pipeline.exit_of(decision) == code
    assert (decisions(store), desired(store)) == ([decision], None)
    assert bool(decision.executors) == (code != ExitCode.NOT_READY and decision.reason != "policy")


def test_a_gate_that_says_no_is_passed_by_force(world):
    forced = decide(leading(world, MODERATE), user="root", reason="now", apply=True, force=True)
    assert (forced.result, forced.notes[0]) == ("applied", "asked by root: now")


def test_nothing_is_decided_while_redis_is_away(leader, store):
    store.away = True
    for job in (leader.run_leader_cycle, leader.decide_all, leader.answer_requests):
        with pytest.raises(StoreUnavailableError):
            job()
    store.away = False
    assert decisions(store) == []
    leader.run_leader_cycle()
    assert leader.decide_all()[0].result == "applied"


def test_an_application_whose_report_ran_out_is_not_decided_on(leader, clock):
    clock.sleep(61)
    leader.run_leader_cycle()
    assert leader.decide_all() == []
    assert decide(leader).reason == "no-report"


def test_one_failing_application_does_not_stop_the_others(leader, store, clock, monkeypatch):
    World(store, clock, "app-0").ready()
    monkeypatch.setattr(app(leader, "app-0"), "decide", lambda _: 1 / 0)
    with capture_logs() as logs:
        assert [decision.result for decision in leader.decide_all()] == ["applied"]
        leader.decide_all()
    assert [(line["event"], line["application"]) for line in logs if line["log_level"] == "error"] == [
        ("application-failed", "app-0")
    ], "said once, not at every turn"


# -- following --


def test_batches_are_read_while_a_migration_runs(leader, store, world):
    leader.decide_all()
    assert app(leader).migrations.running is not None
    world._send(keys.BATCHES, APP, batch(30, world.placement, end=world.clock()))
    world.clock.sleep(5)
    world.report()
    leader.run_leader_cycle()
    state = leader._services.collector._applications[APP]
    assert any(entry.batch == 30 for entries in state.batches.values() for _, entry, _ in entries)


def test_a_migration_is_renewed_until_every_move_is_settled(leader, store, world):
    (decision,) = leader.decide_all()
    world.obey("steered")
    for _ in range(10):
        go_on(world, 30, leader)
        assert "running" in leader.follow()
        result = desired(store)
        assert result.expires > world.clock() + 60
        assert published_placement(store).decision == decision.decision
    world.obey("drained")
    assert leader.follow() == "no migration runs"
    last = desired(store)
    assert published_placement(store).moves == [], "a link that is attached anew finds nothing to be done again"
    cycle(leader, world, 60)
    assert desired(store) == last, "nothing is renewed any more"


def test_abandoned_and_idle_moves_are_settled_too(leader, world):
    leader.decide_all()
    world.obey("abandoned")
    world.moves[0] = msgspec.structs.replace(world.moves[0], state="released_idle")
    world.report()
    assert leader.follow() == "no migration runs"


def test_one_migration_at_a_time_then_the_cool_down(leader, store, world):
    leader.decide_all()
    first = published_placement(store).decision
    world.obey("drained", only=1)
    go_on(world, 20, leader)
    (second,) = leader.decide_all()
    assert (second.result, second.reason) == ("not-ready", "migration-running")
    assert "1 of" in second.sentence
    assert published_placement(store).decision == first
    world.obey("drained")
    leader.follow()
    go_on(world, 10, leader)
    (third,) = leader.decide_all()
    assert (third.result, third.reason) == ("refused", "cooldown")
    assert "290 s to go" in third.sentence
    go_on(world, 290, leader)
    assert leader.decide_all()[0].reason == "outcome-awaited", "the journal tells of no landing yet"
    cycle(leader, world, 311)
    assert leader.decide_all()[0].result == "applied", "it is not waited for for ever"


def test_a_migration_that_ended_unseen_is_noticed_by_the_next_decision(leader, world):
    leader.decide_all()
    world.obey("drained")
    assert leader.decide_all()[0].reason == "cooldown"


def test_a_link_that_never_takes_it_up_is_given_up_on(leader, store, world):
    leader.decide_all()
    for _ in range(5):
        cycle(leader, world, 25)
    leader.run_leader_cycle()
    assert "did not take it up within 120 s" in state(store).last_sentence
    assert app(leader).migrations.running is None
    assert app(leader).migrations.cooldown_timer.migration_ended is None, "nothing moved, so there is no cool-down"


def test_a_link_that_vanishes_is_given_up_on(leader, store, world):
    leader.decide_all()
    world.obey("steered")
    leader.follow()
    for _ in range(95):  # its last report counts for a minute
        world.clock.sleep(2)
        cycle(leader)
    assert app(leader).migrations.running is None
    assert "the link has not reported for 120 s" in state(store).last_sentence


def test_a_long_outage_of_redis_is_not_the_links_silence(leader, store, world):
    leader.decide_all()
    world.obey("steered")
    leader.follow()
    store.away = True
    world.clock.sleep(600)
    with pytest.raises(StoreUnavailableError):
        leader.run_leader_cycle()
    store.away = False
    leader.run_leader_cycle()
    assert "running" in leader.follow()
    world.ready()
    assert "running" in leader.follow()


def test_a_placement_that_could_not_be_sent_is_sent_while_it_is_fresh(leader, store):
    store.unsendable = keys.DESIRED
    (decision,) = leader.decide_all()
    assert decision.result == "applied"
    assert desired(store) is None
    store.unsendable = None
    leader.follow()
    assert published_placement(store).decision == decision.decision


def test_moves_the_link_still_works_on_block_a_new_decision(world):
    world.moves, world.decision = [samples.move_view()], "x"
    (decision,) = leading(world).decide_all()
    assert decision.reason == "migration-running"
    assert decision.sentence == "not ready: the link still works on 1 move of decision x"


# -- pausing --


def test_pause_holds_a_running_migration_and_resume_lets_it_go_on(leader, store, world):
    (decision,) = leader.decide_all()
    world.obey("steered", only=1)
    assert order(leader, Pause()).sentence == "paused; 1 running migration held"
    assert (published_placement(store).hold, published_placement(store).decision) == (True, decision.decision)
    assert state(store).paused
    assert leader.run_leader_cycle() == "leading in epoch 1, paused"
    cycle(leader, world, 90)
    assert published_placement(store).hold, "renewed, still on hold"
    assert order(leader, Resume()).sentence == "resumed; 1 running migration goes on"
    assert not published_placement(store).hold


def test_stop_ends_a_running_migration_and_leaves_nothing_wanted(leader, store, world):
    (decision,) = leader.decide_all()
    world.obey("steered", only=1)
    sentence = order(leader, Stop()).sentence
    assert sentence == f"migration {decision.decision} is running: 0 of 3 moves landed, and ends"
    assert (published_placement(store).decision, published_placement(store).moves) == (f"{decision.decision}-stop", [])
    assert leader.follow() == (
        f"migration {decision.decision} is ending: no further move is begun, steered moves still land"
    )
    assert app(leader).migrations.running is not None, "the link has not said yet that it knows"
    again = order(leader, Stop()).sentence
    assert again == f"migration {decision.decision} is ending: no further move is begun, steered moves still land"
    assert published_placement(store).decision == f"{decision.decision}-stop"
    assert leader.snapshot().migrations[0].decision == decision.decision
    world.obey()
    leader.follow()
    assert app(leader).migrations.running is None
    refuses(leader, Stop(), "no migration")


def test_a_migration_that_is_ended_is_under_way_since_its_begin(leader, world):
    leader.decide_all()
    world.obey("steered", only=1)
    go_on(world, 60, leader)
    order(leader, Stop())
    (migration,) = leader.snapshot().migrations
    assert migration.begun == NOW, "else the alert about a long migration begins its hour anew"
    assert app(leader).migrations.running.begun == NOW + 60, "the link has its time to take that up"


def test_stop_cancels_a_rollback_that_waits(leader, store, world):
    decision = moved(leader, world)
    order(leader, Pause())
    order(leader, Rollback(application=APP), user="ann")
    sentence = order(leader, Stop(application=APP), user="ann").sentence
    assert sentence == f"the rollback of decision {decision.decision} is canceled"
    order(leader, Resume())
    leader.follow()
    last = decisions(store)[-1]
    assert (last.trigger, last.result, last.reason, last.user) == ("rollback", "refused", "canceled", "ann")
    refuses(leader, Stop(application=APP), "no migration")


def test_nothing_is_applied_while_paused(leader, store):
    order(leader, Pause())
    assert leader.decide_all()[0].result == "planned"
    requested = decide(leader, apply=True, force=True)
    assert (requested.result, requested.reason) == ("refused", "paused")
    assert desired(store) is None


def test_a_decision_of_a_pause_does_not_settle_what_is_overloaded(leader, monkeypatch):
    settled = []
    monkeypatch.setattr(LoadTrigger, "record", lambda _trigger, decision, *_: settled.append(decision.result))
    order(leader, Pause())
    leader.decide_all()
    assert settled == []
    order(leader, Resume())
    leader.decide_all()
    assert settled == ["applied", "applied"], "for overloads and imbalance"


@pytest.mark.parametrize("lost", ["leader", "redis", "both"])
def test_a_pause_outlives_its_leader_and_an_emptied_redis(leader, store, clock, lost):
    order(leader, Pause())
    other = controller(store, clock, name="b", lead=lost == "both")  # a stand-by that knew of the pause
    if lost == "leader":
        leader.close()
    else:
        store.empty()
    successor = leader if lost == "redis" else other
    assert successor.run_leader_cycle() == "leading in epoch 2, paused"
    assert store.is_paused()


def test_a_resume_by_another_leader_is_heard(leader, store, clock):
    order(leader, Pause())
    clock.sleep(16)
    other = controller(store, clock, name="b", lead=True)
    order(other, Resume())
    other.close()
    assert leader.run_leader_cycle() == "leading in epoch 3"
    assert not store.is_paused()


# -- what it says of itself --


def test_the_state_says_what_an_operator_wants_to_know(leader, store, world):
    result = state(store)
    assert (result.epoch, result.mode, result.paused, result.next_decision) == (1, "apply", False, NOW + 300)
    assert result.leader.startswith("a/")
    assert result.applications == {APP: "ready: 12 partitions on 4 executors"}
    leader.decide_all()
    leader.run_leader_cycle()
    assert state(store).applications[APP].startswith("migration ")
    envelope = store.get(keys.STATE)
    assert envelope.expires == world.clock() + CONFIG.controller.lease


def test_agents_are_told_their_share_by_their_number(leader, store):
    assert store.get(keys.AGENT_LIMITS).body.window_sizes == MAX_CLUSTER_SIZES // 4


def test_a_controller_whose_user_is_of_an_older_release_leads_without_limits(leader, store, world):
    store.forbidden = keys.AGENT_LIMITS
    with capture_logs() as logs:
        for _ in range(3):
            world.clock.sleep(1.0)
            assert leader.run_leader_cycle() == "leading in epoch 1"
    assert [entry["event"] for entry in logs if "limits" in entry["event"]] == ["agent-limits-not-published"]
    store.forbidden = None  # the user was made again
    go_on(world, 300, leader)
    assert store.get(keys.AGENT_LIMITS).time == world.clock()


def test_malformed_messages_are_counted_and_passed_over(leader, store):
    for data in (b"", b"{", b'{"schema": 99}', b"\xff\xfe"):
        store.append_raw(keys.REQUESTS, "", data)
        store.append_raw(keys.BATCHES, APP, data)
    request(store, "plan")
    assert leader.answer_requests() == 1
    assert store.rejected == 8
