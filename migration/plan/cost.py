"""What a migration costs the queries' batches, before it is begun; learned from what earlier ones cost.

A partition that moves has its state loaded by the first task that runs it on its target, which so lasts longer by

    load = overhead + bytes / load rate

A step is taken by one batch of each of its queries. What that batch lasts is the critical path of the placement that
the step leads to, its moved partitions longer by their loads: a target that has time to spare loads for nothing, one
that had not stretches the batch. This is the three-stage pipeline of the migration literature (transfer, processing,
packing; see :mod:`rechannel.migration.plan.pipeline`) as Spark lets it be: loading is part of the batch, so transfer
and processing are one stage; the snapshot of the next step before it, and the closing of the old copies after it, go on
beside the batches.

Overhead and load rate are those of the settings until moves were measured; from then on both are fitted to the last
moves by least squares, the settings counting as some moves more. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.migration.plan.pipeline import finish_times
from rechannel.policies.analysis.placement_cost import critical_path
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload

__all__ = ["LoadRates", "MeasuredLoad", "MigrationCost", "learned", "price"]

_PRIOR_MOVES = 1.0  # measured moves that the settings' overhead counts for
_PRIOR_SPREAD = 10e6  # bytes: the measured sizes have to differ by more to outweigh the settings' rate
_LAST = 200  # moves that are looked at
_ODD = 5.0  # median deviations from the median that a load may take longer than the others
_LARGEST, _LONGEST = 1e15, 1e5  # bytes and seconds that one load may be
_FASTEST = 1e12  # bytes per second: what is fitted above that is no limit
_LOOKED_AT = 24  # steps whose batches are worked out; those between are taken to be like their neighbor


@dataclass(frozen=True)
class LoadRates:
    """Seconds that a load takes whatever its size, bytes per second of the rest, and how many moves say so."""

    overhead: float
    load_rate: float
    moves: int = 0


@dataclass(frozen=True)
class MeasuredLoad:
    """One move that was made: bytes that were loaded, seconds by which its first task lasted longer than usual."""

    bytes: float
    added: float


@dataclass(frozen=True, eq=False)
class MigrationCost:
    """What a plan is expected to cost, in seconds.

    ``added`` (S,): by how much each step's batch is longer than it would be after the step, of the query that suffers
    most; ``seconds``: the same summed over steps and queries; ``bytes``: what is loaded in all; ``peak``: query -> its
    longest batch meanwhile; ``total``: from the order until the last partition has landed.
    """

    added: FloatArray
    bytes: float
    seconds: float
    peak: dict[str, float]
    total: float

    @property
    def pause(self) -> float:
        """What the worst batch is longer."""
        return float(self.added.max(initial=0.0))


def price(
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    moves: Sequence[Move],
    steps: IntArray,
    loads: FloatArray,
    rates: LoadRates,
    *,
    before: Mapping[str, float],
    batch: Mapping[str, float],
    period: Mapping[str, float],
) -> MigrationCost:
    """Price the moves, each of them of a step (counted from 0) and with so many bytes to load, shape (M,) both.

    ``current`` has what is on no known executor where it is to go: it loads its state there anyway, so that load is
    nobody's cost. ``before``: the critical paths of that; ``batch``: seconds that a batch of each query lasts now,
    ``period`` from one's start to the next one's.
    """
    count = int(steps.max(initial=-1)) + 1
    query_of = {move.stage: workload.stage(move.stage).query for move in moves}
    queries = [
        {query_of[moves[index].stage] for index in np.flatnonzero(steps == step).tolist()} for step in range(count)
    ]
    looked_at = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).round().astype(np.int64)).tolist()
    nearest = [min(looked_at, key=lambda near: abs(near - step)) for step in range(count)]
    wanted: dict[int, set[str]] = {}
    for near, asked in zip(nearest, queries, strict=True):
        wanted.setdefault(near, set()).update(asked)
    found = {
        step: _batches(cluster, workload, current, moves, steps, step, loads, rates, asked)
        for step, asked in wanted.items()
    }
    added, lasts = np.zeros(count), np.zeros(count)
    peak: dict[str, float] = {}
    seconds = 0.0
    for step in range(count):
        without, loading = found[nearest[step]]
        for query in queries[step]:
            more = max(0.0, loading[query] - without[query])
            long = max(0.0, batch.get(query, before[query]) + loading[query] - before[query])
            added[step] = max(added[step], more)
            seconds += more
            peak[query] = max(peak.get(query, 0.0), long)
            lasts[step] = max(lasts[step], long if step == count - 1 else max(long, period.get(query, 0.0)))
    # The order comes in the middle of a batch, on average; what is left of it is waited for.
    wait = max((period.get(query, 0.0) for query in peak), default=0.0) / 2
    return MigrationCost(
        added, float(loads.sum()), seconds, peak, wait + finish_times(lasts, 0.0, 0.0).makespan if count else 0.0
    )


def _batches(
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    moves: Sequence[Move],
    steps: IntArray,
    step: int,
    loads: FloatArray,
    rates: LoadRates,
    queries: Collection[str],
) -> tuple[dict[str, float], dict[str, float]]:
    """Critical paths of queries with the moves of all steps up to this one made: without and with what this one loads.

    Each query is looked at with its own loads alone. Those of others come once, and are no load that lasts, which is
    what the model would take them for.
    """
    placement = {key: array.copy() for key, array in current.assignments.items()}
    added = {stage.key: np.zeros(stage.n) for stage in workload.placeable}
    for index in np.flatnonzero(steps <= step).tolist():
        move = moves[index]
        placement[move.stage][move.partition] = move.target
        if steps[index] == step and move.source != UNPLACED:
            load = rates.overhead + loads[index] / rates.load_rate
            added[move.stage][move.partition] += load * cluster.speed[move.target]
    at = Placement(placement)
    once = {key: more for key, more in added.items() if more.any()}
    return critical_path(cluster, workload, at, None, queries), critical_path(cluster, workload, at, once, queries)


def learned(outcomes: Sequence[MeasuredLoad], given: LoadRates) -> LoadRates:
    """Overhead and load rate that fit the last moves best, neither below zero.

    ``given``: those of the settings. Their overhead counts as one move more, and their rate as moves that differ by
    some ten megabytes: moves of about one size say little of the rate, and nothing is to be concluded from them. A load
    that took far longer than the others counts as one that took somewhat longer; figures that cannot be do not count.
    """
    last = [outcome for outcome in outcomes if _possible(outcome)][-_LAST:]
    if not last:
        return given
    loaded = np.array([outcome.bytes for outcome in last])
    added = np.maximum(np.array([outcome.added for outcome in last]), 0.0)
    middle = float(np.median(added))
    added = np.minimum(added, middle + _ODD * float(np.median(np.abs(added - middle))) + given.overhead)
    away = loaded - loaded.mean()
    known = _PRIOR_SPREAD**2
    slope = (float(away @ (added - added.mean())) + known / given.load_rate) / (float(away @ away) + known)
    slope = max(slope, 1 / _FASTEST)
    overhead = (float((added - slope * loaded).sum()) + _PRIOR_MOVES * given.overhead) / (len(last) + _PRIOR_MOVES)
    if overhead < 0:
        overhead, slope = 0.0, max(float(loaded @ added) / max(float(loaded @ loaded), 1e-300), 1 / _FASTEST)
    return LoadRates(overhead, 1 / slope, len(last))


def _possible(outcome: MeasuredLoad) -> bool:
    return 0 <= outcome.bytes <= _LARGEST and abs(outcome.added) <= _LONGEST
