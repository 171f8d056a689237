"""Leadership that passes from one controller to another: what goes on, and under which epoch."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from structlog.testing import capture_logs

from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest, Draft, PlanBasis
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import DesiredPlacement
from rechannel.wire.signing import Signer
from unit.daemon.fakes import (
    APP,
    SIGNER,
    app,
    controller,
    decide,
    desired,
    go_on,
    leading,
    published_placement,
)


def test_a_stand_by_does_nothing_but_try(leader, store, clock):
    other = controller(store, clock, name="b")
    message = other.run_leader_cycle()
    assert message.startswith("standing by: a/")
    store.writes.clear()
    assert other.decide_all() == []
    assert other.answer_requests() == 0
    assert other.follow() == "not leading"
    assert decide(other, apply=True).reason == "not-leading"
    assert store.writes == []


def test_a_stand_by_goes_on_with_the_migration_of_a_leader_that_vanished(leader, store, world):
    other = controller(store, world.clock, name="b", lead=True)
    (decision,) = leader.decide_all()
    world.obey("drained", only=1)
    go_on(world, 16)
    assert other.run_leader_cycle() == "leading in epoch 2"
    assert "running" in other.follow()
    result = desired(store)
    assert (result.epoch, published_placement(store).decision) == (2, decision.decision)
    assert other.decide_all()[0].reason == "migration-running"
    # The old one wakes up: its lease is over, and it keeps its hands off.
    store.writes.clear()
    assert leader.decide_all() == []
    assert leader.follow() == "not leading"
    assert leader.run_leader_cycle().startswith("standing by")
    assert store.writes == []
    assert app(leader).migrations.running is None
    world.obey("drained")
    other.follow()
    go_on(world, 10, other)
    assert other.decide_all()[0].reason == "cooldown"


def test_a_new_leader_learns_of_the_cool_down(leader, store, world):
    leader.decide_all()
    world.obey("drained")
    leader.follow()
    leader.close()
    other = controller(store, world.clock, name="b")
    assert other.run_leader_cycle() == "leading in epoch 2"
    assert other.decide_all()[0].reason == "cooldown"


@pytest.mark.parametrize("wrong", ["unsigned", "foreign key", "another application's"])
def test_a_desired_placement_that_is_not_ours_is_logged_and_not_adopted(wrong, store, world):
    author = EnvelopeFactory("default", "somebody", world.clock)
    body = DesiredPlacement(decision="evil", runs={}, moves=[])
    envelope = author.envelope(body, ttl=100, application=APP if wrong != "another application's" else "app-2")
    if wrong == "foreign key":
        envelope = Signer(Ed25519PrivateKey.generate()).sign(envelope)
    elif wrong == "another application's":
        envelope = SIGNER.sign(envelope)
    store.put(keys.DESIRED, APP, envelope)
    with capture_logs() as logs:
        made = leading(world)
    assert [line["event"] for line in logs].count("desired-rejected") == 1
    assert app(made).migrations.running is None
    assert made.decide_all()[0].result == "applied"
    assert published_placement(store).decision != "evil"


def test_an_emptied_redis_brings_no_old_epoch_back(leader, store, world):
    world.accepted_epoch = 41
    world.report()
    assert leader.run_leader_cycle() == "leading in epoch 42"
    (decision,) = leader.decide_all()
    world.obey("steered")
    store.empty()
    assert leader.run_leader_cycle() == "leading in epoch 43"
    world.report()
    leader.follow()
    result = desired(store)
    assert (result.epoch, published_placement(store).decision) == (43, decision.decision), (
        "published again, the same one"
    )


@pytest.mark.parametrize("obeyed_too", [False, True])
def test_a_leader_of_an_emptied_redis_leaves_the_epoch_of_the_leader_before_it(leader, store, world, obeyed_too):
    world.accepted_epoch = leader.lead.epoch
    world.accepted_leaders = ["one/before", *([leader.lead.name] if obeyed_too else [])]
    world.report()
    leader.run_leader_cycle()
    assert leader.lead.epoch > world.accepted_epoch
    leader.decide_all()
    world.obey("steered")
    assert (world.accepted_epoch, world.accepted_leaders) == (leader.lead.epoch, [leader.lead.name])
    world.report()
    leader.run_leader_cycle()
    assert leader.lead.epoch == world.accepted_epoch, "and keeps its own"


def test_a_leader_whose_place_was_taken_while_redis_was_away_follows_the_newer_decision(leader, store, world):
    leader.decide_all()
    world.clock.sleep(20)
    other = controller(store, world.clock, name="b")
    world.ready()
    other.run_leader_cycle()
    app(other).migrations.running = None
    newer = decide(other, apply=True, force=True)
    assert newer.result == "applied"
    other.close()
    world.clock.sleep(1)
    assert leader.run_leader_cycle() == "leading in epoch 3"
    leader.follow()
    assert published_placement(store).decision == newer.decision


def test_after_planning_outlived_the_lease_nothing_is_done_before_the_orders_of_others_are_known(
    leader, world, monkeypatch
):
    real = pipeline.draft_decision

    def slow(request: DecisionRequest, basis: PlanBasis) -> Draft:
        draft = real(request, basis)
        world.clock.sleep(2 * leader.settings.controller.lease)
        return draft

    monkeypatch.setattr(pipeline, "draft_decision", slow)
    assert [decision.result for decision in leader.decide_all()] == ["not-ready"]
    assert leader.lead.holds(), "nobody else was there: the lead is held again, in a higher epoch"
    monkeypatch.undo()
    assert leader.follow() == "not leading"
    assert leader.decide_all() == []
    leader.run_leader_cycle()
    assert leader.follow() != "not leading"


def test_an_epoch_that_redis_gave_out_and_forgot_is_overtaken(leader, store):
    (decision,) = leader.decide_all()
    result = desired(store)
    store.put(keys.DESIRED, APP, SIGNER.sign(msgspec.structs.replace(result, epoch=9)))
    leader.follow()
    assert leader.run_leader_cycle() == "leading in epoch 10"
    leader.follow()
    result = desired(store)
    assert (result.epoch, published_placement(store).decision) == (10, decision.decision)


def test_a_forged_epoch_does_not_silence_the_leader(leader, store):
    (decision,) = leader.decide_all()
    result = desired(store)
    store.put(keys.DESIRED, APP, msgspec.structs.replace(result, epoch=10**9, raw_bytes=msgspec.UNSET))
    leader.follow()
    assert published_placement(store).decision == decision.decision
