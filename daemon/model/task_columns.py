"""Tasks of a stage in columns. Pure.

Hundred thousands of tasks are kept for a large application, and a decision reads them several times: as messages they
take five times the memory, and loops over them seconds where sums of columns take milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from sys import intern
from typing import Any, overload

import msgspec
import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.wire.measurements import Int53, StageRun, TaskRow

MAX_PARTITIONS = 400_000  # partitions of an application; beyond: its report is rejected
_ALL, _LATEST, _LAST_INDEX = "all_tasks", "latest_tasks", "last_index"  # entries of a ``__dict__``
_NAMES = TaskRow.__struct_fields__
_EXECUTOR = _NAMES.index("executor")
_NUMBERS = {name: number for number, name in enumerate(name for name in _NAMES if name != "executor")}
_WHOLE = [field.type is Int53 for field in msgspec.structs.fields(TaskRow) if field.name != "executor"]


@lru_cache(maxsize=128)
def _ordered(names: frozenset[str]) -> tuple[str, ...]:
    """Return one tuple for equal names: most stages run on the same executors."""
    return tuple(sorted(map(intern, names)))


_last_places: tuple[Mapping[str, int], dict[tuple[str, ...], IntArray]] = ({}, {})


def _places(names: tuple[str, ...], index: Mapping[str, int]) -> IntArray:
    """Return the index of each name, -1 for none, (n,).

    Those of the last ``index``, which must not change, are held: most stages have equal names.
    """
    global _last_places  # replaced as a whole: another thread sees one that fits its index, or makes its own
    last = _last_places
    if last[0] is not index:
        last = _last_places = index, {}
    if names not in last[1]:
        last[1][names] = np.array([index.get(name, -1) for name in names], dtype=np.int64)
    return last[1][names]


class ColumnarTasks(Sequence[TaskRow]):
    """Tasks in columns, which can be read as the rows that they were made of.

    ``executor`` (n,) is an index into the names ``executors``. Whole numbers are of 53 bits, which a float holds.
    """

    def __init__(self, rows: Iterable[TaskRow]) -> None:
        values = list(chain.from_iterable(map(msgspec.structs.astuple, rows)))
        names = values[_EXECUTOR :: len(_NAMES)]
        del values[_EXECUTOR :: len(_NAMES)]
        self.executors = _ordered(frozenset(names))
        index = {name: number for number, name in enumerate(self.executors)}
        self.executor: IntArray = np.array([index[name] for name in names], dtype=np.int64)
        numbers = np.fromiter(values, np.float64, len(values)).reshape(len(names), len(_NUMBERS))
        self._numbers = np.ascontiguousarray(numbers.T)

    @classmethod
    def joined(cls, parts: Sequence[ColumnarTasks]) -> ColumnarTasks:
        """Return the tasks of several parts together."""
        tasks = cls(())
        tasks.executors = _ordered(frozenset(name for it in parts for name in it.executors))
        index = {name: number for number, name in enumerate(tasks.executors)}
        tasks.executor = np.concatenate([it.executors_in(index) for it in parts])
        tasks._numbers = np.concatenate([it._numbers for it in parts], axis=1)
        return tasks

    @property
    def nbytes(self) -> int:
        """Memory of the columns in bytes."""
        return self._numbers.nbytes + self.executor.nbytes

    def column(self, name: str) -> FloatArray:
        """Return a number of each task, (n,); ``name``: of the field of `TaskRow`."""
        return np.asarray(self._numbers[_NUMBERS[name]])

    def executors_in(self, index: Mapping[str, int]) -> IntArray:
        """Return the index of each task's executor by its name, (n,); -1 for a name that has none.

        A decision asks several times: the answer for the last ``index``, which must not change, is held.
        """
        last = self.__dict__.get(_LAST_INDEX)
        if last is None or last[0] is not index:
            last = self.__dict__[_LAST_INDEX] = index, _places(self.executors, index)[self.executor]
        return np.asarray(last[1])

    def __len__(self) -> int:
        return len(self.executor)

    def __iter__(self) -> Iterator[TaskRow]:
        return self.at(slice(None))

    @overload
    def __getitem__(self, index: int) -> TaskRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[TaskRow]: ...
    def __getitem__(self, index: int | slice) -> TaskRow | list[TaskRow]:
        return list(self.at(index)) if isinstance(index, slice) else next(self.at([range(len(self))[index]]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def at(self, positions: slice | list[int] | IntArray) -> Iterator[TaskRow]:
        """Yield the tasks at some positions."""
        executors, columns = self.executor[positions].tolist(), self._numbers[:, positions]
        for executor, numbers in zip(executors, columns.T.tolist(), strict=True):
            values: list[Any] = [int(it) if whole else it for it, whole in zip(numbers, _WHOLE, strict=True)]
            values.insert(_EXECUTOR, self.executors[executor])
            yield TaskRow(*values)


@dataclass(frozen=True, eq=False)
class TaskColumns:
    """One task of each partition of a stage in one batch, by their ends; each column is (n,).

    ``order``: their positions in ``tasks``, (n,). No amount is negative.
    """

    tasks: ColumnarTasks
    order: IntArray

    def __len__(self) -> int:
        return len(self.order)

    @property
    def executors(self) -> tuple[str, ...]:
        """Names of the executors."""
        return self.tasks.executors

    @property
    def executor(self) -> IntArray:
        """Index into the names of the executors."""
        return np.asarray(self.tasks.executor[self.order])

    @property
    def task(self) -> IntArray:
        """Number of the task in its application."""
        return self._number("task").astype(np.int64)

    @cached_property
    def partition(self) -> IntArray:
        """Number of the partition."""
        return self._number("partition").astype(np.int64)

    @property
    def launch(self) -> FloatArray:
        """Seconds since the epoch, by the driver's clock."""
        return self._number("launch")

    @property
    def finish(self) -> FloatArray:
        """Seconds since the epoch, by the driver's clock."""
        return self._number("finish")

    @cached_property
    def busy(self) -> FloatArray:
        """Seconds at work, not waiting for the network."""
        return np.maximum(self._number("run") - self._number("fetch_wait"), 0.0)

    @property
    def slot(self) -> FloatArray:
        """Seconds for which each task took a core, by the driver's clock."""
        return np.maximum(self.busy, self.finish - self.launch)

    @property
    def rows(self) -> FloatArray:
        """Rows read."""
        return self.amount("rows_in")

    # Held, because decisions ask again for those of the same batches.

    @cached_property
    def slot_total(self) -> float:
        """Seconds for which all tasks took a core."""
        return float(self.slot.sum())

    @cached_property
    def rows_total(self) -> float:
        """Rows that all tasks read."""
        return float(self.rows.sum())

    @cached_property
    def busiest_rows(self) -> float:
        """Rows that the tasks of one executor read, at most."""
        return float(np.bincount(self.executor, self.rows).max(initial=0.0))

    @cached_property
    def span(self) -> tuple[float, float]:
        """First launch and last finish of the tasks, of which there must be one."""
        return float(self.launch.min()), float(self.finish.max())

    def amount(self, name: str) -> FloatArray:
        """Return an amount as in `TaskRow`, 0 where it is negative."""
        return np.maximum(self._number(name), 0.0)

    def executors_in(self, index: Mapping[str, int]) -> IntArray:
        """Return the index of each task's executor by its name; -1 for a name that has none."""
        return np.asarray(self.tasks.executors_in(index)[self.order])

    def slot_by_executor(self) -> dict[str, float]:
        """Return the seconds for which tasks took a core, by executor."""
        names = self.tasks.executors
        seconds = np.bincount(self.tasks.executor[self.order], self.slot, len(names))
        return dict(zip(names, seconds.tolist(), strict=True))

    def _number(self, name: str) -> FloatArray:
        return np.asarray(self.tasks.column(name)[self.order])


def busy_seconds(task: TaskRow) -> float:
    """Return the time a task was at work, not waiting for the network."""
    return max(0.0, task.run - task.fetch_wait)


def columnar_tasks(run: StageRun) -> ColumnarTasks:
    """Return all tasks of a stage; a stage whose tasks are a list holds them from then on."""
    if isinstance(run.tasks, ColumnarTasks):
        return run.tasks
    tasks: ColumnarTasks | None = run.__dict__.get(_ALL)
    if tasks is None:
        tasks = run.__dict__[_ALL] = ColumnarTasks(run.tasks)
    return tasks


def task_columns(run: StageRun) -> TaskColumns:
    """Return the columns of a stage's tasks, once for each partition; the stage holds them."""
    columns: TaskColumns | None = run.__dict__.get(_LATEST)
    if columns is None:
        columns = run.__dict__[_LATEST] = _columns(columnar_tasks(run))
    return columns


def _columns(tasks: ColumnarTasks) -> TaskColumns:
    partition = tasks.column("partition")
    order = np.argsort(tasks.column("finish"), kind="stable")
    order = order[(partition[order] >= 0) & (partition[order] < MAX_PARTITIONS)]
    _, last = np.unique(partition[order][::-1], return_index=True)
    return TaskColumns(tasks, order[np.sort(len(order) - 1 - last)])
