"""Steps of one application, in order of priority, and what survives the loss of the lead."""

from __future__ import annotations

from rechannel.daemon.control.cluster_state import FORGOTTEN_AFTER
from rechannel.daemon.control.controller import Controller
from rechannel.wire.codes import Trigger
from rechannel.wire.commands import Drain, Pause, Resume
from unit.daemon.fake_store import FakeStore
from unit.daemon.fakes import APP, app, controller, decisions, order


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
