"""What is measured on nodes and of batches, as messages carry it. Units as in `rechannel.wire.messages`."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

__all__ = [
    "AgentEvidence",
    "AgentWindow",
    "BatchReport",
    "ClosedStore",
    "ExecutorUsage",
    "StageRun",
    "StreamRow",
    "TaskRow",
]

# What a message may hold in figures. A float holds every such whole number, and sums and products of a few of them stay
# finite; every moment is a date. What is beyond that was not measured by anybody, and is refused with its message.
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Number: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Moment: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]  # seconds since 1970 (UTC)


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """Base of every message body."""


class ExecutorUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one executor and its Python workers used during a window."""

    application: str
    executor: str
    host: str
    pid: Whole
    started: Moment
    cores: Whole
    jvm_cpu: Number  # CPU seconds in the window
    python_cpu: Number  # CPU seconds of its Python workers in the window
    jvm_rss: Whole
    python_rss: Whole
    python_workers: Whole
    samples: Whole
    steps: list[tuple[Moment, Number, Number]] = []  # end of each sample's part of the window, JVM and Python CPU in it


# Rows come by the hundred thousand and hold nothing that could hold them: `gc=False` keeps the collector off them.
class StreamRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one map task sends: bytes to each downstream partition, off its shuffle index file."""

    application: str
    executor: str
    shuffle: Whole
    map_task: Whole
    sizes: list[Whole]


class AgentWindow(Body, frozen=True, tag="agent-window", kw_only=True):
    """One window of one node. ``complete`` is the share of the wanted samples that were taken."""

    node: str
    start: Moment
    end: Moment
    complete: Number
    cores: Whole
    node_cpu: Number  # CPU seconds of the whole node in the window
    memory_total: Whole
    memory_used: Whole
    executors: list[ExecutorUsage]
    streams: list[StreamRow]
    skipped: dict[str, Whole] = {}  # what was not measured and why: reason -> count


class ClosedStore(msgspec.Struct, frozen=True, kw_only=True):
    """An executor's own word that it let go of a state store: the evidence for *killed*."""

    application: str
    executor: str
    run: str
    operator: Whole
    partition: Whole
    store: str
    evidence: str


class AgentEvidence(Body, frozen=True, tag="agent-evidence", kw_only=True):
    """State stores that executors of this node closed."""

    node: str
    closed: list[ClosedStore]


class TaskRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One successful task of a batch."""

    task: Whole
    partition: Whole
    executor: str
    launch: Moment
    finish: Moment
    run: Number  # executor run time
    cpu: Number  # executor CPU time: the JVM's, without Python workers
    fetch_wait: Number
    rows_in: Whole
    rows_out: Whole
    bytes_local: Whole
    bytes_remote: Whole
    bytes_out: Whole
    state_rows: Whole
    state_bytes: Whole
    commit: Number
    python: Number = 0.0  # time its Python worker was at it, by the worker's own clock; 0 where none was or is told
    state_size: Whole = 0  # bytes of the state as another executor loads it; state_bytes is what it takes in memory


class StageRun(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one batch. ``stateful`` is the ordinal of `StatefulStage.stage`, -1 for all other stages."""

    spark_stage: Whole
    parents: list[Whole]
    stateful: Whole
    tasks: list[TaskRow]


class BatchReport(Body, frozen=True, tag="batch-report", kw_only=True):
    """A finished micro-batch with its tasks.

    One of many tasks is sent as several messages: ``part`` counts them from 0, ``parts`` is how many there are. Each
    has the batch's own figures and some of its tasks.
    """

    query: str
    batch: Whole
    start: Moment
    end: Moment
    input_rows: Whole
    stages: list[StageRun]
    duration: Number = 0.0  # of the whole trigger, by Spark: planning and commit included; 0 where it was not told
    part: Whole = 0
    parts: Whole = 1

    @property
    def tasks(self) -> int:
        """How many tasks it tells of."""
        return sum(len(stage.tasks) for stage in self.stages)

    @property
    def seconds(self) -> float:
        """How long the batch lasted."""
        return self.duration if self.duration > 0 else self.end - self.start
