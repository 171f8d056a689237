"""Correction of predicted gains: bounds, prior, convergence, and what it leaves alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.policies.prediction.correction import (
    GainShare,
    correct_gain,
    expect_gain_share,
    realized_gain_share,
    shortest_batch,
)
from rechannel.policies.prediction.gain import PredictedChange
from unit.policies.prediction.cases import model_of, stage

ANY = st.floats(allow_nan=True, allow_infinity=True)
SHARES = st.floats(0, 2)
EXPECTED = st.floats(0.5, 1.25)
SECONDS = st.floats(0.01, 1000)


def test_without_migrations_all_of_a_gain_is_expected() -> None:
    assert expect_gain_share([]) == GainShare(1.0, 0)


@given(st.lists(ANY))
def test_what_is_expected_is_bounded_whatever_came(shares: list[float]) -> None:
    assert 0.5 <= expect_gain_share(shares).share <= 1.25


@given(st.lists(SHARES), st.lists(st.sampled_from([math.nan, math.inf, -math.inf, -0.1, 2.1])))
def test_shares_out_of_range_are_ignored(shares: list[float], garbage: list[float]) -> None:
    mixed = [*garbage, *(item for share in shares for item in (share, math.nan))]
    assert expect_gain_share(mixed) == expect_gain_share(shares)


@given(SHARES)
def test_one_migration_counts_by_half(share: float) -> None:
    expected = expect_gain_share([share])
    assert expected == GainShare(pytest.approx(min(max((1 + share) / 2, 0.5), 1.25)), 1)


@given(st.lists(SHARES, min_size=1, max_size=30), st.integers(0, 29), st.floats(0, 2))
def test_what_is_expected_grows_with_each_share(shares: list[float], index: int, other: float) -> None:
    index %= len(shares)
    higher = [*shares[:index], max(shares[index], other), *shares[index + 1 :]]
    assert expect_gain_share(higher).share >= expect_gain_share(shares).share - 1e-12


def test_newer_migrations_count_more() -> None:
    assert expect_gain_share([0.6, 1, 1, 1, 1]).share < expect_gain_share([1, 1, 1, 1, 0.6]).share < 1


@pytest.mark.parametrize(
    ("promised", "realized", "share"),
    [
        ((5.0, 4.0), (5.0, 4.0), 1.0),
        ((5.0, 4.0), (10.0, 10 * 0.8**0.5), 0.5),
        ((5.0, 4.0), (5.0, 6.0), 0.0),  # longer instead of shorter
        ((5.0, 4.0), (5.0, 1.0), 2.0),
        ((5.0, 4.9), (5.0, 4.0), None),  # too little to compare
        ((5.0, 6.0), (5.0, 6.0), None),  # a loss
    ],
)
def test_a_gain_share_compares_the_logarithms(
    promised: tuple[float, float], realized: tuple[float, float], share: float | None
) -> None:
    assert realized_gain_share(promised, realized) == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize("garbage", [0.0, -1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", range(4))
def test_durations_that_cannot_be_have_no_share(garbage: float, place: int) -> None:
    seconds = [5.0, 4.0, 5.0, 4.0]
    seconds[place] = garbage
    assert realized_gain_share((seconds[0], seconds[1]), (seconds[2], seconds[3])) is None


@given(st.tuples(ANY, ANY), st.tuples(ANY, ANY))
def test_a_share_is_bounded_whatever_the_durations(
    promised: tuple[float, float], realized: tuple[float, float]
) -> None:
    share = realized_gain_share(promised, realized)
    assert share is None or 0 <= share <= 2


@given(SECONDS, st.floats(1, 10), st.floats(0, 1), EXPECTED)
def test_what_promises_no_gain_is_not_touched(before: float, growth: float, error: float, share: float) -> None:
    change = PredictedChange(before, before * growth, error)
    assert correct_gain(change, share) is change


@given(SECONDS, st.floats(0.01, 0.999), EXPECTED)
def test_a_correction_keeps_a_gain_a_gain(before: float, ratio: float, share: float) -> None:
    change = PredictedChange(before, before * ratio, 0.02)
    corrected = correct_gain(change, share)
    assert corrected.before == before
    assert 0 < corrected.ratio < 1
    assert (corrected.ratio - change.ratio) * (1 - share) >= -1e-12
    assert math.log(corrected.ratio) == pytest.approx(share * math.log(change.ratio), rel=1e-6, abs=1e-9)
    assert correct_gain(change, 1.0) is change


def test_the_error_is_that_of_the_corrected_ratio() -> None:
    ratio, step = 0.7, 1e-6
    slope = ((ratio + step) ** 0.6 - ratio**0.6) / step
    assert correct_gain(PredictedChange(1.0, ratio, 0.05), 0.6).error == pytest.approx(0.05 * slope, rel=1e-4)


def test_the_slowest_batches_are_corrected_where_they_gain() -> None:
    for ratio in (0.6, 1.1):
        tail = PredictedChange(3.0, 3.0 * ratio, 0.1)
        assert correct_gain(PredictedChange(2.0, 1.4, 0.1, tail), 0.7).p95 == correct_gain(tail, 0.7)


def test_no_correction_promises_less_than_the_query_needs_alone() -> None:
    model = model_of([stage("q", [2.0, 1.0, 1.0]), stage("q", [8.0], ordinal=1)], 2, overhead=0.5)
    assert shortest_batch(model, "q") == pytest.approx(0.5 + 2.0 + 8.0)
    change = PredictedChange(20.0, 12.0, 0.0)
    assert correct_gain(change, 1.25, 10.5).after == pytest.approx(20 * 0.6**1.25)
    assert correct_gain(change, 1.25, 11.0).after == 11.0
    assert correct_gain(change, 1.25, 15.0).after == 12.0, "the prediction itself is not raised"


@pytest.mark.parametrize(("truth", "expected"), [(0.7, 0.7), (1.1, 1.1), (1.0, 1.0), (0.2, 0.5), (1.9, 1.25)])
def test_twenty_migrations_teach_the_true_share(truth: float, expected: float) -> None:
    random, shares, path = np.random.default_rng(1), list[float](), list[float]()
    for _ in range(20):
        ratio, before = random.uniform(0.6, 0.85), random.uniform(1, 10)
        after = before * ratio**truth * np.exp(random.normal(0, 0.01))
        share = realized_gain_share((before, before * ratio), (before, after))
        assert share is not None
        shares.insert(0, share)
        path.append(expect_gain_share(shares).share)
    assert path[-1] == pytest.approx(expected, abs=0.03)
    assert np.abs(np.array(path[10:]) - expected).max() < 0.06, "it stays there"
