"""Cost of a migration: what it adds to the queries' batches, by earlier migrations. Pure.

The state of a moved partition is loaded by the first task that runs it on its target, which lasts longer by

    load = overhead + bytes / load rate

A step is taken by one batch of each of its queries. That batch lasts as the cycle formula has it
(:mod:`rechannel.policies.prediction.cycle`) under the placement that the step leads to, with the loads added to the
moved partitions: on a target with time to spare a load costs nothing, on any other it stretches the batch. The snapshot
before a step and the closing of the old copies after it go on beside the batches.

On an executor that ran few tasks of a kind of stage, the next ones take longer
(:mod:`rechannel.policies.analysis.cold_start`): each step is one batch of its queries, in which every task lasts longer
by the seconds of its age, and a floating stage by those of its coldest executor. What is cold without the plan as well
is no cost of the plan, but part of the longest batch.

Overhead and load rate are those of `UNMEASURED` until moves were measured. From then on both are fitted to the last
moves by least squares, in which `UNMEASURED` counts as some moves more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rechannel.policies.analysis.cold_start import ColdStage
from rechannel.policies.analysis.placement_cost import task_slots
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.cycle import PlacedQueries
from rechannel.policies.prediction.model import PredictionModel

_PRIOR_MOVES = 1.0  # measured moves that the overhead of `UNMEASURED` counts for
_PRIOR_SPREAD = 10e6  # bytes: the measured sizes have to differ by more to outweigh its rate
_FITTED_MOVES = 200  # the last ones
_OUTLIER = 5.0  # median deviations from the median; a load that took longer counts as having taken so long
_LARGEST_BYTES, _LARGEST_SECONDS = 1e15, 1e5  # of one load; larger figures cannot be true
_LARGEST_RATE = 1e12  # bytes per second; a fitted rate above it is no limit
_SHORTEST = 1e-9  # seconds of a batch
_EVALUATED_STEPS = 24  # steps whose batches are worked out; the others take the values of the nearest of them


@dataclass(frozen=True)
class LoadRates:
    """Cost of a load."""

    overhead: float  # seconds
    load_rate: float  # bytes per second
    moves: int = 0  # to which they were fitted


# Until loads were measured. On a local disk a load of little state takes 0.02 to 0.1 s; from an object store it takes
# some ten requests (a listing, a snapshot, the changes since) of 50 ms each.
UNMEASURED = LoadRates(0.5, 50e6)


@dataclass(frozen=True, eq=False)
class SteppedMoves:
    """Moves, the step of each (counted from 0), and the bytes each has to load, (M,)."""

    moves: Sequence[Move]
    steps: IntArray
    loads: FloatArray

    @property
    def count(self) -> int:
        """Number of steps."""
        return int(self.steps.max(initial=-1)) + 1


@dataclass(frozen=True)
class BatchTimes:
    """Batches of each query before a plan, in seconds; a query may be missing."""

    seconds: Mapping[str, float]
    period: Mapping[str, float]  # from the start of one to the start of the next
    cold: Mapping[str, ColdStage] = field(default_factory=dict)  # stage -> first tasks, where some executor ran few


@dataclass(frozen=True, eq=False)
class PlanCost:
    """Expected cost of a plan; the gate compares its ``seconds``."""

    # By how much each step's batch is longer than it would be after the step, for the query that suffers most, (S,).
    added: FloatArray
    bytes: float  # loaded in all
    seconds: float  # added time summed over steps and queries
    peak: dict[str, float]  # query -> longest batch during the migration, which begins in one of the present placement
    total: float  # from the order until the last partition has landed
    # Executor -> seconds by which a partition's first task there lasts longer, at most; cold targets alone.
    cold: dict[str, float]

    @property
    def pause(self) -> float:
        """Time added to the worst batch."""
        return float(self.added.max(initial=0.0))


def estimate_cost(
    model: PredictionModel, current: Placement, plan: SteppedMoves, rates: LoadRates, times: BatchTimes
) -> PlanCost:
    """Estimate the cost of a plan.

    In ``current``, partitions whose executor is not known are on their targets already: these load their state anyway,
    so that load is not a cost of the plan.
    """
    cold = _cold_batches(model.cluster, model.workload, current, plan, times.cold)
    present = PlacedQueries(model, current)
    steps = _StepModel(model, current, plan, rates, cold, present)
    query_of = {move.stage: model.workload.stage(move.stage).query for move in plan.moves}
    queries = [
        {query_of[plan.moves[index].stage] for index in np.flatnonzero(plan.steps == step).tolist()}
        for step in range(plan.count)
    ]
    evaluated = np.linspace(0, plan.count - 1, min(plan.count, _EVALUATED_STEPS)).round().astype(np.int64)
    nearest = [min(np.unique(evaluated).tolist(), key=lambda near: abs(near - step)) for step in range(plan.count)]
    for step in [step for step, batch in enumerate(cold) if batch.landing_seconds][:_EVALUATED_STEPS]:
        nearest[step] = step  # no other step stands for one that is cold
    durations = {step: steps.batch_seconds(step) for step in sorted(set(nearest))}
    now = present.estimate_batches()
    scale = {query: times.seconds.get(query, seconds) / max(seconds, _SHORTEST) for query, seconds in now.items()}
    added, lasts = np.zeros(plan.count), np.zeros(plan.count)
    peak: dict[str, float] = {}
    seconds = 0.0
    for step in range(plan.count):
        without, loading = durations[nearest[step]]
        for query in sorted(queries[step]):
            more = scale[query] * max(0.0, loading[query] - without[query])
            batch = scale[query] * loading[query]
            added[step] = max(added[step], more)
            seconds += more
            peak[query] = max(peak.get(query, scale[query] * now[query]), batch)
            period = 0.0 if step == plan.count - 1 else times.period.get(query, 0.0)
            lasts[step] = max(lasts[step], batch, period)
    # The order comes in the middle of a batch, on average; what is left of it is waited for.
    wait = max((times.period.get(query, 0.0) for query in peak), default=0.0) / 2
    total = wait + float(np.cumsum(lasts)[-1]) if plan.count else 0.0
    landing: dict[str, float] = {}
    for name, most in (item for batch in cold for item in batch.landing_seconds.items()):
        landing[name] = max(landing.get(name, 0.0), most)
    return PlanCost(added, float(plan.loads.sum()), seconds, peak, total, landing)


@dataclass(frozen=True, eq=False)
class _ColdBatch:
    """Seconds that first tasks add to the batch of a step."""

    once: dict[str, FloatArray] = field(default_factory=dict)  # placeable stage -> core seconds, (n,)
    anyway: dict[str, FloatArray] = field(default_factory=dict)  # the part of them that comes without the plan as well
    floating: dict[str, float] = field(default_factory=dict)  # query -> of its floating stages
    landing_seconds: dict[str, float] = field(default_factory=dict)  # executor -> most of a partition that lands there


def _cold_batches(
    cluster: Cluster, workload: Workload, current: Placement, plan: SteppedMoves, cold: Mapping[str, ColdStage]
) -> list[_ColdBatch]:
    """Return what first tasks add to each step's batch; those of earlier steps count as run."""
    slots = task_slots(cluster)
    placement = {key: current[key].copy() for key in cold if cold[key].tasks is None}
    ran = {stage.kind: stage.ran.copy() for stage in cold.values()}
    batches = [_ColdBatch() for _ in range(plan.count)]
    for step, batch in enumerate(batches if cold else []):
        moves = [plan.moves[index] for index in np.flatnonzero(plan.steps == step).tolist()]
        queries = {workload.stage(move.stage).query for move in moves}
        for key, stage in cold.items():
            query = workload.stage(key).query
            if query not in queries:
                continue
            if stage.tasks is not None:
                batch.floating[query] = batch.floating.get(query, 0.0) + stage.floating_seconds(
                    ran[stage.kind], slots, cluster.speed
                )
                ran[stage.kind] += stage.tasks
                continue
            own = [move for move in moves if move.stage == key]
            for move in own:
                placement[key][move.partition] = move.target
            where = placement[key]
            more = stage.added_seconds(ran[stage.kind], where, slots)
            ran[stage.kind] += np.bincount(where[where >= 0], minlength=cluster.size)
            if more.any():
                batch.once[key], batch.anyway[key] = more, np.where(where == current[key], more, 0.0)
            for move in own:
                if more[move.partition] > 0:
                    name = cluster.executors[move.target]
                    longest = max(batch.landing_seconds.get(name, 0.0), float(more[move.partition]))
                    batch.landing_seconds[name] = longest
    return batches


@dataclass(frozen=True, eq=False)
class _StepModel:
    """Batches of a plan's steps."""

    model: PredictionModel
    current: Placement
    plan: SteppedMoves
    rates: LoadRates
    cold: Sequence[_ColdBatch]
    present: PlacedQueries

    def batch_seconds(self, step: int) -> tuple[dict[str, float], dict[str, float]]:
        """Return each query's batch after a step, without and with its loads and cold starts."""
        done = np.flatnonzero(self.plan.steps <= step).tolist()
        after, cold = self.current.with_moves(self.plan.moves[index] for index in done), self.cold[step]
        added: dict[str, FloatArray] = {}
        for index in np.flatnonzero(self.plan.steps == step).tolist():
            move = self.plan.moves[index]
            if move.source != UNPLACED:
                load = self.rates.overhead + self.plan.loads[index] / self.rates.load_rate
                own = added.setdefault(move.stage, np.zeros(self.model.workload.stage(move.stage).n))
                own[move.partition] += load * self.model.cluster.speed[move.target]
        for key, seconds in cold.once.items():
            added[key] = added.get(key, 0.0) + seconds
        placed = PlacedQueries(self.model, after, self.present)
        without, loading = (self._estimate(placed, more) for more in (cold.anyway, added))
        for query, longer in cold.floating.items():
            without[query] += longer
            loading[query] += longer
        return without, loading

    def _estimate(self, placed: PlacedQueries, added: Mapping[str, FloatArray]) -> dict[str, float]:
        return placed.estimate_batches({key: self.model.workload.stage(key).busy + it for key, it in added.items()})


def fit_load_rates(measured: Iterable[tuple[float, float]], prior: LoadRates) -> LoadRates:
    """Fit overhead and load rate to the last moves by least squares, neither below zero.

    ``measured``: the bytes of each past move, and the seconds by which its first task was longer than usual. ``prior``
    are those of `UNMEASURED`. Their overhead counts as one move more, their rate as moves that differ by some ten
    megabytes: moves of about one size tell little of the rate. A load that took far longer than the others counts as
    somewhat longer; figures that cannot be true do not count.
    """
    possible = [it for it in measured if 0 <= it[0] <= _LARGEST_BYTES and abs(it[1]) <= _LARGEST_SECONDS]
    if not possible:
        return prior
    loaded, added = np.array(possible[-_FITTED_MOVES:]).T
    added = np.maximum(added, 0.0)
    median = float(np.median(added))
    added = np.minimum(added, median + _OUTLIER * float(np.median(np.abs(added - median))) + prior.overhead)
    spread = loaded - loaded.mean()
    weight = _PRIOR_SPREAD**2
    slope = (float(spread @ (added - added.mean())) + weight / prior.load_rate) / (float(spread @ spread) + weight)
    slope = max(slope, 1 / _LARGEST_RATE)
    overhead = (float((added - slope * loaded).sum()) + _PRIOR_MOVES * prior.overhead) / (len(loaded) + _PRIOR_MOVES)
    if overhead < 0:
        overhead, slope = 0.0, max(float(loaded @ added) / max(float(loaded @ loaded), 1e-300), 1 / _LARGEST_RATE)
    return LoadRates(overhead, 1 / slope, len(loaded))
