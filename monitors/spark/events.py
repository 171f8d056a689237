"""Parser of Spark's event log into small typed events. Pure: lines in, events out.

The lines are those of Spark's own ``EventLoggingListener`` (``org.apache.spark.util.JsonProtocol``). Only the fields
used are decoded; unknown events and fields are skipped, so other Spark versions do not break the reader.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from rechannel.wire.measurements import TaskRow
from rechannel.wire.messages import NODE_ATTRIBUTE

# Names of RDDs that hold state stores (Spark's class names, used when an RDD has no name).
STATE_RDDS = frozenset({"StateStoreRDD", "StateStoreAwareZipPartitionsRDD"})


class StageInfo(msgspec.Struct, frozen=True):
    """A stage as its job announces it."""

    stage: int
    parents: tuple[int, ...]
    partitions: int
    stateful: bool


class JobStarted(msgspec.Struct, frozen=True):
    """A job begins."""

    job: int
    query: str  # "" for a job of no streaming query
    run: str
    batch: int
    at: float
    stages: tuple[StageInfo, ...]
    pool: str = ""  # of the scheduler, "" without one of its own


class JobEnded(msgspec.Struct, frozen=True):
    """A job is over."""

    job: int
    at: float


class StageEnded(msgspec.Struct, frozen=True):
    """A stage attempt is over."""

    stage: int
    attempt: int
    failure: str
    accumulators: frozenset[int]  # ids of its SQL metrics: they tie it to the plan's operators
    tasks: int = 0
    submitted: float = 0.0  # when its tasks were given to the scheduler, in seconds since the epoch; 0 if unknown


class TaskEnded(msgspec.Struct, frozen=True):
    """A task attempt is over."""

    stage: int
    attempt: int
    failure: str  # "" on success
    row: TaskRow
    opened_state: bool  # it opened a state store


class ExecutorAdded(msgspec.Struct, frozen=True):
    """An executor registered."""

    executor: str
    host: str
    cores: int
    at: float
    node: str = ""  # by `NODE_ATTRIBUTE`


class ExecutorRemoved(msgspec.Struct, frozen=True):
    """An executor is gone."""

    executor: str = msgspec.field(name="Executor ID")


class StateOperator(msgspec.Struct, frozen=True, kw_only=True):
    """A stateful operator, as a query's progress names it; ``partitions``: -1 if unknown."""

    name: str = msgspec.field(name="operatorName", default="")
    partitions: int = msgspec.field(name="numShufflePartitions", default=-1)


class QueryProgressed(msgspec.Struct, frozen=True):
    """A micro-batch is committed; with nothing to do, Spark repeats the last batch's number."""

    query: str
    run: str
    batch: int
    input_rows: int
    seconds: float
    name: str = ""  # of the query, "" without one
    triggered: float = 0.0  # start of its trigger, in seconds since the epoch; 0 if unknown
    operators: tuple[StateOperator, ...] = ()


class QueryStarted(msgspec.Struct, frozen=True):
    """A run of a query begins."""

    query: str = msgspec.field(name="id")
    run: str = msgspec.field(name="runId")


class QueryTerminated(msgspec.Struct, frozen=True):
    """A run of a query is over."""

    query: str = msgspec.field(name="id")
    run: str = msgspec.field(name="runId")


class ApplicationEnded(msgspec.Struct, frozen=True):
    """The application has ended."""


class ApplicationStarted(msgspec.Struct, frozen=True):
    """The application has started; only in logs that have its first events."""

    name: str = msgspec.field(name="App Name", default="")
    application: str | None = msgspec.field(name="App ID", default=None)
    attempt: str | None = msgspec.field(name="App Attempt ID", default=None)


class LogStarted(msgspec.Struct, frozen=True):
    """The first line of a log."""

    version: str = msgspec.field(name="Spark Version", default="")


class EnvironmentUpdated(msgspec.Struct, frozen=True):
    """The application's Spark properties."""

    properties: dict[str, str] = msgspec.field(name="Spark Properties", default_factory=dict)


Event: TypeAlias = (
    ApplicationStarted
    | LogStarted
    | EnvironmentUpdated
    | JobStarted
    | JobEnded
    | StageEnded
    | TaskEnded
    | ExecutorAdded
    | ExecutorRemoved
    | QueryStarted
    | QueryProgressed
    | QueryTerminated
    | ApplicationEnded
)


# Shapes of Spark's JSON.


class _Kind(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = msgspec.field(name="Event", default="")


class _Rdd(msgspec.Struct, frozen=True, kw_only=True):
    name: str = msgspec.field(name="Name", default="")


class _Accumulable(msgspec.Struct, frozen=True, kw_only=True):
    id: int = msgspec.field(name="ID", default=-1)
    name: str = msgspec.field(name="Name", default="")
    update: Any = msgspec.field(name="Update", default=None)
    metadata: str | None = msgspec.field(name="Metadata", default=None)


class _Stage(msgspec.Struct, frozen=True, kw_only=True):
    stage: int = msgspec.field(name="Stage ID")
    attempt: int = msgspec.field(name="Stage Attempt ID", default=0)
    tasks: int = msgspec.field(name="Number of Tasks", default=0)
    rdds: list[_Rdd] = msgspec.field(name="RDD Info", default_factory=list)
    parents: tuple[int, ...] = msgspec.field(name="Parent IDs", default=())
    failure: str = msgspec.field(name="Failure Reason", default="")
    submitted: int = msgspec.field(name="Submission Time", default=0)
    accumulables: list[_Accumulable] = msgspec.field(name="Accumulables", default_factory=list)


class _JobStart(msgspec.Struct, frozen=True, kw_only=True):
    job: int = msgspec.field(name="Job ID")
    time: int = msgspec.field(name="Submission Time", default=0)
    stages: list[_Stage] = msgspec.field(name="Stage Infos", default_factory=list)
    properties: dict[str, str | None] | None = msgspec.field(name="Properties", default=None)


class _JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    job: int = msgspec.field(name="Job ID")
    time: int = msgspec.field(name="Completion Time", default=0)


class _StageEnd(msgspec.Struct, frozen=True, kw_only=True):
    info: _Stage = msgspec.field(name="Stage Info")


class _Reason(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = msgspec.field(name="Reason", default="")


class _TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    task: int = msgspec.field(name="Task ID")
    index: int = msgspec.field(name="Index")
    partition: int = msgspec.field(name="Partition ID", default=-1)
    launch: int = msgspec.field(name="Launch Time", default=0)
    finish: int = msgspec.field(name="Finish Time", default=0)
    executor: str = msgspec.field(name="Executor ID", default="")
    accumulables: list[_Accumulable] = msgspec.field(name="Accumulables", default_factory=list)


class _Read(msgspec.Struct, frozen=True, kw_only=True):
    local: int = msgspec.field(name="Local Bytes Read", default=0)
    remote: int = msgspec.field(name="Remote Bytes Read", default=0)
    records: int = msgspec.field(name="Total Records Read", default=0)
    wait: int = msgspec.field(name="Fetch Wait Time", default=0)


class _Write(msgspec.Struct, frozen=True, kw_only=True):
    size: int = msgspec.field(name="Shuffle Bytes Written", default=0)
    records: int = msgspec.field(name="Shuffle Records Written", default=0)


class _Input(msgspec.Struct, frozen=True, kw_only=True):
    records: int = msgspec.field(name="Records Read", default=0)


class _Output(msgspec.Struct, frozen=True, kw_only=True):
    records: int = msgspec.field(name="Records Written", default=0)


class _Metrics(msgspec.Struct, frozen=True, kw_only=True):
    run: int = msgspec.field(name="Executor Run Time", default=0)
    cpu: int = msgspec.field(name="Executor CPU Time", default=0)
    read: _Read = msgspec.field(name="Shuffle Read Metrics", default_factory=_Read)
    write: _Write = msgspec.field(name="Shuffle Write Metrics", default_factory=_Write)
    input: _Input = msgspec.field(name="Input Metrics", default_factory=_Input)
    output: _Output = msgspec.field(name="Output Metrics", default_factory=_Output)


class _TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    stage: int = msgspec.field(name="Stage ID")
    attempt: int = msgspec.field(name="Stage Attempt ID", default=0)
    reason: _Reason = msgspec.field(name="Task End Reason", default_factory=_Reason)
    info: _TaskInfo = msgspec.field(name="Task Info")
    metrics: _Metrics | None = msgspec.field(name="Task Metrics", default=None)


class _ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    host: str = msgspec.field(name="Host", default="")
    cores: int = msgspec.field(name="Total Cores", default=1)
    attributes: dict[str, str] = msgspec.field(name="Attributes", default_factory=dict)


class _ExecutorAdded(msgspec.Struct, frozen=True, kw_only=True):
    time: int = msgspec.field(name="Timestamp", default=0)
    executor: str = msgspec.field(name="Executor ID")
    info: _ExecutorInfo = msgspec.field(name="Executor Info", default_factory=_ExecutorInfo)


class _Source(msgspec.Struct, frozen=True, kw_only=True):
    rows: int = msgspec.field(name="numInputRows", default=0)


class _Progress(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    run: str = msgspec.field(name="runId")
    batch: int = msgspec.field(name="batchId", default=-1)
    durations: dict[str, int] = msgspec.field(name="durationMs", default_factory=dict)
    sources: list[_Source] = msgspec.field(default_factory=list)
    name: str | None = None
    timestamp: str = ""
    operators: tuple[StateOperator, ...] = msgspec.field(name="stateOperators", default=())


class _ProgressEvent(msgspec.Struct, frozen=True, kw_only=True):
    progress: _Progress


_STREAMING = "org.apache.spark.sql.streaming.StreamingQueryListener$"
_SHAPES: dict[str, type[msgspec.Struct]] = {
    "SparkListenerJobStart": _JobStart,
    "SparkListenerJobEnd": _JobEnd,
    "SparkListenerStageCompleted": _StageEnd,
    "SparkListenerTaskEnd": _TaskEnd,
    "SparkListenerExecutorAdded": _ExecutorAdded,
    "SparkListenerExecutorRemoved": ExecutorRemoved,
    _STREAMING + "QueryStartedEvent": QueryStarted,
    _STREAMING + "QueryProgressEvent": _ProgressEvent,
    _STREAMING + "QueryTerminatedEvent": QueryTerminated,
    "SparkListenerApplicationStart": ApplicationStarted,
    "SparkListenerLogStart": LogStarted,
    "SparkListenerEnvironmentUpdate": EnvironmentUpdated,
    "SparkListenerApplicationEnd": ApplicationEnded,
}
_DECODERS = {kind: msgspec.json.Decoder(shape) for kind, shape in _SHAPES.items()}
_OPENED_STATE = "number of state store instances"
# Not the time to initialize: where workers are used again it counts from the end of their last task.
_PYTHON_TIME = "time to execute Python code"
_STATE_METRICS = {
    "number of total state rows": 0,
    "memory used by state": 1,
    "time to commit changes": 2,
    # The bytes that another executor would load: Spark's two providers each have a metric of their own.
    "estimated size of state only on current version": 3,
    "RocksDB: size of all SST files": 3,
}


class EventError(ValueError):
    """A line that is not an event of Spark."""


def parse(line: bytes) -> Event | None:
    """Read one line; None for events of no interest. Raises EventError on any other line."""
    # Spark writes the name first in every event: the many others need no full decode.
    kind = line[10 : line.find(b'"', 10)] if line.startswith(b'{"Event":"') else b""
    try:
        name = kind.decode() or msgspec.json.decode(line, type=_Kind).kind
        decoder = _DECODERS.get(name)
        return None if decoder is None else _event(decoder.decode(line))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise EventError(f"not a Spark event: {error}") from error


def _event(data: object) -> Event | None:
    match data:
        case _TaskEnd():
            return _task_ended(data)
        case _JobStart():
            return _job_started(data)
        case _JobEnd():
            return JobEnded(data.job, data.time / 1000)
        case _StageEnd():
            ids = frozenset(item.id for item in data.info.accumulables if item.metadata == "sql")
            info = data.info
            return StageEnded(info.stage, info.attempt, info.failure, ids, info.tasks, info.submitted / 1000)
        case _ExecutorAdded():
            node = data.info.attributes.get(NODE_ATTRIBUTE, "")
            return ExecutorAdded(data.executor, data.info.host, data.info.cores, data.time / 1000, node)
        case _ProgressEvent():
            progress = data.progress
            return QueryProgressed(
                progress.id,
                progress.run,
                progress.batch,
                sum(source.rows for source in progress.sources),
                progress.durations.get("triggerExecution", 0) / 1000,
                progress.name or "",
                _epoch_seconds(progress.timestamp),
                progress.operators,
            )
        case ExecutorRemoved() | QueryStarted() | QueryTerminated() | ApplicationEnded():
            return data
        case ApplicationStarted() | LogStarted() | EnvironmentUpdated():
            return data
    return None


def _epoch_seconds(timestamp: str) -> float:
    """Return the seconds since the epoch of a time in ISO 8601; 0 if it is none."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _job_started(data: _JobStart) -> JobStarted:
    properties = data.properties or {}
    batch = properties.get("streaming.sql.batchId") or "-1"
    return JobStarted(
        data.job,
        properties.get("sql.streaming.queryId") or "",
        properties.get("spark.jobGroup.id") or "",
        int(batch),
        data.time / 1000,
        tuple(
            StageInfo(stage.stage, stage.parents, stage.tasks, any(rdd.name in STATE_RDDS for rdd in stage.rdds))
            for stage in data.stages
        ),
        properties.get("spark.scheduler.pool") or "",
    )


def _task_ended(data: _TaskEnd) -> TaskEnded:
    info, metrics = data.info, data.metrics or _Metrics()
    state = [0, 0, 0, 0]
    opened, python = False, 0
    for item in info.accumulables:
        opened = opened or item.name == _OPENED_STATE
        if item.name == _PYTHON_TIME and item.update is not None:
            python += max(int(item.update), 0)
        position = _STATE_METRICS.get(item.name)
        if position is not None and item.update is not None:
            state[position] += max(int(item.update), 0)
    row = TaskRow(
        task=info.task,
        partition=info.partition if info.partition >= 0 else info.index,
        executor=info.executor,
        launch=info.launch / 1000,
        finish=info.finish / 1000,
        run=metrics.run / 1000,
        cpu=metrics.cpu / 1e9,
        fetch_wait=metrics.read.wait / 1000,
        rows_in=metrics.read.records or metrics.input.records,
        rows_out=metrics.write.records or metrics.output.records,
        bytes_local=metrics.read.local,
        bytes_remote=metrics.read.remote,
        bytes_out=metrics.write.size,
        state_rows=state[0],
        state_bytes=state[1],
        commit=state[2] / 1000,
        python=min(python, max(metrics.run, 0)) / 1000,
        state_size=state[3],
    )
    reason = data.reason.reason
    return TaskEnded(data.stage, data.attempt, "" if reason == "Success" else reason or "unknown", row, opened)
