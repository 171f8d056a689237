"""Builder of `ClusterStatus` from messages, and the reader of those messages.

`build_status` is pure. The controller's publisher and ``rechannel status`` call the same builder; the command needs no
controller, as all messages are in Redis.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.control.scheduled_plans import describe
from rechannel.daemon.control.standing_orders import partitions_on
from rechannel.daemon.decide.decision_figures import stream_classes
from rechannel.daemon.model.application_messages import ApplicationMessages, fresh_usage
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.forecast import StageForecast
from rechannel.daemon.model.readiness import NotReady, driver_silence, without_idle
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot, take_snapshot
from rechannel.daemon.view.last_leader import Leadership, leading
from rechannel.daemon.view.partitions import hot_streams, partition_statuses
from rechannel.daemon.view.status import (
    ApplicationStatus,
    ClusterStatus,
    DrainState,
    DrainStatus,
    ExecutorStatus,
    ForecastStatus,
    LeaderStatus,
    LinkCounters,
    MoveStatus,
    QueryStatus,
    ReadinessStatus,
    ScheduledPlanStatus,
    StageStatus,
)
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.policies.prediction.gain import Residual
from rechannel.wire import keys
from rechannel.wire.measurements import AgentWindow, ExecutorUsage
from rechannel.wire.messages import (
    DrainedNode,
    ExecutorInfo,
    LinkReport,
    QueryState,
    ScheduledPlan,
    ScheduledPlans,
    StandingOrders,
    StatefulStage,
)
from rechannel.wire.printable import query_name, with_noun
from rechannel.wire.redis.store import Store


@dataclass(frozen=True)
class ClusterMessages:
    """All messages that a status is built from. ``rejected``: number of unreadable messages."""

    applications: tuple[ApplicationMessages, ...]
    leader: Leadership | None
    drains: tuple[DrainedNode, ...]
    scheduled_plans: tuple[ScheduledPlan, ...]
    rejected: int


def read_messages(store: Store, applications: Iterable[ApplicationMessages], now: float) -> ClusterMessages:
    """Read the messages that belong to no application and put them beside those that do."""
    orders, plans = store.get(keys.ORDERS), store.get(keys.SCHEDULED_PLANS)
    return ClusterMessages(
        applications=tuple(applications),
        leader=leading(store, now),
        drains=tuple(orders.body.drains) if orders is not None and isinstance(orders.body, StandingOrders) else (),
        scheduled_plans=tuple(plans.body.plans) if plans is not None and isinstance(plans.body, ScheduledPlans) else (),
        rejected=store.rejected,
    )


def read_status(
    store: Store, settings: Settings, now: float, *, partitions: bool = False, collector: Collector | None = None
) -> ClusterStatus:
    """Read all messages and build the status.

    ``collector``: that of earlier calls, which reads only new messages.
    """
    collector = collector or Collector(store, settings, lambda: now)
    gathered = [collector.gather(name) for name in collector.refresh()]
    messages = read_messages(store, (item for item in gathered if item is not None), now)
    return build_status(messages, settings, now, partitions=partitions)


def build_status(messages: ClusterMessages, settings: Settings, now: float, *, partitions: bool) -> ClusterStatus:
    """Build the status of a cluster; the parameters are those of `read_status`."""
    # A node has one drain; the last one counts, as for the links.
    drains = {drain.node: drain for drain in messages.drains}
    reports = [item.report for item in messages.applications]
    return ClusterStatus(
        at=now,
        controller=_leader(messages.leader, now),
        applications=tuple(
            application_status(item, messages, settings, now, partitions=partitions) for item in messages.applications
        ),
        drains=tuple(drain_status(drain, reports, now) for drain in drains.values()),
        scheduled_plans=tuple(scheduled_plan_status(plan, settings, now) for plan in messages.scheduled_plans),
        rejected_messages=messages.rejected,
    )


def application_status(
    item: ApplicationMessages, messages: ClusterMessages, settings: Settings, now: float, *, partitions: bool
) -> ApplicationStatus:
    """Build the status of one application.

    The figures of a silent driver are those of its last report, and no other cause is named for its silence.
    """
    report = item.report
    silent = driver_silence(item.reported_at, now)
    at = now if silent is None else item.reported_at
    drained = frozenset(drain.node for drain in messages.drains)
    # The model holds what was measured; forecasts are shown beside it.
    present, others = without_idle(item, settings), (settings, at, drained)
    snapshot = take_snapshot(present, *others, forecast=False)
    if isinstance(snapshot, NotReady) or present.idle:
        model = build_snapshot(item, *others, forecast=False)
    else:
        model = snapshot
    leader = messages.leader.state.applications if messages.leader is not None and silent is None else {}
    names = {query.query: query.name for query in report.queries}
    usage = fresh_usage(item, settings, at)
    executors = _executors(report, usage, drained, model, silent=silent is not None)
    residuals = {} if isinstance(snapshot, NotReady) else snapshot.residuals
    return ApplicationStatus(
        application=item.application,
        name=report.name,
        spark_version=report.spark_version,
        last_heard=max(0.0, now - item.reported_at),
        silent=silent is not None,
        readiness=_readiness(silent or snapshot, leader.get(item.application, "")),
        executors=executors,
        queries=tuple(_query(query, model, residuals, report.initial_placements) for query in report.queries),
        shuffles_seen=model.shuffle_coverage if model is not None else None,
        streams=stream_classes(model.workload) if model is not None else {},
        hot_streams=hot_streams(model) if model is not None else (),
        partitions=partition_statuses(item, model) if partitions else (),
        moves=tuple(
            MoveStatus(**msgspec.structs.asdict(move), name=names.get(move.query, ""))
            for move in report.moves
            if move.state in AWAITING_BATCH
        ),
        forecasts=tuple(_forecast(one) for one in model.forecasts.values()) if model is not None else (),
        settled_moves=sum(move.state not in AWAITING_BATCH for move in report.moves),
        counters=LinkCounters(
            landed=report.landed,
            missed=report.missed,
            abandoned=report.abandoned,
            drifted=report.drifted_partitions,
            failed_tasks=report.failed_tasks,
            rejected_messages=report.rejected_messages,
        ),
        problems=tuple(report.problems),
    )


def drain_status(drain: DrainedNode, reports: Sequence[LinkReport], now: float) -> DrainStatus:
    """Build the status of a node drain."""
    left = sum(partitions_on(report, [drain.node])[drain.node] for report in reports)
    executors = tuple(info.executor for report in reports for info in report.executors if info.node_name == drain.node)
    overdue = 0 < drain.deadline <= now
    running = with_noun(len(executors), "executor")
    if left:
        state = DrainState.DRAINING
        sentence = f"{'1 partition is' if left == 1 else f'{left} partitions are'} left on {running}"
        if overdue:
            sentence += ", the deadline has passed"
        stuck = sorted(
            f"{query_name(query.query, query.name)} cannot be moved: {query.problem}"
            for report in reports
            for query in report.queries
            if query.problem and any(set(stage.placement) & set(executors) for stage in query.stages)
        )
        sentence = "; ".join([sentence, *stuck])
    elif drain.remove and executors:
        state, sentence = DrainState.RELEASING, f"empty; {running} to be released at a batch boundary"
    elif executors:
        verb = "runs" if len(executors) == 1 else "run"
        state, sentence = DrainState.EMPTY, f"empty; {running} still {verb} source and stateless tasks"
    else:
        state = DrainState.RELEASED
        sentence = "no executor runs there" if reports else "no driver reports, so no executor is known there"
    return DrainStatus(
        **msgspec.structs.asdict(drain),
        state=state,
        partitions=left,
        executors=executors,
        overdue=overdue,
        sentence=sentence,
    )


def scheduled_plan_status(plan: ScheduledPlan, settings: Settings, now: float) -> ScheduledPlanStatus:
    """Build the status of a scheduled plan."""
    status = msgspec.convert(plan, ScheduledPlanStatus, from_attributes=True)
    return replace(status, sentence=describe(plan, now, settings.reschedule.time_zone))


def _leader(leader: Leadership | None, now: float) -> LeaderStatus | None:
    if leader is None:
        return None
    status = msgspec.convert(leader.state, LeaderStatus, from_attributes=True)
    return replace(status, last_heard=max(0.0, now - leader.sent))


def _readiness(ready: NotReady | Snapshot, controller: str) -> ReadinessStatus:
    if isinstance(ready, NotReady):
        return ReadinessStatus(False, ready.code, ready.sentence, ready.transient, ready.ready_in, controller)
    return ReadinessStatus(True, "ready", "ready", controller=controller)


def _forecast(forecast: StageForecast) -> ForecastStatus:
    return ForecastStatus(
        stage=forecast.key,
        name=forecast.name,
        slots=forecast.slots,
        seconds_ahead=forecast.seconds,
        comparisons=forecast.forecast.comparisons if forecast.forecast is not None else 0,
        error=forecast.error,
        partitions=forecast.used,
        decided_on=forecast.used > 0,
        sentence=forecast.sentence(),
    )


def _executors(
    report: LinkReport,
    usage: Mapping[str, tuple[AgentWindow, ExecutorUsage]],
    drained: Collection[str],
    model: Snapshot | None,
    *,
    silent: bool,
) -> tuple[ExecutorStatus, ...]:
    held: dict[str, int] = {}
    for query in report.queries:
        for stage in query.stages if query.active else ():
            for executor in stage.placement:
                held[executor] = held.get(executor, 0) + 1
    statuses = []
    for info in {info.executor: info for info in report.executors}.values():
        status = replace(
            _measured(info, usage.get(info.executor)),
            partitions=held.get(info.executor, 0),
            drained=info.node_name in drained,
            releasing=info.executor in report.releasing_executors,
        )
        statuses.append(status)
    if model is not None:
        statuses = _with_load(statuses, model)
    return tuple(replace(status, remark=_remark(status, silent=silent)) for status in statuses)


def _measured(info: ExecutorInfo, usage: tuple[AgentWindow, ExecutorUsage] | None) -> ExecutorStatus:
    """An executor with the figures of its agent's newest window."""
    status = ExecutorStatus(executor=info.executor, node=info.node_name, cores=info.cores, partitions=0)
    if usage is None:
        return status
    window, used = usage
    seconds = max(window.end - window.start, 1e-9)
    return replace(
        status,
        cpu=used.jvm_cpu / seconds,
        python_cpu=used.python_cpu / seconds,
        node_cpu=window.node_cpu / seconds / max(1, window.cores),
        rss_bytes=used.jvm_rss + used.python_rss,
        fresh=True,
    )


def _with_load(statuses: Iterable[ExecutorStatus], model: Snapshot) -> list[ExecutorStatus]:
    """Add the figures of the queue model."""
    queue = executor_utilization(model.cluster, model.workload, model.placement)
    loaded = []
    for status in statuses:
        index = model.cluster.index_of(status.executor)
        rate = float(queue.service_rate[index])
        slow = model.slow.get(status.executor)
        loaded.append(
            replace(
                status,
                utilization=float(queue.utilization[index]),
                arrival_rate=float(queue.arrival_rate[index]),
                service_rate=rate if math.isfinite(rate) else None,
                speed=float(model.cluster.speed[index]),
                slow=slow.evidence if slow is not None else "",
                slow_cause=slow.cause if slow is not None else "",
                remark=slow.sentence if slow is not None else "",
            )
        )
    return loaded


def _remark(status: ExecutorStatus, *, silent: bool) -> str:
    """All facts without a column of their own; the status has the model's remark already.

    The agents of an ended driver have no figures to report, so their silence is no fact.
    """
    remarks = {
        "no fresh agent figures": not status.fresh and not silent,
        status.remark: status.remark,
        "about to be released": status.releasing,
    }
    return ", ".join(text for text, holds in remarks.items() if holds)


def _query(
    query: QueryState, model: Snapshot | None, residuals: Mapping[str, Residual], starts: Mapping[str, str]
) -> QueryStatus:
    measured = model if model is not None and query.query in model.recent_batch_seconds else None
    return QueryStatus(
        query=query.query,
        name=query.name,
        run=query.run,
        batch=query.batch,
        active=query.active,
        problem=query.problem,
        start=starts.get(query.query, ""),
        batch_seconds=measured.recent_batch_seconds[query.query] if measured is not None else None,
        batches_per_second=1 / measured.batch_period[query.query] if measured is not None else None,
        stages=tuple(_stage(stage) for stage in query.stages),
        residual=residuals[query.query].share if query.query in residuals else None,
        snapshot_lag=max((lag for stage in query.stages for lag in stage.snapshot_lag if lag >= 0), default=None),
    )


def _stage(stage: StatefulStage) -> StageStatus:
    placement: dict[str, list[int]] = {}
    for partition, executor in enumerate(stage.placement):
        placement.setdefault(executor or "unknown", []).append(partition)
    by_executor = sorted(placement.items(), key=lambda item: (len(item[0]), item[0]))
    return StageStatus(
        stage=stage.stage,
        partitions=stage.partitions,
        operators=tuple(operator.name for operator in stage.operators),
        placement={executor: tuple(partitions) for executor, partitions in by_executor},
    )
