"""Slopes of noisy series with their 95 % limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_RESAMPLES = 2000
_LEVELS = (2.5, 97.5)  # percent
_LEAST = 10  # points


@dataclass(frozen=True)
class Slope:
    """A slope per unit of x, and the limits that hold it with 95 % confidence."""

    value: float
    lower: float
    upper: float


def slope(x: Sequence[float], y: Sequence[float], seed: int = 1) -> Slope | None:
    """Return the least squares slope of y over x, None for fewer than ten points.

    The limits are those of a moving block bootstrap of the residuals, since samples of a process that follow each
    other are alike. A block is as long as it takes the residuals to forget (autocorrelation below 2/√n), the cube root
    of n at least, a quarter of the series at most. Source: Künsch 1989, The jackknife and the bootstrap for general
    stationary observations.
    """
    count = len(x)
    if count < _LEAST or max(x) == min(x):
        return None
    at, values = np.asarray(x, float), np.asarray(y, float)
    design = np.column_stack([np.ones(count), at])
    fit = np.linalg.pinv(design)
    coefficients = fit @ values
    line = design @ coefficients
    residuals = values - line
    # Residuals of a fit are smaller than the errors are.
    residuals *= math.sqrt(count / (count - 2))
    length = block_length(residuals)
    generator = np.random.default_rng(seed)
    blocks = math.ceil(count / length)
    starts = generator.integers(0, count - length + 1, (_RESAMPLES, blocks))
    picked = (starts[:, :, None] + np.arange(length)).reshape(_RESAMPLES, -1)[:, :count]
    slopes = (line + residuals[picked]) @ fit[1]
    lower, upper = np.percentile(slopes, _LEVELS)
    return Slope(float(coefficients[1]), float(lower), float(upper))


def block_length(residuals: NDArray[np.float64]) -> int:
    """Return how many samples in a row belong together."""
    count = len(residuals)
    least, most = math.ceil(count ** (1 / 3)), max(1, count // 4)
    centred = residuals - residuals.mean()
    power = float(centred @ centred)
    if power <= 0.0:
        return min(least, most)
    lag = 1
    while lag < most and abs(float(centred[lag:] @ centred[:-lag])) / power > 2 / math.sqrt(count):
        lag += 1
    return min(max(least, lag), most)
