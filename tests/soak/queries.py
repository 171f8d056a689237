"""The eight queries of the soak, and their expected output.

Their input follows from the batch's number alone, so each batch of a query has the same output in every driver. Its
digest (rows, and the sum of their hashes) comes with Spark's own progress.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses

from testbed.counting import count_by_key, count_in_python, expected_counts, numbers

ROWS_PER_BATCH = 10
KEYS = 37
FOREACH, LOOP = "foreach", "loop"
# Seconds between two batches, a little different so that not all begin at once; `LOOP` is started anew by itself.
TRIGGERS = {
    "counts": 1.8,
    "sessions": 1.85,
    "dedup": 1.9,
    "windows": 1.95,
    "join": 2.0,
    "python": 2.05,
    FOREACH: 2.1,
}
NAMES = (*TRIGGERS, LOOP)


def rows(spark: SparkSession) -> DataFrame:
    """Return a source: each batch the next values, a second of event time after the batch before."""
    return numbers(spark, ROWS_PER_BATCH, KEYS, numPartitions=1, advanceMillisPerBatch=1000)


def frame(spark: SparkSession, name: str) -> DataFrame:
    """Return a query's frame, its digest observed."""
    if name == "dedup":
        output = rows(spark).withWatermark("timestamp", "10 seconds").dropDuplicates(["timestamp", "k"])
    elif name == "windows":
        late = rows(spark).withWatermark("timestamp", "5 seconds")
        counted = late.groupBy(F.window("timestamp", "10 seconds", "5 seconds"), "k").count()
        output = counted.select(F.col("window.start").alias("start"), "k", "count")
    elif name == "sessions":
        late = rows(spark).withWatermark("timestamp", "5 seconds")
        counted = late.groupBy(F.session_window("timestamp", "3 seconds").alias("session"), "k").count()
        output = counted.select(F.col("session.start").alias("start"), F.col("session.end").alias("end"), "k", "count")
    elif name == "join":
        left, right = (rows(spark).withWatermark("timestamp", "5 seconds").alias(side) for side in ("l", "r"))
        near = F.expr("l.value = r.value AND r.timestamp BETWEEN l.timestamp AND l.timestamp + INTERVAL 3 SECONDS")
        output = left.join(right, near).select(F.col("l.value").alias("value"), F.col("r.k").alias("k"))
    elif name == "python":
        output = count_in_python(rows(spark))
    else:
        output = count_by_key(rows(spark))
    hashes = F.sum(F.xxhash64(*output.columns).cast("decimal(38,0)")).cast("string")
    return output.observe("digest", F.count(F.lit(1)).alias("rows"), hashes.alias("hash"))


def output_mode(name: str) -> str:
    """Return the output mode of a query."""
    return "append" if name in ("dedup", "windows", "sessions", "join") else "update"


def counted(batches: int) -> dict[str, int]:
    """Return what the counting queries hold after so many batches: key -> rows."""
    return {str(key): count for key, count in expected_counts(range(batches * ROWS_PER_BATCH), KEYS).items()}


def digest_of(progress: dict[str, Any]) -> str:
    """Return the digest that came with a batch's progress, "" if none did."""
    digest = progress.get("observedMetrics", {}).get("digest")
    return json.dumps([digest["rows"], digest["hash"]]) if digest else ""
