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
Int53: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
BoundedFloat: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Timestamp: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e11, le=1e11)]  # seconds since 1970 (UTC)


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """Base of every message body."""


class ExecutorUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one executor and its Python workers used during a window."""

    application: str
    executor: str
    host: str
    pid: Int53
    started: Timestamp
    cores: Int53
    jvm_cpu: BoundedFloat  # CPU seconds in the window
    python_cpu: BoundedFloat  # CPU seconds of its Python workers in the window
    jvm_rss: Int53
    python_rss: Int53
    python_workers: Int53
    samples: Int53
    steps: list[
        tuple[Timestamp, BoundedFloat, BoundedFloat]
    ] = []  # end of each sample's part of the window, JVM and Python CPU in it


# Rows come by the hundred thousand and hold nothing that could hold them: `gc=False` keeps the collector off them.
class StreamRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one map task sends: bytes to each downstream partition, off its shuffle index file."""

    application: str
    executor: str
    shuffle: Int53
    map_task: Int53
    sizes: list[Int53]


class AgentWindow(Body, frozen=True, tag="agent-window", kw_only=True):
    """One window of one node. ``complete`` is the share of the wanted samples that were taken."""

    node: str
    start: Timestamp
    end: Timestamp
    complete: BoundedFloat
    cores: Int53
    node_cpu: BoundedFloat  # CPU seconds of the whole node in the window
    memory_total: Int53
    memory_used: Int53
    executors: list[ExecutorUsage]
    streams: list[StreamRow]
    skipped: dict[str, Int53] = {}  # what was not measured and why: reason -> count


class ClosedStore(msgspec.Struct, frozen=True, kw_only=True):
    """An executor's own word that it let go of a state store: the evidence for *killed*."""

    application: str
    executor: str
    run: str
    operator: Int53
    partition: Int53
    store: str
    evidence: str


class AgentEvidence(Body, frozen=True, tag="agent-evidence", kw_only=True):
    """State stores that executors of this node closed."""

    node: str
    closed: list[ClosedStore]


class TaskRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One successful task of a batch."""

    task: Int53
    partition: Int53
    executor: str
    launch: Timestamp
    finish: Timestamp
    run: BoundedFloat  # executor run time
    cpu: BoundedFloat  # executor CPU time: the JVM's, without Python workers
    fetch_wait: BoundedFloat
    rows_in: Int53
    rows_out: Int53
    bytes_local: Int53
    bytes_remote: Int53
    bytes_out: Int53
    state_rows: Int53
    state_bytes: Int53
    commit: BoundedFloat
    python: BoundedFloat = (
        0.0  # time its Python worker was at it, by the worker's own clock; 0 where none was or is told
    )
    state_size: Int53 = 0  # bytes of the state as another executor loads it; state_bytes is what it takes in memory


class StageRun(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one batch. ``stateful`` is the ordinal of `StatefulStage.stage`, -1 for all other stages."""

    spark_stage: Int53
    parents: list[Int53]
    stateful: Int53
    tasks: list[TaskRow]


class BatchReport(Body, frozen=True, tag="batch-report", kw_only=True):
    """A finished micro-batch with its tasks.

    One of many tasks is sent as several messages: ``part`` counts them from 0, ``parts`` is how many there are. Each
    has the batch's own figures and some of its tasks.
    """

    query: str
    batch: Int53
    start: Timestamp
    end: Timestamp
    input_rows: Int53
    stages: list[StageRun]
    duration: BoundedFloat = (
        0.0  # of the whole trigger, by Spark: planning and commit included; 0 where it was not told
    )
    part: Int53 = 0
    parts: Int53 = 1

    @property
    def tasks(self) -> int:
        """How many tasks it tells of."""
        return sum(len(stage.tasks) for stage in self.stages)

    @property
    def seconds(self) -> float:
        """How long the batch lasted."""
        return self.duration if self.duration > 0 else self.end - self.start
