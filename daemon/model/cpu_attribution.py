"""Attribution of executors' CPU to the partitions whose tasks ran. Pure.

The parts add up to what the executors used.

An agent reports what each executor's JVM and its Python workers used in a window. The driver's event stream reports
which tasks ran on it, when, the CPU time that the JVM counted for each, and in newer versions the time of its Python
worker. Python's CPU is not in the JVM's: it goes to the tasks of that moment by their workers' time. Where no task
reports that, it goes by the time they were busy without the JVM's CPU, in which a task waits for its worker.

* JVM seconds that a task counted itself are its own, scaled down where a window holds less than its tasks claim.
* What the JVM used beyond that (garbage collection, compiler, network) is shared by the time tasks ran; the share of
  the window in which none ran stays with the executor.
* Python seconds are the tasks'. Without a task in the window all of it stays with the executor.

This is done for each sample of a window. With one-core executors one task runs at a time, and only the edges of the
samples blur; with more, tasks that run together share what cannot be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rechannel.daemon.model.task_columns import ColumnarTasks, columnar_tasks
from rechannel.policies.model.arrays import IntArray
from rechannel.wire.measurements import AgentWindow, BatchReport, ExecutorUsage, TaskRow
from rechannel.wire.messages import QueryState


class PartitionKey(NamedTuple):
    """Partition of a stateful stage on an executor; both numbers are -1 for other tasks."""

    query: str
    stage: int
    partition: int
    executor: str


@dataclass
class CpuSeconds:
    """CPU seconds of a part: the JVM's, its Python workers', its share of the JVM's own work."""

    jvm: float = 0.0
    python: float = 0.0
    shared: float = 0.0

    @property
    def total(self) -> float:
        """Sum of the three."""
        return self.jvm + self.python + self.shared


@dataclass
class ExecutorCpu:
    """CPU seconds of an executor in ``seconds`` observed; ``idle`` is charged to no task."""

    jvm: float = 0.0
    python: float = 0.0
    idle: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Attribution:
    """CPU by user; an executor's parts and ``idle`` add up to its JVM and Python seconds."""

    parts: dict[PartitionKey, CpuSeconds]
    executors: dict[str, ExecutorCpu]


def complete_span(
    queries: Sequence[QueryState], batches: Sequence[BatchReport], reported_at: float
) -> tuple[float, float]:
    """Return the span of time in which all tasks are known.

    Tasks of a running batch are reported when it is committed, and only the last batches of each query are kept.
    ``reported_at``: time of the report that the queries are from.
    """
    oldest: dict[str, float] = {}
    for batch in batches:
        oldest[batch.query] = min(batch.start, oldest.get(batch.query, batch.start))
    running = [query.batch_started for query in queries if query.active and query.batch_started > 0]
    return max(oldest.values(), default=0.0), min([*running, reported_at])


def attribute_cpu(
    application: str,
    batches: Sequence[BatchReport],
    windows: Mapping[str, Sequence[AgentWindow]],
    *,
    span: tuple[float, float] = (0.0, float("inf")),
) -> Attribution:
    """Share out the CPU of an application's executors.

    ``windows``: node -> windows of its agent; those not wholly within ``span`` are left out.
    """
    since, until = span
    usages: dict[str, list[tuple[AgentWindow, ExecutorUsage]]] = defaultdict(list)
    for window in (window for closed in windows.values() for window in closed):
        if since <= window.start < window.end <= until:
            for usage in window.executors:
                if usage.application == application:
                    usages[usage.executor].append((window, usage))
    places = _places_by_executor(batches)
    result = Attribution({}, {})
    for executor, measured in usages.items():  # one after the other: rows take much more memory than columns
        tasks = list(_rows(places.get(executor, ()), executor))
        launch, finish = np.array([(task.launch, task.finish) for _, task in tasks]).reshape(-1, 2).T
        for window, usage in measured:
            inside = np.flatnonzero((launch < finish) & (launch < window.end) & (window.start < finish))
            _share_window(result, window, usage, [tasks[place] for place in inside.tolist()])
    return result


_Place = tuple[str, int, ColumnarTasks, IntArray]  # query, stage, its tasks, positions of those of one executor


def _places_by_executor(batches: Sequence[BatchReport]) -> dict[str, list[_Place]]:
    places: dict[str, list[_Place]] = defaultdict(list)
    for batch in batches:
        for run in batch.stages:
            tasks = columnar_tasks(run)
            counts = np.bincount(tasks.executor, minlength=len(tasks.executors))
            positions = np.split(np.argsort(tasks.executor, kind="stable"), np.cumsum(counts)[:-1])
            for name, own in zip(tasks.executors, positions, strict=False):
                places[name].append((batch.query, run.stateful_stage, tasks, own))
    return places


def _rows(places: Iterable[_Place], executor: str) -> Iterator[tuple[PartitionKey, TaskRow]]:
    for query, stage, tasks, positions in places:
        for task in tasks.at(positions):
            yield PartitionKey(query, stage, task.partition if stage >= 0 else -1, executor), task


def _share_window(
    result: Attribution, window: AgentWindow, usage: ExecutorUsage, tasks: list[tuple[PartitionKey, TaskRow]]
) -> None:
    executor = result.executors.setdefault(usage.executor, ExecutorCpu())
    executor.seconds += window.end - window.start
    samples = usage.steps or [(window.end, usage.jvm_cpu, usage.python_cpu)]
    start = window.start
    for end, jvm, python in samples:
        executor.jvm += jvm
        executor.python += python
        executor.idle += _share_sample(result.parts, (start, end), jvm, python, tasks)
        start = end


def _share_sample(
    parts: dict[PartitionKey, CpuSeconds],
    sample: tuple[float, float],
    jvm_cpu: float,
    python_cpu: float,
    tasks: list[tuple[PartitionKey, TaskRow]],
) -> float:
    """Share out an executor's CPU of one sample; returns what no task is charged for."""
    start, end = sample
    running = [(part, task, _overlap(task, start, end)) for part, task in tasks]
    running = [(part, task, overlap) for part, task, overlap in running if overlap > 0]
    if not running:
        return jvm_cpu + python_cpu
    ran = sum(overlap for _, _, overlap in running)
    inside = [(task, overlap / (task.finish - task.launch)) for _, task, overlap in running]
    own = [max(0.0, task.cpu) * share for task, share in inside]
    workers_report = any(task.python > 0 for task, _ in inside)
    waits = [(task.python if workers_report else _worker_wait(task)) * share for task, share in inside]
    claimed, waited = sum(own), sum(waits)
    scale = min(1.0, jvm_cpu / claimed) if claimed > 0 else 0.0
    rest = max(0.0, jvm_cpu - claimed * scale)
    shared = rest * min(1.0, ran / (end - start))
    for (part, _, overlap), jvm, wait in zip(running, own, waits, strict=True):
        cpu = parts.setdefault(part, CpuSeconds())
        cpu.jvm += jvm * scale
        cpu.shared += shared * overlap / ran
        cpu.python += python_cpu * (wait / waited if waited > 0 else overlap / ran)
    return rest - shared


def _worker_wait(task: TaskRow) -> float:
    """Return a task's time without the JVM's CPU, in which it may wait for its Python worker."""
    return max(0.0, task.run - task.fetch_wait - task.commit - task.cpu)


def _overlap(task: TaskRow, start: float, end: float) -> float:
    if task.finish <= task.launch:
        return 0.0
    return max(0.0, min(task.finish, end) - max(task.launch, start))
