"""From a session's raw record to the figures of each phase: plain arithmetic. Pure.

Seconds throughout. A batch's duration is Spark's own ``triggerExecution``; its commit is its begin plus that. With
several queries a batch is one query's; durations of all of them count alike.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report.numbers import percentile
from testbed.progress import Batch

_LEAST = 3  # batches
_MOVING = 12  # batches from the question on among which the longest is looked for
_FAR = 3.0  # seconds of a phase, at either end, that samples may not tell of


def turn_figures(
    turn: Mapping[str, Any], committed: Sequence[Batch], samples: Sequence[Mapping[str, Any]], rows: Mapping[int, int]
) -> dict[str, Any]:
    """Return the figures of one phase; ``rows`` by batch. ValueError where there are too few batches or samples.

    ``mean`` and ``p99`` batch duration, ``throughput`` in rows per second, ``bytes_per_row`` that left the nodes, and
    the population standard deviation over nodes of their CPU seconds and of their memory, each as a share of the mean,
    are those after the event, the decision and the rest after it; ``soon``: the mean of as many batches right after the
    moves; ``before``: the median right before the event; ``between``: the median from the event to the decision;
    ``longest``: the longest of the first batches since the decision was asked for, as many for every way; ``all``: mean
    batch duration from the event to the end, what the event cost altogether.
    """
    after = [batch for batch in committed if batch.begin >= turn["after_from"] and batch.end <= turn["end"]]
    before = [batch for batch in committed if batch.begin >= turn["before_from"] and batch.end <= turn["event_at"]]
    if min(len(before), len(after)) < _LEAST:
        raise ValueError(f"only {len(before)} batches before and {len(after)} after")
    seconds = [batch.seconds for batch in after]
    order = turn["orders"][-1]
    act = [batch for batch in committed if batch.end > order["asked"] and batch.end <= turn["end"]][:_MOVING]
    soon = [batch for batch in committed if batch.begin >= turn["moved_at"] and batch.end <= turn["end"]][: len(after)]
    between = [batch for batch in committed if batch.begin >= turn["event_at"] and batch.end <= order["asked"]]
    every = [batch for batch in committed if batch.begin >= turn["event_at"] and batch.end <= turn["end"]]
    begin, end = min(batch.begin for batch in after), max(batch.end for batch in after)
    last = max(batch.begin for batch in after)  # from begin to begin: a pause between batches is part of the rate
    brought = sum(rows[batch.number] for batch in after)
    return {
        "way": turn["way"],
        "situation": turn["situation"],
        "seed": turn["seed"],
        "turn": turn["turn"],
        "before": statistics.median(batch.seconds for batch in before),
        "between": statistics.median([batch.seconds for batch in between] or [math.nan]),
        "mean": statistics.fmean(seconds),
        "soon": statistics.fmean(batch.seconds for batch in soon),
        "median": statistics.median(seconds),
        "p99": percentile(seconds, 0.99),
        "batches": len(after),
        "throughput": sum(rows[batch.number] for batch in after if batch.begin < last) / (last - begin),
        "longest": max((batch.seconds for batch in act), default=math.nan),
        "all": statistics.fmean(batch.seconds for batch in every),
        **_nodes(samples, begin, end, brought),
        "moves": sum(each["moves"] for each in turn["orders"]),
        "landed": sum(each.get("landed", 0) for each in turn["orders"]),
        "given_up": sum(each.get("given_up", 0) for each in turn["orders"]),
        "refused": [each["sentence"] for each in turn["orders"] if each.get("code")],
        "placed": turn["after_placed"],
    }


def _nodes(samples: Sequence[Mapping[str, Any]], begin: float, end: float, rows: int) -> dict[str, float]:
    """Figures of the nodes between the first and the last sample of a turn."""
    within = samples[bisect_left(samples, begin, key=_at) : bisect_right(samples, end, key=_at)]
    if len(within) < 2 or _at(within[0]) - begin > _FAR or end - _at(within[-1]) > _FAR:  # nobody could look
        return dict.fromkeys(("bytes_per_row", "cpu_spread", "memory_spread", "cpu_per_row"), math.nan)
    one, two = within[0], within[-1]
    stretch = (end - begin) / (_at(two) - _at(one))  # the batches last a little longer than the samples tell of
    cpu = []
    if set(one["cpu"]) == set(two["cpu"]) and None not in (*one["cpu"].values(), *two["cpu"].values()):
        cpu = [two["cpu"][name] - one["cpu"][name] for name in two["cpu"]]
    if min(cpu, default=0.0) < 0:  # an executor ended, and what it had used is not known any more
        cpu = []
    memory = [statistics.fmean(each["memory"].get(name, 0) for each in within) for name in two["memory"]]
    sent = sum(two["sent"][name] - one["sent"].get(name, 0) for name in two["sent"])
    return {
        "bytes_per_row": sent * stretch / rows if two["sent"] else math.nan,
        "cpu_spread": _spread(cpu),
        "memory_spread": _spread(memory),
        "cpu_per_row": sum(cpu) * stretch / rows if cpu else math.nan,
    }


def _spread(values: Sequence[float]) -> float:
    return statistics.pstdev(values) / statistics.fmean(values) if values and sum(values) else math.nan


def _at(sample: Mapping[str, Any]) -> float:
    return float(sample["at"])
