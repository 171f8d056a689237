"""Moves taken back because of which a query could lose.

The fewest moves are chosen by the mean over the queries: what one query gains may cost another one, and the gate
refuses such a plan. Often most of the gain is possible without the loss. So moves are taken back one at a time, judged
by the replay on other draws than the gate's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.prediction.gain import ChangePredictor, PredictedChange
from rechannel.policies.prediction.model import PredictionModel

__all__ = ["without_losses"]

_REPLAYED_TASKS = 10_000  # in all predictions together: a second or two
_PREDICTIONS = 24  # at most


def without_losses(model: PredictionModel, current: Placement, planned: Placement, max_loss: float) -> Placement:
    """Return the part of a plan by which no query could lose more than a share of its batch.

    Each time the move is taken back after which the queries lose least beyond that share, and gain most. Both the mean
    batch and the 95th percentile count, as for the gate: one may not lose more, the other not certainly. Moves off
    unavailable executors stay. The plan itself is returned where no part of it gains anything without a loss, or none
    was met in the number of predictions that there is time for.

    Parameters
    ----------
    model
        What runs, with its uncertainty.
    current, planned
        The present placement, and the plan.
    max_loss
        Largest share that a query may lose.
    """
    part, predictions = planned, min(_PREDICTIONS, _REPLAYED_TASKS // max(1, model.tasks))
    moves = [move for move in planned.moves_from(current) if move.source >= 0 and model.cluster.available[move.source]]
    moves.sort(key=lambda move: -float(model.workload.stage(move.stage).busy[move.partition]))
    if not moves:
        return planned
    predictor = ChangePredictor(model, current)
    loses, ratio = _excess(predictor.changes(part), max_loss) > 0, 0.0
    while loses and len(moves) > 1 and predictions > 0:
        tried = [_rate_without(predictor, part, move, max_loss) for move in moves[:predictions]]
        predictions -= len(tried)
        excess, ratio, number = min((*rank, number) for number, (rank, _) in enumerate(tried))
        part, loses = tried[number][1], excess > 0
        del moves[number]
    return planned if loses or ratio >= 1.0 else part


def _rate_without(
    predictor: ChangePredictor, part: Placement, move: Move, max_loss: float
) -> tuple[tuple[float, float], Placement]:
    """Return how good a plan is without one of its moves, and that plan.

    How good: the loss beyond the largest one, and the mean ratio of the batches.
    """
    placement = part.with_moves([Move(move.stage, move.partition, move.target, move.source)])
    changes = predictor.changes(placement)
    return (_excess(changes, max_loss), float(np.mean([change.ratio for change in changes.values()]))), placement


def _excess(changes: Mapping[str, PredictedChange], max_loss: float) -> float:
    losses = (max(change.largest_loss, change.tail_loss) for change in changes.values())
    return max(0.0, max(losses, default=0.0) - max_loss)
