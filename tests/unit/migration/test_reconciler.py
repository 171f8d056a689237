"""The reconciler against a small model of the driver: what it steers, when, and how each move ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.migration.link.reconciler import Limits, Observed, Reconciler
from rechannel.migration.moves import TRANSITIONS, IllegalTransitionError, Move, MoveState, Reason
from rechannel.wire.messages import ClosedStore, DesiredMove, DesiredPlacement, MessageError, MoveTransition
from rechannel.wire.store import Author

LIMITS = Limits(deadline_batches=3, deadline_seconds=100.0, presume=120.0)
STORES = {(0, "default")}


class Driver:
    """One query, one stage: partitions run where they were steered, unless told to drift."""

    def __init__(self, placement: list[str], executors: set[str] | None = None) -> None:
        self.placement = placement
        self.preferred = list(placement)
        self.executors = executors or {"0", "1", "2"}
        self.batch = 0
        self.drift: set[int] = set()

    def observed(self) -> Observed:
        return Observed(self.executors, {("q", 0): list(self.placement)}, {"q": "run"}, {("q", 0)})

    def run_batch(self) -> None:
        self.batch += 1
        for partition, executor in enumerate(self.preferred):
            if partition not in self.drift:
                self.placement[partition] = executor
            else:
                self.preferred[partition] = self.placement[partition]

    def step(self, reconciler: Reconciler, now: float) -> list[MoveTransition]:
        lines, due = reconciler.due("q", self.batch, self.observed(), now)
        for move in due:
            self.preferred[move.wanted.partition] = move.wanted.target
        self.run_batch()
        quiet, again = reconciler.due("q", self.batch, self.observed(), now)
        for move in again:
            self.preferred[move.wanted.partition] = move.wanted.target
        return lines + quiet + reconciler.batch_done("q", self.batch, self.observed(), now)


def move(partition: int, source: str, target: str, step: int = 0, name: str = "") -> DesiredMove:
    return DesiredMove(
        move=name or f"m{partition}", query="q", stage=0, partition=partition, source=source, target=target, step=step
    )


def desired(
    *moves: DesiredMove, decision: str = "d1", epoch: int = 1, at: float = 0.0, ttl: float = 1000.0, hold=False
):
    body = DesiredPlacement(decision=decision, runs={"q": "run"}, moves=list(moves), hold=hold)
    return Author("c", "controller", lambda: at).envelope(body, ttl=ttl, application="a", epoch=epoch)


def steps(lines: list[MoveTransition], name: str) -> list[str]:
    return [line.after for line in lines if line.move == name]


def test_a_move_goes_through_its_whole_life():
    driver, reconciler = Driver(["0", "0", "1"]), Reconciler(LIMITS)
    lines = reconciler.accept(desired(move(0, "0", "1")), driver.observed(), 1.0)
    lines += driver.step(reconciler, 2.0)
    closed = ClosedStore(
        application="a", executor="0", run="run", operator=0, partition=0, store="default", evidence="Closed"
    )
    lines += reconciler.closed(closed, STORES, 0, "q", 3.0)
    assert steps(lines, "m0") == ["planned", "prepared", "steered", "drained", "killed"]
    assert (reconciler.landed, reconciler.missed, reconciler.busy) == (1, 0, False)


def test_evidence_that_comes_before_the_commit_kills_once_drained():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1")), driver.observed(), 1.0)
    lines, due = reconciler.due("q", 0, driver.observed(), 2.0)
    assert [item.wanted.move for item in due] == ["m0"]
    closed = ClosedStore(
        application="a", executor="0", run="run", operator=0, partition=0, store="default", evidence="x"
    )
    assert reconciler.closed(closed, STORES, 0, "q", 2.5) == []
    driver.preferred[0] = "1"
    driver.run_batch()
    lines = reconciler.batch_done("q", driver.batch, driver.observed(), 3.0)
    assert steps(lines, "m0") == ["drained", "killed"]


def test_a_move_is_killed_only_when_all_its_stores_are_closed():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    stores = {(0, "left"), (0, "right")}
    reconciler.accept(desired(move(0, "0", "1")), driver.observed(), 1.0)
    driver.step(reconciler, 2.0)
    for name, expected in (("left", []), ("right", ["killed"])):
        closed = ClosedStore(
            application="a", executor="0", run="run", operator=0, partition=0, store=name, evidence="x"
        )
        assert steps(reconciler.closed(closed, stores, 0, "q", 3.0), "m0") == expected


def test_a_later_step_waits_for_the_earlier_one():
    driver, reconciler = Driver(["0", "0"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1", step=0), move(1, "0", "1", step=1)), driver.observed(), 1.0)
    _, due = reconciler.due("q", 0, driver.observed(), 2.0)
    assert [item.wanted.move for item in due] == ["m0"]
    assert reconciler.due("q", 0, driver.observed(), 2.1) == ([], [])


def test_a_missed_move_is_steered_again_and_given_up_at_its_deadline():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    driver.drift = {0}
    lines = reconciler.accept(desired(move(0, "0", "1")), driver.observed(), 1.0)
    for at in range(2, 8):
        lines += driver.step(reconciler, float(at))
    assert steps(lines, "m0") == ["planned", "prepared", "steered", "abandoned"]
    assert (reconciler.missed, reconciler.abandoned, reconciler.landed) == (3, 1, 0)
    assert lines[-1].reason == Reason.DEADLINE


def test_hold_begins_nothing_new_and_lets_what_is_steered_finish():
    driver, reconciler = Driver(["0", "1"]), Reconciler(LIMITS)
    moves = (move(0, "0", "1", step=0), move(1, "1", "2", step=1))
    reconciler.accept(desired(*moves), driver.observed(), 1.0)
    lines, due = reconciler.due("q", 0, driver.observed(), 2.0)
    driver.preferred[0] = due[0].wanted.target
    reconciler.accept(desired(*moves, at=3.0, hold=True), driver.observed(), 3.0)
    driver.run_batch()
    lines += reconciler.batch_done("q", 1, driver.observed(), 4.0)
    assert steps(lines, "m0")[-1] == "drained"
    assert reconciler.due("q", 1, driver.observed(), 5.0) == ([], [])
    reconciler.accept(desired(*moves, at=6.0), driver.observed(), 6.0)
    assert len(reconciler.due("q", 1, driver.observed(), 7.0)[1]) == 1


def test_an_expired_placement_is_not_begun():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1"), ttl=10.0), driver.observed(), 1.0)
    assert reconciler.due("q", 0, driver.observed(), 11.0) == ([], [])
    assert [line.reason for line in reconciler.tick(driver.observed(), 11.0)] == ["expired"]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (desired(move(0, "0", "2"), decision="d2", epoch=4), "epoch 5 was accepted"),
        (desired(move(0, "0", "2"), decision="d2", epoch=6, at=-100, ttl=10), "expired"),
        (desired(move(0, "0", "2"), decision="d2", epoch=5, at=-5), "older than the accepted"),
        (desired(move(0, "0", "2"), move(0, "0", "1", name="x"), decision="d2", epoch=6), "twice"),
    ],
    ids=["a deposed leader", "an expired message", "a late message", "a partition named twice"],
)
def test_a_placement_that_must_not_be_obeyed_is_refused(second, why):
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1"), epoch=5), driver.observed(), 1.0)
    with pytest.raises(MessageError, match=why):
        reconciler.accept(second, driver.observed(), 2.0)
    assert reconciler.decision == "d1"


def test_the_same_decision_of_a_new_leader_is_not_begun_again():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1"), epoch=5), driver.observed(), 1.0)
    driver.step(reconciler, 2.0)
    assert reconciler.accept(desired(move(0, "0", "1"), epoch=6, at=3.0), driver.observed(), 3.0) == []
    assert reconciler.landed == 1
    assert reconciler.due("q", driver.batch, driver.observed(), 4.0) == ([], [])


def test_a_new_decision_supersedes_what_was_not_steered_yet():
    driver, reconciler = Driver(["0", "1"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1")), driver.observed(), 1.0)
    lines = reconciler.accept(desired(move(1, "1", "2"), decision="d2", at=2.0), driver.observed(), 2.0)
    assert [(line.move, line.after, line.reason) for line in lines] == [
        ("m0", "abandoned", "superseded"),
        ("m1", "planned", "accepted"),
    ]


def test_moves_of_another_run_are_given_up():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    observed = Observed(driver.executors, {}, {"q": "another"}, set())
    lines = reconciler.accept(desired(move(0, "0", "1")), observed, 1.0)
    assert [line.after for line in lines] == ["planned", "abandoned"]
    assert lines[-1].reason == Reason.RUN_ENDED


def test_a_lost_target_abandons_and_a_lost_source_kills():
    driver, reconciler = Driver(["0", "1"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1"), move(1, "1", "2", step=1)), driver.observed(), 1.0)
    driver.step(reconciler, 2.0)
    driver.executors -= {"2", "0"}
    assert [(line.move, line.after) for line in reconciler.executor_gone("2", 3.0)] == [("m1", "abandoned")]
    assert [(line.move, line.after) for line in reconciler.executor_gone("0", 3.0)] == [("m0", "killed")]


def test_a_query_that_stands_still_releases_its_move_and_drains_it_later():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    reconciler.accept(desired(move(0, "0", "1"), ttl=10_000), driver.observed(), 1.0)
    reconciler.due("q", 0, driver.observed(), 2.0)
    assert [line.after for line in reconciler.tick(driver.observed(), 200.0)] == ["released_idle"]
    driver.preferred[0] = "1"
    driver.run_batch()
    assert [line.after for line in reconciler.batch_done("q", 1, driver.observed(), 300.0)] == ["drained"]
    assert [line.reason for line in reconciler.tick(driver.observed(), 421.0)] == ["presumed"]


def test_an_unknown_store_is_never_steered():
    driver, reconciler = Driver(["0"]), Reconciler(LIMITS)
    observed = Observed(driver.executors, {("q", 0): ["0"]}, {"q": "run"}, set())
    reconciler.accept(desired(move(0, "0", "1")), observed, 1.0)
    assert reconciler.due("q", 0, observed, 2.0) == ([], [])
    assert [line.reason for line in reconciler.tick(observed, 102.0)] == ["stores-unknown"]


def test_an_illegal_step_raises():
    with pytest.raises(IllegalTransitionError):
        Move(move(0, "0", "1"), "d", "run", 0.0).to(MoveState.KILLED, Reason.CLOSED, at=1.0)
    assert set(TRANSITIONS) == set(MoveState)


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10_000), count=st.integers(1, 8))
def test_whatever_drifts_or_dies_each_move_ends_and_each_line_is_legal(seed, count):
    """Laws: every journal line follows from the last one of its move; everything settles; landed moves are placed."""
    chance = random.Random(seed)
    driver, reconciler = Driver([chance.choice("012") for _ in range(count)], {"0", "1", "2"}), Reconciler(LIMITS)
    moves = []
    for partition in chance.sample(range(count), chance.randint(1, count)):
        target = chance.choice([name for name in "012" if name != driver.placement[partition]])
        moves.append(move(partition, driver.placement[partition], target, step=chance.randint(0, 2)))
    lines = reconciler.accept(desired(*moves, ttl=400.0), driver.observed(), 1.0)
    for at in range(2, 60):
        driver.drift = {partition for partition in range(count) if chance.random() < 0.3}
        if chance.random() < 0.03:
            lost = chance.choice("012")
            driver.executors.discard(lost)
            lines += reconciler.executor_gone(lost, float(at))
        lines += driver.step(reconciler, float(at))
        lines += reconciler.tick(driver.observed(), float(at))
    lines += reconciler.tick(driver.observed(), 1000.0)
    last: dict[str, str] = {}
    for line in lines:
        assert line.before == last.get(line.move, "")
        assert not line.before or MoveState(line.after) in TRANSITIONS[MoveState(line.before)]
        last[line.move] = line.after
    assert not reconciler.busy
    assert set(last.values()) <= {"killed", "abandoned"}
    assert reconciler.landed + reconciler.abandoned == len(moves)
