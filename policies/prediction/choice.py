"""Choice among plans by the replay: few moves, most of the gain, and no query that loses.

The fewest moves are chosen by the cycle formula and the mean over the queries. What one query gains may cost another
one, and the gate refuses such a plan; often most of the gain is possible without the loss. And where stages wait for
each other, more moves may gain more than the formula says, and fewer moves as much. So plans are replayed, on other
draws than the gate's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.policies.analysis.placement_cost import state_bytes_held
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.prediction.fewest import most_of
from rechannel.policies.prediction.gain import ChangePredictor
from rechannel.policies.prediction.model import PredictionModel

_REPLAYED_TASKS = 640_000  # in all predictions of the choice, and of taking moves back: one to three seconds each
_PREDICTIONS = 24  # of each, at most
_PLANS = 3  # replayed in any case
_MIN_MOVE_GAIN = 0.006  # of the batches, mean over the queries: what a move has to bring,
_MIN_QUERY_GAIN = 0.02  # or of the batches of one query
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class _Rated:
    """A plan with its largest loss beyond the one allowed, and each query's ratio of batches."""

    placement: Placement
    excess: float
    ratios: FloatArray

    @property
    def ratio(self) -> float:
        return float(self.ratios.mean())


def choose_by_replay(
    model: PredictionModel, current: Placement, plans: Sequence[Placement], max_loss: float
) -> Placement:
    """Return the plan with the fewest moves that brings most of the gain without a loss.

    If a query could lose by each of the plans, moves of the first one are taken back: each time the one after which the
    queries lose least beyond the share allowed, and gain most. Both the mean batch and the 95th percentile count, as
    for the gate: one may not lose more, the other not certainly. The first plan is returned where none gains without a
    loss, or none was met in the number of predictions that there is time for. Then moves are taken back that bring too
    little. Moves off unavailable executors stay, and those after which an executor has no memory for the partition that
    left it.

    ``plans``: the most important ones first; ``max_loss``: largest share that a query may lose.
    """
    if all(plan == current for plan in plans):
        return current
    predictor = ChangePredictor(model, current.filled_from(plans[0]))  # what runs nowhere now is no gain
    predictions = min(_PREDICTIONS, max(1, _REPLAYED_TASKS // predictor.replayed_tasks))
    rated = [_rate(predictor, plan, max_loss) for plan in plans[: max(_PLANS, 2 * predictions // 3)]]
    if all(plan.excess > 0 for plan in rated):
        rated = [_without_losses(predictor, rated[0], model, predictions - len(rated), max_loss)]
    allowed = [plan for plan in rated if plan.excess <= 0 and plan.ratio < 1.0]
    if not allowed:
        return plans[0]
    enough = most_of(min(plan.ratio for plan in allowed))
    sufficient = [plan for plan in allowed if plan.ratio <= enough]
    fewest = min(sufficient, key=lambda plan: (len(plan.placement.moves_from(current)), plan.ratio))
    return _without_needless(predictor, fewest, model, predictions, enough, max_loss)


def _without_needless(
    predictor: ChangePredictor, plan: _Rated, model: PredictionModel, predictions: int, enough: float, max_loss: float
) -> Placement:
    """Take moves back that bring too little, the lightest first, while most of the gain stays."""
    moves = _voluntary_moves(predictor, plan, model)
    for move in reversed(moves[-predictions:] if len(moves) > 1 else ()):
        if move in _reversible(predictor, plan, model, [move]):
            without = _rate(predictor, plan.placement.with_moves([_reversed(move)]), max_loss)
            brings_little = without.ratio <= min(plan.ratio + _MIN_MOVE_GAIN, enough)
            if without.excess <= 0 and brings_little and (without.ratios <= plan.ratios + _MIN_QUERY_GAIN).all():
                plan = without
    return plan.placement


def _voluntary_moves(predictor: ChangePredictor, plan: _Rated, model: PredictionModel) -> list[Move]:
    """Return the moves off available executors, the heaviest first."""
    moves = [move for move in plan.placement.moves_from(predictor.current) if model.cluster.available[move.source]]
    return sorted(moves, key=lambda move: -float(model.workload.stage(move.stage).busy[move.partition]))


def _reversible(predictor: ChangePredictor, plan: _Rated, model: PredictionModel, moves: Sequence[Move]) -> list[Move]:
    """Return the moves whose partitions can go back.

    The executor then holds no more state than its memory, or than now, where that is more.
    """
    cluster, workload = model.cluster, model.workload
    most = np.maximum(cluster.memory_bytes, state_bytes_held(cluster, workload, predictor.current))
    free = most * (1 + _ROUNDING) - state_bytes_held(cluster, workload, plan.placement)
    return [it for it in moves if workload.stage(it.stage).state_bytes[it.partition] <= free[it.source]]


def _without_losses(
    predictor: ChangePredictor, plan: _Rated, model: PredictionModel, predictions: int, max_loss: float
) -> _Rated:
    """Take moves back until no query could lose, or predictions are used up."""
    moves = _voluntary_moves(predictor, plan, model)
    while plan.excess > 0 and len(moves) > 1 and predictions > 0:
        tried = [
            (move, _rate(predictor, plan.placement.with_moves([_reversed(move)]), max_loss))
            for move in _reversible(predictor, plan, model, moves)[:predictions]
        ]
        if not tried:
            break
        predictions -= len(tried)
        taken_back, plan = min(tried, key=lambda it: (it[1].excess, it[1].ratio))
        moves.remove(taken_back)
    return plan


def _reversed(move: Move) -> Move:
    return Move(move.stage, move.partition, move.target, move.source)


def _rate(predictor: ChangePredictor, placement: Placement, max_loss: float) -> _Rated:
    changes = predictor.changes(placement).values()
    worst = max((max(change.largest_loss, change.tail_loss) for change in changes), default=0.0)
    return _Rated(placement, max(0.0, worst - max_loss), np.array([change.ratio for change in changes]))
