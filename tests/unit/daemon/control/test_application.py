"""Steps of one application, in order of priority, and what survives the loss of the lead."""

from __future__ import annotations

from rechannel.daemon.control.application import FORGOTTEN_AFTER
from rechannel.daemon.control.controller import Controller
from rechannel.wire.codes import Trigger
from rechannel.wire.commands import Drain, Pause, Resume
from unit.daemon.fakes import APP, app, controller, decisions, order


def step(leader: Controller, application: str = APP) -> str:
    with leader._lock:
        return app(leader, application).run_cycle()


def test_a_step_does_the_first_thing_that_is_due(leader, store, world):
    assert step(leader) == "nothing is due"
    order(leader, Pause())
    assert step(leader) == "paused"
    order(leader, Resume())
    leader.decide_all()
    assert step(leader) == "a migration is running"
    world.obey()
    leader.follow()
    assert step(leader) == "cooldown"
    assert step(leader, "silent") == "no report"
    order(leader, Drain(nodes=["127.0.0.2"]))
    assert step(leader) == "drained nodes", "an order does not wait for the rest"
    assert decisions(store)[-1].trigger == Trigger.DRAIN


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
