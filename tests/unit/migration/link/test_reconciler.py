"""The reconciler against a small model of the driver."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.migration.link.driver_state import DriverState
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.moves import TRANSITIONS, IllegalTransitionError, OwnMoves
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.envelope import EnvelopeFactory, MessageError
from rechannel.wire.messages import DesiredMove, DesiredPlacement, MoveTransition, Unit
from unit.migration.one_stage import LIMITS, STORES, Driver, accepted, desired, limits, steps
from unit.migration.samples import a_move, accepted_move, closed_store


def test_a_move_goes_through_its_whole_life():
    driver, reconciler = Driver(["0", "0", "1"]), Reconciler(LIMITS)
    lines = reconciler.accept_desired(desired(a_move(0, "0", "1")), driver.observed(), 1.0)
    lines += driver.step(reconciler, 2.0)
    lines += reconciler.handle_closed_store(closed_store(), STORES, 0, "q", 3.0, 3.0)
    assert steps(lines, "m0") == ["planned", "prepared", "steered", "drained", "killed"]
    assert (reconciler.landed, reconciler.missed) == (1, 0)


def test_evidence_that_comes_before_the_commit_kills_once_drained():
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"))
    assert steps(driver.boundary(reconciler, 2.0), "m0") == ["prepared", "steered"]
    assert reconciler.handle_closed_store(closed_store(), STORES, 0, "q", 2.5, 2.5) == []
    driver.run_batch()
    lines = reconciler.handle_batch("q", driver.batch, driver.observed(), 3.0)
    assert steps(lines, "m0") == ["drained", "killed"]


def test_evidence_that_comes_before_a_move_is_released_kills_once_drained():
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), ttl=10_000)
    driver.boundary(reconciler, 2.0)
    assert reconciler.handle_closed_store(closed_store(), STORES, 0, "q", 2.5, 2.5) == []
    assert steps(reconciler.tick(driver.observed(), 200.0), "m0") == ["released_idle"]
    driver.run_batch()
    lines = reconciler.handle_batch("q", driver.batch, driver.observed(), 300.0)
    assert [(line.after, line.reason) for line in lines] == [("drained", "landed"), ("killed", "closed")]


@pytest.mark.parametrize(
    ("closed_at", "after"), [(2010.0, "killed"), (1996.0, "killed"), (1990.0, "drained"), (1700.0, "drained")]
)
def test_a_closing_from_before_a_move_is_no_evidence_for_it(closed_at, after):
    """The partition had been elsewhere for a batch, and came back: the copy on its holder is another one."""
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), ttl=10_000)
    driver.step(reconciler, 2000.0)
    (move,) = reconciler.moves
    reconciler.handle_closed_store(closed_store(), STORES, 0, "q", 2020.0, closed_at)
    assert move.state == after, "clocks may differ by five seconds"


def test_a_move_is_killed_only_when_all_its_stores_are_closed():
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"))
    stores = {(0, "left"), (0, "right")}
    driver.step(reconciler, 2.0)
    for name, expected in (("left", []), ("right", ["killed"])):
        lines = reconciler.handle_closed_store(closed_store(store=name), stores, 0, "q", 3.0, 3.0)
        assert steps(lines, "m0") == expected


def test_a_later_step_waits_for_the_earlier_one():
    driver, reconciler = accepted(["0", "0"], a_move(0, "0", "1", step=0), a_move(1, "0", "1", step=1))
    lines = driver.boundary(reconciler, 2.0)
    assert [(line.move, line.after) for line in lines] == [
        ("m0", "prepared"),
        ("m1", "prepared"),
        ("m0", "steered"),
    ], "the next step is prepared while this one is steered"
    assert driver.boundary(reconciler, 2.1) == []


def test_without_overlap_a_step_waits_until_the_old_copies_are_closed():
    moves = a_move(0, "0", "1"), a_move(1, "0", "1", step=1)
    driver, reconciler = accepted(["0", "0"], *moves, limits=limits(overlap=False))
    lines = driver.step(reconciler, 2.0)
    assert steps(lines, "m0") == ["prepared", "steered", "drained"]
    assert driver.step(reconciler, 3.0) == [], "its old copy may still be there"
    assert steps(reconciler.handle_closed_store(closed_store(), STORES, 0, "q", 4.0, 4.0), "m0") == ["killed"]
    assert steps(driver.step(reconciler, 5.0), "m1") == ["prepared", "steered", "drained"]


def test_a_move_waits_for_a_recent_snapshot_but_not_for_ever():
    moves = a_move(0, "0", "1"), a_move(1, "0", "1")
    driver, reconciler = accepted(["0", "0"], *moves, limits=limits(max_lag=5))
    driver.lags = [6, 6]
    assert driver.step(reconciler, 2.0) == []
    assert sorted(reconciler.units_up_next) == [("run", 0, 0), ("run", 0, 1)]
    driver.lags = [6, 5]
    lines = driver.step(reconciler, 3.0)
    assert steps(lines, "m1") == ["prepared", "steered", "drained"]
    assert steps(lines, "m0") == []
    late = driver.step(reconciler, 3.0 + reconciler.limits.snapshot_patience)
    assert steps(late, "m0") == ["prepared", "steered", "drained"]
    assert next(line.reason for line in late if line.move == "m0") == "snapshot-late"
    assert "6 batches behind after 50 s" in late[0].evidence


def test_a_prepared_move_waits_again_when_its_snapshot_aged_meanwhile():
    moves = a_move(0, "0", "1"), a_move(1, "0", "1", step=1)
    driver, reconciler = accepted(["0", "0"], *moves, limits=limits(max_lag=5))
    driver.lags = [0, 5]
    assert steps(driver.step(reconciler, 2.0), "m1") == ["prepared"]
    driver.lags = [0, 6]
    assert driver.step(reconciler, 3.0) == []
    driver.lags = [0, 1]
    assert steps(driver.step(reconciler, 4.0), "m1") == ["steered", "drained"]


def test_one_batch_takes_over_no_more_than_its_pace_allows():
    moves = [a_move(partition, "0", "1") for partition in range(5)]
    driver, reconciler = accepted(["0"] * 5, *moves, limits=limits(moves_per_batch=2))
    counts = []
    for now in range(1, 4):
        driver.boundary(reconciler, now)
        driver.boundary(reconciler, now)  # looked at again within the same quiet moment
        driver.run_batch()
        reconciler.handle_batch("q", driver.batch, driver.observed(), now)
        counts.append(driver.placement.count("1"))
    assert counts == [2, 4, 5]


def test_a_missed_move_is_steered_again_and_given_up_at_its_deadline():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    driver.drift = {0}
    lines = reconciler.accept_desired(desired(a_move(0, "0", "1")), driver.observed(), 1.0)
    for at in range(2, 8):
        lines += driver.step(reconciler, float(at))
    assert steps(lines, "m0") == ["planned", "prepared", "steered", "steered", "steered", "abandoned"]
    assert (reconciler.missed, reconciler.abandoned, reconciler.landed) == (3, 1, 0)
    assert lines[-1].reason == MoveReason.DEADLINE
    view = reconciler.reported_moves[0].view()
    assert (view.state, view.missed_batches) == ("abandoned", 3)
    assert view.shared_fields() == lines[-1].shared_fields() == a_move(0, "0", "1").shared_fields()


def test_hold_begins_nothing_new_and_lets_what_is_steered_finish():
    moves = a_move(0, "0", "1"), a_move(1, "1", "2", step=1)
    driver, reconciler = accepted(["0", "1"], *moves)
    lines = driver.boundary(reconciler, 2.0)
    reconciler.accept_desired(desired(*moves, at=3.0, hold=True), driver.observed(), 3.0)
    driver.run_batch()
    lines += reconciler.handle_batch("q", 1, driver.observed(), 4.0)
    assert steps(lines, "m0")[-1] == "drained"
    assert driver.boundary(reconciler, 5.0) == []
    assert not reconciler.waiting
    reconciler.accept_desired(desired(*moves, at=6.0), driver.observed(), 6.0)
    assert len(reconciler.advance_at_boundary("q", driver.observed(), 7.0)[1]) == 1


def test_an_expired_placement_is_not_begun():
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), ttl=10.0)
    assert driver.boundary(reconciler, 11.0) == []
    assert [line.reason for line in reconciler.tick(driver.observed(), 11.0)] == ["expired"]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (desired(a_move(0, "0", "2"), decision="d2", epoch=4), "epoch 5 was accepted"),
        (desired(a_move(0, "0", "2"), decision="d2", epoch=6, at=-100, ttl=10), "expired"),
        (desired(a_move(0, "0", "2"), decision="d2", epoch=5, sequence=-1), "older than the accepted"),
        (desired(a_move(0, "0", "2"), a_move(0, "0", "1", name="x"), decision="d2", epoch=6), "twice"),
    ],
    ids=["a deposed leader", "an expired message", "a late message", "a partition named twice"],
)
def test_a_placement_that_must_not_be_obeyed_is_refused(second, why):
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), epoch=5)
    with pytest.raises(MessageError, match=why):
        reconciler.accept_desired(second, driver.observed(), 2.0)
    assert reconciler.decision == "d1"


def test_the_same_decision_of_a_new_leader_is_not_begun_again():
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), epoch=5)
    driver.step(reconciler, 2.0)
    assert reconciler.accept_desired(desired(a_move(0, "0", "1"), epoch=6, at=3.0), driver.observed(), 3.0) == []
    assert reconciler.landed == 1
    assert driver.boundary(reconciler, 4.0) == []


def test_a_new_decision_supersedes_what_was_not_steered_yet():
    driver, reconciler = accepted(["0", "1"], a_move(0, "0", "1"))
    lines = reconciler.accept_desired(desired(a_move(1, "1", "2"), decision="d2", at=2.0), driver.observed(), 2.0)
    assert [(line.move, line.after, line.reason) for line in lines] == [
        ("m0", "abandoned", "superseded"),
        ("m1", "planned", "accepted"),
    ]


def test_moves_of_another_run_are_given_up():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    observed = DriverState(driver.executors, {}, {}, {"q": "another"}, set(), {})
    lines = reconciler.accept_desired(desired(a_move(0, "0", "1")), observed, 1.0)
    assert [line.after for line in lines] == ["planned", "abandoned"]
    assert lines[-1].reason == MoveReason.RUN_ENDED


def test_a_lost_target_abandons_and_a_lost_source_kills():
    driver, reconciler = accepted(["0", "1"], a_move(0, "0", "1"), a_move(1, "1", "2", step=1))
    driver.step(reconciler, 2.0)
    driver.executors -= {"2", "0"}
    assert [(line.move, line.after) for line in reconciler.handle_executor_loss("2", 3.0)] == [("m1", "abandoned")]
    assert [(line.move, line.after) for line in reconciler.handle_executor_loss("0", 3.0)] == [("m0", "killed")]


def test_a_query_that_stands_still_releases_its_move_and_drains_it_later():
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), ttl=10_000)
    driver.boundary(reconciler, 2.0)
    assert [line.after for line in reconciler.tick(driver.observed(), 200.0)] == ["released_idle"]
    driver.run_batch()
    assert [line.after for line in reconciler.handle_batch("q", 1, driver.observed(), 300.0)] == ["drained"]
    assert [line.reason for line in reconciler.tick(driver.observed(), 421.0)] == ["presumed"]


def test_an_unknown_store_is_never_steered():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    observed = DriverState(driver.executors, {("q", 0): ["0"]}, {}, {"q": "run"}, set(), {})
    reconciler.accept_desired(desired(a_move(0, "0", "1")), observed, 1.0)
    assert reconciler.advance_at_boundary("q", observed, 2.0) == ([], [])
    assert [line.reason for line in reconciler.tick(observed, 102.0)] == ["stores-unknown"]


def released_idle() -> tuple[Driver, Reconciler]:
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"), ttl=10_000)
    driver.boundary(reconciler, 2.0)
    reconciler.tick(driver.observed(), 200.0)
    return driver, reconciler


def missed(driver: Driver, reconciler: Reconciler) -> list[MoveTransition]:
    """Have a batch run partition 0 where it was, after the placement has expired."""
    driver.drift = {0}
    driver.run_batch()
    return reconciler.handle_batch("q", 1, driver.observed(), 1e9)


GOAL = "0", "2"  # source and target of another move of partition 0


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (lambda _, reconciler: reconciler.handle_executor_loss("1", 300.0), ["m0 abandoned target-gone"]),
        (missed, ["m0 abandoned deadline"]),
        (
            lambda _, reconciler: reconciler.add_own_moves(
                OwnMoves("d", "run", "lost", [a_move(0, *GOAL, name="own")]), 300.0
            ),
            ["m0 abandoned superseded", "own planned accepted"],
        ),
        (
            lambda driver, reconciler: reconciler.accept_desired(
                desired(a_move(0, *GOAL, name="new"), decision="d2", at=300.0), driver.observed(), 300.0
            ),
            ["m0 abandoned superseded", "new planned accepted"],
        ),
    ],
    ids=["its target is lost", "missed, and expired", "a move of the link's own", "another decision"],
)
def test_a_released_move_ends(event, lines):
    assert [f"{line.move} {line.after} {line.reason}" for line in event(*released_idle())] == lines


def test_a_released_move_is_steered_again_when_a_batch_runs_elsewhere_after_all():
    driver, reconciler = released_idle()
    driver.drift = {0}
    driver.run_batch()
    assert reconciler.handle_batch("q", 1, driver.observed(), 300.0) == []
    lines, due = reconciler.advance_at_boundary("q", driver.observed(), 300.0)
    assert lines == []
    assert [line.reason for line in reconciler.record_steer(due[0], driver.observed(), 300.0)] == ["location-set-again"]


def test_a_steer_is_remembered_even_if_superseded_since():
    driver, reconciler = accepted(["0", "0"], a_move(0, "0", "1"), a_move(1, "0", "1", step=1))
    for item in reconciler.advance_at_boundary("q", driver.observed(), 2.0)[1]:
        reconciler.record_steer(item, driver.observed(), 2.0)
    assert reconciler.was_steered_to(Unit("q", 0, 0), "1")
    assert not reconciler.was_steered_to(Unit("q", 0, 0), "2")
    assert not reconciler.was_steered_to(Unit("q", 0, 1), "1"), "its step has not come"
    reconciler.accept_desired(desired(a_move(0, "0", "2", name="n"), decision="d2", at=3.0), driver.observed(), 3.0)
    assert reconciler.was_steered_to(Unit("q", 0, 0), "1")


def test_no_move_goes_to_an_executor_that_is_to_leave():
    driver, reconciler = accepted(["0", "0"], a_move(0, "0", "1"))
    unusable = dataclasses.replace(driver.observed(), unusable={"1"})
    lines, due = reconciler.advance_at_boundary("q", unusable, 2.0)
    assert ([line.reason for line in lines], due) == (["target-gone"], [])


def test_a_held_migration_does_not_hold_the_links_own_moves():
    driver, reconciler = accepted(["0", "0"], a_move(0, "0", "1"), hold=True)
    reconciler.add_own_moves(OwnMoves("own", "run", "a new query", [a_move(1, "0", "1", name="own.0")]), 1.0)
    assert [item.name for item in reconciler.advance_at_boundary("q", driver.observed(), 2.0)[1]] == ["own.0"]


def test_moves_of_the_links_own_live_beside_a_desired_placement_and_expire_by_themselves():
    driver, reconciler = Driver(["0", "0"]), Reconciler(LIMITS)
    lines = reconciler.add_own_moves(OwnMoves("own", "run", "a new query", [a_move(0, "0", "1")]), 1.0)
    assert [(line.after, line.evidence) for line in lines] == [("planned", "a new query")]
    assert [item.name for item in reconciler.advance_at_boundary("q", driver.observed(), 2.0)[1]] == ["m0"]
    reconciler.paused = True
    assert reconciler.advance_at_boundary("q", driver.observed(), 2.0) == ([], [])
    reconciler.paused = False
    assert [line.reason for line in reconciler.tick(driver.observed(), 1.0 + LIMITS.deadline_seconds)] == ["expired"]


def test_a_boundary_before_the_partition_ran_is_no_miss():
    """A batch may first run jobs without state: a broadcast, or a read inside foreachBatch."""
    driver, reconciler = accepted(["0"], a_move(0, "0", "1"))
    driver.boundary(reconciler, 2.0)
    driver.batch += 1
    assert driver.boundary(reconciler, 3.0) == []
    assert reconciler.missed == 0


def test_a_quiet_query_takes_over_no_more_than_its_pace_until_it_was_quiet_for_a_minute():
    moves = [a_move(partition, "0", "1", step=partition) for partition in range(6)]
    driver, reconciler = accepted(["0"] * 6, *moves, limits=limits(moves_per_batch=2, deadline_seconds=1000.0))
    quiet = dataclasses.replace(driver.observed(), quiet={"q"})
    for now in range(60):
        driver.boundary(reconciler, now)
        reconciler.tick(quiet, now)
    steered = [item for item in reconciler.moves if item.steered_at > 0 or item.state is MoveState.RELEASED_IDLE]
    assert len(steered) == 2, "its next batch will load these"
    for now in range(60, 120):
        driver.boundary(reconciler, now)
        reconciler.tick(quiet, now)
    assert all(item.state is MoveState.RELEASED_IDLE for item in reconciler.moves), "a long pause has time for all"
    lines = driver.step(reconciler, 120.0)
    assert [line.after for line in lines] == ["drained"] * 6


def test_a_move_on_hold_or_behind_others_has_its_whole_deadline_afterwards():
    moves = [a_move(partition, "0", "1") for partition in range(4)]
    driver, reconciler = accepted(["0"] * 4, *moves, limits=limits(moves_per_batch=1))
    now = 0.0
    for _ in range(4):
        now += 60.0
        reconciler.tick(driver.observed(), now - 1)
        driver.step(reconciler, now)
    assert driver.placement == ["1"] * 4, "240 s in all, though the deadline is 100 s"
    driver, paused = accepted(["0"], a_move(0, "0", "1"))
    paused.tick(driver.observed(), 1.0)
    paused.paused = True
    for now in range(2, 400):
        paused.tick(driver.observed(), now)
    paused.paused = False
    assert paused.tick(driver.observed(), 401.0) == []
    assert steps(driver.step(paused, 402.0), "m0") == ["prepared", "steered", "drained"]


def test_a_decision_about_others_leaves_the_links_own_moves_alone():
    driver, reconciler = Driver(["0", "0"]), Reconciler(LIMITS)
    reconciler.add_own_moves(OwnMoves("link", "run", "spread", [a_move(0, "0", "1")]), 1.0)
    own = reconciler.moves[0]
    reconciler.accept_desired(
        desired(msgspec.structs.replace(a_move(1, "0", "1"), move="other")), driver.observed(), 2.0
    )
    assert own.state is MoveState.PLANNED
    reconciler.accept_desired(
        desired(msgspec.structs.replace(a_move(0, "0", "2"), move="third"), decision="d2"), driver.observed(), 3.0
    )
    assert own.state is MoveState.ABANDONED


def test_an_idle_query_does_not_hold_back_the_steps_of_others():
    both = {("idle", 0): ["0"], ("q", 0): ["0"]}
    runs = {"q": "run", "idle": "run"}
    observed = DriverState(
        {"0", "1"}, both, {key: [0] for key in both}, runs, set(both), {"q": 0, "idle": 0}, quiet={"idle"}
    )
    first = DesiredMove(move="a", query="idle", stage=0, partition=0, source="0", target="1", step=0)
    second = a_move(0, "0", "1", step=1)
    body = DesiredPlacement(decision="d", runs=runs, moves=[first, second])
    reconciler = Reconciler(LIMITS)
    reconciler.accept_desired(EnvelopeFactory("c", "x", lambda: 0.0).envelope(body, ttl=1000, epoch=1), observed, 1.0)
    (waiting,) = reconciler.advance_at_boundary("idle", observed, 2.0)[1]
    reconciler.record_steer(waiting, observed, 2.0)
    assert reconciler.advance_at_boundary("q", observed, 3.0)[1] == [], "prepared beside it, not steered"
    assert reconciler.tick(observed, 3.0) == []
    assert [line.after for line in reconciler.tick(observed, 13.0)] == ["released_idle"]
    assert [item.name for item in reconciler.advance_at_boundary("q", observed, 13.0)[1]] == ["m0"]


def test_a_late_steps_deadline_counts_from_its_turn():
    moves = a_move(0, "0", "1"), a_move(1, "0", "2", step=1)
    driver, reconciler = accepted(["0", "0"], *moves, limits=limits(deadline_batches=1000), ttl=10_000)
    driver.boundary(reconciler, 2.0)
    for at in range(3, 95, 10):  # batches that miss: the first step takes its time
        driver.drift = {0}
        driver.step(reconciler, float(at))
    driver.drift = set()
    driver.step(reconciler, 97.0)
    assert reconciler.landed == 1
    assert driver.boundary(reconciler, 150.0)[-1].move == "m1"
    assert reconciler.tick(driver.observed(), 151.0) == []


def test_settled_moves_are_reported_as_long_as_the_placement_names_them_and_cost_nothing_else():
    count = 1500
    moves = [a_move(partition, "0", "1") for partition in range(count)]
    driver, reconciler = accepted(["0"] * count, *moves, limits=limits(moves_per_batch=count))
    driver.step(reconciler, 2.0)
    assert len(reconciler.moves) == count, "their old copies are not closed yet"
    reconciler.tick(driver.observed(), 2.0 + LIMITS.presume)
    own = OwnMoves("link", "run", "spread", [a_move(0, "1", "2", name="own")])
    reconciler.add_own_moves(own, 200.0)
    assert [move.name for move in reconciler.moves] == ["own"], "what every cycle goes through"
    reconciler.accept_desired(desired(*moves, epoch=2, at=201.0), driver.observed(), 201.0)
    reported = {move.name for move in reconciler.reported_moves if move.state is MoveState.KILLED}
    assert len(reported) == count, "a new leader counts them all"
    reconciler.accept_desired(desired(epoch=2, at=202.0), driver.observed(), 202.0)
    assert [move.name for move in reconciler.reported_moves] == ["own"], "nobody waits for them any more"
    assert reconciler.accept_desired(desired(*moves, epoch=3, at=203.0), driver.observed(), 203.0) == []
    assert len(reconciler.reported_moves) == 1 + count, "Redis went back in time: none is begun again"
    reconciler.accept_desired(desired(decision="d2", epoch=3, at=204.0), driver.observed(), 204.0)
    assert len(reconciler.reported_moves) == 1
    reconciler.accept_desired(desired(*moves, epoch=3, at=205.0), driver.observed(), 205.0)
    assert sum(move.state is MoveState.KILLED for move in reconciler.reported_moves) == 1000, "of earlier ones the last"


def test_an_illegal_step_raises():
    with pytest.raises(IllegalTransitionError):
        accepted_move().transition(MoveState.KILLED, MoveReason.CLOSED, at=1.0)
    assert set(TRANSITIONS) == set(MoveState)


@settings(max_examples=200)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 8))
def test_under_drift_and_losses_each_move_ends_and_each_line_is_legal(seed, count):
    """Laws: every journal line follows from the last one of its move; everything settles; landed moves are placed."""
    chance = random.Random(seed)
    driver, reconciler = Driver([chance.choice("012") for _ in range(count)], {"0", "1", "2"}), Reconciler(LIMITS)
    moves = []
    for partition in chance.sample(range(count), chance.randint(1, count)):
        target = chance.choice([name for name in "012" if name != driver.placement[partition]])
        moves.append(a_move(partition, driver.placement[partition], target, step=chance.randint(0, 2)))
    lines = reconciler.accept_desired(desired(*moves, ttl=400.0), driver.observed(), 1.0)
    for at in range(2, 60):
        driver.drift = {partition for partition in range(count) if chance.random() < 0.3}
        if chance.random() < 0.03:
            executor = chance.choice("012")
            driver.executors.discard(executor)
            lines += reconciler.handle_executor_loss(executor, float(at))
        lines += driver.step(reconciler, float(at))
        lines += reconciler.tick(driver.observed(), float(at))
    lines += reconciler.tick(driver.observed(), 1000.0)
    last: dict[str, str] = {}
    for line in lines:
        assert line.before == last.get(line.move, "")
        assert not line.before or MoveState(line.after) in TRANSITIONS[MoveState(line.before)]
        last[line.move] = line.after
    assert set(last.values()) <= {"killed", "abandoned"}
    assert reconciler.landed + reconciler.abandoned == len(moves)
