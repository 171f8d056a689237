"""Sentence about each application in every window, and the share of a core for its model."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from rechannel.daemon.control import application
from rechannel.daemon.model.snapshot import take_snapshot
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import APP, controller, cycle, leading, state


class Laborious:
    """A controller whose models take so many seconds of work each; ``looks``: when they were made."""

    def __init__(self, store: FakeStore, clock: FakeClock, patch: pytest.MonkeyPatch, worked: float = 60.0) -> None:
        busy = FakeClock(0.0)
        self.controller = controller(store, clock, busy=busy)
        self.looks: list[float] = []

        def slow(*arguments: Any, **options: Any) -> Any:
            self.looks.append(clock())
            busy.sleep(worked)
            return take_snapshot(*arguments, **options)

        patch.setattr(application, "take_snapshot", slow)


@pytest.mark.parametrize(("worked", "rest"), [(0.5, 5.0), (2.0, 10.0), (2.1, 15.0), (60.0, 30.0)])
def test_a_model_that_takes_much_work_is_made_less_often(store, clock, world, monkeypatch, worked, rest):
    """None takes more than a fifth of a core over time, as long as that makes it no rarer than every half a minute."""
    made = Laborious(store, clock, monkeypatch, worked)
    for _ in range(200):
        world.ready()
        made.controller.run_leader_cycle()
        clock.sleep(0.5)
    gaps = {after - before for before, after in itertools.pairwise(made.looks)}
    assert gaps == {rest}


def test_what_runs_is_told_every_window_however_long_a_model_takes(store, clock, world, monkeypatch):
    made = Laborious(store, clock, monkeypatch).controller
    world.ready()
    made.run_leader_cycle()
    assert state(store).applications[APP].startswith("ready: ")
    made.decide_all()
    made.run_leader_cycle()
    assert state(store).applications[APP].endswith("0 of 3 moves landed")
    world.obey("steered")
    world.moves[0] = msgspec.structs.replace(world.moves[0], state="drained")
    world.report()
    clock.sleep(5)
    cycle(made)
    clock.sleep(5)
    made.run_leader_cycle()
    assert state(store).applications[APP].endswith("1 of 3 moves landed")


def test_what_is_not_ready_is_seen_however_long_a_model_takes(store, clock, world, monkeypatch):
    made = Laborious(store, clock, monkeypatch).controller
    world.ready()
    made.run_leader_cycle()
    clock.sleep(25)
    world.queries = []
    world.report()
    made.run_leader_cycle()
    assert state(store).applications[APP] == "not ready: no streaming query is active"


def test_status_names_the_nodes_whose_agents_are_silent(store, clock, world):
    made = leading(world)
    assert state(store).applications[APP] == "ready: 12 partitions on 4 executors"
    clock.sleep(25)
    world.report()
    made.run_leader_cycle()
    assert state(store).applications[APP] == (
        "ready: 12 partitions on 4 executors; "
        "no agent reports from any node: the sizes of streams from there are taken as unknown"
    )


def test_nothing_is_said_of_an_application_that_cannot_be_looked_at(store, clock, world, monkeypatch):
    made = leading(world)
    assert state(store).applications[APP].startswith("ready: ")
    looks: list[str] = []

    def odd(messages: Any, *_: Any, **__: Any) -> None:
        looks.append(messages.application)
        raise ZeroDivisionError

    monkeypatch.setattr(application, "take_snapshot", odd)
    for _ in range(8):
        clock.sleep(1)
        world.ready()
        made.run_leader_cycle()
    assert state(store).applications == {}
    assert looks == [APP], "once a window"


def test_a_silent_driver_is_named_and_not_its_agents(store, clock, world):
    made = controller(store, clock)
    world.ready()
    made.run_leader_cycle()
    clock.sleep(20)
    made.run_leader_cycle()
    assert state(store).applications[APP].startswith("not ready: driver last reported 20 s ago")
    (decision,) = made.decide_all()
    assert (decision.result, decision.reason) == ("not-ready", "driver-silent")
