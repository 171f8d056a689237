"""Every interrupted prefix of a plan against a model of driver and controllers.

Nothing is done twice, and every plan ends. The laws stand in `laws`, plans and interruptions in `interruptions`. A run
of a small plan is cut after each of its events by each kind of interruption, and goes on from there; then chance
writes the scripts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rechannel.wire.codes import MoveState
from rechannel.wire.messages import DesiredMove, Unit
from unit.migration.driver_model import TTL, World, limits
from unit.migration.interruptions import (
    INTERRUPTIONS,
    PLANS,
    Event,
    let_it_end,
    one_round,
    order,
    run,
    stopped,
    stray_back,
)
from unit.migration.samples import Place, a_move
from unit.migration.spark_model import Driver, Query


@pytest.mark.parametrize("kind", INTERRUPTIONS)
def test_a_plan_interrupted_after_any_event_goes_on_and_ends(kind: str) -> None:
    cases = 0
    for plan in PLANS:
        for cut in itertools.count():
            world = plan()
            try:
                if not run(world, cut, INTERRUPTIONS[kind]):
                    break
                let_it_end(world, renewed=kind != "no leader any more")
            except AssertionError as error:
                error.add_note(f"plan {plan.__name__}, {kind}, after event {cut}")
                raise
            cases += 1
    assert cases >= 200


def test_thousands_of_cases_are_tried() -> None:
    """The longest plan is cut most often; all kinds together are well over five thousand cases."""
    cuts = [next(cut for cut in itertools.count() if not run(plan(), cut, INTERRUPTIONS["nothing"])) for plan in PLANS]
    assert sum(cuts) * len(INTERRUPTIONS) >= 5000


# -- by chance --

QUERIES = st.sampled_from("ab")
KINDS = st.sampled_from([kind for kind in INTERRUPTIONS if kind != "nothing"])


class AnyScript(RuleBasedStateMachine):
    """Any order of events and interruptions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.later: list[tuple[int, Event]] = []

    @initialize(plan=st.sampled_from(PLANS))
    def begin(self, plan: Callable[[], World]) -> None:
        self.world = plan()

    @rule(name=QUERIES, steps=st.integers(1, 4))
    def advance(self, name: str, steps: int) -> None:
        for _ in range(steps):
            self.world.advance(self.world.driver.queries[name])
        self._next()

    @rule()
    def a_round(self) -> None:
        for event in one_round(self.world):
            event()
        self._next()

    @rule(event=st.sampled_from(["run_once", "lead", "maintain"]))
    def happen(self, event: str) -> None:
        getattr(self.world, event)()
        self._next()

    @rule(seconds=st.sampled_from([0.5, 1.0, 5.0, 40.0]))
    def tick(self, seconds: float) -> None:
        self.world.tick(seconds)
        self._next()

    @rule(kind=KINDS)
    def interrupt(self, kind: str) -> None:
        self.later += [(self.count + at, event) for at, event in (INTERRUPTIONS[kind](self.world) or {}).items()]
        self._next()

    @precondition(lambda self: self.world.controller is None)
    @rule()
    def succeed(self) -> None:
        self.world.succeed()
        self._next()

    @rule(unit=st.sampled_from([("a", 0, 0), ("a", 0, 1), ("b", 0, 0)]), goal=st.sampled_from("0123"))
    def order_one(self, unit: Place, goal: str) -> None:
        if self.world.controller is not None:
            where = self.world.driver.queries[unit[0]].placement[unit[1]][unit[2]]
            order(self.world, a_move(unit, where, goal, 0, name=f"x{self.count}"), name=f"x{self.count}")
        self._next()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "world"):
            self.world.link.laws.check(self.world.link)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            let_it_end(self.world)

    def _next(self) -> None:
        self.count += 1
        due = [event for at, event in self.later if at <= self.count]
        self.later = [(at, event) for at, event in self.later if at > self.count]
        for event in due:
            event()


TestAnyScript = AnyScript.TestCase
TestAnyScript.settings = settings(max_examples=100, stateful_step_count=40, suppress_health_check=list(HealthCheck))


# -- breaches there were --


def one_move(*more: DesiredMove, partitions: int = 1, **changes: float) -> World:
    """Return a world whose link steered the first of some partitions from 0 to 1."""
    a = Query("a", [[0]], {0: ["0"] * partitions})
    world = World(Driver([a], "012", "late"), limits(**changes))
    order(world, a_move(("a", 0, 0), "0", "1", 0, size=60.0), *more)
    world.run_once()
    return world


def batch(world: World, *, steps: int = 4) -> None:
    for _ in range(steps):
        world.advance(world.driver.queries["a"])


def test_one_batch_takes_over_no_more_bytes_however_often_its_boundary_is_handled() -> None:
    world = one_move(a_move(("a", 0, 1), "0", "1", 0, size=60.0), partitions=2, bytes_per_batch=100.0)
    world.run_once()


def test_a_query_with_short_batches_is_not_idle() -> None:
    world = one_move(partitions=2)
    for _ in range(12):  # whenever a second is over, the query happens to be quiet
        world.tick(1.0)
        batch(world)
    order(world, a_move(("a", 0, 1), "0", "1", 0), name="d2")
    world.run_once()
    world.tick(1.0)


def test_no_steer_is_repeated_to_an_executor_that_is_to_leave() -> None:
    world = one_move()
    stray_back(world)
    world.unusable.add("1")
    batch(world)
    world.run_once()


def test_a_copy_that_was_closed_and_opened_again_is_not_closed() -> None:
    world = one_move()
    world.maintain()  # executor 0 closes its copy, for the partition is executor 1's by now
    world.run_once()
    stray_back(world)  # and opens it again
    batch(world)
    world.run_once()
    batch(world)


def test_a_miss_is_not_read_back_but_steered_again() -> None:
    world = one_move()
    stray_back(world)
    world.paused = True
    batch(world)
    world.run_once()


def test_nothing_is_read_back_while_held() -> None:
    world = one_move()
    world.paused = True
    world.overwrite(Unit("a", 0, 0))
    world.run_once()


def test_no_steer_is_repeated_after_a_stop() -> None:
    world = one_move()
    stray_back(world)
    stopped(world)
    batch(world)
    world.run_once()


def test_a_miss_ends_the_move_once_the_placement_has_expired() -> None:
    world = one_move()
    world.controller = None
    stray_back(world)
    batch(world)
    world.tick(1.0)
    assert world.link.busy, "until it has expired, the next boundary steers it again"
    world.tick(TTL)
    assert not world.link.busy
    assert (world.link.sent[-1].after, world.link.sent[-1].reason) == ("abandoned", "expired")


def test_a_query_whose_last_batch_is_not_committed_yet_is_not_idle() -> None:
    world = one_move(partitions=2)
    world.tick(1.0)
    world.tick(11.0)  # nothing comes: released
    order(world, a_move(("a", 0, 1), "0", "1", 0), name="d2")
    batch(world, steps=3)
    world.run_once()
    world.tick(1.0)
    assert [move.state for move in world.link.reconciler.moves][-1] is MoveState.STEERED
