"""Whose CPU it was: what a node used, given to the partitions whose tasks ran then, so that the parts add up.

An agent says what each executor's JVM and its Python workers used in a window; the driver's event stream says which
tasks ran on it, when, and what CPU time the JVM counted for each. Python's share is not in the latter: it goes to the
tasks of that moment by the time they were busy without the JVM's CPU, which is when a task waits for its worker.

* JVM seconds a task counted itself are its own, scaled down where a window holds less than its tasks claim.
* What the JVM used beyond that (garbage collection, compiler, network) is shared by the time tasks ran; the share of
  the window in which none did stays with the executor.
* Python seconds are the tasks'. Without a task in the window all stays with the executor.

With one-core executors one task runs at a time, and only the window's edges blur; with more, tasks that run together
share what cannot be told apart. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rechannel.wire.messages import AgentWindow, BatchReport, ExecutorUsage, QueryState, TaskRow


class Part(NamedTuple):
    """A partition of a stateful stage on an executor; stage and partition are -1 for source and stateless tasks."""

    query: str
    stage: int
    partition: int
    executor: str


@dataclass
class Cpu:
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
    seconds: float = 0.0
    cores: int = 0

    @property
    def other(self) -> float:
        """What was no executor's; the kernel's two ways of counting differ by some ticks, so never below zero."""
        return max(0.0, self.used - self.executors)


@dataclass(frozen=True)
class Attribution:
    """Who used what. ``parts`` of an executor and its ``idle`` add up to its JVM and Python seconds."""

    parts: dict[Part, Cpu]
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
    running = [query.began for query in queries if query.active and query.began > 0]
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
    tasks: dict[str, list[tuple[Part, TaskRow]]] = defaultdict(list)
    for batch in batches:
        for run in batch.stages:
            for task in run.tasks:
                placed = run.stateful >= 0
                part = Part(batch.query, run.stateful, task.partition if placed else -1, task.executor)
                tasks[task.executor].append((part, task))
    found = Attribution({}, {}, {})
    for node, closed in windows.items():
        for window in closed:
            if window.start < since or window.end > until or window.end <= window.start:
                continue
            total = found.nodes.setdefault(node, NodeCpu())
            total.used += window.node_cpu
            total.seconds += window.end - window.start
            total.cores = window.cores
            for usage in window.executors:
                total.executors += usage.jvm_cpu + usage.python_cpu
                if usage.application == application:
                    _share(found, window, usage, tasks.get(usage.executor, []))
    return found


def _share(found: Attribution, window: AgentWindow, usage: ExecutorUsage, tasks: list[tuple[Part, TaskRow]]) -> None:
    executor = found.executors.setdefault(usage.executor, ExecutorCpu())
    length = window.end - window.start
    executor.jvm += usage.jvm_cpu
    executor.python += usage.python_cpu
    executor.seconds += length
    here = [(part, task, _overlap(task, window)) for part, task in tasks]
    here = [(part, task, overlap) for part, task, overlap in here if overlap > 0]
    ran = sum(overlap for _, _, overlap in here)
    if not here:
        executor.idle += usage.jvm_cpu + usage.python_cpu
        return
    portion = [overlap / (task.finish - task.launch) for _, task, overlap in here]
    own = [max(0.0, task.cpu) * share for (_, task, _), share in zip(here, portion, strict=True)]
    waited = [
        max(0.0, task.run - task.fetch_wait - task.cpu) * share
        for (_, task, _), share in zip(here, portion, strict=True)
    ]
    claimed, awaited = sum(own), sum(waited)
    scale = min(1.0, usage.jvm_cpu / claimed) if claimed > 0 else 0.0
    rest = max(0.0, usage.jvm_cpu - claimed * scale)
    shared = rest * min(1.0, ran / length)
    executor.idle += rest - shared
    for (part, _, overlap), jvm, wait in zip(here, own, waited, strict=True):
        cpu = found.parts.setdefault(part, Cpu())
        cpu.jvm += jvm * scale
        cpu.shared += shared * overlap / ran
        cpu.python += usage.python_cpu * (wait / awaited if awaited > 0 else overlap / ran)


def _overlap(task: TaskRow, window: AgentWindow) -> float:
    if task.finish <= task.launch:
        return 0.0
    return max(0.0, min(task.finish, window.end) - max(task.launch, window.start))
