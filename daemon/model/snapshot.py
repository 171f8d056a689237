"""One reading of everything a decision needs, or the reason why there is none yet.

Pure: messages and a time in, numpy model out. Keys of placeable stages are ``<query>/<ordinal>``. A query whose state
cannot be moved now (its link reports a problem, or it has too few batches) still loads its executors: its stages
count as floating, as they were observed.

What tasks take is measured by the driver's event stream. Agents add the sizes of streams: where one is silent, those
are taken as unknown, which is noted, and everything is decided on all the same. An executor's speed is 1 unless it is
known to be slower or faster than the others (`rechannel.policies.analysis.service_rate`); that it is slower while it
is new is
not held against it (``reschedule.warm_up``, and its first tasks of each stage, where batches are rare), or an executor
that joins would get next to nothing until the next decision.
Executors of drained nodes, and those about to be released, are in the model but not available.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rechannel.conf.settings import Settings
from rechannel.daemon.model import forecast as forecasting
from rechannel.daemon.model import query_model
from rechannel.policies.analysis.service_rate import ServiceRates, service_rates
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.streams import Stream
from rechannel.policies.model.workload import Stage, Workload
from rechannel.wire.measurements import AgentWindow, BatchReport, ExecutorUsage
from rechannel.wire.messages import ExecutorInfo, LinkReport, QueryState
from rechannel.wire.printable import count, query_name, stage_name

_COLD_TASKS = 3  # of each stage on each core of a new executor, until its code is compiled
_USUAL = 20  # batches that say what is usual
_NAMED = 5  # silent nodes, at most

Windows = Mapping[str, Sequence[AgentWindow]]


@dataclass(frozen=True)
class NotReady:
    """Why nothing can be decided. ``transient``: waiting helps; ``ready_in``: how long, in seconds, where known."""

    code: str
    sentence: str
    transient: bool
    ready_in: float | None = None


@dataclass(frozen=True)
class Coverage:
    """How many executors have fresh figures. ``silent`` are the nodes that hold the others."""

    share: float
    fresh: int
    total: int
    silent: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The model at one moment. ``stages``: key of a placeable stage -> (query, number in the link's report).

    ``loads``: key of a placeable stage -> bytes that another executor would load of each partition.
    ``usual`` is the median duration and rows of each query's last twenty batches.
    ``batch_seconds`` is the mean duration of each query's last batches, ``batch_period`` from start to start.
    ``shuffles_seen`` is the share of map outputs that agents reported, of the time they told of (None: none).
    ``outlooks``: key of a placeable stage -> what load is expected of it; in ``workload`` with `reschedule.forecast`.
    """

    application: str
    cluster: Cluster
    workload: Workload
    placement: Placement
    stages: Mapping[str, tuple[str, int]]
    queries: Mapping[str, QueryState]
    batch_seconds: Mapping[str, float]
    batch_period: Mapping[str, float]
    usual: Mapping[str, tuple[float, float]]
    coverage: Coverage
    rates: ServiceRates
    loads: Mapping[str, FloatArray]
    shuffles_seen: float | None = None
    notes: tuple[str, ...] = ()
    outlooks: Mapping[str, forecasting.StageForecast] = field(default_factory=dict)


def measured_only(settings: Settings) -> Settings:
    """Return settings by which a model is of what was measured: what is expected is for decisions alone."""
    return dataclasses.replace(settings, reschedule=dataclasses.replace(settings.reschedule, forecast=False))


def take_snapshot(
    application: str,
    report: LinkReport,
    batches: Sequence[BatchReport],
    windows: Windows,
    settings: Settings,
    now: float,
    drained: Collection[str] = (),
) -> Snapshot | NotReady:
    """Build the model of an application, or say why it cannot be decided on. ``drained``: nodes to hold no state."""
    reason = unready(report, batches, settings, now)
    if reason is not None:
        return reason
    built = build_snapshot(application, report, batches, windows, settings, now, drained)
    return built or NotReady("no-batches", "no stage of any query was measured yet", transient=True)


def build_snapshot(
    application: str,
    report: LinkReport,
    batches: Sequence[BatchReport],
    windows: Windows,
    settings: Settings,
    now: float,
    drained: Collection[str] = (),
    *,
    whole: bool = False,
) -> Snapshot | None:
    """Build what model there is, ready for decisions or not; None without an executor or a query with stages.

    ``whole``: queries that were not measured (idle for long, or new) are in it too, with stages that cost nothing; for
    partitions that have to leave, measured or not.
    """
    infos = sorted({info.executor: info for info in report.executors}.values(), key=_executor_order)
    if not infos:
        return None
    executors = {info.executor: index for index, info in enumerate(infos)}
    queries = {query.query: query for query in report.queries if query.active}
    last_of = {name: last_batches(query, batches, settings, now) for name, query in queries.items()}
    since = {name: last[0].batch for name, last in last_of.items() if last}
    observed_tasks = query_model.observations((batch for batch in batches if batch.query in since), since, executors)
    oldest = min((batch.start for batch in batches if batch.query in since), default=now)
    observed_tasks = query_model.without_first(observed_tasks, _cold_tasks(infos, oldest))
    rates = service_rates(observed_tasks, len(infos), settings.reschedule.slow_ratio)
    cold = _cold(infos, rates, settings.reschedule.warm_up, now)
    cluster = Cluster(
        executors=tuple(info.executor for info in infos),
        nodes=tuple(info.host for info in infos),
        cores=np.array([max(1, info.cores) for info in infos], dtype=np.float64),
        memory_bytes=np.array([info.memory if info.memory > 0 else math.inf for info in infos]),
        speed=np.where(cold, 1.0, rates.speed),
        available=np.array(
            [info.host not in drained and info.executor not in report.releasing_executors for info in infos]
        ),
    )
    coverage = coverage_of(application, report, windows, settings, now)
    fresh = fresh_usage(application, windows, settings, now)
    silent = frozenset(info.executor for info in infos if info.executor not in fresh)
    sent = {
        row.map_task: row
        for node in windows.values()
        for window in node
        for row in window.streams
        if row.application == application
    }
    stages: list[Stage] = []
    streams: list[Stream] = []
    placed: dict[str, tuple[str, int]] = {}
    assignments: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    skipped: Counter[str] = Counter()
    loads: dict[str, FloatArray] = {}
    durations: dict[str, float] = {}
    periods: dict[str, float] = {}
    room = query_model.LARGEST_BLOCKS
    for query in queries.values():
        last = last_of[query.query]
        if whole and not query.problem and len(last) < settings.reschedule.batches:
            model = query_model.unmeasured(query)
        elif last:
            placeable = not query.problem and len(last) >= settings.reschedule.batches
            model = query_model.model_query(
                query, last, sent, executors, placeable=placeable, now=now, speed=rates.speed, room=room, silent=silent
            )
            room -= sum(stream.volume.size for stream in model.streams)
        else:
            continue
        stages += model.stages
        streams += model.streams
        skipped += model.skipped
        if last:
            durations[query.query] = sum(batch.seconds for batch in last) / len(last)
            periods[query.query] = query_model.period(last, now)
        for key, stage in model.placed.items():
            placed[key] = (query.query, stage.stage)
            where = [executors.get(name, UNPLACED) for name in stage.placement[: stage.partitions]]
            where += [UNPLACED] * (stage.partitions - len(where))
            assignments[key] = np.array(where, dtype=np.int64)
            loads[key] = query_model.load_bytes(stage, query.query, last)
    if not stages:
        return None
    outlooks = _outlooks(stages, placed, queries, last_of, batches, settings)
    workload = Workload(tuple(stages), tuple(streams))
    used = outlooks.values() if settings.reschedule.forecast else ()
    return Snapshot(
        application,
        cluster,
        forecasting.expected(workload, outlooks) if used else workload,
        Placement(assignments),
        placed,
        queries,
        durations,
        periods,
        {name: _usual([batch for batch in batches if batch.query == name]) for name in durations},
        coverage,
        rates,
        loads,
        query_model.shuffles_seen(batches, sent, _spans(application, windows, settings)) if coverage.fresh else None,
        ((missing,) if (missing := missing_agents(coverage)) else ())
        + tuple(f"{reason}: {number}, not counted" for reason, number in sorted(skipped.items()))
        + _slow(cluster, rates)
        + tuple(f"forecast: {one.sentence()}" for one in used if one.used),
        outlooks,
    )


def _outlooks(
    stages: Sequence[Stage],
    placed: Mapping[str, tuple[str, int]],
    queries: Mapping[str, QueryState],
    last_of: Mapping[str, Sequence[BatchReport]],
    batches: Sequence[BatchReport],
    settings: Settings,
) -> dict[str, forecasting.StageForecast]:
    named = {
        key: (query, number, stage_name(query, number, queries[query].name)) for key, (query, number) in placed.items()
    }
    group = {query: len(last) for query, last in last_of.items()}
    return forecasting.outlooks(stages, named, group, batches, settings.gate.horizon)


def _usual(batches: Sequence[BatchReport]) -> tuple[float, float]:
    last = sorted(batches, key=lambda batch: batch.batch)[-_USUAL:]
    return (
        float(statistics.median(batch.seconds for batch in last)),
        float(statistics.median(batch.input_rows for batch in last)),
    )


def _spans(application: str, windows: Windows, settings: Settings) -> dict[str, tuple[float, float]]:
    """Executor -> from when to when its agent has told of it; what was written just before a sample is in the next."""
    found: dict[str, tuple[float, float]] = {}
    for node in windows.values():
        for window in node:
            for usage in window.executors:
                if usage.application == application:
                    since, until = found.get(usage.executor, (window.start, window.end))
                    found[usage.executor] = min(since, window.start), max(until, window.end)
    return {name: (since, until - settings.agent.sample) for name, (since, until) in found.items()}


def _cold_tasks(infos: Sequence[ExecutorInfo], oldest: float) -> IntArray:
    """How many of an executor's first tasks of a stage say nothing of its speed, (E,); none where all are as new.

    Of executors that were there before the ``oldest`` batch that is known, the first tasks are not known.
    """
    new = np.array([info.added >= oldest for info in infos])
    count = np.array([_COLD_TASKS * max(1, info.cores) for info in infos], dtype=np.int64)
    return np.asarray(np.where(new & ~new.all(), count, 0))


def _cold(infos: Sequence[ExecutorInfo], rates: ServiceRates, warm_up: float, now: float) -> BoolArray:
    """Executors that are slower than others only for as long as they are new, where older ones compare, (E,)."""
    ages = now - np.array([info.added for info in infos])
    new = (ages < warm_up) & bool((ages >= warm_up).any())
    return np.asarray(new & rates.by_peers & ~rates.by_history)


def _slow(cluster: Cluster, rates: ServiceRates) -> tuple[str, ...]:
    words = [slow_sentence(cluster, rates, index) for index in range(cluster.size)]
    return tuple(
        f"executor {name} on {node} is slow: {text}"
        for name, node, text in zip(cluster.executors, cluster.nodes, words, strict=True)
        if text
    )


def slow_sentence(cluster: Cluster, rates: ServiceRates, index: int) -> str:
    """Say how an executor is known to be slow, and whether that counts yet; "" where it is not."""
    said = []
    if rates.by_peers[index]:
        said.append(f"its tasks take {rates.times[index]:.1f} times what others' take")
    if rates.by_history[index]:
        said.append(f"{rates.grown[index]:.1f} times what they took there before")
    if said and cluster.speed[index] == 1.0:
        said.append("which does not count as long as it is new")
    return ", ".join(said)


def last_batches(
    query: QueryState, batches: Sequence[BatchReport], settings: Settings, now: float
) -> list[BatchReport]:
    """Return the batches of a query that a decision looks at, oldest first.

    They are those that ended within the windows that are averaged, and no fewer than ``reschedule.batches`` where
    there are as many: a slow query has few batches in fifteen seconds, a fast one enough to even out the noise.
    """
    found = {batch.batch: batch for batch in batches if batch.query == query.query and batch.stages}
    ordered = [found[number] for number in sorted(found)]
    since = now - settings.agent.window * settings.reschedule.windows
    recent = sum(batch.end >= since for batch in ordered)
    return ordered[-max(recent, settings.reschedule.batches) :]


def coverage_of(application: str, report: LinkReport, windows: Windows, settings: Settings, now: float) -> Coverage:
    """Say how many of the application's executors have fresh figures."""
    names = {info.executor: info.host for info in report.executors}
    known = fresh_usage(application, windows, settings, now)
    silent = sorted({host for name, host in names.items() if name not in known})
    covered = sum(name in known for name in names)
    return Coverage(covered / len(names) if names else 0.0, covered, len(names), tuple(silent))


def fresh_usage(
    application: str, windows: Windows, settings: Settings, now: float
) -> dict[str, tuple[AgentWindow, ExecutorUsage]]:
    """Return the newest fresh window of each executor of an application, with its usage."""
    found: dict[str, tuple[AgentWindow, ExecutorUsage]] = {}
    oldest = now - stale_after(settings)
    for node in windows.values():
        for window in node:
            if window.end < oldest:
                continue
            for usage in window.executors:
                known = found.get(usage.executor)
                if usage.application == application and (known is None or known[0].end <= window.end):
                    found[usage.executor] = (window, usage)
    return found


def stale_after(settings: Settings) -> float:
    """Return the age in seconds at which an agent's window no longer counts: one more than those averaged."""
    return settings.agent.window * (settings.reschedule.windows + 1)


def unready(report: LinkReport, batches: Sequence[BatchReport], settings: Settings, now: float) -> NotReady | None:
    """Say why an application cannot be decided on, without building its model; None where nothing stands against it."""
    if not report.executors:
        return NotReady("no-executors", "the application has no executors", transient=True)
    active = [query for query in report.queries if query.active]
    if not active:
        return NotReady("no-active-query", "no streaming query is active", transient=True)
    movable = [query for query in active if not query.problem]
    if not movable:
        problems = "; ".join(f"{query_name(query.query, query.name)}: {query.problem}" for query in active)
        return NotReady("query-problem", f"no query can be moved: {problems}", transient=False)
    stateful = [query for query in movable if query.stages]
    if not stateful:
        return NotReady("no-state", "no active query has a known stateful stage (yet)", transient=True)
    need = settings.reschedule.batches
    measured = {query_name(query.query, query.name): last_batches(query, batches, settings, now) for query in stateful}
    if all(len(last) < need for last in measured.values()):
        name, last = max(measured.items(), key=lambda item: (len(item[1]), item[0]))
        wait = (need - len(last)) * query_model.period(last, now) if last else None
        return NotReady(
            "too-few-batches",
            f"query {name} has {count(len(last), 'measured batch')}, {need} are needed (reschedule.batches)",
            transient=True,
            ready_in=wait,
        )
    return None


def missing_agents(coverage: Coverage) -> str:
    """Say whose figures are missing, and what that means; "" where none are."""
    if not coverage.silent:
        return ""
    nodes = f"node{'s' if len(coverage.silent) > 1 else ''} {', '.join(coverage.silent[:_NAMED])}"
    more = f" and {len(coverage.silent) - _NAMED} more" if len(coverage.silent) > _NAMED else ""
    whose = "any node" if not coverage.fresh else f"{nodes}{more}"
    return f"no agent reports from {whose}: the sizes of streams from there are taken as unknown"


def _executor_order(info: ExecutorInfo) -> tuple[int, str]:
    name = info.executor
    number = name.isascii() and name.isdigit() and len(name) < 19
    return (int(name), "") if number else (2**62, name)
