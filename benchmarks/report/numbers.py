"""Numbers as the pages print them, and the grouping and medians that several pages need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

# Student's t, two-sided 95 %, by degrees of freedom from 1 on.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)


def seconds(value: float) -> str:
    """Format a duration with three digits in a suitable unit."""
    if value < 1e-3:
        return "below 1 ms"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def amount(value: float) -> str:
    """Format bytes in a unit of thousands."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:,.0f} {unit}"
    return f"{value:.3g} B"


def rate(value: float) -> str:
    """Format bytes per second."""
    return f"{amount(value)}/s"


def or_dash(value: float | None, form: str) -> str:
    """Format a figure; "-" where there is none."""
    return "-" if value is None else form.format(value)


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return median(numbers) if numbers else None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of all are not above; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def student(freedom: int) -> float:
    """Return Student's t, two-sided 95 %; infinite without a degree of freedom."""
    if freedom < 1:
        return math.inf
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 1.96 + 2.4 / freedom


def group_by(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    """Group rows by one of their fields, in the order of first appearance."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups
