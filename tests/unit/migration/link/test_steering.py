"""Steering at a boundary: what happens in Spark between two steers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

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


class Boundary:
    """A quiet query with three moves to executor 1, and what happens before each of them, in turn."""

    def __init__(self, *before: str) -> None:
        self.happenings = list(before)
        self.quiet, self.caught_up = True, True
        self.jobs: set[int] = set()  # by the events
        self.spark_jobs: set[int] = set()
        self.locations: dict[int, str] = {}  # partition -> executor
        self.steers = 0
        self.now = 10.0
        self.driver = STATE
        self.written: list[Any] = []
        self.reconciler = Reconciler(LIMITS)
        moves = [a_move(partition, "0", "1") for partition in range(3)]
        self.reconciler.add_own_moves(OwnMoves("link", "run", "spread", moves), 9.0)
        adapter = SimpleNamespace(
            active_jobs=lambda: frozenset(self.spark_jobs),
            coordinator=SimpleNamespace(steer=self.steer, location=self.locations.get),
        )
        table = SimpleNamespace(executors=EXECUTORS, is_quiet=lambda query: self.quiet, jobs=self.jobs)
        self.steering = Steering(
            adapter,  # type: ignore[arg-type]
            table,  # type: ignore[arg-type]
            self.reconciler,
            SimpleNamespace(stores_of_move=lambda move: [move.desired.partition]),  # type: ignore[arg-type]
            catch_up_with_events=self.drain,
            journal=self.written.extend,
        )

    def steer(self, partition: int, host: str, executor: str) -> None:
        assert self.written[-1].after == "steered" and self.written[-1].partition == partition, "the journal first"
        self.steers += 1
        self.locations[partition] = executor

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
        return self.caught_up

    def look(self) -> None:
        self.steering.handle_boundary("q", lambda: self.driver, lambda: self.now)


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
    assert len(boundary.locations) == steers
    assert [line.after for line in boundary.written].count("steered") == steers, "the rest waits, unrecorded"


@pytest.mark.parametrize(
    ("happening", "steered"),
    [("the target is lost", [0]), ("a whole batch lands the second move", [0, 2]), ("the run ends", [0])],
)
def test_a_move_that_an_event_ended_between_two_steers_is_passed_over(happening: str, steered: list[int]) -> None:
    boundary = Boundary("", happening)
    boundary.look()
    assert [line.partition for line in boundary.written if line.after == "steered"] == steered


def test_an_overwritten_steer_is_repeated_while_its_query_is_quiet_three_times_at_most() -> None:
    boundary = Boundary()
    boundary.look()
    for _ in range(5):
        boundary.locations[2] = "0"  # a task that outlived its stage
        boundary.now += 0.03
        boundary.look()
    assert boundary.steers == 3 + 3


@pytest.mark.parametrize("happening", ["a batch begins", "a job begins that no event has reported yet", "the run ends"])
def test_an_overwritten_steer_is_not_repeated_once_a_batch_may_run(happening: str) -> None:
    boundary = Boundary()
    boundary.look()
    boundary.locations[2] = "0"
    boundary.now += 0.03
    boundary.happenings = [happening]
    boundary.look()
    assert boundary.steers == 3


def test_a_failed_steer_is_no_error_and_what_is_settled_is_dropped() -> None:
    boundary = Boundary()

    def fails(*_: Any) -> None:
        raise SparkCallError("no")

    boundary.steering._adapter.coordinator.steer = fails  # type: ignore[method-assign]
    boundary.look()
    assert boundary.locations == {}
    assert len(boundary.steering._read_backs) == 3
    boundary.reconciler.handle_run_end("q", "run", 11.0)
    boundary.steering.remove_final()
    assert boundary.steering._read_backs == {}
