"""Start of a workload's queries, and the audit of their output by a batch computation over the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType

from benchmarks.workloads.base import Feed, Output, Workload

_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
OBSERVED = "output"
"""Name of the observation that every batch's progress carries: ``rows`` and ``digest`` of what it put out."""


@dataclass(frozen=True)
class Digest:
    """Number of rows and sum of their hashes: equal for equal rows in any order and any batches."""

    rows: int
    total: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.total + other.total)


@dataclass(frozen=True)
class Committed:
    """The batches of one query: their number from 0 on, the digest of their output, and the watermark of the last."""

    batches: int = 0
    output: Digest = Digest(0, 0)
    watermark: str = ""

    def add(self, progress: StreamingQueryProgress) -> Committed:
        """Return the same with one more batch; one without an observation put out nothing."""
        observed = progress.observedMetrics.get(OBSERVED)
        output = Digest(int(observed["rows"]), int(observed["digest"])) if observed else Digest(0, 0)
        return Committed(progress.batchId + 1, self.output + output, progress.eventTime.get("watermark", ""))


def _columns(frame: DataFrame) -> list[Any]:
    digest = F.sum(F.xxhash64(*frame.columns).cast("decimal(38,0)"))
    return [F.count(F.lit(1)).alias("rows"), F.coalesce(digest, F.lit(0).cast("decimal(38,0)")).alias("digest")]


def start(workload: Workload, feed: Feed, checkpoint: Path, interval: str = "0 seconds") -> list[StreamingQuery]:
    """Start every query of a workload, each with its own directory below ``checkpoint``."""
    started = []
    for output in workload.build(feed):
        observed = output.frame.observe(OBSERVED, *_columns(output.frame))
        writer = observed.writeStream.queryName(output.name).outputMode(output.mode).format("noop")
        writer = writer.option("checkpointLocation", str(checkpoint / output.name))
        started.append(writer.trigger(processingTime=interval).start())
    return started


def audit(workload: Workload, feed: Feed, checkpoint: Path, committed: Mapping[str, Committed]) -> dict[str, Any]:
    """Compare each query's output with the batch computation over the same rows; return the comparison by query.

    ``ok``: they are equal. ``lost`` and ``doubled`` are rows of the output that are missing or too many (of an
    ``append`` query: on balance), ``different`` those with another value. ``rows_lost`` and ``rows_doubled`` are rows
    of the input, where the output counts them: the sums of what its keys have too little and too much, apart.
    """
    spark = feed.spark
    result: dict[str, Any] = {}
    # A side that seems small in the plan would be broadcast, and its texts may be more than the driver's memory holds.
    before = spark.conf.get(_BROADCAST)
    spark.conf.set(_BROADCAST, "-1")
    try:
        for name, batches in committed.items():
            replay = type(feed)(spark, feed.input, feed.partitions, replay=batches.batches)
            expected = next(output for output in workload.build(replay) if output.name == name)
            if expected.mode == "append":
                result[name] = _append(expected, batches)
            else:
                result[name] = _update(expected, checkpoint / name, batches.batches)
    finally:
        spark.conf.set(_BROADCAST, str(before))
    return result


def _append(expected: Output, committed: Committed) -> dict[str, Any]:
    frame, output = expected.frame, committed.output
    if expected.closes:
        frame = frame.where(F.col(expected.closes) <= F.to_timestamp(F.lit(committed.watermark)))
    row = frame.agg(*_columns(frame)).first()
    assert row is not None  # noqa: S101  an aggregate has one row
    right = Digest(int(row["rows"]), int(row["digest"]))
    return {
        "ok": output == right and right.rows > 0,
        "rows": output.rows,
        "lost": max(0, right.rows - output.rows),
        "doubled": max(0, output.rows - right.rows),
        "different": output.rows == right.rows and output != right,
    }


def _update(expected: Output, checkpoint: Path, batches: int) -> dict[str, Any]:
    """Compare key by key: Spark's own reader of a checkpoint has the state after a batch."""
    names = expected.frame.columns
    values = [name for name in names if name not in expected.keys]
    state = expected.frame.sparkSession.read.format("statestore").option("batchId", batches - 1).load(str(checkpoint))
    held = list(state.schema["value"].dataType)  # type: ignore[call-overload]
    if len(held) != len(values):
        names_held = [field.name for field in held]
        raise ValueError(f"{expected.name} keeps {names_held} and puts out {values}: they cannot be compared")
    # By place: two counts are two fields of one name, which would be taken for one.
    by_place = StructType(
        [StructField(f"found_{name}", each.dataType) for name, each in zip(values, held, strict=True)]
    )
    stored = state.select("key.*", F.col("value").cast(by_place).alias("_value"))
    stored = stored.toDF(*expected.keys, "_value").select(*expected.keys, "_value.*")
    both = expected.frame.withColumn("_wanted", F.lit(1)).join(
        stored.withColumn("_found", F.lit(1)), [*expected.keys], "full"
    )
    same = F.lit(True)
    for name in values:
        same &= F.col(name).eqNullSafe(F.col(f"found_{name}"))
    row = both.select(
        *_by_sign(expected.counts),
        F.count_if(F.col("_found").isNull()).alias("lost"),
        F.count_if(F.col("_wanted").isNull()).alias("doubled"),
        F.count_if(F.col("_found").isNotNull() & F.col("_wanted").isNotNull() & ~same).alias("different"),
        F.count("_wanted").alias("rows"),
    ).first()
    assert row is not None  # noqa: S101
    counts = {name: int(value or 0) for name, value in row.asDict().items()}  # an empty sum is none
    wrong = counts["lost"] or counts["doubled"] or counts["different"]
    return {"ok": not wrong and counts["rows"] > 0, **counts}


def _by_sign(counts: str) -> list[Any]:
    """Return the sums of what a count of rows has too little and too much, by key; nothing where none is counted."""
    if not counts:
        return []
    missing = F.coalesce(F.col(counts), F.lit(0)) - F.coalesce(F.col(f"found_{counts}"), F.lit(0))
    return [
        F.sum(F.greatest(missing, F.lit(0))).alias("rows_lost"),
        F.sum(F.greatest(-missing, F.lit(0))).alias("rows_doubled"),
    ]
