"""Slopes of noisy series with their 95 % limits. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.report.numbers import student

_LEAST = 10  # points
_ROUNDS = 4  # of memory and line, which depend on each other


@dataclass(frozen=True)
class Slope:
    """A slope per unit of x, and the limits that hold it with 95 % confidence."""

    value: float
    lower: float
    upper: float


def slope(x: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Return the slope of y over x, None for fewer than ten points.

    Samples of a process that follow each other are alike: the errors are taken for an autoregression of first order
    (Prais and Winsten 1954, Trend estimators and serial correlation), whose memory is estimated without the bias of a
    fit with a trend. The limits are Student's, with as many degrees of freedom as there are independent samples.
    """
    count = len(x)
    if count < _LEAST or max(x) == min(x):
        return None
    values, design = np.asarray(y, float), np.column_stack([np.ones(count), np.asarray(x, float)])
    line, memory = np.linalg.lstsq(design, values)[0], 0.0
    for _ in range(_ROUNDS):
        memory = _memory(values - design @ line)
        free, seen = _without_memory(values, memory), _without_memory(design, memory)
        line = np.linalg.lstsq(seen, free)[0]
    variance = float(((free - seen @ line) ** 2).sum()) / (count - 2)
    error = math.sqrt(variance * float(np.linalg.pinv(seen.T @ seen)[1, 1]))
    independent = count * (1.0 - memory) / (1.0 + memory)
    half = student(max(2, round(independent) - 2)) * error
    value = float(line[1])
    return Slope(value, value - half, value + half)


def _memory(residuals: NDArray[np.float64]) -> float:
    """Return the correlation of errors that follow each other, from 0 to nearly 1."""
    count, power = len(residuals), float(residuals @ residuals)
    if power <= 0.0:
        return 0.0
    measured = float(residuals[1:] @ residuals[:-1]) / power
    return min(max(measured + (2.0 + 4.0 * measured) / count, 0.0), 1.0 - 1.0 / count)


def _without_memory(values: NDArray[np.float64], memory: float) -> NDArray[np.float64]:
    """Return values less the share that the one before each explains, (n, ...)."""
    return np.concatenate([values[:1] * math.sqrt(1.0 - memory**2), values[1:] - memory * values[:-1]])
