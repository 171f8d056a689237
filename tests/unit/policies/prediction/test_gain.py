from __future__ import annotations

import numpy as np
import pytest

from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.gain import predict_changes, residuals
from rechannel.policies.prediction.replay import replay
from unit.policies.prediction.cases import drawn, model_of, rare_visitor, stage


def test_the_change_of_an_evident_move_is_predicted_with_certainty() -> None:
    model = model_of([stage("q", [2.0, 2.0])], 2, overhead=0.0)
    change = predict_changes(model, Placement({"q/0": np.array([0, 0])}), Placement({"q/0": np.array([0, 1])}))["q"]
    assert change.ratio == pytest.approx(0.5, abs=0.01)
    assert change.error == pytest.approx(0.0, abs=1e-6)
    assert change.least_gain == pytest.approx(0.5, abs=0.01)


def test_staying_changes_nothing_whatever_the_doubt() -> None:
    model, at = drawn(1, noise=0.3, log_error=0.3)
    for change in predict_changes(model, at, at).values():
        assert (change.ratio, change.error) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-9))


def test_doubt_widens_the_bounds() -> None:
    errors = []
    for log_error in (0.02, 0.3):
        model, at = drawn(2, queries=1, log_error=log_error)
        planned = Placement({"q0/0": np.arange(12) % 4})
        errors.append(predict_changes(model, at, planned)["q0"].error)
    assert errors[1] > 3 * errors[0]


def test_the_tail_may_get_longer_while_the_mean_stays() -> None:
    right = predict_changes(*rare_visitor())["right"]
    assert right.p95 is not None
    assert right.largest_loss < 0.05
    assert right.tail_loss == pytest.approx(0.2 / 1.2, abs=0.01), "up to half of the visitor's 0.4 s is waited for"
    assert (right.p95.before, right.p95.error) == (pytest.approx(1.2), pytest.approx(0.0, abs=1e-9))


def test_a_tail_within_the_noise_is_no_certain_loss() -> None:
    right = predict_changes(*rare_visitor(noise=0.1))["right"]
    assert right.p95 is not None
    assert right.p95.ratio > 1.02
    assert right.tail_loss < right.p95.ratio - 1.0


@pytest.mark.parametrize("noise", [0.1, 0.3])
def test_the_error_of_the_tail_is_how_far_other_draws_are(noise: float) -> None:
    ratios, errors = [], []
    for seed in range(6):
        model, at = drawn(seed, queries=1, noise=noise)
        planned = Placement({"q0/0": np.arange(12) % 4})
        tails = [predict_changes(model, at, planned, seed=1000 * number)["q0"].p95 for number in range(12)]
        ratios.append(np.std([it.ratio for it in tails if it is not None]))
        errors.append(np.mean([it.error for it in tails if it is not None]))
    assert 0.8 <= np.mean(errors) / np.mean(ratios) <= 2.0


def test_one_draw_has_a_tail_without_an_error() -> None:
    model, at = drawn(1, queries=1, noise=0.3)
    tail = predict_changes(model, at, Placement({"q0/0": np.arange(12) % 4}), draws=1)["q0"].p95
    assert tail is not None
    assert (tail.error, tail.before > 0, tail.after > 0) == (0.0, True, True)


def test_the_residual_is_the_difference_from_what_was_measured() -> None:
    model, at = drawn(4, queries=1)
    measured = replay(model, at, batches=5)["q0"]
    difference = residuals(model, at, {"q0": measured * 2, "unknown": measured, "idle": np.empty(0)})
    assert set(difference) == {"q0"}
    assert difference["q0"].share == pytest.approx(-0.5, abs=0.01)
