"""Work of tasks with its uncertainty, and the timing of queries."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.policies.model.arrays import FloatArray, check_lengths
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.workload import Stage, Workload


def draw_factors(
    random: np.random.Generator, deviation: FloatArray, shape: tuple[int, ...] | None = None
) -> FloatArray:
    """Return factors of mean 1 whose logarithms have a standard deviation, by default (n,)."""
    drawn = random.standard_normal(deviation.shape if shape is None else shape)  # faster than `normal` with two arrays
    return np.asarray(np.exp(drawn * deviation - deviation**2 / 2))


@dataclass(frozen=True)
class QueryTiming:
    """Timing of one query, in seconds.

    Attributes
    ----------
    overhead
        Part of a batch in which none of its stages runs: planning, logs, commit.
    interval
        Interval of its trigger; 0 for a query without one.
    phase
        Start of its first replayed batch, from the start of the replay.
    pause
        From the end of a batch to the start of the next one, of a query without a trigger: it has no input yet, or runs
        a batch without input.
    noise
        Standard deviation of the logarithm of a batch's overhead. Of queries that begin at the same tick, it decides
        which one comes first.
    growth
        Share of its rows that is proportional to the time since the start of the batch before, from 0 to 1: those of a
        source that delivers by time.
    fixed_rows
        Whether the rows of a batch certainly do not follow that time: those of a source with a limit.
    row_share
        Share of its tasks' work that is proportional to their rows, from 0 to 1.
    """

    overhead: float
    interval: float = 0.0
    phase: float = 0.0
    pause: float = 0.0
    noise: float = 0.0
    growth: float = 0.0
    fixed_rows: bool = False
    row_share: float = 1.0

    @property
    def has_to_keep_up(self) -> bool:
        """Whether its input comes by time: at a trigger, or since the batch before.

        Batches of another query are as large however slow it is.
        """
        return self.interval > 0 or not self.fixed_rows


@dataclass(frozen=True, eq=False)
class StageSpread:
    """Uncertainty of a placeable stage's work.

    ``log_error`` (n,) is the standard error of the logarithm of each partition's mean work; ``noise`` (n,) the standard
    deviation of the logarithm of its task's work from batch to batch.
    """

    log_error: FloatArray
    noise: FloatArray


@dataclass(frozen=True)
class FloatingTasks:
    """Tasks of a stage that run on any executor: ``count`` a batch, of ``seconds`` each there."""

    count: int
    seconds: float


@dataclass(frozen=True, eq=False)
class PredictionModel:
    """Cluster, work and timing that a batch is predicted from.

    ``timing``: query -> its timing. ``spread``: key of a placeable stage -> its uncertainty; without, it is taken as
    certain. ``floating``: key of a stage -> its tasks; a floating stage without runs where the workload says, divided
    over the cores. ``pools``: query -> its pool under the FAIR scheduler; empty under FIFO.
    """

    cluster: Cluster
    workload: Workload
    timing: Mapping[str, QueryTiming]
    spread: Mapping[str, StageSpread] = field(default_factory=dict)
    floating: Mapping[str, FloatingTasks] = field(default_factory=dict)
    pools: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key, spread in self.spread.items():
            check_lengths(
                f"spread of {key!r}: ", self.workload.stage(key).n, log_error=spread.log_error, noise=spread.noise
            )

    def with_busy(self, busy: Mapping[str, FloatArray]) -> PredictionModel:
        """Return the model with other busy seconds of some stages, by key."""
        return replace(self, workload=self.workload.with_busy(busy))

    def draw_busy(
        self, random: np.random.Generator, deviation: Callable[[StageSpread], FloatArray]
    ) -> dict[str, FloatArray]:
        """Return busy seconds by key of a stage, drawn; ``deviation``: field of its spread."""
        stages = [stage for stage in self.workload.stages if stage.key in self.spread]
        if not stages:
            return {}
        factors = draw_factors(random, np.concatenate([deviation(self.spread[stage.key]) for stage in stages]))
        busy = np.concatenate([stage.busy for stage in stages]) * factors
        ends = [0, *itertools.accumulate(stage.n for stage in stages)]
        parts = itertools.pairwise(ends)
        return {stage.key: busy[start:end] for stage, (start, end) in zip(stages, parts, strict=True)}

    @property
    def tasks(self) -> int:
        """Number of tasks in one batch of each query."""
        slots = int(task_slots(self.cluster).sum())
        return sum(
            stage.n if stage.placeable else self.floating[stage.key].count if stage.key in self.floating else slots
            for stage in self.workload.stages
        )

    def timing_of(self, query: str) -> QueryTiming:
        """Return a query's timing; without one, it begins as often as its stages run."""
        if query in self.timing:
            return self.timing[query]
        rate = max(stage.batches_per_second for stage in self.stages_of(query))
        return QueryTiming(0.0, 1.0 / rate if rate > 0 else 0.0)

    def stages_of(self, query: str) -> tuple[Stage, ...]:
        """Return the stages of a query in the order they run."""
        return tuple(stage for stage in self.workload.stages if stage.query == query)

    def floating_work(self, stage: Stage) -> tuple[FloatArray, float]:
        """Return a floating stage's core seconds on each executor, (E,), and its time alone."""
        cluster = self.cluster
        tasks = self.floating.get(stage.key)
        capacity = cluster.cores * cluster.speed
        if tasks is None:
            return stage.busy / capacity, float((stage.busy / capacity).max())
        slots = task_slots(cluster)
        turns = -(-tasks.count // int(slots.sum()))
        return np.asarray(tasks.count * tasks.seconds * slots / slots.sum() / cluster.cores), turns * tasks.seconds
