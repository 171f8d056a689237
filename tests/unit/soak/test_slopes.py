from __future__ import annotations

import numpy as np
import pytest

from tests.soak.slopes import slope


def correlated(generator: np.random.Generator, count: int, memory: float) -> np.ndarray:
    noise = np.zeros(count)
    noise[0] = generator.normal() / np.sqrt(1 - memory**2)
    for index in range(1, count):
        noise[index] = memory * noise[index - 1] + generator.normal()
    return noise


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.95])
def test_the_limits_hold_the_true_slope_as_often_as_they_say(memory: float) -> None:
    generator = np.random.default_rng(7)
    at = np.linspace(0.0, 25.0, 192)
    held = below = 0
    for _ in range(200):
        result = slope(at.tolist(), (3.0 + 0.5 * at + correlated(generator, 192, memory)).tolist())
        assert result is not None
        held += result.lower <= 0.5 <= result.upper
        below += result.upper >= 0.5
    assert held >= 182  # of 190 at 95 %, less two and a half standard errors
    assert below >= 187  # of 195


def test_samples_that_follow_each_other_are_less_sure_than_as_many_that_do_not() -> None:
    generator = np.random.default_rng(7)
    alike, apart = correlated(generator, 300, 0.9), correlated(generator, 300, 0.0)
    at = np.linspace(0.0, 25.0, 300).tolist()
    wide, narrow = slope(at, (alike / alike.std()).tolist()), slope(at, (apart / apart.std()).tolist())
    assert wide is not None
    assert narrow is not None
    assert wide.upper - wide.lower > 2 * (narrow.upper - narrow.lower)


def test_a_series_without_noise_has_its_slope_as_limits() -> None:
    result = slope([float(x) for x in range(20)], [2.0 * x + 1 for x in range(20)])
    assert result is not None
    assert (result.lower, result.value, result.upper) == pytest.approx((2.0, 2.0, 2.0))
    flat = slope([float(x) for x in range(20)], [5.0] * 20)
    assert flat is not None
    assert (flat.lower, flat.upper) == pytest.approx((0.0, 0.0))


def test_too_few_points_have_no_slope() -> None:
    assert slope([1.0, 2.0], [1.0, 2.0]) is None
    assert slope([1.0] * 20, list(map(float, range(20)))) is None
