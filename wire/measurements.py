"""Bodies of messages with measurements of nodes and batches; units as in `wire.messages`."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec

# Bounds of the numbers in messages: a float represents every Int53, sums and products of a few numbers stay finite, and
# every Timestamp is a valid date. A message with a number out of bounds is rejected.
Int53: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
BoundedFloat: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
Timestamp: TypeAlias = Annotated[float, msgspec.Meta(ge=-6e10, le=1e11)]  # seconds since 1970 (UTC)


class Body(msgspec.Struct, frozen=True, forbid_unknown_fields=False, kw_only=True):
    """Base of every message body."""


class ExecutorUsage(msgspec.Struct, frozen=True, kw_only=True):
    """CPU and memory of one executor and its Python workers in a window."""

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
    # For each sample: the end of its part of the window, and the CPU seconds of JVM and Python workers in that part.
    steps: list[tuple[Timestamp, BoundedFloat, BoundedFloat]] = []
    throttled: BoundedFloat = 0.0  # seconds of the window in which the CPU limit of a control group stopped it, at most
    cpu_limit: BoundedFloat = 0.0  # cores that its control groups allow; 0 for no limit


# Map outputs are many and never part of a reference cycle: `gc=False` keeps them out of garbage collection.
class MapOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Bytes that a map task wrote for each downstream partition, from its index file.

    Agents send them ``packed``: two bytes each, in place of ``sizes``, which do not count then.
    """

    application: str
    executor: str
    shuffle: Int53
    map_task: Int53
    sizes: Sequence[Int53]
    packed: bytes = b""

    @property
    def partitions(self) -> int:
        """Number of downstream partitions."""
        return len(self.packed) // 2 or len(self.sizes)

    def with_packed_sizes(self) -> MapOutput:
        """Return it with packed sizes: the upper halves of 32-bit floats, less than 1 % too small."""
        packed = self.packed
        if not packed:
            whole = _little_endian(array("f", self.sizes)).tobytes()
            halves = bytearray(len(whole) // 2)
            halves[0::2], halves[1::2] = whole[2::4], whole[3::4]
            packed = bytes(halves)
        return MapOutput(self.application, self.executor, self.shuffle, self.map_task, (), packed)

    def read_sizes(self) -> array[float]:
        """Return the sizes, in four bytes each; a faulty sender may have packed any numbers."""
        if len(self.packed) < 2:
            return array("f", self.sizes)
        halves, whole = self.packed[: 2 * self.partitions], bytearray(4 * self.partitions)
        whole[2::4], whole[3::4] = halves[0::2], halves[1::2]
        return _little_endian(array("f", whole))


def _little_endian(numbers: array[float]) -> array[float]:
    """Swap the bytes of numbers where the machine has another order than packed sizes."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class AgentWindow(Body, frozen=True, tag="agent-window", kw_only=True):
    """One window of one node."""

    node: str
    start: Timestamp
    end: Timestamp
    complete: BoundedFloat  # share of the planned samples that was taken
    cores: Int53
    node_cpu: BoundedFloat  # CPU seconds of the whole node in the window
    memory_total: Int53
    memory_used: Int53
    executors: list[ExecutorUsage]
    map_outputs: list[MapOutput]
    skipped: dict[str, Int53] = {}  # reason -> number of items that were not measured
    stolen: BoundedFloat = 0.0  # CPU seconds in the window that the hypervisor gave to other machines


class ClosedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A line of an executor's log on a state store that it closed: the evidence for *killed*."""

    application: str
    executor: str
    run: str
    operator: Int53
    partition: Int53
    store: str
    evidence: str


class AgentEvidence(Body, frozen=True, tag="agent-evidence", kw_only=True):
    """State stores that the executors of one node closed."""

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
    bytes_local: Int53  # only tests of agents read this and the next; positions in an array stay
    bytes_remote: Int53
    bytes_out: Int53
    state_rows: Int53
    state_bytes: Int53
    commit: BoundedFloat
    python: BoundedFloat = 0.0  # seconds in its Python worker, measured by the worker; 0 if none or unknown
    state_size: Int53 = 0  # bytes that another executor would load; state_bytes is the size in memory


class StageRun(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One stage of one batch; readers keep what they make of its tasks in ``__dict__``."""

    spark_stage: Int53
    parents: list[Int53]
    stateful_stage: Int53  # its `StatefulStage.stage`, -1 without state
    tasks: Sequence[TaskRow]
    submitted: Timestamp = 0.0  # when the driver gave its tasks to the scheduler, 0 if unknown


class BatchReport(Body, frozen=True, tag="batch-report", kw_only=True):
    """A finished micro-batch, or a part of it: the values of the batch and some of its tasks."""

    query: str
    batch: Int53
    start: Timestamp
    end: Timestamp
    input_rows: Int53
    stages: list[StageRun]
    duration: BoundedFloat = 0.0  # of the whole trigger with planning and commit, from Spark; 0 if unknown
    part: Int53 = 0  # from 0
    parts: Int53 = 1  # messages with tasks of this batch

    @property
    def tasks(self) -> int:
        """Number of tasks in this message."""
        return sum(len(stage.tasks) for stage in self.stages)

    @property
    def seconds(self) -> float:
        """Duration of the batch."""
        return self.duration if self.duration > 0 else self.end - self.start
