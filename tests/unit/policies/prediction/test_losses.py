"""Parts of a plan by which no query loses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.losses import without_losses
from rechannel.policies.prediction.model import PredictionModel
from unit.policies.prediction.cases import drawn, model_of, rare_visitor, stage
from unit.policies.random_clusters import cluster_of

MAX_LOSS = 0.05


def largest_loss(model: PredictionModel, current: Placement, planned: Placement) -> float:
    return max(change.largest_loss for change in predict_changes(model, current, planned).values())


def test_a_move_that_costs_another_query_too_much_is_taken_back() -> None:
    model = model_of([stage("slow", [1.0, 1.0, 1.0, 0.2]), stage("fast", [0.4, 0.4])], 4, overhead=0.1)
    current = Placement({"slow/0": np.array([0, 0, 0, 0]), "fast/0": np.array([2, 3])})
    planned = Placement({"slow/0": np.array([0, 1, 2, 3]), "fast/0": np.array([2, 3])})
    part = without_losses(model, current, planned, MAX_LOSS)
    assert largest_loss(model, current, planned) > MAX_LOSS >= largest_loss(model, current, part)
    assert part["slow/0"][1] == 1  # this executor has nothing else to do
    assert part != current


def test_a_move_that_makes_the_slowest_batches_longer_is_taken_back() -> None:
    model, current, planned = rare_visitor()
    assert largest_loss(model, current, planned) < MAX_LOSS
    part = without_losses(model, current, planned, MAX_LOSS)
    assert [(move.stage, move.partition) for move in part.moves_from(current)] == [("big/0", 1)]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_is_a_part_of_the_plan_without_losses(seed: int) -> None:
    model, current = drawn(seed, noise=0.1)
    planned = Placement({key: (at + (np.arange(len(at)) < 4)) % 4 for key, at in current.assignments.items()})
    part = without_losses(model, current, planned, MAX_LOSS)
    assert set(part.moves_from(current)) <= set(planned.moves_from(current))
    assert part == planned or largest_loss(model, current, part) <= MAX_LOSS


def test_a_part_that_gains_nothing_is_no_answer() -> None:
    """Without the move that costs another query much, the other one only makes the busiest executor busier."""
    model = model_of([stage("slow", [2.0, 1.9, 0.05]), stage("fast", [0.4])], 3, overhead=0.1)
    current = Placement({"slow/0": np.array([0, 1, 1]), "fast/0": np.array([2])})
    planned = Placement({"slow/0": np.array([2, 1, 0]), "fast/0": np.array([2])})
    alone = Placement({"slow/0": np.array([0, 1, 0]), "fast/0": np.array([2])})
    assert largest_loss(model, current, planned) > MAX_LOSS >= largest_loss(model, current, alone)
    assert without_losses(model, current, planned, MAX_LOSS) == planned


def test_moves_off_unavailable_executors_stay() -> None:
    model = model_of([stage("slow", [1.0, 1.0]), stage("fast", [0.4])], 3, overhead=0.1)
    model = replace(model, cluster=cluster_of(3, unavailable=[0]))
    current = Placement({"slow/0": np.array([0, 0]), "fast/0": np.array([1])})
    planned = Placement({"slow/0": np.array([1, 2]), "fast/0": np.array([1])})
    assert without_losses(model, current, planned, MAX_LOSS) == planned
