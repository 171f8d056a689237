"""The truth of a case: its batches, with tasks handed out as by Spark's scheduler.

Written independently of the replay that is judged, from Spark's own code: whenever cores are free, they are offered to
the task sets in one order (``TaskSchedulerImpl.resourceOffers``), which is that of jobs and stages under FIFO, and that
of the pools' running tasks under FAIR (``SchedulingAlgorithm``). A task set takes one core of each executor after the
other as long as it has tasks for them. Beyond what the replay knows, each task takes some milliseconds of its core for
its launch, and half of a query's overhead comes after its tasks.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from benchmarks.simulation.engine import Batch
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage
from rechannel.policies.prediction.model import FloatingTasks, QueryTiming

LAUNCH = 0.003  # seconds of its core that a task takes beside its work
_MAX_INPUT = 8.0  # times the usual rows, of a batch after a long one


@dataclass(frozen=True)
class TrueQuery:
    """A query: its stages in order, its timing, and its pool ("" under FIFO).

    ``arrival``: seconds in which its usual rows arrive; 0: each batch has the usual rows. ``floating``: key of a stage
    -> its tasks, which run on any executor.
    """

    name: str
    stages: Sequence[Stage]
    timing: QueryTiming
    pool: str = ""
    arrival: float = 0.0
    floating: Mapping[str, FloatingTasks] = field(default_factory=dict)


@dataclass
class _TaskSet:
    """Tasks of a stage that have not begun, in seconds; ``left`` have not ended."""

    job: int
    pool: str
    pinned: dict[int, deque[float]]
    anywhere: deque[float]
    left: int
    done: Callable[[], None]

    def take(self, executor: int) -> float | None:
        """Return the next task for an executor, pinned ones first; None without any."""
        pinned = self.pinned.get(executor)
        if pinned:
            return pinned.popleft()
        return self.anywhere.popleft() if self.anywhere else None


def run_batches(
    cluster: Cluster, queries: Sequence[TrueQuery], placement: Placement, noise: float, seed: int, least: int
) -> dict[str, list[Batch]]:
    """Return the batches of each query until all have so many.

    Parameters
    ----------
    cluster, queries, placement
        What runs, and where.
    noise
        Standard deviation of the logarithm of a task's time.
    seed
        Of the noise, and of the order of offers.
    least
        Batches of the slowest query.
    """
    return _Engine(cluster, queries, placement, noise, seed).run(least)


class _Engine:
    def __init__(
        self, cluster: Cluster, queries: Sequence[TrueQuery], placement: Placement, noise: float, seed: int
    ) -> None:
        self._speed, self._placement, self._noise = cluster.speed, placement, noise
        self._queries = queries
        self._free = cluster.cores.astype(int).tolist()
        self._running = dict.fromkeys((query.pool for query in queries), 0)  # tasks of each pool
        self._active: list[_TaskSet] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order, self._jobs = count(), count()
        self._random = np.random.default_rng(seed)
        self._now = 0.0
        self._batches: dict[str, list[Batch]] = {query.name: [] for query in queries}

    def run(self, least: int) -> dict[str, list[Batch]]:
        for query in self._queries:
            self._at(query.timing.phase, partial(self._begin, query, -math.inf))
        while min(map(len, self._batches.values())) < least:
            self._now, _, action = heapq.heappop(self._events)
            action()
        return self._batches

    def _at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), action))

    def _begin(self, query: TrueQuery, before: float) -> None:
        """Plan a batch; ``before``: start of the one before it."""
        start, share = self._now, 1.0
        if query.arrival and before > -math.inf:
            share = min(_MAX_INPUT, (start - before) / query.arrival)
        self._at(
            start + query.timing.overhead / 2, lambda: self._submit(query, start, share, next(self._jobs), position=0)
        )

    def _submit(self, query: TrueQuery, start: float, share: float, job: int, position: int) -> None:
        """Submit a stage of a batch, or commit the batch after the last one."""
        if position == len(query.stages):
            self._at(self._now + query.timing.overhead / 2, lambda: self._commit(query, start, share))
            return
        stage, pinned, anywhere = query.stages[position], dict[int, deque[float]](), deque[float]()
        tasks = query.floating.get(stage.key)
        work = np.full(tasks.count, tasks.seconds) if tasks is not None else stage.busy
        work = share * work * self._random.lognormal(-(self._noise**2) / 2, self._noise, len(work)) + LAUNCH
        if tasks is not None:
            anywhere.extend(work.tolist())
        else:
            at = self._placement[stage.key]
            for executor, seconds in zip(at.tolist(), (work / self._speed[at]).tolist(), strict=True):
                pinned.setdefault(executor, deque()).append(seconds)
        following = partial(self._submit, query, start, share, job, position + 1)
        self._active.append(_TaskSet(job, query.pool, pinned, anywhere, len(work), following))
        self._offer(range(len(self._free)))

    def _offer(self, executors: Sequence[int]) -> None:
        """Offer the free cores of some executors to all task sets, in an order that is drawn."""
        offers = [executor for executor in executors if self._free[executor]]
        if len(offers) > 1:
            self._random.shuffle(offers)
        for tasks in sorted(self._active, key=lambda it: (self._running[it.pool] if it.pool else 0, it.pool, it.job)):
            taking = offers
            while taking:
                taking = [executor for executor in taking if self._launch(tasks, executor)]

    def _launch(self, tasks: _TaskSet, executor: int) -> bool:
        seconds = tasks.take(executor) if self._free[executor] else None
        if seconds is None:
            return False
        self._free[executor] -= 1
        self._running[tasks.pool] += 1
        self._at(self._now + seconds, partial(self._end, tasks, executor))
        return True

    def _end(self, tasks: _TaskSet, executor: int) -> None:
        self._free[executor] += 1
        self._running[tasks.pool] -= 1
        tasks.left -= 1
        if not tasks.left:
            self._active.remove(tasks)
        self._offer([executor])
        if not tasks.left:
            tasks.done()

    def _commit(self, query: TrueQuery, start: float, share: float) -> None:
        self._batches[query.name].append(Batch(query.name, start, self._now, share, landed=0))
        timing, following = query.timing, self._now + query.timing.pause
        if timing.interval:
            # Ticks are multiples of the interval after the phase; one that passed meanwhile is made up for at once.
            passed = math.floor((start - timing.phase) / timing.interval + 1e-9)
            following = max(self._now, timing.phase + (passed + 1) * timing.interval)
        self._at(following, partial(self._begin, query, start))
