from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rechannel.policies.analysis.forecast import BETTER, MIN_COMPARISONS, Method, look_ahead, period_of, slots_ahead
from rechannel.policies.model.arrays import FloatArray, ModelError

SLOTS, AHEAD = 21, 5


def drift(random: np.random.Generator, entries: int = 200, noise: float = 0.3) -> FloatArray:
    slope = random.uniform(0.2, 0.5, entries)
    time_ = np.arange(SLOTS + AHEAD)[:, None]
    return np.clip(10 + time_ * slope + random.normal(0, noise, (SLOTS + AHEAD, entries)), 0, None)


def errors(series: FloatArray, ahead: int = AHEAD) -> tuple[float, float, FloatArray]:
    past, future = series[:-ahead], series[-ahead:].mean(axis=0)
    forecast = look_ahead(past, ahead)
    return float(np.abs(forecast.values - future).sum()), float(np.abs(past[-1] - future).sum()), forecast.method


@settings(max_examples=15)
@given(st.floats(0, 1e9), st.integers(1, 40), st.integers(1, 12))
def test_constant_load(value: float, slots: int, ahead: int):
    forecast = look_ahead(np.full((slots, 3), value), ahead)
    assert forecast.values.tolist() == [value] * 3
    assert forecast.used == 0


@settings(max_examples=15)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(0, 5)), elements=st.floats(0, 1e12)), st.integers(1, 9)
)
@example(np.array([[1e-33], [1.9e7], *[[1e-33]] * 10]), 1)
def test_bounds_of_a_forecast(past: FloatArray, ahead: int):
    forecast = look_ahead(past, ahead)
    assert forecast.values.shape == forecast.method.shape == forecast.error.shape == past.shape[1:]
    assert np.isfinite(forecast.values).all()
    assert (forecast.values >= 0).all()
    assert (forecast.values <= 2.0 * past.max(axis=0) * (1 + 1e-5)).all() if past.size else True
    assert (forecast.values[forecast.method == Method.LAST] == past[-1][forecast.method == Method.LAST]).all()
    assert (forecast.error[forecast.method > 0] <= BETTER).all()


@settings(max_examples=15)
@given(st.integers(0, 2**31))
def test_steady_drift(seed: int):
    forecast, last, method = errors(drift(np.random.default_rng(seed)))
    assert (method == Method.TREND).mean() > 0.5
    assert forecast < 0.8 * last


@settings(max_examples=15)
@given(st.integers(0, 2**31))
def test_noise(seed: int):
    noise = np.clip(np.random.default_rng(seed).normal(10, 2, (SLOTS + AHEAD, 200)), 0, None)
    forecast, last, method = errors(noise)
    assert np.count_nonzero(method) <= 6, "three of a hundred"
    assert forecast < 1.02 * last


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(4, SLOTS - 1))
def test_step(seed: int, at: int):
    random = np.random.default_rng(seed)
    series = 10 + 10.0 * (np.arange(SLOTS + AHEAD) >= at)[:, None] + random.normal(0, 0.3, (SLOTS + AHEAD, 100))
    forecast, last, _ = errors(np.clip(series, 0, None))
    assert forecast < 1.3 * last


def test_forecast_some_time_after_a_step():
    random = np.random.default_rng(5)
    series = np.clip(10 + 30.0 * (np.arange(60) >= 20)[:, None] + random.normal(0, 0.3, (60, 100)), 0, None)
    forecast = look_ahead(series, 5)
    assert forecast.used <= 5
    assert np.abs(forecast.values - 40).max() < 2


def test_season():
    random = np.random.default_rng(2)
    moment = np.arange(40 + 4)[:, None]
    series = 10 + 5 * np.sin(2 * np.pi * (moment / 8 + random.uniform(0, 1, 100)))
    series += random.normal(0, 0.3, series.shape)
    assert period_of(series[:40]) == 8
    forecast, last, method = errors(series, 4)
    assert (method == Method.SEASON).all()
    assert forecast < 0.3 * last
    assert period_of(np.abs(random.normal(10, 2, (40, 100)))) == 0


def test_too_few_comparisons():
    past = drift(np.random.default_rng(1))
    for slots in range(1, AHEAD + 4 + MIN_COMPARISONS - 1):
        forecast = look_ahead(past[:slots], AHEAD)
        assert forecast.used == 0
        assert forecast.values.tolist() == past[slots - 1].tolist()
    assert look_ahead(past[: AHEAD + 3 + MIN_COMPARISONS], AHEAD).used > 0


def test_entries_are_independent():
    past = drift(np.random.default_rng(3), entries=17_000)[:SLOTS]
    whole = look_ahead(past, AHEAD)
    for entry in (0, 16_383, 16_384, 16_999):
        alone = look_ahead(past[:, [entry]], AHEAD)
        assert alone.values[0] == whole.values[entry]


def test_slots_ahead():
    assert [slots_ahead(slots, 40) for slots in (1, 7, 8, 24, 400)] == [1, 1, 2, 6, 40]
    assert slots_ahead(24, 2) == 2


@pytest.mark.parametrize(
    ("past", "ahead", "message"),
    [
        (np.zeros(3), 1, "past: expected"),
        (np.zeros((0, 3)), 1, "past: expected"),
        (np.zeros((3, 3)), 0, "ahead"),
        (-np.ones((3, 3)), 1, "not negative"),
        (np.full((3, 3), np.nan), 1, "finite"),
        (np.full((3, 3), np.inf), 1, "finite"),
    ],
)
def test_invalid_past(past: FloatArray, ahead: int, message: str):
    with pytest.raises(ModelError, match=message):
        look_ahead(past, ahead)


def test_time_of_a_hundred_thousand_partitions():
    past = np.abs(np.random.default_rng(1).normal(10, 2, (24, 100_000)))
    seconds = []
    for _ in range(3):
        began = time.process_time()
        look_ahead(past, 6)
        seconds.append(time.process_time() - began)
    assert min(seconds) < 0.25, "0.03 s on a free core; a busy one takes longer"
