"""Model that batches are predicted from, made of the measured ones. Pure.

A task takes its core from its launch to its finish by the driver's clock, which includes its way to the executor and
back. A batch in which a partition ran on another executor than before loaded state: neither that task nor the duration
of that batch counts. Nor do the first tasks on a new executor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rechannel.daemon.model.application_messages import batches_of
from rechannel.daemon.model.query_model import stage_keys
from rechannel.daemon.model.task_columns import task_columns
from rechannel.daemon.model.usual_batch import UsualBatch, is_same_load, measure_usual_batch
from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray, ranks
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.model import FloatingTasks, PredictionModel, QueryTiming, StageSpread
from rechannel.policies.prediction.work import TaskSamples, changed_partitions, fit_stages, of_present_cost
from rechannel.wire.measurements import BatchReport, StageRun
from rechannel.wire.messages import QueryState

_SAMPLED_BATCHES = 32  # of a query, at most
_SAMPLED_TASKS = 25_600  # of a query, beyond the batches that a decision averages
_COMPARED_BATCHES = 12
_COMPARED_PARTITIONS = 256  # of a query: their median is as exact as that of all
_COLD = 1.05  # times the usual seconds per row, above which the first batches of a query are cold
_SHORTEST_OVERHEAD = 1e-3  # seconds
_LEAST_NOISE = 0.15  # of the overhead: batches that begin together compete for the driver
_NONE = -2  # executor of a partition that did not run
_DEFAULT_POOL = "default"  # of Spark's FAIR scheduler


@dataclass(frozen=True, eq=False)
class MeasuredQuery:
    """Measured side of one query.

    ``recent``: the batches that a decision averages, oldest first, of ``batches``: all known ones, in any order.
    """

    state: QueryState
    recent: Sequence[BatchReport]
    batches: Sequence[BatchReport]

    @cached_property
    def usual_batch(self) -> UsualBatch:
        """Rows and period of its usual batch."""
        return measure_usual_batch(self.state.query, self.batches)

    @cached_property
    def samples(self) -> list[BatchReport]:
        """Its newest batches, of any cost, oldest first."""
        return _sampled(batches_of(self.batches, self.state.query), len(self.recent))

    @cached_property
    def moved(self) -> frozenset[int]:
        """Numbers of the samples that loaded state."""
        return batches_with_moves(self.samples)

    @cached_property
    def of_present_cost(self) -> frozenset[int]:
        """Numbers of the samples in which rows took about as long as lately."""
        seconds, rows = self._by_partition.figures
        same = of_present_cost(seconds, rows, len(self.recent))
        return frozenset(batch.batch for batch, it in zip(self.samples, same, strict=True) if it)

    @cached_property
    def changed(self) -> frozenset[tuple[int, int]]:
        """Partitions, with their stages, whose rows take longer or less long than before."""
        (seconds, rows), keys = self._by_partition
        return frozenset(keys[it] for it in changed_partitions(seconds, rows, len(self.recent)).tolist())

    @cached_property
    def _by_partition(self) -> _ByPartition:
        return _ByPartition.of(self.samples)


@dataclass(frozen=True, eq=False)
class MeasuredQueries:
    """Measured side of a model.

    ``queries``: those of the report that are active and have batches. ``executors``: executor -> index. ``cold_tasks``:
    first tasks of a stage on each executor that do not count, (E,). ``fair``: the application has Spark's FAIR
    scheduler. ``slowed``: executors that are slower than in their older batches, which do not show their present speed,
    (E,). ``present_since``: time since which the same queries run with the present load, as far as it is known.
    """

    queries: Mapping[str, MeasuredQuery]
    executors: Mapping[str, int]
    cold_tasks: IntArray
    fair: bool
    slowed: BoolArray
    present_since: float

    @cached_property
    def unchanged_since(self) -> float:
        """Time since which neither queries nor load nor any placement changed; 0 for always."""
        moved_until = (it.end for query in self.queries.values() for it in query.samples if it.batch in query.moved)
        return max(self.present_since, *moved_until, 0.0)

    @cached_property
    def compared(self) -> Mapping[str, Sequence[BatchReport]]:
        """Query -> its last batches of the present queries, load and placement.

        Those that loaded state are left out, and those of other rows, even if more rows came because a batch was late:
        the model has the rows of the recent batches. Without two such batches they are the recent ones.
        """
        return {name: self._compared(query) for name, query in self.queries.items()}

    def has_settled(self, query: str) -> bool:
        """Whether a batch of a query began since queries, load or a placement changed."""
        return self.queries[query].recent[-1].start >= self.unchanged_since

    def _compared(self, query: MeasuredQuery) -> Sequence[BatchReport]:
        stayed = [batch for batch in query.recent if batch.batch not in query.moved] or query.recent
        since = [batch for batch in stayed if batch.start >= self.unchanged_since] or stayed
        if self.slowed.any() or query.changed:  # older batches ran on faster executors, or had other work
            return since
        last = query.samples[-_COMPARED_BATCHES:]
        rows_of = {number: _rows(batch) for number, batch in {it.batch: it for it in [*query.recent, *last]}.items()}
        mean_rows = np.mean([rows_of[batch.batch] for batch in query.recent], axis=0)
        usual = [UsualBatch(float(rows)) for rows in mean_rows]
        compared = [
            batch
            for batch in last
            if batch.batch in query.of_present_cost - query.moved
            and batch.start >= self.unchanged_since
            and all(is_same_load(UsualBatch(rows), one) for rows, one in zip(rows_of[batch.batch], usual, strict=True))
        ]
        if len(compared) > 1:  # one batch alone says little
            return compared
        return since


@dataclass(frozen=True, eq=False)
class TaskEvidence:
    """Evidence of batches, for the prediction of any load.

    ``samples``: key of a placeable stage -> its tasks. ``timing``: query -> its timing, but for the share of its work
    that is proportional to rows. ``floating`` and ``pools`` are those of the prediction.
    """

    samples: Mapping[str, TaskSamples]
    timing: Mapping[str, QueryTiming]
    floating: Mapping[str, FloatingTasks]
    pools: Mapping[str, str]


def collect_evidence(cluster: Cluster, workload: Workload, measured: MeasuredQueries) -> TaskEvidence:
    """Return the evidence for the stages of a workload; its load does not matter."""
    samples: dict[str, TaskSamples] = {}
    floating: dict[str, FloatingTasks] = {}
    timing: dict[str, QueryTiming] = {}
    now = max((query.recent[-1].end for query in measured.queries.values()), default=0.0)
    of_query = _by_query(workload.stages)
    for query in workload.queries:
        if (own_query := measured.queries.get(query)) is None:
            continue
        recent, sampled, usual = own_query.recent, own_query.samples, own_query.usual_batch
        timing[query] = replace(
            _timing(own_query.state, measured.compared[query], sampled, now),
            growth=usual.growth,
            fixed_rows=usual.fixed_rows,
        )
        modeled = [batch for batch in sampled if batch.batch in own_query.of_present_cost]
        runs = [dict(stage_keys(query, batch)) for batch in modeled]
        is_recent = [batch.batch >= recent[0].batch for batch in modeled]
        for stage in of_query[query]:
            own = [by_key[stage.key] for by_key in runs if stage.key in by_key]
            if stage.placeable:
                own_recent = [it for by_key, it in zip(runs, is_recent, strict=True) if stage.key in by_key]
                changed = [partition for it, partition in own_query.changed if stage.key == f"{query}/{it}"]
                samples[stage.key] = _samples(own, own_recent, cluster, measured, changed)
            elif own and own[0].stateful_stage < 0:
                floating[stage.key] = _floating_tasks(own[-len(recent) :])
    pools = (
        {name: query.state.pool or _DEFAULT_POOL for name, query in measured.queries.items()} if measured.fair else {}
    )
    return TaskEvidence(samples, timing, floating, pools)


def build_prediction(cluster: Cluster, workload: Workload, evidence: TaskEvidence) -> PredictionModel:
    """Return the model of a load, with the uncertainty of the partitions' work."""
    own = [stage for stage in workload.stages if stage.key in evidence.samples]
    works = fit_stages(
        [evidence.samples[stage.key] for stage in own], [stage.rows for stage in own], [stage.busy for stage in own]
    )
    fitted = {stage.key: work for stage, work in zip(own, works, strict=True)}
    workload = workload.with_busy({key: work.seconds for key, work in fitted.items()})
    of_query, by_rows = _by_query(workload.stages), {key: work.row_share for key, work in fitted.items()}
    timing = {
        query: replace(timing, row_share=_row_share(of_query.get(query, ()), by_rows))
        for query, timing in evidence.timing.items()
    }
    spread = {key: StageSpread(work.log_error, work.noise) for key, work in fitted.items()}
    return PredictionModel(cluster, workload, timing, spread, evidence.floating, evidence.pools)


def _by_query(stages: Iterable[Stage]) -> dict[str, list[Stage]]:
    """Return the stages of each query, in order."""
    of_query: dict[str, list[Stage]] = {}
    for stage in stages:
        of_query.setdefault(stage.query, []).append(stage)
    return of_query


def _rows(batch: BatchReport) -> tuple[float, float]:
    """Return the rows of a batch, and those on the busiest executor of each stage.

    The latter tell of keys that drift.
    """
    return batch.input_rows, sum(task_columns(run).busiest_rows for run in batch.stages if run.stateful_stage >= 0)


def warm_batches(batches: Sequence[BatchReport], min_batches: int) -> list[BatchReport]:
    """Return a query's batches without its first ones in which every row took longer.

    The executors' code is compiled, and caches are filled, in the first batches of a query. What tasks took then
    measures neither the work of a partition nor the speed of an executor. ``batches``: oldest first; ``min_batches``:
    number of the newest that are returned in any case.
    """
    costs = np.array([_seconds_per_row(batch) for batch in batches])
    usual = float(np.median(costs[len(costs) // 2 :])) if len(costs) else 0.0
    warm = np.flatnonzero(costs <= _COLD * usual)
    first = min(int(warm[0]) if len(warm) else 0, max(0, len(batches) - min_batches))
    return list(batches[first:])


class _ByPartition(NamedTuple):
    """Tasks with state by batch and partition; where there are many partitions, those of some.

    ``figures``: seconds and rows of each, (2, B, P), NaN without a task; ``keys``: stage and partition of each column.
    """

    figures: FloatArray
    keys: list[tuple[int, int]]

    @classmethod
    def of(cls, batches: Sequence[BatchReport]) -> _ByPartition:
        """Lay out the tasks of batches, oldest first."""
        runs = [
            (number, run.stateful_stage, task_columns(run))
            for number, batch in enumerate(batches)
            for run in batch.stages
            if run.stateful_stage >= 0
        ]
        sizes: dict[int, int] = {}
        for _, stage, tasks in runs:
            sizes[stage] = max(sizes.get(stage, 0), int(tasks.partition.max(initial=-1)) + 1)
        begins = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
        keys = [(stage, partition) for stage, size in sizes.items() for partition in range(size)]
        step = 1 + len(keys) // _COMPARED_PARTITIONS
        table = np.full((2, len(batches), len(keys[::step])), np.nan)
        for number, stage, tasks in runs:
            place = begins[stage] + tasks.partition
            chosen = place % step == 0
            table[:, number, place[chosen] // step] = tasks.slot[chosen], tasks.rows[chosen]
        return cls(table, keys[::step])


def _seconds_per_row(batch: BatchReport) -> float:
    tasks = [task_columns(run) for run in batch.stages if run.stateful_stage >= 0]
    return sum(it.slot_total for it in tasks) / max(1.0, sum(it.rows_total for it in tasks))


def _sampled(batches: Sequence[BatchReport], min_batches: int) -> list[BatchReport]:
    """Return those of a query's batches that work is estimated from, oldest first."""
    ordered = batches[-max(_SAMPLED_BATCHES, min_batches) :]
    tasks = np.cumsum([batch.tasks for batch in reversed(ordered)])
    newest = max(min_batches, int((tasks <= _SAMPLED_TASKS).sum()))
    return warm_batches(ordered[-newest:], min_batches)


def batches_with_moves(batches: Sequence[BatchReport]) -> frozenset[int]:
    """Return the numbers of the batches in which a partition changed its executor."""
    names: dict[str, int] = {}
    numbers: dict[tuple[str, ...], IntArray] = {}  # of the executors of a run
    last: dict[int, _LastExecutors] = {}
    moved = set()
    for batch in batches:
        for run in (run for run in batch.stages if run.stateful_stage >= 0):
            tasks = task_columns(run)
            if tasks.executors not in numbers:
                every = [names.setdefault(name, len(names)) for name in tasks.executors]
                numbers[tasks.executors] = np.array(every, dtype=np.int64)
            executors = last.setdefault(run.stateful_stage, _LastExecutors())
            stayed = executors.replace(tasks.partition, numbers[tasks.executors][tasks.executor])
            if not stayed.all():
                moved.add(batch.batch)
    return frozenset(moved)


class _LastExecutors:
    """Executor of each partition in the last batch that ran it."""

    def __init__(self) -> None:
        self._executor = np.empty(0, dtype=np.int64)

    def replace(self, partition: IntArray, executor: IntArray) -> BoolArray:
        """Take in the executors of a batch; return whether each is the one before, if any, (n,)."""
        missing = int(partition.max(initial=-1)) + 1 - len(self._executor)
        if missing > 0:
            self._executor = np.append(self._executor, np.full(missing, _NONE))
        before = self._executor[partition]
        self._executor[partition] = executor
        return np.asarray((before == _NONE) | (before == executor))


def _samples(
    runs: Sequence[StageRun],
    recent: Sequence[bool],
    cluster: Cluster,
    measured: MeasuredQueries,
    changed: Sequence[int],
) -> TaskSamples:
    """Return the tasks of one stage that loaded no state, in seconds of a reference executor.

    Of an executor that became slow, and of partitions that ``changed``, those of recent batches only. ``recent``:
    whether each run is of such a batch.
    """
    last, seen = _LastExecutors(), np.zeros(cluster.size, dtype=np.int64)
    has_cold, has_changes = measured.cold_tasks.any(), bool(changed) or measured.slowed.any()
    sampled: list[FloatArray] = [np.empty((3, 0))]
    for run, is_recent in zip(runs, recent, strict=True):
        tasks = task_columns(run)
        executor = tasks.executors_in(measured.executors)
        stayed = last.replace(tasks.partition, executor)
        counts = stayed & (executor >= 0)
        if has_cold:
            counts &= seen[executor] + ranks(executor) >= measured.cold_tasks[executor]
            seen += np.bincount(executor[executor >= 0], minlength=cluster.size)
        if has_changes and not is_recent:
            counts &= ~(measured.slowed[executor] | np.isin(tasks.partition, changed))
        seconds = tasks.slot * cluster.speed[executor]
        sampled.append(np.array([tasks.partition, seconds, tasks.rows])[:, counts])
    partition, seconds, rows = np.concatenate(sampled, axis=1)
    return TaskSamples(partition.astype(np.int64), seconds, rows)


def _floating_tasks(runs: Sequence[StageRun]) -> FloatingTasks:
    seconds = np.concatenate([task_columns(run).slot for run in runs])
    return FloatingTasks(max(1, round(len(seconds) / len(runs))), float(seconds.mean()) if len(seconds) else 0.0)


def _timing(
    query: QueryState, batches: Sequence[BatchReport], sampled: Sequence[BatchReport], now: float
) -> QueryTiming:
    """Return a query's overhead, in which no stage ran, and when its batches begin."""
    last = sampled[-_COMPARED_BATCHES:]
    outside = {
        number: it.seconds - _stage_seconds(it) for number, it in {it.batch: it for it in [*batches, *last]}.items()
    }
    overhead = float(np.mean([max(0.0, outside[batch.batch]) for batch in batches]))
    pairs = list(itertools.pairwise(last))
    noise = _overhead_noise(np.array([outside[batch.batch] for batch in last]))
    if query.interval <= 0:
        pauses = [following.start - batch.start - batch.seconds for batch, following in pairs]
        return QueryTiming(overhead, pause=max(0.0, float(np.median(pauses))) if pairs else 0.0, noise=noise)
    # A trigger that finds no input begins no batch.
    least = max(query.interval, float(np.mean([batch.seconds for batch in batches])))
    period = float(np.median([following.start - batch.start for batch, following in pairs])) if pairs else least
    ticks = max(1, round(period / least))
    interval = query.interval * ticks
    # Spark's ticks are the multiples of the interval since 1970 (ProcessingTimeExecutor); a late batch begins off them.
    tick = batches[-1].start if ticks > 1 else 0.0
    return QueryTiming(overhead, interval, phase=(tick - now) % interval, noise=noise)


def _row_share(stages: Sequence[Stage], by_rows: Mapping[str, float]) -> float:
    """Return the share of a query's work that is proportional to rows.

    It is all of it in stages without a fitted line.
    """
    work = [float(stage.busy.sum()) for stage in stages]
    total = sum(work)
    by_row = sum(seconds * by_rows.get(stage.key, 1.0) for seconds, stage in zip(work, stages, strict=True))
    return by_row / total if total > 0 else 1.0


def _overhead_noise(overheads: FloatArray) -> float:
    """Return the deviation of the logarithm of a batch's overhead, of some batches, (B,)."""
    overheads = overheads[overheads > _SHORTEST_OVERHEAD]
    if len(overheads) < 2:
        return _LEAST_NOISE
    # By the quartiles: a long commit now and then is no usual noise.
    return max(_LEAST_NOISE, float(np.subtract(*np.quantile(np.log(overheads), [0.75, 0.25])) / 1.35))


def _stage_seconds(batch: BatchReport) -> float:
    """Return the time in which some stage of a batch had been submitted and was not finished."""
    spans = sorted(
        (run.submitted or tasks.span[0], tasks.span[1]) for run in batch.stages if len(tasks := task_columns(run))
    )
    total, end = 0.0, float("-inf")
    for start, finish in spans:
        total += max(0.0, finish - max(start, end))
        end = max(end, finish)
    return total
