"""Steering at a boundary: what happens in Spark between two steers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from rechannel.migration.link import steering
from rechannel.migration.link.driver_state import DriverState
from rechannel.migration.link.reconciler import Reconciler
from rechannel.migration.link.steering import Steering
from rechannel.migration.moves import OwnMoves
from rechannel.migration.spark.gateway import SparkCallError
from unit.migration.one_stage import LIMITS
from unit.migration.samples import a_move

EXECUTORS = {name: SimpleNamespace(executor=name, host="host") for name in "012"}
KEY = ("q", 0)
STATE = DriverState(EXECUTORS, {KEY: ["0"] * 3}, {KEY: [4] * 3}, {"q": "run"}, {KEY}, {"q": 4}, {"q"})


@pytest.fixture
def one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_STORES_AT_ONCE", 1)


class Boundary:
    """A quiet query with three moves to executor 1, and what happens before each call that steers, in turn."""

    def __init__(self, *before: str, stores: int = 1) -> None:
        self.happenings = list(before)
        self.quiet, self.caught_up = True, True
        self.jobs: set[int] = set()  # by the events
        self.spark_jobs: set[int] = set()
        self.locations: dict[tuple[int, int], str] = {}  # (partition, store) -> executor
        self.steers: list[list[int]] = []  # the partitions of each call
        self.reads: list[list[int]] = []
        self.fails = 0  # calls that fail from now on
        self.checked = False  # whether nothing was steered since the last look at the events
        self.now = 10.0
        self.driver = STATE
        self.written: list[Any] = []
        self.reconciler = Reconciler(LIMITS)
        moves = [a_move(partition, "0", "1") for partition in range(3)]
        self.reconciler.add_own_moves(OwnMoves("link", "run", "spread", moves), 9.0)
        adapter = SimpleNamespace(
            active_jobs=lambda: frozenset(self.spark_jobs),
            coordinator=SimpleNamespace(steer=self.steer, locations=self.read),
        )
        table = SimpleNamespace(executors=EXECUTORS, is_quiet=lambda query: self.quiet, jobs=self.jobs)
        self.steering = Steering(
            adapter,  # type: ignore[arg-type]
            table,  # type: ignore[arg-type]
            self.reconciler,
            SimpleNamespace(  # type: ignore[arg-type]
                stores_of_move=lambda move: [(move.desired.partition, store) for store in range(stores)]
            ),
            catch_up_with_events=self.drain,
            journal=self.written.extend,
        )

    def steer(self, targets: list[tuple[tuple[int, int], Any]]) -> None:
        partitions = sorted({partition for (partition, _), _ in targets})
        latest = {line.partition: line.after for line in self.written}
        assert {latest[partition] for partition in partitions} <= {"steered"}, "the journal first"
        assert self.quiet and self.spark_jobs <= self.jobs and self.checked, "the check right before the call"
        self.checked = False
        self.steers.append(partitions)
        self.fail()
        self.locations |= {store: target.executor for store, target in targets}

    def read(self, stores: list[tuple[int, int]]) -> list[str]:
        self.reads.append(sorted({partition for partition, _ in stores}))
        self.fail()
        return [self.locations.get(store, "") for store in stores]

    def fail(self) -> None:
        if self.fails:
            self.fails -= 1
            raise SparkCallError("no")

    def drain(self) -> bool:
        match self.happenings.pop(0) if self.happenings else "":
            case "a batch begins":
                self.quiet = False
            case "a job begins that no event has reported yet":
                self.spark_jobs.add(7)
            case "a job of another query runs":
                self.spark_jobs.add(8)
                self.jobs.add(8)
            case "the target is lost":
                self.driver = replace(STATE, executors={name: EXECUTORS[name] for name in "02"})
                self.reconciler.handle_executor_loss("1", self.now)
            case "a whole batch lands the second move":
                self.driver = replace(STATE, placement={KEY: ["0", "1", "0"]}, batches={"q": 5})
            case "the run ends":
                self.driver = replace(STATE, runs={})
                self.reconciler.handle_run_end("q", "run", self.now)
            case "more events than a cycle may take":
                self.caught_up = False
        self.checked = True
        return self.caught_up

    def look(self) -> None:
        self.steering.handle_boundary("q", lambda: self.driver, lambda: self.now)


def test_all_moves_are_steered_by_one_call_after_one_check_and_read_back_by_another() -> None:
    boundary = Boundary(stores=4)
    looks: list[str] = []
    boundary.steering._catch_up_with_events = lambda: bool(looks.append("")) or boundary.drain()
    boundary.look()
    assert boundary.steers == boundary.reads == [[0, 1, 2]]
    assert len(looks) == 1
    assert boundary.locations == {(partition, store): "1" for partition in range(3) for store in range(4)}


@pytest.mark.parametrize(
    ("at_once", "calls"),
    [(1, [[0], [1], [2]]), (7, [[0], [1], [2]]), (8, [[0, 1], [2]]), (11, [[0, 1], [2]]), (12, [[0, 1, 2]])],
)
def test_a_call_has_whole_moves_and_so_many_stores_at_most(
    at_once: int, calls: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steering, "_STORES_AT_ONCE", at_once)
    boundary = Boundary(stores=4)
    boundary.look()
    assert boundary.steers == boundary.reads == calls


def test_each_part_is_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "_STORES_AT_ONCE", 8)
    moves: list[Any] = [SimpleNamespace(desired=SimpleNamespace(partition=number)) for number in range(5)]
    assert list(map(len, Boundary(stores=4).steering._parts(moves))) == [2, 2, 1]


@pytest.mark.usefixtures("one_at_once")
@pytest.mark.parametrize(
    ("happening", "steers"),
    [
        ("", 3),
        ("a job of another query runs", 3),
        ("a batch begins", 1),
        ("a job begins that no event has reported yet", 1),
        ("more events than a cycle may take", 1),
    ],
)
def test_no_move_is_steered_once_a_batch_may_run(happening: str, steers: int) -> None:
    boundary = Boundary("", happening)
    boundary.look()
    assert len(boundary.steers) == len(boundary.locations) == steers
    assert [line.after for line in boundary.written].count("steered") == steers, "the rest waits, unrecorded"


@pytest.mark.parametrize(
    "happening",
    ["a batch begins", "a job begins that no event has reported yet", "more events than a cycle may take"],
)
def test_nothing_is_steered_if_a_batch_may_run_already(happening: str) -> None:
    boundary = Boundary(happening)
    boundary.look()
    assert boundary.steers == []
    assert "steered" not in [line.after for line in boundary.written]


@pytest.mark.usefixtures("one_at_once")
@pytest.mark.parametrize(
    ("happening", "steered"),
    [("the target is lost", [0]), ("a whole batch lands the second move", [0, 2]), ("the run ends", [0])],
)
def test_a_move_that_an_event_ended_between_two_steers_is_passed_over(happening: str, steered: list[int]) -> None:
    boundary = Boundary("", happening)
    boundary.look()
    assert [line.partition for line in boundary.written if line.after == "steered"] == steered
    assert [partition for call in boundary.steers for partition in call] == steered


def test_a_move_that_an_event_ended_before_the_call_is_no_part_of_it() -> None:
    boundary = Boundary("a whole batch lands the second move")
    boundary.look()
    assert boundary.steers == [[0, 2]]
    assert [line.partition for line in boundary.written if line.after == "steered"] == [0, 2]


@pytest.mark.parametrize(("at_once", "calls"), [(1, [[0], [2]]), (9, [[0, 2]])])
def test_overwritten_steers_are_repeated_while_their_query_is_quiet_three_times_at_most(
    at_once: int, calls: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    boundary = Boundary()
    boundary.look()
    monkeypatch.setattr(steering, "_STORES_AT_ONCE", at_once)
    for _ in range(5):
        boundary.locations |= {(0, 0): "0", (2, 0): "0"}  # tasks that outlived their stage
        boundary.now += 0.03
        boundary.look()
    assert boundary.steers == [[0, 1, 2], *calls * 3]


def test_steers_are_read_back_some_time_after_another_and_nothing_is_steered_that_is_in_effect() -> None:
    boundary = Boundary()
    for wait in (0.0, 0.01, 0.02, 0.01, 0.02, 0.02, 0.02):
        boundary.now += wait
        boundary.look()
    assert len(boundary.reads) == 1 + 3
    assert boundary.steers == [[0, 1, 2]]


def test_a_steer_that_could_not_be_repaired_yet_is_not_counted_as_read_back() -> None:
    boundary = Boundary()
    boundary.look()
    boundary.locations[2, 0], boundary.spark_jobs = "0", {7}
    for _ in range(5):
        boundary.now += 0.03
        boundary.look()
    boundary.spark_jobs = set()
    boundary.now += 0.03
    boundary.look()
    assert (boundary.steers, boundary.locations[2, 0]) == ([[0, 1, 2], [2]], "1")


@pytest.mark.parametrize("happening", ["a batch begins", "a job begins that no event has reported yet", "the run ends"])
def test_an_overwritten_steer_is_not_repeated_once_a_batch_may_run(happening: str) -> None:
    boundary = Boundary()
    boundary.look()
    boundary.locations[2, 0] = "0"
    boundary.now += 0.03
    boundary.happenings = [happening]
    boundary.look()
    assert len(boundary.steers) == 1


def test_a_store_that_spark_does_not_prefer_where_it_was_steered_is_warned_of(capsys: Any) -> None:
    boundary = Boundary(stores=2)
    steer = boundary.steer

    def lose_one(targets: Any) -> None:
        steer(targets)
        boundary.locations[1, 1] = "0"

    boundary.steering._adapter.coordinator.steer = lose_one  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as logs:
        boundary.look()
    assert [(line["event"], line["move"]) for line in logs] == [("Spark does not return the steered location", "m1")]


@pytest.mark.parametrize("call", ["steer", "read back"])
def test_a_failed_call_is_no_error_and_each_of_its_moves_is_tried_again(call: str) -> None:
    boundary = Boundary()
    boundary.fails = 1
    if call == "read back":
        boundary.steering._adapter.coordinator.steer = lambda _: None  # type: ignore[method-assign,assignment]
    with structlog.testing.capture_logs() as logs:
        boundary.look()
    assert [line["event"] for line in logs] == ["a steer failed; it is tried again at the next boundary"]
    assert len(logs[0]["moves"]) == 3
    assert boundary.locations == {}
    boundary.steering._adapter.coordinator.steer = boundary.steer  # type: ignore[method-assign]
    boundary.steers.clear()
    boundary.now += 0.03
    boundary.look()
    assert boundary.steers == [[0, 1, 2]]
    assert set(boundary.locations.values()) == {"1"}


@pytest.mark.usefixtures("one_at_once")
def test_a_failed_call_ends_neither_the_others_nor_the_reading_back() -> None:
    boundary = Boundary()
    boundary.fails = 1
    boundary.look()
    assert (boundary.steers, boundary.reads) == ([[0], [1], [2]], [[1], [2]])
    boundary.now += 0.03
    boundary.fails, boundary.reads = 1, []
    boundary.look()
    assert boundary.reads == [[0], [1], [2]]


def test_what_is_settled_is_dropped() -> None:
    boundary = Boundary()
    boundary.look()
    assert len(boundary.steering._read_backs) == 3
    boundary.reconciler.handle_run_end("q", "run", 11.0)
    boundary.steering.remove_final()
    assert boundary.steering._read_backs == {}
