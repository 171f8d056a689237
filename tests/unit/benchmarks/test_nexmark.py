"""Nexmark without Spark: the table of queries, the generator's bounds, and the report."""

from __future__ import annotations

import argparse
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from benchmarks.nexmark.events import Events
from benchmarks.nexmark.queries import IMPOSSIBLE, QUERIES, WORKLOADS
from benchmarks.workloads.__main__ import chosen_queries, line
from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.measure import QueryFigures, summarize
from benchmarks.workloads.run import OBSERVED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_SPARK = cast("SparkSession", None)  # bounds are computed without


def made(inputs: Input) -> Events:
    return Events(Feed(NO_SPARK, inputs, partitions=4))


def test_every_query_of_the_suite_is_there_or_listed_as_impossible() -> None:
    assert sorted([*QUERIES, *IMPOSSIBLE]) == sorted(f"q{number}" for number in range(24))


def test_workloads_are_named_after_the_queries_which_are_documented() -> None:
    for (name, query), workload in zip(QUERIES.items(), WORKLOADS, strict=True):
        assert (query.__name__, workload.name) == (name, f"nexmark-{name}")
        assert len((inspect.getdoc(query) or "").splitlines()) > 1 and workload.summary.endswith(".")


@pytest.mark.parametrize(
    ("inputs", "milliseconds"),
    [
        (Input(rows=10_000), 332),
        (Input(rows=10_000, seconds=3), 998),
        (Input(rows=10_000, cycle=5, spike_at=2, spike=2.0), 166),
        (Input(rows=5_000_000), 1),
    ],
)
def test_an_auction_is_open_while_two_hundred_come(inputs: Input, milliseconds: int) -> None:
    assert made(inputs).longest == milliseconds


def test_a_bid_is_no_further_from_its_auction_than_the_slowest_batches_bring() -> None:
    assert made(Input(rows=50_000)).reach == 2
    assert made(Input(rows=100)).reach == 20
    assert made(Input(rows=1000, seconds=5)).reach == 15
    assert made(Input(rows=1000, cycle=4, spike_at=1, spike=0.1)).reach == 20


def test_queries_are_chosen_by_name() -> None:
    workloads = dict(zip(QUERIES, WORKLOADS, strict=True))
    assert chosen_queries("q3, Q5", workloads, IMPOSSIBLE) == ["q3", "q5"]
    assert chosen_queries("all", workloads, IMPOSSIBLE) == list(QUERIES)


@pytest.mark.parametrize(("text", "reason"), [("q6", "last ten closed auctions"), ("q77", "no query 'q77'")])
def test_an_unknown_query_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=reason):
        chosen_queries(text, dict(zip(QUERIES, WORKLOADS, strict=True)), IMPOSSIBLE)


def progress(batch: int, milliseconds: int, rows: int) -> SimpleNamespace:
    states = [
        SimpleNamespace(numRowsTotal=40 + batch, memoryUsedBytes=1000),
        SimpleNamespace(numRowsTotal=2, memoryUsedBytes=24),
    ]
    return SimpleNamespace(
        batchId=batch,
        durationMs={"triggerExecution": milliseconds},
        stateOperators=states,
        observedMetrics={OBSERVED: {"rows": rows, "digest": 1}},
        eventTime={},
    )


def test_the_first_batches_are_left_out_of_the_times() -> None:
    batches = [progress(batch, milliseconds, 7) for batch, milliseconds in enumerate([9000, 5000, 3000, 500, 1500])]
    figures = summarize("nexmark-q3", 1000, batches, None)
    assert (figures.mean, figures.p99, figures.events_per_second) == (1.0, 1.5, 1000.0)
    assert (figures.batches, figures.rows, figures.state_rows, figures.state_bytes) == (5, 35, 46, 1024)


@pytest.mark.parametrize(
    ("audit", "text"),
    [(None, "not checked"), ({"ok": True}, "ok"), ({"ok": False, "lost": 3}, "DIFFERENT {'ok': False, 'lost': 3}")],
)
def test_the_table_shows_the_audit(audit: dict[str, object] | None, text: str) -> None:
    result = QueryFigures("nexmark-q3", 30, 50_000, 51_234.5, 0.976, 1.2, 1234, 99, 77, audit)
    assert line(result).startswith("q3 ") and line(result).endswith(text) and "51,23" in line(result)
