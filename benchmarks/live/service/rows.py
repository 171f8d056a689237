"""The query of the testbed: a count by key in which each row sleeps for its service time, in the stateful stage.

The rows of a batch and their keys follow from the batch's number alone, and each partition gets the same number of rows
in every batch, or in every batch before a drift and in every one from there on. A row sleeps in the Java machine, so
that executors with many cores' worth of tasks are real on two; in a spike, and on a slow node, it sleeps longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.live.service.cases import QueryCase, SlowNode
from benchmarks.workloads.base import Feed, Input, Output, Workload

KEYS = 4  # of each partition
_TRIED = 400  # keys for each partition's turn: Spark's hash leaves none out


def keys_of(spark: SparkSession, partitions: int) -> list[list[int]]:
    """Return keys by the partition to which Spark's hash sends them."""
    held: list[list[int]] = [[] for _ in range(partitions)]
    numbers = spark.range(partitions * _TRIED).select("id", F.expr(f"pmod(hash(id), {partitions})").alias("partition"))
    for row in numbers.collect():
        if len(held[row["partition"]]) < KEYS:
            held[row["partition"]].append(int(row["id"]))
    return held


def service_feed(spark: SparkSession, rows: Sequence[int]) -> Feed:
    """Return the input: so many rows of each partition in every batch."""
    return Feed(spark, Input(sum(rows), keys=KEYS * len(rows), skew=0.0), len(rows))


def _partition(rows: Sequence[int]) -> Column:
    """Return the partition of the row that has a ``place`` in its batch."""
    starts = list(accumulate(rows, initial=0))[:-1]
    return F.size(F.filter(F.array(*map(F.lit, starts)), lambda start: start <= F.col("place"))) - 1


def _sleep(query: QueryCase, service_ms: int, slow: SlowNode | None, slow_host: str) -> Column:
    """Return the sleep of a row that knows its ``batch``; its value is nothing."""
    times: Column = F.lit(query.times)
    if query.spike is not None:
        spiked = (F.col("batch") >= query.spike.batch) & (F.col("batch") < query.spike.end)
        times = F.when(spiked, F.lit(query.spike.times)).otherwise(times)
    if slow is not None:
        host = F.reflect(F.lit("java.lang.System"), F.lit("getenv"), F.lit("SPARK_LOCAL_IP"))  # of its worker
        begun = F.col("batch") + query.begun >= slow.batch  # queries back to back run in lock step, or nearly
        times *= F.when(begun & (host == slow_host), F.lit(slow.times)).otherwise(F.lit(1.0))
    return F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.round(times * service_ms).cast("long"))


def service_workload(
    query: QueryCase, keys: Sequence[Sequence[int]], service_ms: int, slow: SlowNode | None = None, slow_host: str = ""
) -> Workload:
    """Return the workload of one query; its replay sleeps nowhere. ``slow_host``: address of the slow node."""
    name, rows, drift = query.name, query.rows, query.drift

    def build(feed: Feed) -> list[Output]:
        place = F.col("number") % sum(rows)
        batch = F.expr(f"number div {sum(rows)}")  # no change alters the sum
        partition = _partition(rows)
        if drift is not None:
            partition = F.when(batch >= drift.batch, _partition(query.rows_in(drift.batch))).otherwise(partition)
        flat = F.array(*(F.lit(key).cast("long") for held in keys for key in held))
        key = F.element_at(flat, (F.col("partition") * KEYS + F.col("place") % KEYS + 1).cast("int"))
        placed = feed.rows().withColumn("place", place).withColumn("partition", partition)
        keyed = placed.select(key.alias("key"), batch.alias("batch"))
        if feed.streaming:
            slept = _sleep(query, service_ms, slow, slow_host)
            keyed = keyed.repartition(feed.partitions, "key").select("key", slept.alias("slept"))
            counts = keyed.groupBy("key").agg(F.count("slept").alias("count"))
        else:
            counts = keyed.groupBy("key").agg(F.count(F.lit(1)).alias("count"))
        return [Output(name, counts, "update", ("key",), counts="count")]

    return Workload(name, "Rows that take a known time, counted by key.", "own: known truth", build, sum(rows))
