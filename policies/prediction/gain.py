"""Predicted change of every query's batches by a placement, with its uncertainty.

Both placements are replayed on the same draws: each draw takes the work of every partition from its estimate's
distribution, and the noise of its tasks with it. What is measured now, times the predicted ratio, is the prediction: a
part that the replay misses under both placements cancels out. Rows are as measured under the present placement; those
of a source by time grow or shrink with the batches of the other one (:mod:`rechannel.policies.prediction.growth`).

The 95th percentile is that of the batches of all draws together. Few batches lie beyond it, so its standard error is
that of the replay: from what the percentile would be without each of the draws (jackknife).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.growth import replay_grown
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.replay import replay

CONFIDENCE = 1.895
"""Standard errors of a bound at 95 % confidence on one side, where the error is that of eight draws (Student 1908)."""
_TAIL = 0.95  # share of the batches up to the 95th percentile
_LEAST_BATCHES, _MOST_BATCHES = 8, 24  # of a replay: queries under FAIR fall into step, for several batches at a time
_TASKS = 10_000  # of a replay, between these
_GROWN_ROUNDS = 6  # replays until rows that come by time agree with the batches, about
_RESIDUAL_ERRORS = 2.0  # standard errors by which a residual has to be certain
_ROUNDING = 1e-9


@dataclass(frozen=True)
class PredictedChange:
    """Prediction for one query; times in seconds a batch.

    Attributes
    ----------
    before, after
        Mean batch under both placements, by the replay.
    error
        Standard error of :attr:`ratio` over the draws.
    p95
        The same of the 95th percentile of the batches; None where only the mean is predicted.
    """

    before: float
    after: float
    error: float
    p95: PredictedChange | None = None

    @property
    def ratio(self) -> float:
        """Batch after over the batch before."""
        return self.after / max(self.before, _ROUNDING)

    @property
    def least_gain(self) -> float:
        """Lower confidence bound (95 %) of the share that is saved."""
        return 1.0 - self.ratio - CONFIDENCE * self.error

    @property
    def largest_loss(self) -> float:
        """Upper confidence bound (95 %) of the share that is added."""
        return self.ratio + CONFIDENCE * self.error - 1.0

    @property
    def tail_loss(self) -> float:
        """Lower confidence bound (95 %) of the share that is added to the 95th percentile."""
        return self.p95.ratio - CONFIDENCE * self.p95.error - 1.0 if self.p95 is not None else 0.0


def _draw_models(model: PredictionModel, draws: int, seed: int) -> Iterator[PredictionModel]:
    """Yield models whose work is drawn from the distribution of the estimated one."""
    random = np.random.default_rng(seed)
    for _ in range(draws):
        yield model.with_busy(model.draw_busy(random, attrgetter("log_error")))


class ChangePredictor:
    """Predictions beside one present placement, which is replayed once for all of them.

    Each of the ``draws`` of a placement replays 24 batches of the slowest query, and down to 8 of large applications;
    ``seed`` is that of draws and noise. ``replayed_tasks`` is the number of tasks that one prediction replays, about.
    """

    def __init__(self, model: PredictionModel, current: Placement, *, draws: int = 8, seed: int = 0) -> None:
        self.current, self._seed = current, seed
        batches = self._batches = min(max(_TASKS // max(1, model.tasks), _LEAST_BATCHES), _MOST_BATCHES)
        rounds = _GROWN_ROUNDS if any(timing.growth for timing in model.timing.values()) else 1
        self.replayed_tasks = max(1, rounds * draws * batches * model.tasks)
        self._drawn = list(_draw_models(model, draws, seed))
        self._before = [
            replay(drawn, current, batches=batches, seed=seed + number) for number, drawn in enumerate(self._drawn)
        ]

    def changes(self, planned: Placement) -> dict[str, PredictedChange]:
        """Predict the change of every query's batches by a placement."""
        taken: dict[str, list[FloatArray]] = {query: [] for query in self._before[0]}
        for number, (drawn, before) in enumerate(zip(self._drawn, self._before, strict=True)):
            after = before
            if planned != self.current:
                present = {query: float(seconds.mean()) for query, seconds in before.items()}
                after = replay_grown(drawn, planned, present, batches=self._batches, seed=self._seed + number)
            for query, results in taken.items():
                results.append(after[query])
        return {query: _change([it[query] for it in self._before], results) for query, results in taken.items()}


def predict_changes(
    model: PredictionModel, current: Placement, planned: Placement, *, draws: int = 8, seed: int = 0
) -> dict[str, PredictedChange]:
    """Predict the change of every query's batches between two placements.

    Parameters as for `ChangePredictor`.
    """
    return ChangePredictor(model, current, draws=draws, seed=seed).changes(planned)


def _change(before: Sequence[FloatArray], after: Sequence[FloatArray]) -> PredictedChange:
    """Summarize the batches of one query in each draw under both placements."""
    draws = len(before)
    (first, *firsts), (last, *lasts) = (_percentiles(it) for it in (before, after))
    without = np.array(lasts) / np.maximum(firsts, _ROUNDING)
    p95 = PredictedChange(first, last, float(without.std()) * (draws - 1) ** 0.5)
    means = np.array([[float(seconds.mean()) for seconds in it] for it in (before, after)])
    ratios = means[1] / np.maximum(means[0], _ROUNDING)
    mean_before, mean_after = means.mean(axis=1).tolist()
    return PredictedChange(mean_before, mean_after, float(ratios.std(ddof=1)) if draws > 1 else 0.0, p95)


def _percentiles(draws: Sequence[FloatArray]) -> list[float]:
    """Return the 95th percentile of the batches of all draws, and of all but each draw."""
    seconds = np.concatenate(draws)
    order = np.argsort(seconds)
    draw = np.repeat(np.arange(len(draws)), [len(it) for it in draws])[order]
    counted = draw != np.arange(-1, len(draws))[:, None]  # (draws + 1, batches)
    rank = np.ceil(_TAIL * counted.sum(axis=1, keepdims=True))
    return list(seconds[order][(counted.cumsum(axis=1) >= rank).argmax(axis=1)].tolist())


@dataclass(frozen=True)
class Residual:
    """Difference of a query's replayed batches from the measured ones.

    ``share`` of the measured mean; ``error`` is its standard error by the number of batches measured.
    """

    share: float
    error: float

    def within(self, limit: float) -> bool:
        """Return whether the difference is at most a share, or not certain to be more."""
        return abs(self.share) <= max(limit, _RESIDUAL_ERRORS * self.error)


def residuals(
    model: PredictionModel,
    placement: Placement,
    measured: Mapping[str, FloatArray],
    *,
    batches: int = 20,
    present: Mapping[str, float] | None = None,
) -> dict[str, Residual]:
    """Return how far the replay is from what was measured.

    ``measured``: query -> seconds of its batches, (B,); queries without batches are left out. ``batches``: replayed
    ones of the slowest query. ``present``: seconds of the replayed batches under the placement that rows were measured
    under, where that is another one.
    """
    replayed = replay_grown(model, placement, present or {}, batches=batches)
    return {
        query: _residual(replayed[query], seconds)
        for query, seconds in measured.items()
        if len(seconds) and query in replayed and float(seconds.mean()) > 0
    }


def _residual(replayed: FloatArray, seconds: FloatArray) -> Residual:
    mean = float(seconds.mean())
    spread = max(float(seconds.std()), float(replayed.std())) if len(seconds) > 1 else float(replayed.std())
    return Residual(float(replayed.mean()) / mean - 1.0, spread / mean / len(seconds) ** 0.5)
