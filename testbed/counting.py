"""Streaming queries whose output is known: rows are counted by key, in Spark's own state or in Python's."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

KEYS = 97


def numbers(spark: SparkSession, rows: int, keys: int = KEYS, **options: Any) -> DataFrame:
    """Return a stream of so many running numbers a batch; their squares make some keys far heavier than others."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).options(**options)
    return source.load().withColumn("k", (F.col("value") * F.col("value")) % keys)


def count_by_key(rows: DataFrame, pause_ms: int = 0) -> DataFrame:
    """Count the rows of each key; one row of fifty takes ``pause_ms`` in the stateful stage, without a processor."""
    if not pause_ms:
        return rows.groupBy("k").agg(F.count("*").alias("n"))
    paused = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.lit(pause_ms).cast("long"))
    slow = rows.repartition("k").withColumn("paused", F.when(F.col("value") % 50 == 0, paused))
    # No count, which Spark would make without the column.
    return slow.groupBy("k").agg(F.sum(F.when(F.col("paused") == "never", 0).otherwise(1)).alias("n"))


def count_in_python(rows: DataFrame, pause: float = 0.0) -> DataFrame:
    """Count the rows of each key in Python state; a key of a batch takes ``pause`` seconds."""

    # A local function, which Spark sends as a whole: executors need nothing of ours.
    def count(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        (seen,) = state.get if state.exists else (0,)
        time.sleep(pause)
        for frame in frames:
            seen += len(frame)
        state.update((seen,))
        yield pd.DataFrame({"k": [key[0]], "n": [seen]})

    grouped = rows.groupBy("k")
    return grouped.applyInPandasWithState(count, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout)


def expected_counts(values: Iterable[int], keys: int = KEYS) -> Counter[int]:
    """Return what the queries count of these numbers, by key."""
    return Counter(value * value % keys for value in values)
