"""What one controller knows at one moment, as values that never change: what `/metrics` and the web page are made from.

The controller's job ``view`` makes a new `ControllerView` every few seconds and puts it on the `ViewSlot`; whoever
answers HTTP takes it from there, without a lock and without asking Redis. Everything here is frozen; the mappings in it
must not be changed either. A view may be some seconds old (``at`` says how old), and on a stand-by it is as full as on
the leader.

Times are seconds since the epoch (UTC) by the controller's clock, durations seconds, sizes bytes, rates per second.
Names and sentences come from whoever may write to Redis: escape them before they are shown as HTML.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rechannel.wire.messages import Decision, MigrationOutcome, MoveView

VIEW_EVERY = 2.0  # seconds from one view to the next, where making one is quick


class Role(StrEnum):
    """What this controller is doing in the cluster."""

    STARTING = "starting"  # it has not yet heard from Redis who leads
    LEADING = "leading"
    STANDING_BY = "standing-by"


@dataclass(frozen=True)
class JobStatus:
    """One of the controller's jobs: ``observe``, ``requests``, ``follow``, ``decide``, ``view`` and others.

    ``every``: seconds from start to start as the settings want it. ``began`` and ``ended``: the start of the last run
    and the end of the last one that ended, 0 before the first. ``duration``: of the last run that ended, in seconds;
    ``lag``: by how many seconds it began late. ``runs``: how many ended, well or not; ``failures``: how many failed
    in a row up to now; ``problem``: the sentence of the last failure, "" once a run ended well.
    ``redis``: that failure was Redis being away, which is no defect of ours. Since the start: ``busy`` seconds in all
    runs, ``failed`` runs that failed by themselves, ``redis_failed`` those that failed by Redis. ``since``: when the
    controller began with it.
    """

    job: str
    every: float
    began: float = 0.0
    ended: float = 0.0
    duration: float = 0.0
    lag: float = 0.0
    runs: int = 0
    failures: int = 0
    problem: str = ""
    redis: bool = False
    busy: float = 0.0
    failed: int = 0
    redis_failed: int = 0
    since: float = 0.0


@dataclass(frozen=True)
class ExecutorView:
    """An executor with its load, as ``rechannel status`` shows it. Figures that are not known are None.

    ``utilization`` is a share of its cores (1.0: all of them); ``arrival_rate`` and ``service_rate`` are in rows/s;
    ``speed`` is 1 for a usual executor. ``cpu`` and ``python_cpu``: cores in use by its JVM and by its Python workers;
    ``node_cpu``: the share of its node's cores that all processes there use; ``rss_bytes``: resident memory of both.
    ``slow``: why it counts as slow, "" if it does not. ``fresh``: its agent reports. ``remark``: what else there is to
    say of it, in words. ``drained``: its node is to hold no state; ``releasing``: it gets no task any more.
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
    cpu: float | None = None
    python_cpu: float | None = None
    node_cpu: float | None = None
    rss_bytes: int | None = None
    fresh: bool = False
    remark: str = ""
    drained: bool = False
    releasing: bool = False


@dataclass(frozen=True)
class StageView:
    """A stateful stage of a query: the n-th of a batch, counted from 0.

    ``placement``: executor -> the numbers of the partitions it holds, ascending; "unknown" stands for no executor.
    """

    stage: int
    partitions: int
    operators: tuple[str, ...]
    placement: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class QueryView:
    """A streaming query.

    ``query`` is its id (a UUID), ``name`` may be empty. ``batch``: number of its last batch. ``problem``: why it cannot
    be moved, "" if it can. ``start``: how its partitions were spread or put back when it started. ``batch_seconds``:
    mean duration of its last batches, ``batches_per_second`` how often they start; None while unknown.
    ``snapshot_lag``: how many batches the newest snapshot of its worst partition lies behind; None where Spark does not
    tell.
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
    stages: tuple[StageView, ...]
    snapshot_lag: int | None = None


@dataclass(frozen=True)
class PartitionView:
    """A partition of a stateful stage of an active query.

    ``executor``: where it ran last, "" if unknown. ``cpu`` and ``python_cpu`` in cores; ``busy_seconds`` a batch;
    ``snapshot_lag`` in batches. What is not known is None.
    """

    query: str
    name: str
    stage: int
    partition: int
    executor: str
    cpu: float | None = None
    python_cpu: float | None = None
    busy_seconds: float | None = None
    rows_per_second: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    commit_seconds: float | None = None
    snapshot_lag: int | None = None


@dataclass(frozen=True)
class HotStream:
    """One of the largest streams: from ``upstream`` to ``downstream``, both in words, of the query with that id."""

    query: str
    upstream: str
    downstream: str
    bytes_per_second: float
    local: bool


@dataclass(frozen=True)
class ApplicationView:
    """A Spark application whose link reports.

    ``ready``: a decision could be made now; ``code`` (``ready``, ``stale-agents`` …) and ``sentence`` say why or why
    not, as the leader put it where it did. ``coverage``: share of its executors with fresh figures of their agents;
    ``shuffles_seen``: share of the last batches' shuffle outputs that agents reported, None while unknown.
    ``executors`` in the order of their ids; ``partitions`` of the active queries; ``hot_streams`` largest first, at
    most ten. ``streams``: class of streams -> how many. ``moves``: those in flight (planned, prepared or steered), as
    the link reports them; ``settled_moves``: how many of its report are over. ``counters``: landed, missed, abandoned,
    drifted, failed_tasks, rejected_messages, since the link was attached. ``problems``: what the link complains of.
    ``last_heard``: seconds since its last report; ``silent``: that is so long ago that the driver may have ended.
    """

    application: str
    name: str
    spark_version: str
    ready: bool
    code: str
    sentence: str
    coverage: float
    shuffles_seen: float | None
    executors: tuple[ExecutorView, ...]
    queries: tuple[QueryView, ...]
    partitions: tuple[PartitionView, ...]
    hot_streams: tuple[HotStream, ...]
    streams: Mapping[str, int]
    moves: tuple[MoveView, ...]
    settled_moves: int
    counters: Mapping[str, int]
    problems: tuple[str, ...]
    last_heard: float = 0.0
    silent: bool = False


@dataclass(frozen=True)
class NodeView:
    """A node that has executors. ``window_age``: seconds since its agent's newest window ended, None without any.

    ``fresh``: all its executors have fresh figures.
    """

    node: str
    window_age: float | None
    fresh: bool


@dataclass(frozen=True)
class MigrationView:
    """A migration under way, as the leader follows it; only the leader has any.

    ``moves`` of them are wanted, ``landed`` and ``abandoned`` are over; ``begun`` is when this controller took it up.
    ``sentence`` says how far it is.
    """

    application: str
    decision: str
    begun: float
    moves: int
    landed: int
    abandoned: int
    sentence: str


@dataclass(frozen=True)
class DrainView:
    """A node that is to hold no state.

    ``remove``: its executors are released then; ``deadline``: when even if it is not empty, 0 for never; ``overdue``:
    that has passed. ``state``: draining | releasing | empty | released. ``partitions``: how many are left on its
    ``executors``.
    """

    node: str
    since: float
    user: str
    reason: str
    remove: bool
    deadline: float
    state: str
    partitions: int
    executors: tuple[str, ...]
    overdue: bool
    sentence: str


@dataclass(frozen=True)
class DecisionView:
    """A decision about an application.

    ``decision`` is the message that ``rechannel history`` shows: its id, ``at``, ``trigger``, ``user``, ``outcome``,
    ``reason`` (a code) and ``sentence``; ``executors`` with utilization, arrival rate and partitions before and after;
    ``moves``; ``refusals`` with the law and its numbers; ``gain`` and ``cost`` in seconds; ``price``; ``names`` (query
    id -> name). ``outcome`` is what became of its migration, None as long as that is not known or there was none.
    """

    application: str
    decision: Decision
    outcome: MigrationOutcome | None = None


@dataclass(frozen=True)
class ControllerView:
    """All that one controller knows at ``at``.

    ``name`` is this controller, ``role`` what it does, ``leader`` who leads ("" if nobody is known to), ``since`` when
    and ``epoch`` under which number. ``mode``: observe | apply. ``next_decision``: when the leader decides next, 0 if
    unknown; ``last_sentence``: what it did last. ``redis_up``: this view was read from Redis; else ``redis_problem``
    says why not, and what Redis told stands as it was at ``read_at``. ``redis_round_trip``: seconds of one question to
    Redis, None while it is away. ``decisions`` newest first, some fifty at most. ``waiting``: a sentence for each
    saved plan that waits for its time. ``rejected_messages``: unreadable or
    impossible messages that were passed over since this controller started.
    """

    at: float
    cluster: str
    name: str
    role: Role = Role.STARTING
    leader: str = ""
    since: float = 0.0
    epoch: int = 0
    mode: str = "observe"
    paused: bool = False
    next_decision: float = 0.0
    last_sentence: str = ""
    redis_up: bool = False
    redis_problem: str = ""
    redis_round_trip: float | None = None
    read_at: float = 0.0
    applications: tuple[ApplicationView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    migrations: tuple[MigrationView, ...] = ()
    drains: tuple[DrainView, ...] = ()
    waiting: tuple[str, ...] = ()
    decisions: tuple[DecisionView, ...] = ()
    loops: tuple[JobStatus, ...] = ()
    rejected_messages: int = 0
    version: str = ""

    @property
    def acts(self) -> bool:
        """Whether decisions are acted on by themselves."""
        return self.mode == "apply" and not self.paused

    def last_decision(self, application: str, *, with_loads: bool = False) -> DecisionView | None:
        """Return the newest decision on an application; ``with_loads``: that has executors' load before and after."""
        for found in self.decisions:
            if found.application == application and (found.decision.executors or not with_loads):
                return found
        return None


@dataclass
class ViewSlot:
    """Where the newest view hangs. One job puts, any thread takes; taking never waits.

    What shows views (`rechannel.daemon.web`) is given ``take`` and calls it anew for every answer.
    """

    _view: ControllerView = field(default_factory=lambda: ControllerView(0.0, "", ""))

    def put(self, view: ControllerView) -> None:
        """Replace the view."""
        self._view = view

    def take(self) -> ControllerView:
        """Return the newest view."""
        return self._view
