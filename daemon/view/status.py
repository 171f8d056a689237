"""Types of the status of a cluster, for tables, JSON, web page and metrics.

All are frozen, and their mappings must not be changed either. ``rechannel status --json`` prints a `ClusterStatus`. A
`ControllerView` adds one controller, its jobs and recent decisions. `rechannel.daemon.view.status_builder` builds them.

Times are seconds since the epoch (UTC), durations seconds, sizes bytes, rates per second. None stands for an unknown
figure. Names and sentences may come from any writer to Redis: escape them before they become HTML or terminal output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rechannel.daemon.control.leadership import Role
from rechannel.daemon.control.migrations import MigrationStatus
from rechannel.daemon.jobs.job import JobStatus
from rechannel.wire.messages import Decision, DrainedNode, MigrationOutcome, MoveView

BUSY = 0.95  # utilization above which an executor is marked


@dataclass(frozen=True)
class LeaderStatus:
    """The leading controller, as it described itself in its last message.

    ``mode``: observe or apply. ``next_decision``: time of the next decision, 0 if unknown. ``last_sentence``: its last
    action. ``applications``: readiness sentence by application. ``last_heard``: age of the message.
    """

    leader: str = ""
    since: float = 0.0
    epoch: int = 0
    paused: bool = False
    mode: str = "observe"
    next_decision: float = 0.0
    last_sentence: str = ""
    applications: Mapping[str, str] = field(default_factory=dict)
    last_heard: float = 0.0


@dataclass(frozen=True)
class ReadinessStatus:
    """Whether a decision on an application is possible now.

    ``code``: ``ready`` or a `rechannel.wire.codes.NotReadyReason`. ``transient``: waiting helps. ``ready_in``: seconds
    until then, where known. ``controller``: the leader's own sentence, "" without one.
    """

    ready: bool
    code: str
    sentence: str
    transient: bool | None = None
    ready_in: float | None = None
    controller: str = ""

    @property
    def summary(self) -> str:
        """The leader's sentence where there is one, else our own."""
        return self.controller or self.sentence


@dataclass(frozen=True)
class ExecutorStatus:
    """An executor with its load.

    ``utilization``: share of its cores in use by tasks. ``arrival_rate``, ``service_rate``: rows/s. ``speed``: 1 for a
    usual executor. ``slow``: the evidence that it is slow. ``slow_cause``: a `SlowCause`, or "" if it is not slow.
    ``cpu``, ``python_cpu``: cores in use by its JVM and its Python workers. ``node_cpu``: share of its node's cores in
    use by all processes. ``rss_bytes``: resident memory of both. ``fresh``: its agent reports. ``drained``: its node is
    drained. ``releasing``: it gets no further task. ``remark``: all other facts, in words.
    """

    executor: str
    node: str
    cores: int
    partitions: int
    utilization: float | None = None
    arrival_rate: float | None = None
    service_rate: float | None = None
    speed: float | None = None
    slow: str = ""
    slow_cause: str = ""
    cpu: float | None = None
    python_cpu: float | None = None
    node_cpu: float | None = None
    rss_bytes: int | None = None
    fresh: bool = False
    drained: bool = False
    releasing: bool = False
    remark: str = ""


@dataclass(frozen=True)
class StageStatus:
    """A stateful stage of a query; ``stage`` counts those of a batch from 0.

    ``placement``: executor -> ascending numbers of its partitions; "unknown" stands for no executor.
    """

    stage: int
    partitions: int
    operators: tuple[str, ...]
    placement: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class QueryStatus:
    """A streaming query.

    ``query``: its id (a UUID). ``batch``: number of the last batch. ``problem``: the reason why it cannot be moved.
    ``start``: how its partitions were placed at its start. ``batch_seconds``: mean duration of the last batches.
    ``snapshot_lag``: batches between the newest snapshot of its worst partition and now. ``residual``: share by which
    the model's replay of its present placement differs from the last batches.
    """

    query: str
    name: str
    run: str
    batch: int
    active: bool
    problem: str
    start: str
    batch_seconds: float | None
    batches_per_second: float | None
    stages: tuple[StageStatus, ...]
    snapshot_lag: int | None = None
    residual: float | None = None


@dataclass(frozen=True)
class PartitionStatus:
    """A partition of a stateful stage of an active query.

    ``executor``: where it ran last, "" if unknown. ``cpu``, ``python_cpu``: cores. ``busy_seconds``: task time in a
    batch. ``snapshot_lag``: batches.
    """

    query: str
    name: str
    stage: int
    partition: int
    executor: str
    snapshot_lag: int | None = None
    cpu: float | None = None
    python_cpu: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    commit_seconds: float | None = None
    busy_seconds: float | None = None
    rows_per_second: float | None = None


@dataclass(frozen=True)
class HotStream:
    """One of the largest streams of a query; both ends in words."""

    query: str
    upstream: str
    downstream: str
    bytes_per_second: float
    local: bool


class MoveStatus(MoveView, frozen=True, kw_only=True):
    """A move in flight, as its link reports it, with the name of its query."""

    name: str = ""


@dataclass(frozen=True)
class ForecastStatus:
    """The forecast of one stage's load.

    ``slots``: known slots of past load. ``error``: mean absolute error relative to the last value's. ``partitions``:
    those with a forecast other than their last value. ``decided_on``: decisions use the forecast.
    """

    stage: str
    name: str
    slots: int
    seconds_ahead: float
    comparisons: int
    error: float | None
    partitions: int
    decided_on: bool
    sentence: str


@dataclass(frozen=True)
class LinkCounters:
    """Counters of a link since it was attached."""

    landed: int = 0
    missed: int = 0
    abandoned: int = 0
    drifted: int = 0
    failed_tasks: int = 0
    rejected_messages: int = 0


@dataclass(frozen=True)
class ApplicationStatus:
    """A Spark application whose link reports.

    ``last_heard``: age of the last report. ``silent``: the report is so old that the driver may have ended; all figures
    are then of that time. ``shuffles_seen``: share of the last shuffle outputs that agents reported. ``streams``:
    number of streams by class. ``hot_streams``: largest first, at most ten. ``partitions``: only on request.
    ``moves``: those in flight. ``settled_moves``: number of the others in the report. ``problems``: complaints of the
    link.
    """

    application: str
    name: str
    spark_version: str
    last_heard: float
    silent: bool
    readiness: ReadinessStatus
    executors: tuple[ExecutorStatus, ...] = ()
    queries: tuple[QueryStatus, ...] = ()
    shuffles_seen: float | None = None
    streams: Mapping[str, int] = field(default_factory=dict)
    hot_streams: tuple[HotStream, ...] = ()
    partitions: tuple[PartitionStatus, ...] = ()
    moves: tuple[MoveStatus, ...] = ()
    forecasts: tuple[ForecastStatus, ...] = ()
    settled_moves: int = 0
    counters: LinkCounters = LinkCounters()
    problems: tuple[str, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the executors with fresh figures of their agents."""
        return sum(row.fresh for row in self.executors) / len(self.executors) if self.executors else 0.0


class DrainState(StrEnum):
    """Progress of a node drain."""

    DRAINING = "draining"  # state is left
    RELEASING = "releasing"  # no state is left; its executors are released at a batch boundary
    EMPTY = "empty"  # no state is left; its executors stay
    RELEASED = "released"  # no executor is left


class DrainStatus(DrainedNode, frozen=True, kw_only=True):
    """A node drain with its progress.

    ``partitions``: number of partitions left on ``executors``. ``overdue``: the deadline has passed.
    """

    state: DrainState
    partitions: int
    executors: tuple[str, ...]
    overdue: bool
    sentence: str


@dataclass(frozen=True)
class ScheduledPlanStatus:
    """A plan that is scheduled between ``begin`` and ``end``; ``scheduled_plan``: its id."""

    scheduled_plan: str
    at: float
    application: str
    begin: float
    end: float
    window: str
    moves: int
    user: str
    reason: str
    force: bool
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class ClusterStatus:
    """The status of a cluster at ``at``; ``controller`` is None if no controller leads."""

    at: float = 0.0
    controller: LeaderStatus | None = None
    applications: tuple[ApplicationStatus, ...] = ()
    drains: tuple[DrainStatus, ...] = ()
    scheduled_plans: tuple[ScheduledPlanStatus, ...] = ()
    rejected_messages: int = 0


@dataclass(frozen=True)
class NodeView:
    """A node with executors.

    ``window_age``: seconds since the end of its agent's newest window. ``fresh``: all its executors have fresh
    figures.
    """

    node: str
    window_age: float | None
    fresh: bool


@dataclass(frozen=True)
class DecisionView:
    """A decision on an application, with the outcome of its migration once it is known."""

    application: str
    decision: Decision
    outcome: MigrationOutcome | None = None


@dataclass(frozen=True, kw_only=True)
class ControllerView(ClusterStatus):
    """The status of a cluster as one controller shows it over HTTP.

    It may be some seconds old. ``name``, ``role``: this controller. ``redis_up``: the view was read from Redis;
    otherwise ``redis_problem`` is the reason why not, and the status is that of ``read_at``. ``redis_round_trip``:
    duration of one call. ``migrations``: known to the leader alone. ``decisions``: newest first, at most fifty.
    ``last_decisions``, ``last_outcomes``: application -> the last one, however many others followed. ``jobs``: the jobs
    of this controller.
    """

    cluster: str = ""
    name: str = ""
    role: Role = Role.STARTING
    redis_up: bool = False
    redis_problem: str = ""
    redis_round_trip: float | None = None
    read_at: float = 0.0
    nodes: tuple[NodeView, ...] = ()
    migrations: tuple[MigrationStatus, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    last_decisions: Mapping[str, Decision] = field(default_factory=dict)
    last_outcomes: Mapping[str, MigrationOutcome] = field(default_factory=dict)
    jobs: tuple[JobStatus, ...] = ()
    version: str = ""

    @property
    def leader(self) -> LeaderStatus:
        """The leader as far as it is known; all fields are empty where it is not."""
        return self.controller or LeaderStatus()
