"""Prometheus metrics of a controller: table of metrics, counters, and collector.

Gauges come from the newest `ControllerView` alone, so that whatever leaves the view loses its series. Labels name
applications, nodes, executors and queries, but no partitions or moves, whose number has no small bound. No label is
called ``job`` or ``instance``: Prometheus sets those itself.
"""

from __future__ import annotations

import platform
import threading
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rechannel.daemon.control.leadership import Role
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.job import JobStatus
from rechannel.daemon.view.status import ApplicationStatus, ControllerView, DrainState
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.wire.codes import DecisionResult, Mode, MoveReason, MoveState, OutcomeVerdict, SlowCause
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.metric_samples import MetricDefinition, MetricSamples

_MAX_SERIES = 1000  # series of a counter; beyond: the rest is counted as "other"
_APPLICATION = ("application",)
_EXECUTOR = ("application", "node", "executor")
_QUERY = ("application", "query", "name")
_JOB = ("job_name",)  # Prometheus itself sets a label `job`

BUILD = MetricDefinition("rechannel_build_info", "1; the labels name the versions that run", ("version", "python"))
LEADS = MetricDefinition("rechannel_controller_leads", "1 while this controller holds the lease and leads")
STANDS_BY = MetricDefinition("rechannel_controller_stands_by", "1 while another controller leads")
EPOCH = MetricDefinition("rechannel_controller_epoch", "Epoch of the lead; it rises with every change of leader")
VIEW_AT = MetricDefinition(
    "rechannel_controller_view_timestamp_seconds",
    "Time at which the figures below were read from Redis; 0 before the first time",
)
REDIS_UP = MetricDefinition("rechannel_controller_redis_up", "1 if the last view could be read from Redis")
REDIS_TRIP = MetricDefinition(
    "rechannel_controller_redis_round_trip_seconds", "Duration of one call to Redis; none while it cannot be reached"
)
REDIS_FAILED = MetricDefinition("rechannel_controller_redis_failures_total", "Runs of a job that failed by Redis", _JOB)
REJECTED = MetricDefinition(
    "rechannel_controller_rejected_messages_total", "Messages that were unreadable or impossible"
)
REQUESTS = MetricDefinition(
    "rechannel_controller_requests_total",
    "Answered requests of operators and viewers; `exit` is the name of the exit code",
    ("verb", "exit"),
)
JOB_RUNS = MetricDefinition(
    "rechannel_controller_job_runs_total", "Runs of a job that ended, with success or failure", _JOB
)
JOB_FAILED = MetricDefinition(
    "rechannel_controller_job_failures_total", "Runs of a job that failed by a defect, not by Redis", _JOB
)
JOB_BUSY = MetricDefinition(
    "rechannel_controller_job_busy_seconds_total", "Duration of all runs of a job together", _JOB
)
JOB_DURATION = MetricDefinition("rechannel_controller_job_duration_seconds", "Duration of the last run of a job", _JOB)
JOB_LAG = MetricDefinition(
    "rechannel_controller_job_lag_seconds",
    "Delay of the last start of a job against its interval",
    _JOB,
)
JOB_INTERVAL = MetricDefinition("rechannel_controller_job_interval_seconds", "Interval of a job", _JOB)
JOB_ENDED = MetricDefinition(
    "rechannel_controller_job_last_end_timestamp_seconds",
    "Time of the last end of a job; before the first, time at which the controller started it",
    _JOB,
)
LEFT_OUT = MetricDefinition(
    "rechannel_controller_series_left_out", "Series left out of this response, which is bounded"
)

PAUSED = MetricDefinition("rechannel_paused", "1 while everything is paused")
APPLIES = MetricDefinition(
    "rechannel_applies", "1 if the leader acts on its decisions (mode apply), 0 if it only observes"
)
NEXT_DECISION = MetricDefinition(
    "rechannel_next_decision_timestamp_seconds", "Time of the leader's next decision by timeout"
)
DECISIONS = MetricDefinition(
    "rechannel_decisions_total",
    f"Decisions of this controller; `result` is {DecisionResult.alternatives()}",
    ("result", "reason", "trigger"),
)
DECIDED_AT = MetricDefinition(
    "rechannel_decision_timestamp_seconds", "Time of the last decision on an application", _APPLICATION
)
GAIN = MetricDefinition(
    "rechannel_decision_gain_seconds", "Predicted gain of the last decision over `gate.horizon`", _APPLICATION
)
COST = MetricDefinition("rechannel_decision_cost_seconds", "Predicted cost of the last decision", _APPLICATION)
RUNNING = MetricDefinition("rechannel_migrations_running", "Running migrations; only the leader has any")
BEGUN = MetricDefinition(
    "rechannel_migration_start_timestamp_seconds",
    "Time at which the running migration of an application began, or this leader took it over",
    _APPLICATION,
)
MIGRATIONS = MetricDefinition(
    "rechannel_migrations_total",
    f"Migrations with a known outcome; `verdict` is {OutcomeVerdict.alternatives()}",
    ("verdict",),
)
MIGRATION_BATCH = MetricDefinition(
    "rechannel_migration_batch_seconds",
    "Batch duration of a query by the last migration with a known outcome: at its `peak` during the migration or "
    "`settled` afterwards, `predicted` or `measured`",
    (*_QUERY, "moment", "source"),
)
IN_FLIGHT = MetricDefinition("rechannel_moves_in_flight", "Moves that await a batch, by state", ("state",))
MOVES = MetricDefinition(
    "rechannel_moves_total",
    "Moves that reached a state that awaits no further batch, while this controller led; a drained move is killed "
    "later and counts in both",
    ("state", "reason"),
)
DRAINS = MetricDefinition("rechannel_drains", "Node drains, by progress", ("state",))
OVERDUE = MetricDefinition("rechannel_drains_overdue", "Node drains with state left after their deadline")

WINDOW_AGE = MetricDefinition(
    "rechannel_node_window_age_seconds",
    "Time since the end of the newest window of a node's agent; none without a window",
    ("node",),
)
NODE_FRESH = MetricDefinition(
    "rechannel_node_fresh", "1 if all executors of a node have fresh agent figures", ("node",)
)

APPLICATION = MetricDefinition(
    "rechannel_application_info", "1; an application whose link reports", ("application", "name", "spark_version")
)
READY = MetricDefinition("rechannel_application_ready", "1 if a decision is possible now", _APPLICATION)
COVERAGE = MetricDefinition(
    "rechannel_application_coverage_ratio", "Share of the executors with fresh agent figures", _APPLICATION
)
SHUFFLES = MetricDefinition(
    "rechannel_application_shuffles_seen_ratio",
    "Share of the shuffle outputs of the last batches with stream sizes from agents",
    _APPLICATION,
)
PROBLEMS = MetricDefinition("rechannel_application_problems", "Problems that the link reports", _APPLICATION)
FAILED_TASKS = MetricDefinition(
    "rechannel_link_failed_tasks_total", "Failed task attempts since the link was attached", _APPLICATION
)
LANDED = MetricDefinition("rechannel_link_landed_moves_total", "Moves that landed, counted by the link", _APPLICATION)
MISSED = MetricDefinition(
    "rechannel_link_missed_batches_total",
    "Batches that ran a moved partition elsewhere than on its target",
    _APPLICATION,
)
ABANDONED = MetricDefinition(
    "rechannel_link_abandoned_moves_total", "Moves abandoned, counted by the link", _APPLICATION
)
DRIFTED = MetricDefinition(
    "rechannel_link_drifted_partitions_total", "Partitions that Spark ran elsewhere without a move", _APPLICATION
)
LINK_REJECTED = MetricDefinition(
    "rechannel_link_rejected_messages_total", "Messages that the link rejected or could not read", _APPLICATION
)

UTILIZATION = MetricDefinition(
    "rechannel_executor_utilization_ratio", "Utilization of an executor, as a share of its cores", _EXECUTOR
)
PARTITIONS = MetricDefinition("rechannel_executor_partitions", "Stateful partitions on an executor", _EXECUTOR)
CORES = MetricDefinition("rechannel_executor_cores", "Cores of an executor", _EXECUTOR)
ARRIVAL = MetricDefinition("rechannel_executor_arrival_rows_per_second", "Arrival rate of an executor", _EXECUTOR)
SERVICE = MetricDefinition("rechannel_executor_service_rows_per_second", "Service rate of an executor", _EXECUTOR)
SPEED = MetricDefinition("rechannel_executor_speed_ratio", "Relative speed of an executor; 1 is usual", _EXECUTOR)
SLOW = MetricDefinition(
    "rechannel_executor_slow",
    f"1 for a slow executor; `cause` is {SlowCause.alternatives()}",
    (*_EXECUTOR, "cause"),
)

BATCH = MetricDefinition("rechannel_query_batch_seconds", "Mean duration of the last batches of a query", _QUERY)
RESIDUAL = MetricDefinition(
    "rechannel_query_replay_residual_ratio",
    "Share by which the replay of a query's present placement differs from its last batches; "
    "`gate.max_residual` bounds it for decisions",
    _QUERY,
)
BATCH_RATE = MetricDefinition("rechannel_query_batches_per_second", "Batch starts per second of a query", _QUERY)
ACTIVE = MetricDefinition("rechannel_query_active", "1 while a query runs", _QUERY)
MOVABLE = MetricDefinition(
    "rechannel_query_movable", "1 if the partitions of a query can be moved, 0 if it has a problem", _QUERY
)
SNAPSHOT_LAG = MetricDefinition(
    "rechannel_query_snapshot_lag_batches",
    "Batches since the newest snapshot of the worst partition asked for lately; none where Spark does not report it",
    _QUERY,
)

TABLE = tuple(value for value in list(globals().values()) if isinstance(value, MetricDefinition))
COUNTED = (DECISIONS, MOVES, MIGRATIONS, REQUESTS)  # events of this controller, which `Counters` counts

# Counters that alerts watch are 0 before the first event: Prometheus sees no increase in a series that begins at 15.
_MOVE_ENDS: dict[MoveState, tuple[MoveReason, ...]] = {
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


class Counters:
    """Events that one controller counted since its start, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[MetricDefinition, Counter[tuple[str, ...]]] = {metric: Counter() for metric in COUNTED}

    def count_answer(self, verb: str, code: int) -> None:
        """Count an answer to a request; ``code`` is its exit code."""
        self.add(REQUESTS, verb, ExitCode(code).name.lower().replace("_", "-"))

    def add(self, metric: MetricDefinition, *labels: str) -> None:
        """Count one event of a metric in `COUNTED`."""
        with self._lock:
            counts = self._counts[metric]
            counts[labels if labels in counts or len(counts) < _MAX_SERIES else ("other",) * len(labels)] += 1

    def read(self, metric: MetricDefinition) -> dict[tuple[str, ...], int]:
        """Return the number of events by labels."""
        with self._lock:
            return dict(self._counts[metric])


class ControllerMetrics(Collector):
    """Collector over the newest view, the records of the jobs, and the counters."""

    def __init__(self, latest: Callable[[], ControllerView], monitor: JobMonitor, counters: Counters) -> None:
        self._latest = latest
        self._monitor = monitor
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their samples."""
        view = self._latest()
        samples = MetricSamples(TABLE, view.cluster)
        samples.set(BUILD, 1, view.version, platform.python_version())
        _add_controller(samples, view)
        for job in self._monitor.read():
            _add_job(samples, job)
        for state, reasons in _MOVE_ENDS.items():
            for reason in reasons:
                samples.set(MOVES, 0, state, reason)
        for verdict in OutcomeVerdict:
            samples.set(MIGRATIONS, 0, verdict)
        for metric in COUNTED:
            for labels, count in self._counters.read(metric).items():
                samples.set(metric, count, *labels)
        for node in view.nodes:
            samples.set(WINDOW_AGE, node.window_age, node.node)
            samples.set(NODE_FRESH, node.fresh, node.node)
        for application in view.applications:
            _add_application(samples, application)
            _add_decision(samples, view, application)
        samples.set(LEFT_OUT, samples.left_out)
        yield from samples.families()

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, so that registering collects nothing."""
        yield from MetricSamples(TABLE, "").families()


def _add_controller(samples: MetricSamples, view: ControllerView) -> None:
    leader = view.leader
    samples.set(LEADS, view.role is Role.LEADING)
    samples.set(STANDS_BY, view.role is Role.STANDING_BY)
    samples.set(EPOCH, leader.epoch)
    samples.set(VIEW_AT, view.read_at)
    samples.set(REDIS_UP, view.redis_up)
    samples.set(REDIS_TRIP, view.redis_round_trip)
    samples.set(REJECTED, view.rejected_messages)
    samples.set(PAUSED, leader.paused)
    samples.set(APPLIES, leader.mode == Mode.APPLY)
    samples.set(NEXT_DECISION, leader.next_decision or None)
    samples.set(RUNNING, len(view.migrations))
    for migration in view.migrations:
        samples.set(BEGUN, migration.begun or None, migration.application)
    in_flight = [move.state for application in view.applications for move in application.moves]
    for state in sorted(AWAITING_BATCH):
        samples.set(IN_FLIGHT, in_flight.count(state), state)
    for progress in DrainState:
        samples.set(DRAINS, sum(drain.state == progress for drain in view.drains), progress)
    samples.set(OVERDUE, sum(drain.overdue and drain.state == DrainState.DRAINING for drain in view.drains))


def _add_job(samples: MetricSamples, job: JobStatus) -> None:
    samples.set(JOB_RUNS, job.runs, job.job)
    samples.set(JOB_FAILED, job.defects, job.job)
    samples.set(REDIS_FAILED, job.redis_failures, job.job)
    samples.set(JOB_BUSY, job.busy, job.job)
    samples.set(JOB_INTERVAL, job.every, job.job)
    samples.set(JOB_ENDED, job.ended or job.since or None, job.job)  # a job that never ended may hang
    if job.ended:
        samples.set(JOB_DURATION, job.duration, job.job)
    if job.began:
        samples.set(JOB_LAG, job.lag, job.job)


def _add_application(samples: MetricSamples, status: ApplicationStatus) -> None:
    name, counters = status.application, status.counters
    samples.set(APPLICATION, 1, name, status.name, status.spark_version)
    samples.set(READY, status.readiness.ready, name)
    samples.set(COVERAGE, status.coverage, name)
    samples.set(SHUFFLES, status.shuffles_seen, name)
    samples.set(PROBLEMS, len(status.problems), name)
    samples.set(FAILED_TASKS, counters.failed_tasks, name)
    samples.set(LANDED, counters.landed, name)
    samples.set(MISSED, counters.missed, name)
    samples.set(ABANDONED, counters.abandoned, name)
    samples.set(DRIFTED, counters.drifted, name)
    samples.set(LINK_REJECTED, counters.rejected_messages, name)
    for executor in status.executors:
        labels = name, executor.node, executor.executor
        samples.set(UTILIZATION, executor.utilization, *labels)
        samples.set(PARTITIONS, executor.partitions, *labels)
        samples.set(CORES, executor.cores, *labels)
        samples.set(ARRIVAL, executor.arrival_rate, *labels)
        samples.set(SERVICE, executor.service_rate, *labels)
        samples.set(SPEED, executor.speed, *labels)
        if executor.slow_cause:
            samples.set(SLOW, 1, *labels, executor.slow_cause)
    for query in status.queries:
        labels = name, query.query, query.name
        samples.set(BATCH, query.batch_seconds, *labels)
        samples.set(RESIDUAL, query.residual, *labels)
        samples.set(BATCH_RATE, query.batches_per_second, *labels)
        samples.set(ACTIVE, query.active, *labels)
        samples.set(MOVABLE, not query.problem, *labels)
        samples.set(SNAPSHOT_LAG, query.snapshot_lag, *labels)


def _add_decision(samples: MetricSamples, view: ControllerView, status: ApplicationStatus) -> None:
    """Add the last decision on an application and the last known outcome."""
    name = status.application
    decision, outcome = view.last_decisions.get(name), view.last_outcomes.get(name)
    if decision is not None:
        samples.set(DECIDED_AT, decision.at, name)
        samples.set(GAIN, decision.gain, name)
        samples.set(COST, decision.cost, name)
    if outcome is None:
        return
    cost = outcome.predicted
    figures = (
        ("peak", "measured", outcome.peak),
        ("settled", "measured", outcome.batch_after),
        ("peak", "predicted", cost.peak if cost else {}),
        ("settled", "predicted", cost.batch_after if cost else {}),
    )
    for query in status.queries:
        for moment, source, seconds in figures:
            samples.set(MIGRATION_BATCH, seconds.get(query.query), name, query.query, query.name, moment, source)
