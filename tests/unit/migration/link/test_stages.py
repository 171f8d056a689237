"""Stages that are not mapped yet: how long the link looks closely for their next batch."""

from __future__ import annotations

import pytest

from rechannel.migration.link.stages import Stages
from rechannel.migration.spark.adapter import PlannedOperator
from rechannel.monitors.spark.task_table import StatefulStageFinished

HOUR = 3600.0
STAGE = StatefulStageFinished("q", "run", 0, 4, frozenset({7}))
OPERATOR = PlannedOperator(0, "StateStoreSave", 4, "file:/state", "run", frozenset({7}))


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.plan: list[PlannedOperator] = []
        self.stages = Stages(lambda query, run: self.plan, lambda checkpoint, operator: ["default"], lambda: self.now)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_stage_whose_plan_was_replaced_is_looked_for_closely(bench):
    bench.stages.map_finished(STAGE)
    assert bench.stages.pending
    bench.now, bench.plan = 2.0, [OPERATOR]
    bench.stages.map_finished(STAGE)
    assert bench.stages.mapped.keys() == {("run", 0)}
    assert not bench.stages.pending


def test_an_idle_or_hourly_query_is_not_looked_for_closely_for_hours(bench):
    bench.stages.map_finished(STAGE)
    bench.now = HOUR / 10
    assert not bench.stages.pending
    bench.now = HOUR
    bench.stages.map_finished(STAGE)
    assert bench.stages.pending, "a batch is a new try"


def test_a_run_that_is_over_is_not_looked_for(bench):
    bench.stages.map_finished(STAGE)
    bench.stages.remove_run("run")
    assert not bench.stages.pending


def test_a_run_that_is_over_leaves_nothing(bench):
    def entries() -> int:
        return sum(len(value) for value in vars(bench.stages).values() if isinstance(value, dict))

    before = entries()
    bench.stages.map_finished(STAGE)
    assert entries() > before
    bench.plan = [OPERATOR]
    bench.stages.map_finished(STAGE)
    bench.stages.remove_run("run")
    assert entries() == before
