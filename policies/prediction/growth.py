"""Rows that grow with the period of their query, and the batches that follow.

A source that delivers by time (a topic without a limit, a rate) gives a batch the rows that arrived since the batch
before it began. Back to back, or behind a trigger that is overrun, shorter batches have fewer rows, and are shorter
still. With ``share`` that part of the work which is proportional to the period, that of rows that come by time,

    work = measured work x factor,   factor = 1 - share + share x period / present period

and the period follows from the work: the factor is a fixed point. One query on one executor with a share of 1 lasts
``T = overhead + work x T / present period``. The present period is that of the replay under the present placement, not
the measured one: rows are as measured there, so an error of the replay cancels out and is not amplified.

The rows of a query are the same in all batches of one replay, and the replay is repeated until they are those of its
period, three times as a rule. If rows followed the noise of the batch before, the batches of two placements would not
compare draw by draw, and eight of them would not settle. The cycle formula is no short cut: where queries hold each
other up, it takes their batches apart as soon as one has fewer rows than another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.cycle import QueryTimings
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.replay import replay

_LEAST_CHANGES = 4  # of the period from batch to batch, from which growth is estimated
_LEAST_NOISE = 0.02  # of the rows of a batch
_CERTAIN = 2.0  # standard errors that the growth has to be from zero
_PRIOR = 0.5  # standard deviation of the growth before anything was measured
_FIXED = 0.5  # growth below which rows count as fixed
_LARGEST = 4.0  # times the measured work, at most: where rows come faster than they are worked off, batches never end
_ROUNDS = 6  # of the fixed point, at most
_SETTLED = 5e-3  # share of the factor, up to which it is settled
_LONGEST_STEP = 9.0  # times the step of plain iteration, added to it
_SHORTEST = 1e-9  # seconds
_SHORTEST_PERIOD = 1e-3  # seconds; no batch of Spark is shorter, and shares of nearly nothing overflow


@dataclass(frozen=True)
class Growth:
    """Slope of a query's rows by the period of its batches, relative, and its standard error."""

    slope: float = 0.0
    error: float = math.inf

    @property
    def share(self) -> float:
        """Share of rows that is proportional to the period, from 0 to 1.

        The slope is shrunk by its standard error (prior: 0 with deviation 0.5). Where it is not certain to be positive,
        or the period hardly changed, it is 0: nothing is promised, nor refused, for rows that were never seen to follow
        the period.
        """
        if self.slope <= _CERTAIN * self.error:
            return 0.0
        return min(1.0, self.slope) * _PRIOR**2 / (_PRIOR**2 + self.error**2)

    @property
    def fixed_rows(self) -> bool:
        """Whether rows certainly do not follow the period, as those of a source with a limit."""
        return self.slope + _CERTAIN * self.error < _FIXED


def fit_growth(period: FloatArray, rows: FloatArray) -> Growth:
    """Fit the growth of a query's rows with the period.

    The changes of the rows from batch to batch are fitted to those of the period by least absolute deviations: neither
    a load that drifts, nor one that changes at once, nor batches of any size from which the *next* period follows look
    like growth. Without enough changes the slope is 0, and its error infinite.

    Parameters
    ----------
    period
        Seconds from the start of the batch before to the start of each batch, oldest first, (B,).
    rows
        Rows of each batch, (B,).
    """
    usual_period, usual_rows = (float(np.median(it)) if len(it) else 0.0 for it in (period, rows))
    if len(period) <= _LEAST_CHANGES or usual_period < _SHORTEST_PERIOD or usual_rows < 1:
        return Growth()
    longer, more = np.diff(period / usual_period), np.diff(rows / usual_rows)
    changed = np.flatnonzero(np.abs(longer) > _SHORTEST)
    longer, more = longer[changed], more[changed]
    if len(changed) < _LEAST_CHANGES:
        return Growth()
    # The weighted median of the single slopes is the line through zero with the least absolute deviations.
    slopes = more / longer
    order = np.argsort(slopes)
    passed = np.cumsum(np.abs(longer)[order])
    slope = float(slopes[order][np.searchsorted(passed, passed[-1] / 2)])
    deviation = 1.48 * float(np.median(np.abs(more - slope * longer))) * len(changed) / (len(changed) - 1)
    # That line's error is sqrt(pi / 2) times the one of least squares. And two changes that follow each other share a
    # batch: half of its noise is in both, with opposite signs, so that the sides of the line on which they are have a
    # correlation of -1/3.
    squares = float(longer @ longer)
    variance = math.pi / 2 * (1.0 - 2 / 3 * float(longer[1:] @ longer[:-1]) / squares) / squares
    return Growth(slope, max(deviation, 2**0.5 * _LEAST_NOISE) * variance**0.5)


def replay_grown(
    model: PredictionModel, placement: Placement, present: Mapping[str, float], *, batches: int = 10, seed: int = 0
) -> dict[str, FloatArray]:
    """Return what `replay` does, with the rows that the queries would have under a placement.

    ``present``: query -> seconds of its batches by the replay of the present placement, under which its rows are as
    measured. Rows of queries without an entry do not grow.
    """
    queries = model.workload.queries
    timings = [model.timing_of(query) for query in queries]
    share = np.array(
        [it.growth * it.row_share * (query in present) for query, it in zip(queries, timings, strict=True)]
    )
    if not share.any():
        return replay(model, placement, batches=batches, seed=seed)
    all_timings = QueryTimings.of(model)
    reference = all_timings.period(np.array([present.get(query, 0.0) for query in queries]))
    durations: dict[str, FloatArray] = {}

    def periods(factor: FloatArray) -> FloatArray:
        durations.update(replay(_grown(model, factor), placement, batches=batches, seed=seed))
        seconds = np.array([durations[query].mean() for query in queries])
        return all_timings.period(seconds) / reference

    settle(periods, share)
    return durations


def settle(periods: Callable[[FloatArray], FloatArray], share: FloatArray) -> FloatArray:
    """Return the factor of each query's work at which its rows are those of its period, (Q,).

    Parameters
    ----------
    periods
        Called with factors, returns the periods over the present ones, (Q,). The last call is with the result.
    share
        Share of the work that is proportional to the period, (Q,).
    """
    least = 1.0 - share
    factor = np.ones(len(share))
    before, residual_before = factor, np.zeros(len(share))
    for number in range(_ROUNDS):
        residual = np.minimum(least + share * periods(factor), _LARGEST) - factor
        if number == _ROUNDS - 1 or np.all(np.abs(residual) <= _SETTLED * factor):
            break
        # Anderson's method (1965) with one step before: exact for one query, whose batch is a line over the factor.
        # Plain iteration would take dozens of replays where the executors are nearly full.
        change = residual - residual_before
        weight = float(change @ residual) / max(float(change @ change), _SHORTEST) if number else 0.0
        weight = min(1.0, max(-_LONGEST_STEP, weight))  # of the step before
        following = factor + residual - weight * (factor + residual - before - residual_before)
        before, residual_before = factor, residual
        factor = np.clip(following, least, _LARGEST)
    return factor


def _grown(model: PredictionModel, factor: FloatArray) -> PredictionModel:
    """Return the model with the work of each query multiplied, (Q,)."""
    factors = dict(zip(model.workload.queries, factor.tolist(), strict=True))
    busy = {stage.key: stage.busy * factors[stage.query] for stage in model.workload.stages}
    floating = {
        key: replace(tasks, seconds=tasks.seconds * factors[model.workload.stage(key).query])
        for key, tasks in model.floating.items()
    }
    return replace(model.with_busy(busy), floating=floating)
