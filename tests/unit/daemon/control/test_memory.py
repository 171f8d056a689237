"""A controller that leads for long remembers nothing of applications that ended."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator

import pytest

from rechannel.daemon.control.cluster_state import FORGOTTEN_AFTER
from rechannel.daemon.control.controller import Controller
from rechannel.wire.commands import Drain, Resume, Undrain
from unit.daemon.control.test_outcomes import land, outcomes
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import World, app, controller, cycle, decisions, order, request

AT_ONCE = 10
_SKIPPED = (type, types.ModuleType, types.CodeType, FakeStore, FakeClock)


def reachable(root: object) -> Iterator[object]:
    """Everything that an object holds, but for code, the store and the clock."""
    seen, left = {id(root)}, [root]
    while left:
        thing = left.pop()
        yield thing
        held = gc.get_referents(thing)
        if isinstance(thing, types.FunctionType):
            held = list(thing.__closure__ or ())
        for one in held:
            if id(one) not in seen and not isinstance(one, _SKIPPED):
                seen.add(id(one))
                left.append(one)


def mentions(root: object, text: str) -> list[str]:
    return sorted({thing for thing in reachable(root) if isinstance(thing, str) and text in thing})


def live(leader: Controller, store: FakeStore, clock: FakeClock, worlds: list[World]) -> None:
    """Applications come, are moved, some have to go back, by themselves or ordered, one fails, and all go."""
    for world in worlds:
        world.ready()
    leader.run_leader_cycle()
    leader.decide_all()
    for number, world in enumerate(worlds):
        land(world, settled=9.0 if number % 2 else 4.0)
    for world in worlds:
        world.ready()
    cycle(leader)
    for _ in range(2):  # the outcomes, and what they ask for
        clock.sleep(3)
        for world in worlds:
            world.report()
        cycle(leader)
    request(store, "rollback", name=f"r-{clock()}", application=worlds[0].application)
    request(store, "plan", name=f"p-{clock()}", application=worlds[2].application)
    leader.answer_requests()
    order(leader, Drain(nodes=["127.0.0.2"]))
    leader.follow()
    order(leader, Undrain(nodes=["127.0.0.2"]))
    app(leader, worlds[0].application).complaints.allows(clock())
    clock.sleep(120)
    cycle(leader)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("applications", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_is_left_of_applications_that_ended(store, clock, applications):
    leader = controller(store, clock, lead=True)
    sizes = []
    for first in range(0, applications, AT_ONCE):
        worlds = [World(store, clock, f"ended-{first + number}") for number in range(AT_ONCE)]
        live(leader, store, clock, worlds)
        if first == 0:
            seen = {made.trigger for made in decisions(store)}
            assert {"timeout", "rollback", "drain", "operator"} <= seen
            assert {result.verdict for result in outcomes(store)} >= {"confirmed", "regressed"}
            assert len(mentions(leader, "ended-")) >= AT_ONCE
        if first in (applications // 2 - AT_ONCE, applications - AT_ONCE):
            for _ in range(int(FORGOTTEN_AFTER / 10) + 20):
                clock.sleep(10)  # the lease holds: a new lead reads what is kept of the last applications
                leader.run_leader_cycle()
            leader.follow()
            leader.answer_requests()
            leader._services.collector._drop_unused_nodes()  # as with the next application that is looked at
            order(leader, Resume())  # whose sentence names no application
            assert mentions(leader, "ended-") == []
            leader._services.history.reset()  # of a fortnight, without an application's name
            sizes.append(sum(1 for _ in reachable(leader)))
    assert abs(sizes[1] - sizes[0]) < min(50, applications // 2), sizes
