"""Tasks of a stage in columns, made once for each stage of a batch. Pure.

A decision reads the same hundred thousands of tasks several times: sums of columns take milliseconds where loops over
rows take seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.wire.measurements import StageRun, TaskRow

MAX_PARTITIONS = 400_000  # partitions of an application; beyond: its report is rejected
_KEY, _LAST_INDEX = "task_columns", "last_index"


@dataclass(frozen=True, eq=False)
class TaskColumns:
    """One task of each partition of a stage in one batch, by their ends, (n,) each.

    ``executor``: index into the names ``executors``. ``launch``, ``finish``: seconds since the epoch, by the driver's
    clock. ``busy``: seconds at work, not waiting for the network. ``rows``: read. ``bytes_out``: written for other
    stages. ``state_rows``, ``state_bytes``, ``state_size``: as in `TaskRow`. None is negative.
    """

    executors: tuple[str, ...]
    executor: IntArray
    task: IntArray
    partition: IntArray
    launch: FloatArray
    finish: FloatArray
    busy: FloatArray
    rows: FloatArray
    bytes_out: FloatArray
    state_rows: FloatArray
    state_bytes: FloatArray
    state_size: FloatArray

    def __len__(self) -> int:
        return len(self.partition)

    @cached_property
    def slot(self) -> FloatArray:
        """Seconds for which each task took a core, by the driver's clock."""
        return np.maximum(self.busy, self.finish - self.launch)

    def executors_in(self, index: Mapping[str, int]) -> IntArray:
        """Return the index of each task's executor by its name; -1 for a name that has none.

        A decision asks several times: the answer for the last ``index``, which must not change, is held.
        """
        last = self.__dict__.get(_LAST_INDEX)
        if last is None or last[0] is not index:
            places = np.array([index.get(name, -1) for name in self.executors], dtype=np.int64)
            last = self.__dict__[_LAST_INDEX] = index, places[self.executor]
        return np.asarray(last[1])


def latest_tasks(run: StageRun) -> Iterable[TaskRow]:
    """Return one task for each partition: a stage that was run again counts once."""
    return {task.partition: task for task in sorted(run.tasks, key=lambda task: task.finish)}.values()


def busy_seconds(task: TaskRow) -> float:
    """Return the time a task was at work, not waiting for the network."""
    return max(0.0, task.run - task.fetch_wait)


def slot_seconds(task: TaskRow) -> float:
    """Return the time for which a task took a core, by the driver's clock."""
    return max(busy_seconds(task), task.finish - task.launch)


def task_columns(run: StageRun) -> TaskColumns:
    """Return the columns of a stage's tasks; the stage holds them from then on."""
    columns = run.__dict__.get(_KEY)
    if columns is None:
        columns = run.__dict__[_KEY] = _columns(run)
    return columns


def _columns(run: StageRun) -> TaskColumns:
    tasks = [task for task in latest_tasks(run) if 0 <= task.partition < MAX_PARTITIONS]
    index: dict[str, int] = {}
    executor = np.array([index.setdefault(task.executor, len(index)) for task in tasks], dtype=np.int64)
    rows = [
        (
            task.task,
            task.partition,
            task.launch,
            task.finish,
            task.run - task.fetch_wait,
            task.rows_in,
            task.bytes_out,
            task.state_rows,
            task.state_bytes,
            task.state_size,
        )
        for task in tasks
    ]
    number, partition, launch, finish, *amounts = np.array(rows, dtype=np.float64).reshape(len(rows), 10).T
    busy, read, written, state_rows, state_bytes, state_size = (np.maximum(it, 0.0) for it in amounts)
    return TaskColumns(
        executors=tuple(index),
        executor=executor,
        task=number.astype(np.int64),
        partition=partition.astype(np.int64),
        launch=launch,
        finish=finish,
        busy=busy,
        rows=read,
        bytes_out=written,
        state_rows=state_rows,
        state_bytes=state_bytes,
        state_size=state_size,
    )
