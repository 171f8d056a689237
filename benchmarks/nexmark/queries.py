"""All the queries by name, and those that Structured Streaming cannot say."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.nexmark import joins, simple, windows
from benchmarks.nexmark.events import Events
from benchmarks.workloads.base import Feed, Output, Workload

__all__ = ["IMPOSSIBLE", "QUERIES", "WORKLOADS", "workload"]

QUERIES: dict[str, Callable[[Events], Output]] = {
    "q0": simple.q0,
    "q1": simple.q1,
    "q2": simple.q2,
    "q3": joins.q3,
    "q4": joins.q4,
    "q5": windows.q5,
    "q7": joins.q7,
    "q8": joins.q8,
    "q9": joins.q9,
    "q10": simple.q10,
    "q11": windows.q11,
    "q12": windows.q12,
    "q13": simple.q13,
    "q14": simple.q14,
    "q15": windows.q15,
    "q16": windows.q16,
    "q17": windows.q17,
    "q18": windows.q18,
    "q19": windows.q19,
    "q20": joins.q20,
    "q21": simple.q21,
    "q22": simple.q22,
}

IMPOSSIBLE = {
    "q6": "The average of a seller's last ten closed auctions needs a window of rows over the winning bids (OVER ... "
    "ROWS BETWEEN), and Structured Streaming's windows are of time only; Flink SQL cannot run it either. It can be "
    "written with a state of one's own (transformWithState), which is a program and not a query.",
}
"""Queries that are left out, and why."""

_ROWS = dict.fromkeys(QUERIES, 50_000)
"""Events in a batch, for about 1.2 processor seconds of tasks in a batch."""


def workload(name: str) -> Workload:
    """Return a query as a workload of one output."""
    query = QUERIES[name]
    summary = (query.__doc__ or "").split("\n", 1)[0]

    def build(feed: Feed) -> list[Output]:
        return [query(Events(feed))]

    return Workload(f"nexmark-{name}", summary, f"Nexmark, {name}", build, rows=_ROWS[name])


WORKLOADS = [workload(name) for name in QUERIES]
