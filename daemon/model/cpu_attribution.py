"""Whose CPU it was: what a node used, given to the partitions whose tasks ran then, so that the parts add up.

An agent says what each executor's JVM and its Python workers used in a window; the driver's event stream says which
tasks ran on it, when, what CPU time the JVM counted for each, and in newer versions how long its Python worker was at
it. Python's CPU is not in the JVM's: it goes to the tasks of that moment by their workers' time; where no task tells
that, by the time they were busy without the JVM's CPU, which is when a task waits for its worker.

* JVM seconds a task counted itself are its own, scaled down where a window holds less than its tasks claim.
* What the JVM used beyond that (garbage collection, compiler, network) is shared by the time tasks ran; the share of
  the window in which none did stays with the executor.
* Python seconds are the tasks'. Without a task in the window all stays with the executor.

This is done for each sample of a window. With one-core executors one task runs at a time, and only the samples' edges
blur; with more, tasks that run together share what cannot be told apart. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rechannel.wire.measurements import AgentWindow, BatchReport, ExecutorUsage, TaskRow
from rechannel.wire.messages import QueryState


class PartitionKey(NamedTuple):
    """A partition of a stateful stage on an executor; stage and partition are -1 for source and stateless tasks."""

    query: str
    stage: int
    partition: int
    executor: str


@dataclass
class CpuSeconds:
    """CPU seconds: of the JVM's threads that ran it, of Python workers, and its share of the JVM's own work."""

    jvm: float = 0.0
    python: float = 0.0
    shared: float = 0.0

    @property
    def total(self) -> float:
        """All three."""
        return self.jvm + self.python + self.shared


@dataclass
class ExecutorCpu:
    """CPU seconds of an executor; ``idle`` is what no task of a query can be charged for. ``seconds`` were observed."""

    jvm: float = 0.0
    python: float = 0.0
    idle: float = 0.0
    seconds: float = 0.0


@dataclass
class NodeCpu:
    """CPU seconds of a node: of the executors of all applications, and of everything else that runs there."""

    used: float = 0.0
    executors: float = 0.0

    @property
    def other(self) -> float:
        """What was no executor's; the kernel's two ways of counting differ by some ticks, so never below zero."""
        return max(0.0, self.used - self.executors)


@dataclass(frozen=True)
class Attribution:
    """Who used what. ``parts`` of an executor and its ``idle`` add up to its JVM and Python seconds."""

    parts: dict[PartitionKey, CpuSeconds]
    executors: dict[str, ExecutorCpu]
    nodes: dict[str, NodeCpu]


def known_span(queries: Sequence[QueryState], batches: Sequence[BatchReport], reported: float) -> tuple[float, float]:
    """Return from when and up to when all tasks are known.

    Those of a running batch are told when it is committed, and of each query only the last batches are kept.
    ``reported`` is when the queries were seen like this.
    """
    oldest: dict[str, float] = {}
    for batch in batches:
        oldest[batch.query] = min(batch.start, oldest.get(batch.query, batch.start))
    running = [query.batch_started for query in queries if query.active and query.batch_started > 0]
    return max(oldest.values(), default=0.0), min([*running, reported])


def attribute(
    application: str,
    batches: Sequence[BatchReport],
    windows: Mapping[str, Sequence[AgentWindow]],
    *,
    span: tuple[float, float] = (0.0, float("inf")),
) -> Attribution:
    """Share out the CPU of all windows (by node) that lie within a span of time, seconds since the epoch."""
    since, until = span
    tasks: dict[str, list[tuple[PartitionKey, TaskRow]]] = defaultdict(list)
    for batch in batches:
        for run in batch.stages:
            for task in run.tasks:
                placed = run.stateful >= 0
                part = PartitionKey(batch.query, run.stateful, task.partition if placed else -1, task.executor)
                tasks[task.executor].append((part, task))
    found = Attribution({}, {}, {})
    for node, closed in windows.items():
        for window in closed:
            if window.start < since or window.end > until or window.end <= window.start:
                continue
            total = found.nodes.setdefault(node, NodeCpu())
            total.used += window.node_cpu
            for usage in window.executors:
                total.executors += usage.jvm_cpu + usage.python_cpu
                if usage.application == application:
                    _share(found, window, usage, tasks.get(usage.executor, []))
    return found


def _share(
    found: Attribution, window: AgentWindow, usage: ExecutorUsage, tasks: list[tuple[PartitionKey, TaskRow]]
) -> None:
    executor = found.executors.setdefault(usage.executor, ExecutorCpu())
    executor.seconds += window.end - window.start
    steps = usage.steps or [(window.end, usage.jvm_cpu, usage.python_cpu)]
    tasks = [(part, task) for part, task in tasks if _overlap(task, window.start, window.end) > 0]
    start = window.start
    for end, jvm, python in steps:
        executor.jvm += jvm
        executor.python += python
        executor.idle += _share_step(found.parts, (start, end), jvm, python, tasks)
        start = end


def _share_step(
    parts: dict[PartitionKey, CpuSeconds],
    step: tuple[float, float],
    jvm_cpu: float,
    python_cpu: float,
    tasks: list[tuple[PartitionKey, TaskRow]],
) -> float:
    """Share out what an executor used from one sample to the next; returns what nobody can be charged for."""
    start, end = step
    here = [(part, task, _overlap(task, start, end)) for part, task in tasks]
    here = [(part, task, overlap) for part, task, overlap in here if overlap > 0]
    if not here:
        return jvm_cpu + python_cpu
    ran = sum(overlap for _, _, overlap in here)
    inside = [(task, overlap / (task.finish - task.launch)) for _, task, overlap in here]
    own = [max(0.0, task.cpu) * share for task, share in inside]
    told = any(task.python > 0 for task, _ in inside)
    waited = [(task.python if told else _idle(task)) * share for task, share in inside]
    claimed, awaited = sum(own), sum(waited)
    scale = min(1.0, jvm_cpu / claimed) if claimed > 0 else 0.0
    rest = max(0.0, jvm_cpu - claimed * scale)
    shared = rest * min(1.0, ran / (end - start))
    for (part, _, overlap), jvm, wait in zip(here, own, waited, strict=True):
        cpu = parts.setdefault(part, CpuSeconds())
        cpu.jvm += jvm * scale
        cpu.shared += shared * overlap / ran
        cpu.python += python_cpu * (wait / awaited if awaited > 0 else overlap / ran)
    return rest - shared


def _idle(task: TaskRow) -> float:
    """Time a task was at work without using the JVM's CPU: waiting for Python, for all that is known."""
    return max(0.0, task.run - task.fetch_wait - task.commit - task.cpu)


def _overlap(task: TaskRow, start: float, end: float) -> float:
    if task.finish <= task.launch:
        return 0.0
    return max(0.0, min(task.finish, end) - max(task.launch, start))
