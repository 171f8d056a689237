"""Rows that grow with the period of their query: how far they do, and what batches last then.

A source that delivers by time (a topic without a limit, a rate) gives a batch the rows that arrived since the batch
before it began. Back to back, or behind a trigger that is overrun, shorter batches have fewer rows, and are shorter
still. With ``growth`` the share of the work that is proportional to the period,

    work = measured work x factor,   factor = 1 - growth + growth x period / present period

and the period follows from the work: the factor is a fixed point. One query on one executor with growth 1 lasts
``T = overhead + work x T / present period``. The present period is that of the replay under the present placement, not
the measured one: rows are as measured there, so an error of the replay cancels out and is not amplified.

The cycle formula gives the factors, the work of the replay is multiplied by them, and the formula, scaled to what was
replayed, corrects the durations for what it missed. Rows are the same in all batches of one replay: if they followed
the noise of the batch before, the batches of two placements would not compare draw by draw, and eight of them would
not settle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.cycle import QueryWork, Rhythm, batch_seconds, query_work
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.replay import replay

__all__ = ["Present", "estimate_growth", "replay_grown", "settle"]

_LEAST_CHANGES = 4  # of the period from batch to batch, from which growth is estimated
_LEAST_NOISE = 0.02  # of the rows of a batch
_CERTAIN = 2.0  # standard errors that the growth has to be from zero
_PRIOR = 0.5  # standard deviation of the growth before anything was measured
_LARGEST = 4.0  # times the measured work, at most: where rows come faster than they are worked off, batches never end
_ROUNDS = 40
_NEAR = 1e-4  # share of the factor, up to which it is settled
_STEEPEST = 0.98  # slope that a step of the fixed point is extrapolated by
_SHORTEST = 1e-9  # seconds


def estimate_growth(period: FloatArray, rows: FloatArray) -> float:
    """Estimate the share of a batch's rows that is proportional to the period before it, from 0 to 1.

    The changes of the rows from batch to batch are fitted to those of the period by least absolute deviations: neither
    a load that drifts, nor one that changes at once, nor batches of any size from which the *next* period follows look
    like growth. The slope is shrunk by its standard error (prior: 0 with deviation 0.5). Where it is not certain to be
    positive, or the period hardly changed, it is 0: nothing is promised, nor refused, for rows that were never seen to
    follow the period.

    Parameters
    ----------
    period
        Seconds from the start of the batch before to the start of each batch, oldest first, (B,).
    rows
        Rows of each batch, (B,).
    """
    usual_period, usual_rows = (float(np.median(it)) if len(it) else 0.0 for it in (period, rows))
    if len(period) <= _LEAST_CHANGES or usual_period <= 0 or usual_rows <= 0:
        return 0.0
    longer, more = np.diff(period / usual_period), np.diff(rows / usual_rows)
    changed = np.flatnonzero(np.abs(longer) > _SHORTEST)
    longer, more = longer[changed], more[changed]
    if len(changed) < _LEAST_CHANGES:
        return 0.0
    # The weighted median of the single slopes is the line through zero with the least absolute deviations.
    slopes = more / longer
    order = np.argsort(slopes)
    passed = np.cumsum(np.abs(longer)[order])
    slope = float(slopes[order][np.searchsorted(passed, passed[-1] / 2)])
    deviation = 1.48 * float(np.median(np.abs(more - slope * longer))) * len(changed) / (len(changed) - 1)
    variance = max(deviation**2, 2 * _LEAST_NOISE**2) / float(longer @ longer)
    if slope <= _CERTAIN * variance**0.5:
        return 0.0
    return min(1.0, slope) * _PRIOR**2 / (_PRIOR**2 + variance)


@dataclass(frozen=True, eq=False)
class Present:
    """What runs now: the rows of the model are those of its period.

    ``work``: of its queries under the present placement; ``seconds``: query -> a batch by the replay, of those replayed.
    """

    work: QueryWork
    seconds: Mapping[str, float]


def replay_grown(
    model: PredictionModel, placement: Placement, present: Present, *, batches: int = 10, seed: int = 0
) -> dict[str, FloatArray]:
    """Return what `replay` does, with the rows that the queries would have under a placement.

    Parameters
    ----------
    model, placement, batches, seed
        As for `replay`.
    present
        What the rows are as measured under, with the queries of the model.
    """
    queries = model.workload.queries
    growth = np.array([model.timing_of(query).growth for query in queries])
    if not growth.any():
        return replay(model, placement, batches=batches, seed=seed)
    rhythm, work = Rhythm.of(model), query_work(model, placement)
    formula = batch_seconds(present.work.path, present.work.work, rhythm)
    factor, seconds = settle(work, rhythm, growth, rhythm.period(formula))
    durations = replay(_grown(model, factor), placement, batches=batches, seed=seed)
    means = np.array([durations[query].mean() for query in queries])
    scale = means / np.maximum(seconds, _SHORTEST)
    replayed = np.array([present.seconds.get(query, formula[index]) for index, query in enumerate(queries)])
    _, corrected = settle(work, rhythm, growth, rhythm.period(replayed), scale=scale)
    share = corrected / np.maximum(means, _SHORTEST)
    return {query: durations[query] * share[index] for index, query in enumerate(queries)}


def settle(
    work: QueryWork, rhythm: Rhythm, growth: FloatArray, present: FloatArray, *, scale: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the factor of each query's work, and its batches by the cycle formula, (Q,) each.

    Parameters
    ----------
    work, rhythm
        Measured work under a placement, and the timing.
    growth, present
        Share of the work that grows with the period, and the period that it was measured at in seconds, (Q,) each.
    scale
        Durations over those of the formula, (Q,).
    """
    least, present = 1.0 - growth, np.maximum(present, _SHORTEST)
    factor = before = missing = np.ones(len(growth))
    for number in range(_ROUNDS):
        seconds = batch_seconds(work.path * factor, work.work * factor[:, None], rhythm)
        if scale is not None:
            seconds = seconds * scale
        needed = np.minimum(least + growth * rhythm.period(seconds) / present, _LARGEST)
        short = needed - factor
        if np.all(np.abs(short) <= _NEAR * factor):
            break
        # Wegstein's method: a step as long as the one before would have had to be. Plain iteration takes hundreds of
        # rounds where the executors are nearly full.
        step = factor - before
        moved = (np.abs(step) > _SHORTEST) & (number > 0)
        slope = np.where(moved, 1.0 + (short - missing) / np.where(moved, step, 1.0), 0.0)
        before, missing = factor, short
        factor = np.clip(factor + short / (1.0 - np.clip(slope, 0.0, _STEEPEST)), least, _LARGEST)
    return factor, seconds


def _grown(model: PredictionModel, factor: FloatArray) -> PredictionModel:
    """Return the model with the work of each query multiplied, (Q,)."""
    factors = dict(zip(model.workload.queries, factor.tolist(), strict=True))
    stages = tuple(replace(stage, busy=stage.busy * factors[stage.query]) for stage in model.workload.stages)
    floating = {
        key: replace(tasks, seconds=tasks.seconds * factors[model.workload.stage(key).query])
        for key, tasks in model.floating.items()
    }
    return replace(model, workload=Workload(stages, model.workload.streams), floating=floating)
