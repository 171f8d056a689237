"""A query's state in a report."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rechannel.migration.link.report import highest_epoch, query_state
from rechannel.migration.link.snapshot_lag import SnapshotLag
from rechannel.migration.link.stages import describe_mismatch
from rechannel.migration.spark.adapter import ActiveQuery, PlannedOperator
from rechannel.monitors.spark import events
from rechannel.monitors.spark.task_table import StatefulStageFinished, TaskTable
from unit.monitors import spark_lines

OPERATOR = PlannedOperator(0, "stateStoreSave", 8, "file:/c/state", "run", frozenset({1}))
QUERY = ActiveQuery("q", "run", "counts", problem="")


def test_a_stage_whose_tasks_are_not_its_partitions_is_the_querys_problem() -> None:
    text = describe_mismatch(StatefulStageFinished("q", "run", 0, 3, frozenset({1})), [(OPERATOR, ["default"])])
    assert "3 tasks" in text
    assert "stateStoreSave has 8 partitions" in text
    assert "repartition" in text
    table = TaskTable()
    table.placement["q", 0], table.stages["q"] = ["0", "0", "1"], {0}
    for run, problem in (("run", text), ("earlier-run", "")):
        stages = SimpleNamespace(mapped={}, mismatches={(run, 0): text})
        assert query_state(QUERY, table, stages, SnapshotLag(pytest.fail, {})).problem == problem


def test_every_leader_obeyed_in_the_highest_epoch_is_reported() -> None:
    assert highest_epoch((0, ""), (0, "")) == (0, [])
    assert highest_epoch((3, "a"), (0, "")) == (3, ["a"])
    assert highest_epoch((1, "a"), (2, "b")) == (2, ["b"])
    assert highest_epoch((2, "b"), (2, "b")) == (2, ["b"])
    assert highest_epoch((1, "b"), (1, "a")) == (1, ["a", "b"]), "of an emptied Redis"


def test_the_scheduler_pool_of_a_query_is_reported() -> None:
    table, stages = TaskTable(), SimpleNamespace(mapped={}, mismatches={})
    for number, pool in enumerate(("", "fast")):
        event = events.parse(spark_lines.job_start(number, [(number, [], True)], batch=number, pool=pool))
        assert event is not None
        table.add(event)
        assert query_state(QUERY, table, stages, SnapshotLag(pytest.fail, {})).pool == pool
