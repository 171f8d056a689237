"""Replay of micro-batches under a placement, task by task.

Each query plans a batch (its overhead), runs its stages one after the other, and begins the next batch after its pause
or at the next tick of its trigger. Tasks are pinned to their executor and run on its cores in the order of Spark's
scheduler: the tasks of the job that was submitted first come first, whatever stage they are of
(``FIFOSchedulingAlgorithm``), and nothing is preempted. Under FAIR, that is the order within a pool, and the pool with
the fewest running tasks comes first (``FairSchedulingAlgorithm``, with equal weights and no minimum share). The tasks
of a floating stage run on any free core.

The work of a task varies from batch to batch by the noise that was measured of its stage: the mean of the slowest of
several noisy executors is longer than the slowest of their means. Equal seeds give equal noise under every placement,
so that two placements are compared on the same batches.

Applications with thousands of partitions take too long task by task: the cycle formula
(:mod:`rechannel.policies.prediction.cycle`) gives their batches, each with its own noise.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.cycle import PlacedQueries
from rechannel.policies.prediction.model import PredictionModel, draw_factors

MAX_REPLAYED = 4_000  # tasks of one batch of each query; beyond: the cycle formula predicts in place of the replay
_FORMULA_BATCHES = 3  # batches by the cycle formula
_LEAST_TASKS = 2_000  # tasks and batches that one replay may run in any case
_ROUNDS = 4  # times the batches asked for that all queries' tasks may run; a query too slow for that has fewer batches
_WARM_UP = 2  # batches of each query that are not counted
_SHORTEST_BATCH = 1e-3  # seconds
_ANYWHERE = -1  # executor of a task that may run on any
_BATCH_BEGINS, _STAGES_BEGIN = -2, -1  # events, in place of the executor on which a task ended

_Task = tuple[int, int, int, float, int]  # job, position of its stage, task, seconds, query


@dataclass
class _Query:
    number: int
    pool: str
    overhead: list[float]  # of each batch
    interval: float
    pause: float
    stages: list[tuple[list[int], FloatArray]]  # executor of each task; seconds of each task in each batch, (B, n)
    phase: float
    start: float = 0.0
    batch: int = 0
    job: int = 0
    left: int = 0
    durations: list[float] = field(default_factory=list)


def replay(model: PredictionModel, placement: Placement, *, batches: int = 10, seed: int = 0) -> dict[str, FloatArray]:
    """Return the durations of some batches of each query in seconds, at least one each.

    ``batches`` are those of the slowest query; the others run as many as fit beside them, up to four times as many.
    Where others are so much faster that this would take too long, the slowest has fewer, or the one of the cycle
    formula. Partitions on no executor run nowhere; ``seed`` is that of the noise.
    """
    if model.tasks > MAX_REPLAYED:
        return _estimate_noisy(model, placement, min(batches, _FORMULA_BATCHES), seed)
    queries = _queries(model, placement, batches, seed)
    _Run(queries, task_slots(model.cluster).tolist(), batches + _WARM_UP, seed).run()
    names = model.workload.queries
    if not all(query.durations for query in queries):
        estimate = PlacedQueries(model, placement).estimate_batches()
        for query, seconds in zip(queries, estimate.values(), strict=True):
            query.durations = query.durations or [seconds]
    return {
        name: np.array(query.durations[_WARM_UP:] or query.durations)
        for name, query in zip(names, queries, strict=True)
    }


def _estimate_noisy(model: PredictionModel, placement: Placement, batches: int, seed: int) -> dict[str, FloatArray]:
    """Return batches by the cycle formula, each with work drawn by its noise."""
    placed, drawn = PlacedQueries(model, placement), []
    for number in range(batches):
        random = np.random.default_rng((seed, number))
        drawn.append(placed.estimate_one_batch(model.draw_busy(random, attrgetter("noise"))))
    return {query: np.array([each[query] for each in drawn]) for query in model.workload.queries}


def _queries(model: PredictionModel, placement: Placement, batches: int, seed: int) -> list[_Query]:
    cluster, slots = model.cluster, task_slots(model.cluster)
    queries = []
    for number, name in enumerate(model.workload.queries):
        timing = model.timing_of(name)
        stages = []
        for position, stage in enumerate(model.stages_of(name)):
            tasks_anywhere = model.floating.get(stage.key)
            if tasks_anywhere is not None:
                executors = np.full(tasks_anywhere.count, _ANYWHERE)
                work, noise = np.full(tasks_anywhere.count, tasks_anywhere.seconds), None
            elif stage.placeable:
                at = placement[stage.key]
                tasks = np.flatnonzero(at != UNPLACED)
                executors, work = at[tasks], stage.busy[tasks]
                spread = model.spread.get(stage.key)
                noise = spread.noise if spread is not None else None
            else:
                ran = np.flatnonzero(stage.busy > 0)
                executors = np.repeat(ran, slots[ran])
                work, noise = stage.busy[executors] / slots[executors], None
            speed = np.where(executors == _ANYWHERE, 1.0, cluster.speed[executors])
            seconds = np.tile(work / speed, (batches + _WARM_UP, 1))
            if noise is not None:
                random = np.random.default_rng((seed, number, position))
                seconds *= draw_factors(random, noise, (batches + _WARM_UP, stage.n))[:, tasks]
            if len(executors):
                stages.append((executors.tolist(), seconds))
        pool, start = model.pools.get(name, ""), timing.phase
        overhead = np.full(batches + _WARM_UP, timing.overhead)
        if timing.noise > 0 and timing.overhead > 0:
            random = np.random.default_rng((seed, number))
            overhead *= np.exp(random.normal(0.0, timing.noise, len(overhead)))
            overhead *= timing.overhead / overhead.mean()
        queries.append(_Query(number, pool, overhead.tolist(), timing.interval, timing.pause, stages, start, start))
    return queries


class _Run:
    """One replay; time is in seconds from its start."""

    def __init__(self, queries: list[_Query], slots: list[int], batches: int, seed: int) -> None:
        self._queries = queries
        self._batches = batches
        self._free = list(slots)
        self._waiting: list[dict[str, list[_Task]]] = [{} for _ in slots]  # by executor and pool
        self._waiting_anywhere: dict[str, list[_Task]] = {}  # by pool
        self._running = dict.fromkeys((query.pool for query in queries), 0)  # tasks of each pool
        self._events: list[tuple[float, int, int, int]] = []  # time, order, query, executor or event
        self._random = np.random.default_rng(seed)
        self._order = 0
        self._jobs = 0
        self._stage = [0] * len(queries)
        tasks = sum(len(executors) for query in queries for executors, _ in query.stages)
        self._tasks_left = max(_LEAST_TASKS, _ROUNDS * batches * tasks)

    def run(self) -> None:
        for query in self._queries:
            self._push(query.start, query.number, _BATCH_BEGINS)
        unfinished = {query.number for query in self._queries}
        while self._events and unfinished:
            now, _, number, executor = heapq.heappop(self._events)
            query = self._queries[number]
            if executor == _BATCH_BEGINS:
                overhead = query.overhead[query.batch % len(query.overhead)]
                self._push(now + max(overhead, _SHORTEST_BATCH), number, _STAGES_BEGIN)
            elif executor == _STAGES_BEGIN:
                self._jobs += 1
                query.job = self._jobs
                self._stage[number] = 0
                self._submit(query, now)
            else:
                self._task_ended(query, executor, now)
            if len(query.durations) >= self._batches:
                unfinished.discard(number)
            if self._tasks_left < 0:
                break

    def _push(self, when: float, number: int, executor: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, number, executor))

    def _submit(self, query: _Query, now: float) -> None:
        """Submit the next stage of a query's batch, or finish the batch."""
        position = self._stage[query.number]
        if position == len(query.stages):
            self._finish(query, now)
            return
        self._stage[query.number] = position + 1
        executors, seconds = query.stages[position]
        work = seconds[query.batch % len(seconds)].tolist()
        query.left = len(executors)
        self._tasks_left -= len(executors)
        touched = set()
        for task, (executor, took) in enumerate(zip(executors, work, strict=True)):
            places = self._waiting_anywhere if executor == _ANYWHERE else self._waiting[executor]
            queue = places.setdefault(query.pool, [])
            heapq.heappush(queue, (query.job, position, task, took, query.number))
            touched.add(executor)
        if _ANYWHERE in touched:
            touched = set(range(len(self._free)))
        free = [executor for executor in touched if self._free[executor]]
        order = self._random.permutation(free).tolist()  # as Spark shuffles its offers
        while sum(self._start_task(executor, now) for executor in order):
            pass

    def _start_task(self, executor: int, now: float) -> bool:
        """Start the first waiting task on a free core; return whether there was one."""
        if not self._free[executor]:
            return False
        places = self._waiting[executor], self._waiting_anywhere
        queues = [(self._running[pool], pool, queue[0], place) for place in places for pool, queue in place.items()]
        if not queues:
            return False
        _, pool, _, place = min(queues, key=lambda entry: entry[:3])
        _, _, _, took, number = heapq.heappop(place[pool])
        if not place[pool]:
            del place[pool]
        self._free[executor] -= 1
        self._running[pool] += 1
        self._push(now + took, number, executor)
        return True

    def _task_ended(self, query: _Query, executor: int, now: float) -> None:
        self._free[executor] += 1
        self._running[query.pool] -= 1
        query.left -= 1
        # As in Spark, the core is offered to waiting tasks before the end of the stage is handled.
        self._start_task(executor, now)
        if not query.left:
            self._submit(query, now)

    def _finish(self, query: _Query, now: float) -> None:
        if len(query.durations) < 4 * self._batches:
            query.durations.append(now - query.start)
        query.batch += 1
        self._tasks_left -= 1
        following = now + query.pause
        if query.interval > 0:
            # As Spark's ProcessingTimeExecutor: a tick that passed during a batch is made up for once, at once.
            ticks = math.floor((query.start - query.phase) / query.interval + 1e-9) + 1
            following = max(now, query.phase + ticks * query.interval)
        query.start = following
        self._push(following, query.number, _BATCH_BEGINS)
