"""Correction of predicted gains by what earlier ones brought.

Predictions err in the change more than in the level, so the change is corrected. The *gain share* of a migration is
how much of a promised gain came true, in logarithms: a batch that was to shrink to 80 % and shrank to 89 % has a gain
share of one half. The predicted ratio is raised to the power of the share that is expected, so a placement that changes
nothing still promises exactly nothing. Predicted losses stay as they are: gains are no measure of them.

Gain shares are those of the *uncorrected* predictions. Measured against corrected ones, they would approach 1, and the
correction would undo itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rechannel.policies.prediction.gain import PredictedChange
from rechannel.policies.prediction.model import PredictionModel

_LEAST_SHARE, _LARGEST_SHARE = 0.5, 1.25  # bounds of the gain share that is expected
_LARGEST_REALIZED = 2.0  # bound of one migration's gain share, as far above 1 as 0 is below
_LEAST_PROMISE = 0.05  # logarithm of the promised gain: the shares of smaller ones are noise
_HALF_LIFE = 4.0  # migrations


@dataclass(frozen=True)
class GainShare:
    """Share of a promised gain that is expected, learned from so many migrations."""

    share: float = 1.0
    migrations: int = 0


def realized_gain_share(promised: tuple[float, float], realized: tuple[float, float]) -> float | None:
    """Return how much of a promised gain came true, from 0 to 2.

    None where too little was promised for a comparison, or a duration is no positive number.

    Both are seconds of a batch before and after the migration, by the uncorrected prediction and as measured.
    """
    if not all(0 < seconds < math.inf for seconds in (*promised, *realized)):
        return None
    promise, gain = (math.log(before) - math.log(after) for before, after in (promised, realized))
    return min(max(gain / promise, 0.0), _LARGEST_REALIZED) if promise >= _LEAST_PROMISE else None


def expect_gain_share(shares: Iterable[float]) -> GainShare:
    """Return the share of the next promised gain that is expected, from 0.5 to 1.25.

    It is the mean of the shares of one query's migrations and of a 1 that is as old as the oldest of them, so that one
    migration counts by half and many count in full. The weight halves every four migrations back. ``shares`` are
    realized ones, newest first; those out of range are ignored.
    """
    usable = [share for share in shares if 0 <= share <= _LARGEST_REALIZED]
    if not usable:
        return GainShare()
    weights = 0.5 ** (np.arange(len(usable)) / _HALF_LIFE)
    mean = (weights @ np.array(usable) + weights[-1]) / (weights.sum() + weights[-1])
    return GainShare(min(max(float(mean), _LEAST_SHARE), _LARGEST_SHARE), len(usable))


def correct_gain(change: PredictedChange, share: float, shortest: float = 0.0) -> PredictedChange:
    """Return a predicted change of which only a share, or more than all, is expected.

    A prediction that promises no gain is returned as it is; its 95th percentile is corrected by the same rule. No
    correction promises less than ``shortest`` seconds.
    """
    ratio = change.ratio
    if share == 1.0 or not 0 < ratio < 1:
        return change
    after = max(change.before * ratio**share, min(change.after, shortest))
    p95 = correct_gain(change.p95, share, shortest) if change.p95 is not None else None
    return replace(change, after=after, error=change.error * share * ratio ** (share - 1.0), p95=p95)


def shortest_batch(model: PredictionModel, query: str) -> float:
    """Return the seconds of a query's batch alone on the cluster, divided evenly."""
    cluster = model.cluster
    capacity, fastest = float((cluster.cores * cluster.speed).sum()), float(cluster.speed.max())
    seconds = model.timing_of(query).overhead
    for stage in model.stages_of(query):
        if stage.placeable:
            seconds += max(float(stage.busy.sum()) / capacity, float(stage.busy.max(initial=0.0)) / fastest)
        else:
            seconds += model.floating_work(stage)[1]
    return seconds
