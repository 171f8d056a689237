from __future__ import annotations

import msgspec
import numpy as np
import pytest

from rechannel.daemon.model.task_columns import ColumnarTasks, busy_seconds, columnar_tasks, task_columns
from rechannel.wire.measurements import StageRun
from unit.daemon.model.builders import batch, task


def run_of(*tasks: object) -> StageRun:
    return StageRun(spark_stage=1, parents=[], stateful_stage=0, tasks=list(tasks))  # type: ignore[arg-type]


def test_columns_are_the_latest_task_of_each_partition() -> None:
    run = run_of(task(1, 0, "a", (0.0, 2.0), 10), task(2, 1, "b", (0.0, 1.0), 20), task(3, 0, "b", (3.0, 4.5), 30))
    tasks = task_columns(run)
    assert sorted(zip(tasks.partition.tolist(), tasks.task.tolist(), strict=True)) == [(0, 3), (1, 2)]
    assert sorted(zip(tasks.partition.tolist(), tasks.rows.tolist(), strict=True)) == [(0, 30), (1, 20)]
    assert tasks.executors_in({"b": 7}).tolist() == [7, 7]
    assert tasks.executors_in({}).tolist() == [-1, -1]


def test_columns_are_what_rows_say() -> None:
    for run in batch(3, "0123", [0.5, 0.5, 1.0, 1.5], loading=2.0, moved=1).stages:
        tasks, rows = task_columns(run), sorted(run.tasks, key=lambda it: it.finish)
        assert tasks.partition.tolist() == [it.partition for it in rows]
        assert tasks.busy.tolist() == [busy_seconds(it) for it in rows]
        assert tasks.slot.tolist() == [max(busy_seconds(it), it.finish - it.launch) for it in rows]
        assert tasks.amount("state_bytes").tolist() == [it.state_bytes for it in rows]
        assert [tasks.executors[index] for index in tasks.executor] == [it.executor for it in rows]


def test_tasks_that_cannot_be_are_none() -> None:
    row = task(1, 0, "a", (0.0, 2.0), 10)
    wrong = msgspec.structs.replace(row, partition=2**52), msgspec.structs.replace(row, partition=-1)
    negative = msgspec.structs.replace(row, partition=1, rows_in=-5, fetch_wait=9.0)
    tasks = task_columns(run_of(*wrong, negative))
    assert (tasks.partition.tolist(), tasks.rows.tolist(), tasks.busy.tolist()) == ([1], [0.0], [0.0])


def test_columns_are_made_once_and_stay_out_of_messages() -> None:
    run = run_of(task(1, 0, "a", (0.0, 2.0), 10))
    before = msgspec.msgpack.encode(run)
    assert task_columns(run) is task_columns(run)
    assert msgspec.msgpack.encode(run) == before
    assert run == run_of(*run.tasks)


def test_tasks_in_columns_read_as_the_rows_they_were_made_of() -> None:
    rows = [task(2**53 - 1, 0, "a", (0.1, 2.0), 10), task(2, 1, "b", (0.0, 1.0), 20), task(3, 0, "a", (3.0, 4.5), 30)]
    tasks = ColumnarTasks(rows)
    assert tasks == rows
    assert list(tasks) == rows
    assert [type(value) for value in msgspec.structs.astuple(tasks[0])] == [
        type(value) for value in msgspec.structs.astuple(rows[0])
    ]
    assert (tasks[-1], tasks[:2], len(tasks)) == (rows[2], rows[:2], 3)
    assert list(tasks.at(np.array([2, 0]))) == [rows[2], rows[0]]
    assert tasks.executors_in({"b": 4}).tolist() == [-1, 4, -1]
    assert tasks.column("rows_in").tolist() == [10, 20, 30]
    with pytest.raises(IndexError):
        tasks[3]
    assert ColumnarTasks([]) == []
    run = run_of()
    assert (len(task_columns(run)), len(columnar_tasks(run))) == (0, 0)
