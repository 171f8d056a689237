"""Each way over Spark as it is, over sessions, with the noise between two times Spark as it is. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.live.ways import SPARK

__all__ = ["BETTER", "METRICS", "Cell", "group", "table"]

METRICS: dict[str, str] = {
    "mean": "mean batch",
    "p99": "p99 batch",
    "throughput": "throughput",
    "bytes_per_row": "bytes between nodes",
    "cpu_spread": "CPU spread",
    "memory_spread": "memory spread",
    "all": "mean batch since the event",
    "longest": "longest batch while moving",
}
"""Figure of a phase -> what a table calls it."""

_DURATIONS = ("mean", "p99", "all", "longest")

BETTER = {"throughput": 1}
"""Where more is better; elsewhere less is."""


@dataclass(frozen=True)
class Cell:
    """A way's figure over Spark's in the same session: median, least and most over sessions; ``noise``: see `table`."""

    middle: float
    least: float
    most: float
    sessions: int
    noise: float

    @property
    def in_noise(self) -> bool:
        """Whether all of it may be noise: 1 lies in between, or the median is no farther from 1 than two equals are."""
        return self.least <= 1 <= self.most or 1 / self.noise <= self.middle <= self.noise


def group(figures: Mapping[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the sessions by (workload, situation), in the order in which they came."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for session in figures["sessions"]:
        if session.get("figures"):
            found.setdefault((session["workload"], session["situation"]), []).append(session)
    return found


def table(sessions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Cell]]:
    """Return cells by way and metric.

    A duration is first divided by the one that its own phase started with, on the placement that all ways begin with:
    what slowly changes over a session (code that is compiled, other work on the machine) is then not taken for a way's.
    In each session a way is divided by the mean of the phases of Spark as it is. The noise of a metric is the largest
    ratio of any two of those phases in one session, over all sessions.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    noise = dict.fromkeys(METRICS, 1.0)
    for session in sessions:
        base: dict[str, float] = {}
        for metric in METRICS:
            values = [_value(each, metric) for each in session["figures"] if each["way"] == SPARK.name]
            values = [value for value in values if usable(value)]
            if values:
                base[metric] = statistics.fmean(values)
                noise[metric] = max(noise[metric], max(values) / min(values))
        ways: dict[str, list[Mapping[str, Any]]] = {}
        for each in session["figures"]:
            ways.setdefault(each["way"], []).append(each)
        for way, phases in ways.items():
            for metric, under in base.items():
                values = [value for phase in phases if usable(value := _value(phase, metric))]
                if values:
                    ratios.setdefault(way, {}).setdefault(metric, []).append(statistics.fmean(values) / under)
    return {
        way: {
            metric: Cell(statistics.median(values), min(values), max(values), len(values), noise[metric])
            for metric, values in found.items()
        }
        for way, found in ratios.items()
    }


def _value(phase: Mapping[str, Any], metric: str) -> float:
    if metric in _DURATIONS:
        return float(phase[metric] / phase["start"])
    return float(phase[metric] * phase["start"] if metric == "throughput" else phase[metric])


def usable(value: float | None) -> bool:
    """Whether a figure was measured, and can be divided by."""
    return value is not None and not math.isnan(value) and value > 0
