"""The controller's figures for Prometheus: every metric in one table, made from a view and from what was counted.

Gauges come from the newest `ControllerView` alone, so what is gone from it has no series any more. Labels name
applications, nodes, executors and queries, never partitions or moves: the cluster does not bound how many those are. No
label is called ``job`` or ``instance``: Prometheus gives those itself.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rechannel.daemon.decide.outcome import KEPT, NOT_JUDGED, REGRESSED
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view.counters import CounterKind, Counters
from rechannel.daemon.view.model import ApplicationView, ControllerView, JobStatus, Role
from rechannel.migration.moves import UNSETTLED
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.metric_table import MetricDefinition, MetricSamples

_APPLICATION = ("application",)
_EXECUTOR = ("application", "node", "executor")
_QUERY = ("application", "query", "name")
_LOOP = ("loop",)
_DRAINS = ("draining", "releasing", "empty", "released")

BUILD = MetricDefinition("rechannel_build_info", "1; the labels say what runs", ("version", "python"))
LEADS = MetricDefinition("rechannel_controller_leads", "1 while this controller holds the lease and leads")
STANDS_BY = MetricDefinition("rechannel_controller_stands_by", "1 while another controller leads")
EPOCH = MetricDefinition("rechannel_controller_epoch", "Number of the lead; it rises with every change of leader")
VIEW_AT = MetricDefinition(
    "rechannel_controller_view_timestamp_seconds",
    "When the figures below were read from Redis; 0 before the first time",
)
REDIS_UP = MetricDefinition("rechannel_controller_redis_up", "1 if the last view could be read from Redis")
REDIS_TRIP = MetricDefinition(
    "rechannel_controller_redis_round_trip_seconds", "One question to Redis; none while it is away"
)
REDIS_FAILED = MetricDefinition(
    "rechannel_controller_redis_failures_total", "Runs of a job that Redis made fail", _LOOP
)
REJECTED = MetricDefinition(
    "rechannel_controller_rejected_messages_total", "Unreadable or impossible messages that were passed over"
)
REQUESTS = MetricDefinition(
    "rechannel_controller_requests_total",
    "Requests of operators and viewers that were answered; `outcome` is the exit code's name",
    ("verb", "outcome"),
)
LOOP_RUNS = MetricDefinition("rechannel_controller_loop_runs_total", "Runs of a job that ended, well or not", _LOOP)
LOOP_FAILED = MetricDefinition(
    "rechannel_controller_loop_failures_total", "Runs of a job that failed by a defect, not by Redis", _LOOP
)
LOOP_BUSY = MetricDefinition(
    "rechannel_controller_loop_busy_seconds_total", "Time a job has taken in all its runs", _LOOP
)
LOOP_DURATION = MetricDefinition(
    "rechannel_controller_loop_duration_seconds", "How long the last run of a job took", _LOOP
)
LOOP_LAG = MetricDefinition(
    "rechannel_controller_loop_lag_seconds",
    "By how much the last run of a job began later than its interval asks",
    _LOOP,
)
LOOP_INTERVAL = MetricDefinition("rechannel_controller_loop_interval_seconds", "How often a job is to run", _LOOP)
LOOP_ENDED = MetricDefinition(
    "rechannel_controller_loop_last_end_timestamp_seconds",
    "When a job ended last; before it first did, when the controller began with it",
    _LOOP,
)
LEFT_OUT = MetricDefinition("rechannel_controller_series_left_out", "Series that this answer has no room for")

PAUSED = MetricDefinition("rechannel_paused", "1 while everything is paused")
APPLIES = MetricDefinition(
    "rechannel_applies", "1 if the leader acts on its decisions (mode apply), 0 if it only observes"
)
NEXT_DECISION = MetricDefinition("rechannel_next_decision_timestamp_seconds", "When the leader decides next by time")
DECISIONS = MetricDefinition(
    "rechannel_decisions_total",
    "Decisions of this controller; `outcome` is applied, planned, refused or not-ready",
    ("outcome", "reason", "trigger"),
)
DECIDED_AT = MetricDefinition(
    "rechannel_decision_timestamp_seconds", "When an application was decided on last", _APPLICATION
)
GAIN = MetricDefinition(
    "rechannel_decision_gain_seconds", "Predicted gain of the last decision over `gate.horizon`", _APPLICATION
)
COST = MetricDefinition("rechannel_decision_cost_seconds", "Predicted cost of the last decision", _APPLICATION)
RUNNING = MetricDefinition("rechannel_migrations_running", "Migrations under way; only the leader has any")
MIGRATIONS = MetricDefinition(
    "rechannel_migrations_total",
    "Migrations whose outcome is known; `verdict` is kept, regressed or not-judged",
    ("verdict",),
)
MIGRATION_BATCH = MetricDefinition(
    "rechannel_migration_batch_seconds",
    "A query's batch by the last migration whose outcome is known: at its `peak` while partitions moved or `settled` "
    "afterwards, `predicted` or `measured`",
    (*_QUERY, "moment", "source"),
)
IN_FLIGHT = MetricDefinition("rechannel_moves_in_flight", "Moves that are not settled, by how far they are", ("state",))
MOVES = MetricDefinition(
    "rechannel_moves_total",
    "Moves that came to a state in which they need no further batch while this controller led; a move that is drained "
    "is killed later, and counts in both",
    ("state", "reason"),
)
DRAINS = MetricDefinition("rechannel_drains", "Nodes that are to hold no state, by how far that is", ("state",))
OVERDUE = MetricDefinition("rechannel_drains_overdue", "Nodes whose drain has passed its deadline and still hold state")

WINDOW_AGE = MetricDefinition(
    "rechannel_node_window_age_seconds",
    "Time since the newest window of a node's agent ended; none without any",
    ("node",),
)
NODE_FRESH = MetricDefinition(
    "rechannel_node_fresh", "1 if all executors of a node have fresh figures of its agent", ("node",)
)

APPLICATION = MetricDefinition(
    "rechannel_application_info", "1; an application whose link reports", ("application", "name", "spark_version")
)
READY = MetricDefinition("rechannel_application_ready", "1 if a decision could be made now", _APPLICATION)
COVERAGE = MetricDefinition(
    "rechannel_application_coverage_ratio", "Share of its executors with fresh figures of their agents", _APPLICATION
)
SHUFFLES = MetricDefinition(
    "rechannel_application_shuffles_seen_ratio",
    "Share of the shuffle outputs of the last batches whose stream sizes agents reported",
    _APPLICATION,
)
PROBLEMS = MetricDefinition("rechannel_application_problems", "Problems that its link complains of", _APPLICATION)
FAILED_TASKS = MetricDefinition(
    "rechannel_link_failed_tasks_total", "Failed task attempts, since the link was attached", _APPLICATION
)
LANDED = MetricDefinition(
    "rechannel_link_landed_moves_total", "Moves that landed, by the link's own count", _APPLICATION
)
MISSED = MetricDefinition(
    "rechannel_link_missed_batches_total", "Batches that missed a partition they were to move", _APPLICATION
)
ABANDONED = MetricDefinition(
    "rechannel_link_abandoned_moves_total", "Moves given up, by the link's own count", _APPLICATION
)
DRIFTED = MetricDefinition(
    "rechannel_link_drifted_partitions_total", "Times Spark ran a partition elsewhere though nobody asked", _APPLICATION
)
LINK_REJECTED = MetricDefinition(
    "rechannel_link_rejected_messages_total", "Messages the link refused to obey or could not read", _APPLICATION
)

UTILIZATION = MetricDefinition(
    "rechannel_executor_utilization_ratio", "Utilization of an executor, as a share of its cores", _EXECUTOR
)
PARTITIONS = MetricDefinition("rechannel_executor_partitions", "Stateful partitions that an executor holds", _EXECUTOR)
CORES = MetricDefinition("rechannel_executor_cores", "Cores of an executor", _EXECUTOR)
ARRIVAL = MetricDefinition("rechannel_executor_arrival_rows_per_second", "Rows that come to an executor", _EXECUTOR)
SERVICE = MetricDefinition("rechannel_executor_service_rows_per_second", "Rows that an executor could take", _EXECUTOR)
SPEED = MetricDefinition("rechannel_executor_speed_ratio", "Speed of an executor; 1 is usual", _EXECUTOR)

BATCH = MetricDefinition("rechannel_query_batch_seconds", "Mean duration of a query's last batches", _QUERY)
BATCH_RATE = MetricDefinition("rechannel_query_batches_per_second", "How often a query's batches start", _QUERY)
ACTIVE = MetricDefinition("rechannel_query_active", "1 while the query runs", _QUERY)
MOVABLE = MetricDefinition("rechannel_query_movable", "1 if its partitions can be moved, 0 if it has a problem", _QUERY)
SNAPSHOT_LAG = MetricDefinition(
    "rechannel_query_snapshot_lag_batches",
    "Batches that the newest snapshot of its worst partition lies behind; none where Spark does not tell",
    _QUERY,
)

TABLE = tuple(value for value in list(globals().values()) if isinstance(value, MetricDefinition))

# Counters that alerts watch are told as 0 before the first is counted: a series that begins at 15 has increased by
# nothing, as far as Prometheus can see.
_VERDICTS = (KEPT, REGRESSED, NOT_JUDGED)
_SETTLED: dict[MoveState, tuple[MoveReason, ...]] = {
    MoveState.DRAINED: (MoveReason.LANDED,),
    MoveState.RELEASED_IDLE: (MoveReason.NO_BATCH,),
    MoveState.KILLED: (MoveReason.CLOSED, MoveReason.EXECUTOR_GONE, MoveReason.PRESUMED, MoveReason.RUN_ENDED),
    MoveState.ABANDONED: (
        MoveReason.ALREADY_THERE,
        MoveReason.DEADLINE,
        MoveReason.EXPIRED,
        MoveReason.RUN_ENDED,
        MoveReason.STORES_UNKNOWN,
        MoveReason.SUPERSEDED,
        MoveReason.TARGET_GONE,
    ),
}

_LINK = (
    (FAILED_TASKS, "failed_tasks"),
    (LANDED, "landed"),
    (MISSED, "missed"),
    (ABANDONED, "abandoned"),
    (DRIFTED, "drifted"),
    (LINK_REJECTED, "rejected_messages"),
)


class ControllerMetrics(Collector):
    """Answers Prometheus from the newest view, from the records of the jobs and from what was counted."""

    def __init__(self, take: Callable[[], ControllerView], loops: JobMonitor, counts: Counters) -> None:
        self._take = take
        self._loops = loops
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield every figure; Prometheus' client calls this."""
        view = self._take()
        values = MetricSamples(TABLE, view.cluster)
        values.set(BUILD, 1, view.version, platform.python_version())
        _controller(values, view)
        for loop in self._loops.read():
            _loop(values, loop)
        for state, reasons in _SETTLED.items():
            for reason in reasons:
                values.set(MOVES, 0, state, reason)
        for verdict in _VERDICTS:
            values.set(MIGRATIONS, 0, verdict)
        for kind, item in (
            (CounterKind.DECISIONS, DECISIONS),
            (CounterKind.MOVES, MOVES),
            (CounterKind.MIGRATIONS, MIGRATIONS),
            (CounterKind.REQUESTS, REQUESTS),
        ):
            for sort, count in self._counts.read(kind).items():
                values.set(item, count, *sort)
        for node in view.nodes:
            values.set(WINDOW_AGE, node.window_age, node.node)
            values.set(NODE_FRESH, node.fresh, node.node)
        for application in view.applications:
            _application(values, application)
            _decided(values, view, application)
        values.set(LEFT_OUT, values.left_out)
        yield from values.families()

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without their values, so that registering asks for none."""
        yield from MetricSamples(TABLE, "").families()


def _controller(values: MetricSamples, view: ControllerView) -> None:
    values.set(LEADS, view.role is Role.LEADING)
    values.set(STANDS_BY, view.role is Role.STANDING_BY)
    values.set(EPOCH, view.epoch)
    values.set(VIEW_AT, view.read_at)
    values.set(REDIS_UP, view.redis_up)
    values.set(REDIS_TRIP, view.redis_round_trip)
    values.set(REJECTED, view.rejected_messages)
    values.set(PAUSED, view.paused)
    values.set(APPLIES, view.mode == "apply")
    values.set(NEXT_DECISION, view.next_decision or None)
    values.set(RUNNING, len(view.migrations))
    flying = [move.state for application in view.applications for move in application.moves]
    for unsettled in sorted(UNSETTLED):
        values.set(IN_FLIGHT, flying.count(unsettled), unsettled)
    for state in _DRAINS:
        values.set(DRAINS, sum(drain.state == state for drain in view.drains), state)
    values.set(OVERDUE, sum(drain.overdue and drain.state == "draining" for drain in view.drains))


def _loop(values: MetricSamples, loop: JobStatus) -> None:
    values.set(LOOP_RUNS, loop.runs, loop.job)
    values.set(LOOP_FAILED, loop.failed, loop.job)
    values.set(REDIS_FAILED, loop.redis_failed, loop.job)
    values.set(LOOP_BUSY, loop.busy, loop.job)
    values.set(LOOP_INTERVAL, loop.every, loop.job)
    values.set(LOOP_ENDED, loop.ended or loop.since or None, loop.job)  # a job that never ended is stuck as well
    if loop.ended:
        values.set(LOOP_DURATION, loop.duration, loop.job)
    if loop.began:
        values.set(LOOP_LAG, loop.lag, loop.job)


def _application(values: MetricSamples, view: ApplicationView) -> None:
    name = view.application
    values.set(APPLICATION, 1, name, view.name, view.spark_version)
    values.set(READY, view.ready, name)
    values.set(COVERAGE, view.coverage, name)
    values.set(SHUFFLES, view.shuffles_seen, name)
    values.set(PROBLEMS, len(view.problems), name)
    for item, counter in _LINK:
        values.set(item, view.counters.get(counter), name)
    for executor in view.executors:
        labels = name, executor.node, executor.executor
        values.set(UTILIZATION, executor.utilization, *labels)
        values.set(PARTITIONS, executor.partitions, *labels)
        values.set(CORES, executor.cores, *labels)
        values.set(ARRIVAL, executor.arrival_rate, *labels)
        values.set(SERVICE, executor.service_rate, *labels)
        values.set(SPEED, executor.speed, *labels)
    for query in view.queries:
        labels = name, query.query, query.name
        values.set(BATCH, query.batch_seconds, *labels)
        values.set(BATCH_RATE, query.batches_per_second, *labels)
        values.set(ACTIVE, query.active, *labels)
        values.set(MOVABLE, not query.problem, *labels)
        values.set(SNAPSHOT_LAG, query.snapshot_lag, *labels)


def _decided(values: MetricSamples, view: ControllerView, application: ApplicationView) -> None:
    name = application.application
    last = view.last_decision(name)
    if last is not None:
        values.set(DECIDED_AT, last.decision.at, name)
        values.set(GAIN, last.decision.gain, name)
        values.set(COST, last.decision.cost, name)
    found = (known.outcome for known in view.decisions if known.application == name)
    outcome = next((known for known in found if known is not None), None)
    if outcome is None:
        return
    price = outcome.predicted
    told = (
        ("peak", "measured", outcome.peak),
        ("settled", "measured", outcome.batch_after),
        ("peak", "predicted", price.peak if price else {}),
        ("settled", "predicted", price.batch_after if price else {}),
    )
    for query in application.queries:
        for moment, source, seconds in told:
            values.set(MIGRATION_BATCH, seconds.get(query.query), name, query.query, query.name, moment, source)
