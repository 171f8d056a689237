"""Steps of one application, in order of priority, and what survives the loss of the lead."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from rechannel.conf.settings import MigrationSettings, Settings
from rechannel.daemon.control import application as application_module
from rechannel.daemon.control.cluster_state import FORGOTTEN_AFTER
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.wire import keys
from rechannel.wire.codes import Trigger
from rechannel.wire.commands import Drain, Pause, Resume, Rollback, Stop
from rechannel.wire.messages import Decision
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.daemon.control.test_outcomes import cut, land, moved, outcomes, swapped
from unit.daemon.control.test_triggers import NOW_AND_NEXT
from unit.daemon.fake_store import NOW, FakeStore
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
    go_on,
    leading,
    order,
    published_placement,
    request,
    ruled,
)

AFTER_PERIOD = (NOW // 3600 + 2) * 3600 + 30  # seconds since the epoch, after NOW_AND_NEXT


def step(leader: Controller, store: FakeStore, application: str = APP) -> list[str]:
    """Run a cycle of an application; return the triggers of its decisions."""
    before = len(decisions(store))
    with leader._lock:
        app(leader, application).run_cycle()
    return [decision.trigger for decision in decisions(store)[before:]]


def test_a_step_does_the_first_thing_that_is_due(leader, store, world):
    assert step(leader, store) == [], "nothing is due"
    leader.decide_all()
    order(leader, Drain(nodes=["127.0.0.2"]))
    assert step(leader, store) == [], "a migration is running"
    order(leader, Pause())
    world.obey()
    leader.follow()
    assert app(leader).migrations.running is None
    assert step(leader, store) == [], "all is paused"
    order(leader, Resume())
    assert step(leader, store, "silent") == [], "there is no report"
    assert app(leader).migrations.cooldown_left(world.clock()) > 0
    assert step(leader, store) == [Trigger.DRAIN], "an order does not wait for the cool-down"


def test_the_rest_outlives_the_lead_and_an_hour_of_silence_ends_it(leader, store, clock, world):
    leader.decide_all()
    world.obey()
    leader.follow()
    clock.sleep(leader.settings.controller.lease + 1)
    other = controller(store, clock, name="b")
    world.ready()
    other.run_leader_cycle()
    leader.run_leader_cycle()
    forgotten = app(leader)
    assert forgotten.migrations.running is None
    assert forgotten.migrations.cooldown_left(clock()) > 0
    clock.sleep(FORGOTTEN_AFTER)
    leader.run_leader_cycle()
    assert app(leader) is not forgotten


# -- pending rollbacks --


def waiting(world: World, store: FakeStore) -> tuple[Controller, Settings]:
    """A leader whose automatic rollback waits for the end of an excluded period, and its settings."""
    leader, config = leading(world), ruled(excluded=(NOW_AND_NEXT,))
    decide(leader, apply=True)
    leader.reload(config)
    land(world, 8.0)
    cycle(leader)
    assert outcomes(store)[-1].verdict == "regressed"
    assert app(leader).rollback is not None
    return leader, config


@pytest.mark.parametrize("how", ["unchanged", "observe", "rollback = false"])
def test_a_rollback_that_waits_obeys_the_present_settings(store, world, clock, how):
    leader, config = waiting(world, store)
    if how == "observe":
        leader.reload(ruled("observe", excluded=(NOW_AND_NEXT,)))
    if how == "rollback = false":
        leader.reload(dataclasses.replace(config, migration=MigrationSettings(rollback=False)))
    clock.now = AFTER_PERIOD
    go_on(world, 1, leader)
    leader.follow()
    last = decisions(store)[-1]
    assert ((last.trigger, last.result) == ("rollback", "applied")) == (how == "unchanged")


def test_a_canceled_rollback_stays_canceled_under_the_next_leader(store, world, clock):
    leader, config = waiting(world, store)
    assert "is canceled" in order(leader, Stop(application=APP), user="ann").sentence
    before = decisions(store)[-1]
    assert before.reason == "canceled"
    leader.close()
    clock.now = AFTER_PERIOD
    leading(world, config, "b").follow()
    assert decisions(store)[-1] == before


def test_a_pause_while_a_rollback_is_planned_does_not_drop_it(leader, store, world, monkeypatch):
    draft = application_module.pipeline.draft_decision

    def paused_meanwhile(asking, basis):
        made = draft(asking, basis)
        if asking.trigger == Trigger.ROLLBACK:
            order(leader, Pause())
        return made

    monkeypatch.setattr(application_module.pipeline, "draft_decision", paused_meanwhile)
    moved(leader, world, settled=8.0)
    assert (decisions(store)[-1].trigger, decisions(store)[-1].reason) == ("rollback", "paused")
    monkeypatch.setattr(application_module.pipeline, "draft_decision", draft)
    order(leader, Resume())
    for _ in range(3):
        go_on(world, 10, leader)
        leader.follow()
    assert (decisions(store)[-1].trigger, decisions(store)[-1].result) == ("rollback", "applied")


def test_an_automatic_decision_does_not_replace_an_operators_rollback(leader, store, world):
    moved(leader, world)
    go_on(world, 310, leader)
    world.moves = [msgspec.structs.replace(world.moves[0], state="released_idle"), *world.moves[1:]]
    go_on(world, 1, leader)
    reply = order(leader, Rollback(application=APP), user="ann")
    assert "is rolled back, once the moves that wait for a batch have landed" in reply.sentence
    assert step(leader, store) == [], "automatic triggers wait for it"
    made = decide(leader, trigger=Trigger.OVERLOAD, apply=True, force=True, placement_source=swapped)
    assert made.result == "applied"
    assert app(leader).rollback is not None


def test_a_rollback_that_is_not_ready_says_that_it_is_tried_again(leader, store, world, clock):
    moved(leader, world)
    clock.sleep(15)  # its driver is silent for a moment
    leader.run_leader_cycle()
    reply = order(leader, Rollback(application=APP), user="ann")
    assert "is rolled back as soon as possible (not ready: " in reply.sentence
    go_on(world, 11, leader)
    leader.follow()
    assert (decisions(store)[-1].trigger, decisions(store)[-1].result) == ("rollback", "applied")


def test_stop_ends_a_series_whose_part_is_settling(store, world):
    leader = cut(world)
    leader.decide_all()
    land(world, 4.9, number=10, batches=1)  # two more batches until its outcome is known
    cycle(leader)
    sentence = order(leader, Stop(application=APP), user="ann").sentence
    assert sentence == f"the rest of the last plan of {APP} is canceled"
    for number in range(13, 19):
        world.clock.sleep(4.9)
        world._send(keys.BATCHES, APP, batch(number, world.placement, end=world.clock()))
        world.report()
        cycle(leader)
    assert [made.trigger for made in decisions(store) if made.result == "applied"] == ["timeout"]


# -- decisions of which the answer of Redis was lost --


def lose_answer(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    append, lost = store.append, []

    def fails(rule, *others):
        append(rule, *others)
        if rule is keys.DECISIONS and not lost:
            lost.append(rule)
            raise StoreUnavailableError("the answer was lost")

    monkeypatch.setattr(store, "append", fails)


def applied(store: FakeStore) -> list[Decision]:
    return applied_decisions(read_decision_log(store), APP)  # type: ignore[arg-type]


def test_a_decision_without_an_answer_begins_and_is_in_the_log_once(leader, store, world, monkeypatch):
    lose_answer(store, monkeypatch)
    request(store, "rebalance")
    leader.answer_requests()
    (made,) = applied(store)
    assert published_placement(store).decision == made.decision
    leader.follow()
    assert applied(store) == [made]
    assert len(store.last(keys.APPLIED, "", 10)) == 1
    go_on(world, 1, leader)
    leader.answer_requests()
    assert applied(store) == [made], "one order is one decision"


def test_a_new_leader_continues_a_decision_without_an_answer(leader, store, world, monkeypatch):
    lose_answer(store, monkeypatch)
    (made,) = leader.decide_all()
    leader.close()
    other = leading(world, CONFIG, "b")
    running = app(other).migrations.running
    assert running is not None and running.decision == made.decision
    assert app(other).outcome.is_awaiting


def test_a_refusal_without_an_answer_is_tried_again(leader, store, monkeypatch):
    lose_answer(store, monkeypatch)
    with pytest.raises(StoreUnavailableError):
        decide(leader)
    assert decide(leader).result == "planned"
