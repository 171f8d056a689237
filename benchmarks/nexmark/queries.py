"""All the queries by name, and those that Structured Streaming cannot express."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.nexmark import joins, simple, windows
from benchmarks.nexmark.events import Events
from benchmarks.workloads.base import Feed, Output, Workload

_ROWS: dict[Callable[[Events], Output], int] = {
    simple.q0: 500_000,
    simple.q1: 500_000,
    simple.q2: 1_000_000,  # more would measure only how events are brought and dropped
    joins.q3: 150_000,
    joins.q4: 20_000,
    windows.q5: 50_000,
    joins.q7: 25_000,
    joins.q8: 120_000,
    joins.q9: 20_000,
    simple.q10: 350_000,
    windows.q11: 100_000,
    windows.q12: 300_000,
    simple.q13: 1_000_000,
    simple.q14: 700_000,
    windows.q15: 100_000,
    windows.q16: 35_000,
    windows.q17: 150_000,
    windows.q18: 30_000,  # less than its processor time would allow: its state grows by 17,000 rows a batch
    windows.q19: 40_000,
    joins.q20: 25_000,
    simple.q21: 150_000,
    simple.q22: 400_000,
    joins.q23: 20_000,
}
"""Events in a batch, for about 1.2 processor seconds of tasks in a batch (local[2], four partitions, full windows)."""

QUERIES = {query.__name__: query for query in _ROWS}

IMPOSSIBLE = {
    "q6": "The average of a seller's last ten closed auctions needs a window of rows over the winning bids (OVER ... "
    "ROWS BETWEEN), and Structured Streaming's windows are of time only; Flink SQL cannot run it either. It can be "
    "written with a state of one's own (transformWithState), which is a program and not a query.",
}
"""Queries that are left out, and why."""


def workload(name: str) -> Workload:
    """Return a query as a workload of one output."""
    query = QUERIES[name]
    summary = (query.__doc__ or "").split("\n", 1)[0]

    def build(feed: Feed) -> list[Output]:
        return [query(Events(feed))]

    return Workload(f"nexmark-{name}", summary, f"Nexmark, {name}", build, rows=_ROWS[query])


WORKLOADS = [workload(name) for name in QUERIES]
