"""Cycle formula: batch durations of queries that share executors, in closed form.

A query's batch lasts as long as the larger of two:

    its own path     overhead + sum over its stages of the slowest executor
    its cycle        on any executor that it waits for, what everybody does there while one of its batches lasts

    T[q] = max(own[q], max over e of sum over p of work[p, e] x min(1, T[q] / period[p])),
    period = max(T + pause, interval)

A query waits for the executors that hold its partitions. Tasks that run anywhere take a core that is free.

Queries that wait for a trigger or pause for long are met at work with some probability only, and are waited for in
addition to the own path: the mean residual work, sum over p of work[p, e]^2 / (2 period[p]), or half of work[p, e]
where both begin at the same tick, as Spark's triggers do whose intervals have a common multiple. With queries back to
back the second line is the throughput bound of a closed system (Lazowska and others, Quantitative System Performance,
1984, chapter 5).

T is on both sides. Iterating converges slowly where queries share an executor that is always at work: their batches
become equal there, in ever smaller steps. These batches are the max-min fair ones, so the longest are settled first,
executor by executor (progressive filling: Bertsekas and Gallager, Data Networks, 2nd edition, section 6.5.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from rechannel.policies.analysis.placement_cost import CoreOrder, task_slots
from rechannel.policies.model.arrays import BoolArray, FloatArray, sum_by_index
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.model import PredictionModel

_ROUNDS = 2  # of progressive filling: pauses and waits depend on the batches
_CYCLE_ROUNDS = 3  # of each query's own equation, from above
_LEAST = 1e-6  # share of an executor that counts as free at least; batches that differ by less are equal
_SAME_TICK = 0.02  # seconds
_LONG_PAUSE = 0.5  # times its own path, from which a query is met at work by chance
_BINDING = 0.8  # share of a query's largest work from which an executor binds it


@dataclass(frozen=True, eq=False)
class QueryWork:
    """Work of the queries under one placement.

    ``path`` (Q,) is the seconds of each query's stages one after the other, undisturbed; ``work`` (Q, E) the seconds
    for which a batch keeps each executor at work, all its cores together; ``waits_for`` (Q, E) the executors on which
    it has tasks that run nowhere else.
    """

    path: FloatArray
    work: FloatArray
    waits_for: BoolArray


@dataclass(frozen=True, eq=False)
class QueryTimings:
    """Timing of all queries, (Q,) each, in seconds; the fields are those of `QueryTiming`."""

    overhead: FloatArray
    interval: FloatArray
    pause: FloatArray
    phase: FloatArray

    @classmethod
    def of(cls, model: PredictionModel) -> QueryTimings:
        """Return the timing of a model's queries, in the order of the workload."""
        timings = [model.timing_of(query) for query in model.workload.queries]
        rows = np.array([(timing.overhead, timing.interval, timing.pause, timing.phase) for timing in timings])
        return cls(*rows.reshape(len(timings), 4).T)

    def period(self, seconds: FloatArray) -> FloatArray:
        """Return the seconds from the start of a batch to the start of the next one, (Q,)."""
        return np.maximum(np.maximum(seconds + self.pause, self.interval), 1e-9)

    @cached_property
    def coincidence(self) -> FloatArray:
        """Share of the ticks of a query at which another one has a tick too, (Q, Q)."""
        periods = np.round(self.interval * 1000).astype(np.int64)  # whole milliseconds, which have a common divisor
        with np.errstate(divide="ignore", invalid="ignore"):
            common = np.gcd.outer(periods, periods)
            share = np.where((periods[:, None] > 0) & (periods[None, :] > 0), common / periods[None, :], 0.0)
            apart = np.abs((self.phase[:, None] - self.phase[None, :]) * 1000)
            apart = np.where(common > 0, np.minimum(apart % common, -apart % common), 0.0)
        return np.asarray(np.where(apart <= 1000 * _SAME_TICK, share, 0.0))


class PlacedQueries:
    """Work and batches of all queries under one placement, for any busy seconds.

    Large applications are estimated many times with other seconds. What depends on the placement alone is prepared
    once, and no workload is made for each of the seconds. ``busy`` in the methods: key of a placeable stage -> its busy
    seconds (n,), where they are not the model's. Queries are in the order of the workload. ``like``: those of the same
    model under another placement, with which they share what depends on the model alone.
    """

    def __init__(self, model: PredictionModel, placement: Placement, like: PlacedQueries | None = None) -> None:
        cluster, self._stages = model.cluster, model.workload.placeable
        self._names, self._capacity, self._speed = model.workload.queries, cluster.cores * cluster.speed, cluster.speed
        index = {query: number for number, query in enumerate(self._names)}
        self._queries = np.array([index[stage.query] for stage in self._stages], dtype=np.int64)
        self._unplaced: UnplacedWork = unplaced_work(model) if like is None else like._unplaced
        self._timings: QueryTimings = QueryTimings.of(model) if like is None else like._timings
        if self._stages:
            # All stages in one call: executor e of stage s is number s x E + e. Those without a partition are left out.
            first = np.repeat(np.arange(len(self._stages)) * cluster.size, [stage.n for stage in self._stages])
            executors = np.concatenate([placement[stage.key] for stage in self._stages])
            numbers = np.where(executors >= 0, executors + first, UNPLACED)
            used = np.zeros(len(self._stages) * cluster.size, dtype=np.bool_)
            used[numbers[executors >= 0]] = True
            self._at = np.where(executors >= 0, (np.cumsum(used) - 1)[numbers], UNPLACED)
            stage, self._executor = np.divmod(np.flatnonzero(used), cluster.size)
            self._begins = np.flatnonzero(np.diff(stage, prepend=-1))  # of each stage that has a partition somewhere
            self._query_of_stage = self._queries[stage[self._begins]]
            self._place = self._queries[stage] * cluster.size + self._executor
            slots = task_slots(cluster)[self._executor]
            self._order = CoreOrder(slots, self._at) if slots.max(initial=1) > 1 else None

    def work(self, busy: Mapping[str, FloatArray] = MappingProxyType({})) -> QueryWork:
        """Return what every query does."""
        count, size = len(self._names), len(self._speed)
        path, work = np.zeros(count), np.zeros((count, size))
        if self._stages and len(self._executor):
            seconds = np.concatenate([busy.get(stage.key, stage.busy) for stage in self._stages])
            total = sum_by_index(self._at, seconds, len(self._executor))
            finish = total if self._order is None else self._order.finish_times(seconds)
            work = sum_by_index(self._place, total / self._capacity[self._executor], count * size).reshape(count, size)
            longest = np.maximum.reduceat(finish / self._speed[self._executor], self._begins)
            path = sum_by_index(self._query_of_stage, longest, count)
        unplaced = self._unplaced
        pinned = work + unplaced.pinned
        return QueryWork(path + unplaced.path, pinned + unplaced.anywhere, pinned > 0)

    def estimate_batches(self, busy: Mapping[str, FloatArray] = MappingProxyType({})) -> dict[str, float]:
        """Return the duration of each query's batches in seconds."""
        return self._batches(self.work(busy))

    def estimate_one_batch(self, busy: Mapping[str, FloatArray]) -> dict[str, float]:
        """Return the duration of one batch of each query, whose tasks take these seconds.

        A query waits for its own slowest executor in each batch. What the queries do on an executor together evens out
        over several batches, the more so, the more queries there are: then only its mean counts.
        """
        drawn, mean = self.work(busy), self._mean_work
        share = 1.0 / max(1, len(self._names) - 1)
        return self._batches(replace(drawn, work=mean.work + share * (drawn.work - mean.work)))

    @cached_property
    def _mean_work(self) -> QueryWork:
        return self.work()

    def _batches(self, work: QueryWork) -> dict[str, float]:
        return dict(zip(self._names, batch_seconds(work, self._timings).tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class UnplacedWork:
    """Work of the stages that no policy places, the same under every placement.

    ``path`` (Q,): seconds of these stages. Seconds for which a batch keeps each executor at work, (Q, E): ``pinned``
    by tasks that run where the workload says, ``anywhere`` by tasks that take any free core, spread evenly.
    """

    path: FloatArray
    pinned: FloatArray
    anywhere: FloatArray


def unplaced_work(model: PredictionModel) -> UnplacedWork:
    """Return the work of stages that no policy places; queries in the order of the workload."""
    index = {query: number for number, query in enumerate(model.workload.queries)}
    shape = len(index), model.cluster.size
    path, pinned, anywhere = np.zeros(len(index)), np.zeros(shape), np.zeros(shape)
    for stage in model.workload.stages:
        if not stage.placeable:
            seconds, alone = model.floating_work(stage)
            (anywhere if stage.key in model.floating else pinned)[index[stage.query]] += seconds
            path[index[stage.query]] += alone
    return UnplacedWork(path, pinned, anywhere)


def batch_seconds(queries: QueryWork, timings: QueryTimings) -> FloatArray:
    """Return the duration of each query's batches by the cycle formula, (Q,)."""
    own, work, uses = timings.overhead + queries.path, queries.work, queries.waits_for
    seconds = own.copy()
    if len(own) < 2:
        return seconds
    anywhere = ~uses.any(axis=1, keepdims=True)
    if anywhere.any():
        queries = replace(queries, waits_for=uses | ((work > 0) & anywhere))
    waiting = _Waiting.of(queries, timings, own)
    for _ in range(_ROUNDS):
        alone = own if waiting is None else own + waiting.seconds(timings.period(seconds))
        seconds = _fair_batches(alone, seconds, queries, timings)
    period = timings.period(seconds)
    return _cycles(own if waiting is None else own + waiting.seconds(period), queries, period)


def _fair_batches(alone: FloatArray, before: FloatArray, queries: QueryWork, timings: QueryTimings) -> FloatArray:
    """Return the max-min fair batches, (Q,).

    The next level is the longest batch that a query alone or an executor asks for. Queries whose interval is longer
    keep to it, and have the batch ``alone``; if there are none, those settle that this level binds. ``before``:
    estimate of the batches, for the pauses.
    """
    work = queries.work
    at_work = np.maximum(before, 1e-9) / np.maximum(before + timings.pause, 1e-9)  # share of the time of each query
    # A query sees the others only for that share, but its own batch as a whole.
    missing = np.where(queries.waits_for, (1.0 - at_work)[:, None] * work, -np.inf)
    seconds, unsettled = alone.copy(), np.arange(len(alone))
    load, left = np.zeros(work.shape[1]), at_work @ work  # of the settled queries, as a share; of the others, seconds
    while len(unsettled):
        rest = missing[unsettled]
        levels = (left + rest.max(axis=0)) / np.maximum(1.0 - load, _LEAST)
        busiest, longest = int(levels.argmax()), alone[unsettled].max()
        level = levels[busiest]
        on_time = timings.interval[unsettled] > max(level, longest)
        if on_time.any():
            settled = on_time
        elif level <= longest:
            settled = alone[unsettled] >= level
        else:
            settled = rest[:, busiest] >= rest[:, busiest].max() - _LEAST * level
            seconds[unsettled[settled]] = level
        now, unsettled = unsettled[settled], unsettled[~settled]
        load += (1.0 / timings.period(seconds)[now]) @ work[now]
        left = left - at_work[now] @ work[now]
    return seconds


def _cycles(alone: FloatArray, queries: QueryWork, period: FloatArray) -> FloatArray:
    """Return the batch of each query that the periods of the others leave it, (Q,).

    The work met during a batch is concave in its duration, so Newton's method from above ends at the solution.
    """
    work, uses = queries.work, queries.waits_for
    others = ~np.eye(len(alone), dtype=np.bool_)
    seconds = np.maximum(alone, _largest(work.sum(axis=0), uses))
    for _ in range(_CYCLE_ROUNDS):
        in_part = (period[None, :] > seconds[:, None]) & others  # met only now and then during one batch
        met = np.where(in_part, 0.0, 1.0)  # as a whole; often nobody but the query itself
        whole = met @ work if np.count_nonzero(met) > len(met) else work
        rate = np.where(in_part, 1.0 / period[None, :], 0.0) @ work
        bound = _largest(whole / np.maximum(1.0 - rate, _LEAST), uses)
        before, seconds = seconds, np.minimum(seconds, np.maximum(alone, bound))
        if np.array_equal(seconds, before):  # as would be all further rounds
            break
    return np.asarray(seconds)


@dataclass(frozen=True, eq=False)
class _Waiting:
    """Waits of queries for others, where one of both has a trigger.

    ``by_chance`` (Q, Q): share of the batches of a query that meet another one anywhere in its period; ``squares``
    (Q, E): half of the squared work; ``at_ticks`` (Q, E): the wait for those with a common tick; ``binding`` (Q, E):
    executors on which a wait counts, those that bind the query.
    """

    by_chance: FloatArray
    squares: FloatArray
    at_ticks: FloatArray
    binding: BoolArray

    @classmethod
    def of(cls, queries: QueryWork, timings: QueryTimings, own: FloatArray) -> _Waiting | None:
        """Return what is alike in every round, None where all queries run back to back."""
        waits = (timings.interval > 0) | (timings.pause > _LONG_PAUSE * own)
        if not waits.any():
            return None
        work, uses = queries.work, queries.waits_for
        pairs = (waits[:, None] | waits[None, :]) & ~np.eye(len(work), dtype=np.bool_)
        coincidence = timings.coincidence
        together = np.where(pairs, coincidence, 0.0)
        at_ticks = together @ (work / 2) if together.any() else np.zeros_like(work)
        binding = uses & (work >= _BINDING * work.max(axis=1, keepdims=True))
        return cls(np.where(pairs, 1.0 - coincidence, 0.0), work**2 / 2, at_ticks, binding)

    def seconds(self, period: FloatArray) -> FloatArray:
        """Return the wait of each query on the executor that it waits for longest, (Q,)."""
        total = (self.by_chance / period) @ self.squares + self.at_ticks
        return _largest(total, self.binding)


def _largest(values: FloatArray, where: BoolArray) -> FloatArray:
    """Return the largest value of each row among those of ``where``, (Q,); none is negative."""
    return np.asarray((values * where).max(axis=1))  # many times faster than np.where, or the argument of max
