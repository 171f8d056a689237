"""Model of one application at one moment, on which decisions are made. Pure.

Messages and a time go in, a numpy model comes out. Keys of placeable stages are ``<query>/<ordinal>``. A query whose
state cannot be moved now (its link reports a problem, or it has too few batches) still loads its executors: its stages
are floating, with the load that was observed on each executor.

The driver's event stream measures the tasks. Agents add the sizes of streams: those that were not reported count as
unknown, a note says so for silent agents, and decisions go on. An executor's speed is 1 unless it is known to be
slower or faster than the others (:mod:`rechannel.policies.analysis.service_rate`), and that counts
(:mod:`rechannel.daemon.model.slowness`). The first tasks of each stage on a new executor do not tell its speed.
Executors of drained nodes, and those about to be released, are in the model but not available.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rechannel.conf.settings import Settings
from rechannel.daemon.model import query_model
from rechannel.daemon.model.application_messages import (
    AgentCoverage,
    ApplicationMessages,
    describe_silent_agents,
    fresh_usage,
    last_batches,
    measure_coverage,
    of_present_load,
    reporting_spans,
)
from rechannel.daemon.model.forecast import StageForecast, apply_forecasts, forecast_stages
from rechannel.daemon.model.prediction import (
    MeasuredQueries,
    MeasuredQuery,
    TaskEvidence,
    build_prediction,
    collect_evidence,
    warm_batches,
)
from rechannel.daemon.model.query_model import ModelInputs, QueryModel
from rechannel.daemon.model.readiness import NotReady, readiness_problem, unmeasured_queries
from rechannel.daemon.model.slowness import Slowness, slow_executors
from rechannel.policies.analysis.cold_start import COLD_AGES
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.policies.analysis.service_rate import ServiceRates, service_rates
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.gain import Residual, residuals
from rechannel.policies.prediction.model import PredictionModel
from rechannel.wire.codes import NotReadyReason
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import ExecutorInfo, QueryState, StatefulStage
from rechannel.wire.printable import stage_name

_SLOW_RATIO = 1.25  # an executor is slow if its tasks take so many times what those of others take; fast: the inverse
_MEDIAN_BATCHES = 20  # over which the median duration and rows are taken


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Model of an application at one moment.

    By key of a placeable stage: ``stage_ids``, its query and number in the link's report; ``bytes_to_load``, bytes that
    another executor would load of each partition; ``forecasts``, its expected load, applied to ``workload`` for
    decisions, while ``measured_workload`` is as it was measured. By query: ``recent_batch_seconds``, mean of its last
    batches; ``batch_period``, seconds from the start of one to the start of the next; ``median_batch``, median seconds
    and median rows of its last twenty batches.
    ``slow``: slow executor -> the cause, the evidence, and the speed that counts. ``measured_queries``: batches that
    :attr:`prediction` and :attr:`measured` are made from. ``shuffle_coverage``: share of the map outputs that agents
    reported, within the time they reported on; None without map outputs.
    """

    application: str
    cluster: Cluster
    workload: Workload
    measured_workload: Workload
    placement: Placement
    stage_ids: Mapping[str, tuple[str, int]]
    queries: Mapping[str, QueryState]
    recent_batch_seconds: Mapping[str, float]
    batch_period: Mapping[str, float]
    median_batch: Mapping[str, tuple[float, float]]
    coverage: AgentCoverage
    bytes_to_load: Mapping[str, FloatArray]
    measured_queries: MeasuredQueries
    shuffle_coverage: float | None
    notes: tuple[str, ...]
    forecasts: Mapping[str, StageForecast]
    slow: Mapping[str, Slowness]

    @cached_property
    def utilization(self) -> FloatArray:
        """Share of each executor's cores that is busy, (E,)."""
        return executor_utilization(self.cluster, self.workload, self.placement).utilization

    @cached_property
    def _evidence(self) -> TaskEvidence:
        return collect_evidence(self.cluster, self.workload, self.measured_queries)

    @cached_property
    def prediction(self) -> PredictionModel:
        """Model that batches are predicted from, for decisions and `residuals`."""
        return build_prediction(self.cluster, self.workload, self._evidence)

    @cached_property
    def measured(self) -> Mapping[str, FloatArray]:
        """Query -> seconds of the measured batches that the prediction has to explain, (B,)."""
        compared = self.measured_queries.compared
        return {name: np.array([batch.seconds for batch in last]) for name, last in compared.items()}

    @cached_property
    def residuals(self) -> Mapping[str, Residual]:
        """Query -> difference of the replay of the present placement from :attr:`measured`.

        The replay has the measured load, not the forecast one.
        """
        model = self.prediction
        if self.workload is not self.measured_workload:
            model = build_prediction(self.cluster, self.measured_workload, self._evidence)
        return residuals(model, self.placement, self.measured)


def take_snapshot(
    messages: ApplicationMessages,
    settings: Settings,
    now: float,
    drained_nodes: Collection[str] = (),
    *,
    forecast: bool = True,
) -> Snapshot | NotReady:
    """Return the model of an application, or the reason why it cannot be decided on.

    The parameters are those of `build_snapshot`.
    """
    problem = readiness_problem(messages, settings, now)
    if problem is not None:
        return problem
    snapshot = build_snapshot(messages, settings, now, drained_nodes, forecast=forecast)
    return snapshot or NotReady(NotReadyReason.NO_BATCHES, "no stage of any query was measured yet")


def build_snapshot(
    messages: ApplicationMessages,
    settings: Settings,
    now: float,
    drained_nodes: Collection[str] = (),
    *,
    include_unmeasured: bool = False,
    forecast: bool = True,
) -> Snapshot | None:
    """Return the model, ready for decisions or not; None without executors or stages.

    ``drained_nodes`` are to hold no state: their executors are not available. ``include_unmeasured``: add queries
    without enough batches (idle for long, or new) as placeable stages that cost nothing, for partitions that have to
    leave their executor. ``forecast``: model the expected load where it was more accurate than the last value, for
    decisions; otherwise what was measured.
    """
    infos = sorted({info.executor: info for info in messages.report.executors}.values(), key=_executor_order)
    if not infos:
        return None
    executors = {info.executor: index for index, info in enumerate(infos)}
    queries = {query.query: query for query in messages.report.queries if query.active}
    last = {name: last_batches(messages, name, settings, now) for name in queries}
    least = settings.reschedule.trigger_windows
    recent = {name: of_present_load(last[name], messages.load_since, least) for name in queries}
    cold_tasks = _cold_tasks_of(messages, infos, now)
    rates = _measure_rates(messages, recent, executors, cold_tasks)
    slow = slow_executors(messages, infos, recent, rates, now)
    cluster = _build_cluster(messages, infos, rates, slow, drained_nodes)
    fresh = fresh_usage(messages, settings, now)
    inputs = _model_inputs(messages, executors, rates, now)
    enough = {name for name in queries if len(last[name]) >= settings.reschedule.batches}
    models = _model_queries(queries, recent, inputs, enough, include_unmeasured=include_unmeasured)
    stages = tuple(stage for model in models.values() for stage in model.stages)
    if not stages:
        return None
    workload = Workload(stages, tuple(shuffle for model in models.values() for shuffle in model.shuffles))
    placed = {key: (name, stage) for name, model in models.items() for key, stage in model.placed.items()}
    stage_ids = {key: (name, stage.stage) for key, (name, stage) in placed.items()}
    averaged = {name: recent[name] for name in models if recent[name]}
    forecasts = _forecast(stages, stage_ids, queries, recent, messages.batches_by_query, settings)
    applied = forecasts if forecast else {}
    coverage = measure_coverage(infos, fresh)
    fair = messages.report.environment.get("spark.scheduler.mode", "").upper() == "FAIR"
    return Snapshot(
        application=messages.application,
        cluster=cluster,
        workload=apply_forecasts(workload, applied),
        measured_workload=workload,
        placement=Placement({key: _assignment(stage, executors) for key, (_, stage) in placed.items()}),
        stage_ids=stage_ids,
        queries=queries,
        recent_batch_seconds={
            name: sum(batch.seconds for batch in last) / len(last) for name, last in averaged.items()
        },
        batch_period={name: query_model.batch_period(last, now) for name, last in averaged.items()},
        median_batch={name: _median_batch(messages.batches_of(name)) for name in averaged},
        coverage=coverage,
        bytes_to_load={key: query_model.load_bytes(stage, name, recent[name]) for key, (name, stage) in placed.items()},
        measured_queries=MeasuredQueries(
            {
                name: MeasuredQuery(queries[name], last, messages.batches_by_query[name])
                for name, last in averaged.items()
            },
            executors,
            cold_tasks,
            fair,
            _slowed(infos, rates, slow),
            max(messages.queries_since, messages.load_since),
        ),
        shuffle_coverage=_shuffle_coverage(messages, settings, inputs) if coverage.fresh else None,
        notes=(
            *_notes(models.values(), infos, coverage, slow, applied),
            *([] if include_unmeasured else _unmeasured_note(messages, last, settings, now)),
        ),
        forecasts=forecasts,
        slow=slow,
    )


def _measure_rates(
    messages: ApplicationMessages,
    recent: Mapping[str, Sequence[BatchReport]],
    executors: Mapping[str, int],
    cold_tasks: IntArray,
) -> ServiceRates:
    """Return the executors' speeds by their tasks, without the first tasks of new executors."""
    first = {name: last[0].batch for name, last in recent.items() if last}
    batches = [batch for name in first for batch in warm_batches(messages.batches_of(name), len(recent[name]))]
    observed = query_model.task_observations(batches, first, executors)
    return service_rates(query_model.skip_first_tasks(observed, cold_tasks), len(executors), _SLOW_RATIO)


def _slowed(infos: Sequence[ExecutorInfo], rates: ServiceRates, slow: Mapping[str, Slowness]) -> BoolArray:
    """Mark executors that became slow, and whose present speed counts, (E,)."""
    counted = [info.executor in slow and slow[info.executor].speed == rates.speed[i] for i, info in enumerate(infos)]
    return np.asarray(rates.by_history & np.array(counted, dtype=np.bool_))


def _build_cluster(
    messages: ApplicationMessages,
    infos: Sequence[ExecutorInfo],
    rates: ServiceRates,
    slow: Mapping[str, Slowness],
    drained_nodes: Collection[str],
) -> Cluster:
    releasing = messages.report.releasing_executors
    measured = zip(infos, rates.speed.tolist(), strict=True)
    return Cluster(
        executors=tuple(info.executor for info in infos),
        nodes=tuple(info.node_name for info in infos),
        cores=np.array([max(1, info.cores) for info in infos], dtype=np.float64),
        memory_bytes=np.array([info.memory if info.memory > 0 else math.inf for info in infos]),
        speed=np.array([slow[info.executor].speed if info.executor in slow else speed for info, speed in measured]),
        available=np.array([info.node_name not in drained_nodes and info.executor not in releasing for info in infos]),
    )


def _model_inputs(
    messages: ApplicationMessages,
    executors: Mapping[str, int],
    rates: ServiceRates,
    now: float,
) -> ModelInputs:
    windows = (window for node in messages.windows.values() for window in node)
    outputs = (output for window in windows for output in window.map_outputs)
    return ModelInputs(
        now=now,
        executors=executors,
        speed=rates.speed,
        map_outputs={it.map_task: it for it in outputs if it.application == messages.application},
    )


def _model_queries(
    queries: Mapping[str, QueryState],
    recent: Mapping[str, Sequence[BatchReport]],
    inputs: ModelInputs,
    measured: Container[str],
    *,
    include_unmeasured: bool,
) -> dict[str, QueryModel]:
    """Model each query by what is known of it; ``measured``: those with enough batches.

    * movable, too few batches, and unmeasured queries are included: placeable stages that cost nothing
    * movable, enough batches: placeable stages with their measured load
    * not movable, or too few batches: floating stages with their measured load
    * no batch at all: left out
    """
    models: dict[str, QueryModel] = {}
    room = query_model.MAX_MATRIX_ENTRIES
    for name, query in queries.items():
        batches = recent[name]
        enough = name in measured
        if include_unmeasured and not query.problem and not enough:
            models[name] = query_model.placeholder_model(query)
        elif batches:
            placeable = not query.problem and enough
            models[name] = query_model.build_query_model(query, batches, inputs, placeable=placeable, max_entries=room)
            # Pairs, also of entries that share a row: some policies make a list of all of them.
            room -= sum(math.prod(shuffle.shape) for shuffle in models[name].shuffles)
    return models


def _assignment(stage: StatefulStage, executors: Mapping[str, int]) -> IntArray:
    """Return the index of each partition's executor; UNPLACED if it was not reported."""
    placement = list(map(executors.get, stage.placement[: stage.partitions], itertools.repeat(UNPLACED)))
    placement += [UNPLACED] * (stage.partitions - len(placement))
    return np.array(placement, dtype=np.int64)


def _forecast(
    stages: Sequence[Stage],
    stage_ids: Mapping[str, tuple[str, int]],
    queries: Mapping[str, QueryState],
    recent: Mapping[str, Sequence[BatchReport]],
    batches: Mapping[str, Sequence[BatchReport]],
    settings: Settings,
) -> dict[str, StageForecast]:
    names = {
        key: (query, number, stage_name(query, number, queries[query].name))
        for key, (query, number) in stage_ids.items()
    }
    averaged = {query: len(last) for query, last in recent.items()}
    return forecast_stages(stages, names, averaged, batches, settings.gate.horizon)


def _shuffle_coverage(messages: ApplicationMessages, settings: Settings, inputs: ModelInputs) -> float | None:
    spans = reporting_spans(messages, settings)
    return query_model.shuffle_coverage(messages.batches, inputs.reported_tasks, spans)


def _notes(
    models: Iterable[QueryModel],
    infos: Sequence[ExecutorInfo],
    coverage: AgentCoverage,
    slow: Mapping[str, Slowness],
    applied: Mapping[str, StageForecast],
) -> tuple[str, ...]:
    """Return a sentence on each thing that is missing in the model, slow or forecast."""
    silent_agents = describe_silent_agents(coverage)
    skipped = sum((model.skipped for model in models), Counter[str]())
    slow_infos = [info for info in infos if info.executor in slow]
    return (
        *([silent_agents] if silent_agents else []),
        *(f"{reason}: {number}, not counted" for reason, number in sorted(skipped.items())),
        *(f"executor {info.executor} on {info.node_name} is {slow[info.executor].sentence}" for info in slow_infos),
        *(f"forecast: {forecast.sentence()}" for forecast in applied.values() if forecast.used),
    )


def _unmeasured_note(
    messages: ApplicationMessages, recent: Mapping[str, Sequence[BatchReport]], settings: Settings, now: float
) -> list[str]:
    """Return a sentence on the queries that have too few batches, on the first with numbers."""
    problems = unmeasured_queries(messages, recent, settings, now)
    more = f"; so are {len(problems) - 1} others" if len(problems) > 1 else ""
    return [f"not moved: {problems[0].sentence}{more}"] if problems else []


def _median_batch(batches: Sequence[BatchReport]) -> tuple[float, float]:
    """Return the median seconds and rows of the last batches."""
    last = batches[-_MEDIAN_BATCHES:]
    return (
        float(statistics.median(batch.seconds for batch in last)),
        float(statistics.median(batch.input_rows for batch in last)),
    )


def _cold_tasks_of(messages: ApplicationMessages, infos: Sequence[ExecutorInfo], now: float) -> IntArray:
    """Return the number of first tasks of a stage that do not tell an executor's speed, (E,).

    It is 0 everywhere if all executors are new, and for executors that are older than the oldest known batch: their
    first tasks are not known.
    """
    oldest = min((batch.start for batch in messages.batches), default=now)
    new = np.array([info.added >= oldest for info in infos])
    count = np.array([COLD_AGES * max(1, info.cores) for info in infos], dtype=np.int64)
    return np.asarray(np.where(new & ~new.all(), count, 0))


def _executor_order(info: ExecutorInfo) -> tuple[int, str]:
    """Order executors by number, and names that are no number after them."""
    name = info.executor
    number = name.isascii() and name.isdigit() and len(name) < 19
    return (int(name), "") if number else (2**62, name)
