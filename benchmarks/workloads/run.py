"""Starting a workload's queries, and holding what they put out against the batch computation over the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads.base import Feed, Input, Output, Workload

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["OBSERVED", "Digest", "audit", "start"]

_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"
OBSERVED = "output"
"""Name of the observation that every batch's progress carries: ``rows`` and ``digest`` of what it put out."""


@dataclass(frozen=True)
class Digest:
    """How many rows, and the sum of their hashes: equal for equal rows in whatever order and batches they came."""

    rows: int
    total: int

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.total + other.total)


def _columns(frame: DataFrame) -> list[Any]:
    from pyspark.sql import functions as F  # noqa: N812

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


def audit(
    spark: SparkSession,
    workload: Workload,
    given: Input,
    partitions: int,
    checkpoint: Path,
    batches: Mapping[str, int],
    put_out: Mapping[str, Digest],
    watermarks: Mapping[str, str],
) -> dict[str, Any]:
    """Hold each query's output against the batch computation; by query ``ok``, and what was found and wanted.

    ``lost`` and ``doubled`` are rows of the output that are missing or too many (of an ``append`` query: on balance),
    ``different`` those with another value. ``rows_lost`` and ``rows_doubled`` are rows of the input, where the output
    counts them: the sums of what its keys have too little and too much, apart.

    ``batches`` committed by each query, from 0 on; ``put_out``: for ``append`` queries the sum of their observed
    digests; ``watermarks``: the watermark under which the last batch ran, as its progress event says.
    """
    result: dict[str, Any] = {}
    # A side that seems small in the plan would be broadcast, and its texts may be more than the driver's memory holds.
    before = spark.conf.get(_BROADCAST)
    spark.conf.set(_BROADCAST, "-1")
    try:
        for name, count in batches.items():
            feed = Feed(spark, given, partitions, replay=count)
            wanted_output = next(output for output in workload.build(feed) if output.name == name)
            if wanted_output.mode == "append":
                result[name] = _append(wanted_output, put_out[name], watermarks.get(name, ""))
            else:
                result[name] = _update(spark, wanted_output, checkpoint / name, count)
    finally:
        spark.conf.set(_BROADCAST, str(before))
    return result


def _append(wanted: Output, found: Digest, watermark: str) -> dict[str, Any]:
    from pyspark.sql import functions as F  # noqa: N812

    frame = wanted.frame
    if wanted.closes:
        frame = frame.where(F.col(wanted.closes) <= F.to_timestamp(F.lit(watermark)))
    row = frame.agg(*_columns(frame)).first()
    assert row is not None  # noqa: S101  an aggregate has one row
    right = Digest(int(row["rows"]), int(row["digest"]))
    return {
        "ok": found == right and right.rows > 0,
        "rows": found.rows,
        "lost": max(0, right.rows - found.rows),
        "doubled": max(0, found.rows - right.rows),
        "different": found.rows == right.rows and found != right,
    }


def _update(spark: SparkSession, wanted: Output, checkpoint: Path, batches: int) -> dict[str, Any]:
    """Compare key by key: Spark's own reader of a checkpoint has the state after a batch."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructField, StructType

    names = wanted.frame.columns
    values = [name for name in names if name not in wanted.keys]
    state = spark.read.format("statestore").option("batchId", batches - 1).load(str(checkpoint))
    held = list(state.schema["value"].dataType)  # type: ignore[call-overload]
    if len(held) != len(values):
        names_held = [field.name for field in held]
        raise ValueError(f"{wanted.name} keeps {names_held} and puts out {values}: they cannot be compared")
    # By place: two counts are two fields of one name, which would be taken for one.
    by_place = StructType(
        [StructField(f"found_{name}", each.dataType) for name, each in zip(values, held, strict=True)]
    )
    found = state.select("key.*", F.col("value").cast(by_place).alias("_value"))
    found = found.toDF(*wanted.keys, "_value").select(*wanted.keys, "_value.*")
    both = wanted.frame.withColumn("_wanted", F.lit(1)).join(
        found.withColumn("_found", F.lit(1)), [*wanted.keys], "full"
    )
    same = F.lit(True)
    for name in values:
        same &= F.col(name).eqNullSafe(F.col(f"found_{name}"))
    row = both.select(
        *_by_sign(wanted.counts),
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
    from pyspark.sql import functions as F  # noqa: N812

    if not counts:
        return []
    missing = F.coalesce(F.col(counts), F.lit(0)) - F.coalesce(F.col(f"found_{counts}"), F.lit(0))
    return [
        F.sum(F.greatest(missing, F.lit(0))).alias("rows_lost"),
        F.sum(F.greatest(-missing, F.lit(0))).alias("rows_doubled"),
    ]
