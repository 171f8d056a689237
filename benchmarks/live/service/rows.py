"""The query of the testbed: a count by key in which each row sleeps for its service time, in the stateful stage.

The rows of a batch and their keys follow from the batch's number alone, and each partition gets the same number of rows
in every batch, or in every batch before a drift and in every one from there on. A row sleeps in the Java machine, so
that executors with many cores' worth of tasks are real on two; in a spike, and on a slow node, it sleeps longer. A case
may have it work for a share of that time: it hashes as many bytes as one core does in it, measured when the application
starts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import accumulate

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from benchmarks.live.service.cases import Case, QueryCase
from benchmarks.workloads.base import Feed, Input, Output, Workload

KEYS = 4  # of each partition
_TRIED = 400  # keys for each partition's turn: Spark's hash leaves none out
_TIMED = (50, 150, 250)  # rows of a megabyte each, by which the speed of hashing is measured


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


def _hash(kilobytes: Column) -> Column:
    """Return a hash of so many kilobytes; it differs by ``batch``, so that Spark does not compute it once for all."""
    return F.sha2(F.repeat(F.rpad(F.col("batch").cast("string"), 1024, "x"), kilobytes.cast("int")), 512)


def hashed_per_ms(spark: SparkSession) -> float:
    """Return the kilobytes that one core hashes in a millisecond."""

    def seconds(rows: int) -> float:
        begun = time.perf_counter()
        batches = spark.range(0, rows, 1, 1).withColumnRenamed("id", "batch")
        batches.select(F.max(_hash(F.lit(1024)))).collect()
        return time.perf_counter() - begun

    for rows in _TIMED:  # until the Java machine has compiled
        seconds(rows)
    fewest, _, most = _TIMED
    taken = statistics.median(seconds(most) - seconds(fewest) for _ in range(5))
    return 1024 * (most - fewest) / (1000 * taken)


def _served(query: QueryCase, case: Case, slow_host: str, kilobytes: float) -> Column:
    """Return the service of a row that knows its ``batch``: it sleeps, and works where the case has it do so."""
    slow = case.slow
    times: Column = F.lit(query.times)
    if query.spike is not None:
        spiked = (F.col("batch") >= query.spike.batch) & (F.col("batch") < query.spike.end)
        times = F.when(spiked, F.lit(query.spike.times)).otherwise(times)
    if slow is not None:
        host = F.reflect(F.lit("java.lang.System"), F.lit("getenv"), F.lit("SPARK_LOCAL_IP"))  # of its worker
        begun = F.col("batch") + query.begun >= slow.batch  # queries back to back run in lock step, or nearly
        times *= F.when(begun & (host == slow_host), F.lit(slow.times)).otherwise(F.lit(1.0))
    asleep = F.round(times * (case.service_ms * (1 - case.burned))).cast("long")
    slept = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), asleep)
    if not case.burned:
        return slept
    return F.concat(slept, _hash(F.round(times * (case.service_ms * case.burned * kilobytes))))


def service_workload(
    query: QueryCase, keys: Sequence[Sequence[int]], case: Case, slow_host: str = "", kilobytes: float = 0.0
) -> Workload:
    """Return the workload of one query; its replay sleeps nowhere.

    ``slow_host``: address of the slow node; ``kilobytes``: `hashed_per_ms`.
    """
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
            served = _served(query, case, slow_host, kilobytes)
            keyed = keyed.repartition(feed.partitions, "key").select("key", served.alias("served"))
            counts = keyed.groupBy("key").agg(F.count("served").alias("count"))
        else:
            counts = keyed.groupBy("key").agg(F.count(F.lit(1)).alias("count"))
        return [Output(name, counts, "update", ("key",), counts="count")]

    return Workload(name, "Rows that take a known time, counted by key.", "own: known truth", build, sum(rows))
