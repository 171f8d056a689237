"""The input, which is the same in every run, and the state that must be there at its end.

Spark's ``rate-micro-batch`` source gives every batch `PARALLEL` numbers; each stands for a slice of rows, so that a
batch's content follows from its number alone, also after a restart. The first batches bring every key once; each later
batch brings ``rows`` keys, strided through all of them. A key's count and the sum of its rows' numbers are therefore
known in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses

PARALLEL = 4  # slices of a batch, one task each
STRIDE = 1_000_003  # a prime that divides no number of keys, so that a key comes again only after all others


@dataclass(frozen=True)
class Input:
    """``keys`` in the state, brought by the first ``preload`` batches; ``rows`` in each later batch."""

    keys: int
    rows: int
    preload: int

    def size(self, batch: int) -> int:
        """Rows of a batch."""
        if batch >= self.preload:
            return self.rows
        return self.keys * (batch + 1) // self.preload - self.keys * batch // self.preload

    def total(self, batches: int) -> int:
        """Rows of the first so many batches."""
        return sum(self.size(batch) for batch in range(min(batches, self.preload))) + self.later(batches)

    def later(self, batches: int) -> int:
        """Rows after the preload in the first so many batches."""
        return max(0, batches - self.preload) * self.rows

    def expected(self, key: int, batches: int) -> tuple[int, int]:
        """Count and sum of a key after so many batches; those of the preload must be among them.

        Row j after the preload has key (j * STRIDE) mod keys and number j; the preload's rows have number 0.
        """
        first = key * self.inverse % self.keys
        later = self.later(batches)
        times = (later - 1 - first) // self.keys + 1 if first < later else 0
        return 1 + times, times * first + self.keys * (times * (times - 1) // 2)

    @property
    def inverse(self) -> int:
        """Inverse of the stride, modulo the keys."""
        return pow(STRIDE, -1, self.keys)


def stream(spark: SparkSession, spec: Input) -> DataFrame:
    """Return the running count and sum of each key."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", PARALLEL)
    slices = source.option("numPartitions", PARALLEL).load().select("value")
    batch, part = f"(value div {PARALLEL})", f"(value % {PARALLEL})"

    def sequence(begin: str, end: str) -> str:
        # A slice may be empty, and Spark's sequence would then count down.
        return f"if({end} > {begin}, sequence({begin}, {end} - 1), array())"

    low, high = (
        f"({spec.keys}L * ({batch} * {PARALLEL} + {part} + {at}) div {spec.preload * PARALLEL})" for at in (0, 1)
    )
    first = f"(({batch} - {spec.preload}) * {spec.rows}L"
    begin, end = (f"{first} + {spec.rows}L * ({part} + {at}) div {PARALLEL})" for at in (0, 1))
    preload = f"{batch} < {spec.preload}"
    numbers = slices.select(
        F.expr(preload).alias("preload"),
        F.explode(F.expr(f"if({preload}, {sequence(low, high)}, {sequence(begin, end)})")).alias("number"),
    )
    rows = numbers.select(
        F.expr(f"if(preload, number, number * {STRIDE}L % {spec.keys}L)").alias("key"),
        F.expr("if(preload, 0L, number)").alias("number"),
    )
    return rows.groupBy("key").agg(F.count("*").alias("count"), F.sum("number").alias("sum"))


def audit(spark: SparkSession, spec: Input, checkpoint: str, batches: int) -> dict[str, Any]:
    """Hold the state that the checkpoint has after so many batches against the input, key by key.

    ``lost`` and ``doubled`` are rows too few and too many; ``different``: keys whose count is right and whose sum is
    not; ``unknown``: keys that the input does not have.
    """
    state = spark.read.format("statestore").option("batchId", batches - 1).load(checkpoint)
    stored = state.select("key.key", *(f"value.{name}" for name in state.schema["value"].dataType.fieldNames()))  # type: ignore[attr-defined]
    stored = stored.toDF("key", "count", "sum")
    later = spec.later(batches)
    first = f"(id * {spec.inverse}L % {spec.keys}L)"
    times = f"if({first} < {later}L, ({later}L - 1 - {first}) div {spec.keys}L + 1, 0L)"
    expected = spark.range(spec.keys).selectExpr(
        "id", f"1 + {times} AS times", f"{times} * {first} + {spec.keys}L * ({times} * ({times} - 1) div 2) AS total"
    )
    both = expected.join(stored, expected["id"] == stored["key"], "full_outer")
    count, times_ = F.coalesce(F.col("count"), F.lit(0)), F.coalesce(F.col("times"), F.lit(0))
    row = both.select(
        F.sum(F.greatest(times_ - count, F.lit(0))).alias("lost"),
        F.sum(F.greatest(count - times_, F.lit(0))).alias("doubled"),
        F.count_if((count == times_) & ~F.col("sum").eqNullSafe(F.col("total"))).alias("different"),
        F.count_if(F.col("id").isNull()).alias("unknown"),
        F.count("key").alias("keys"),
        F.sum("count").alias("rows"),
    ).first()
    assert row is not None  # noqa: S101  an aggregate has one row
    result = {name: int(value or 0) for name, value in row.asDict().items()}
    expected_rows = spec.total(batches)
    return result | {
        "batches": batches,
        "wanted_keys": spec.keys,
        "wanted_rows": expected_rows,
        "ok": result["rows"] == expected_rows
        and result["keys"] == spec.keys
        and not any(result[name] for name in ("lost", "doubled", "different", "unknown")),
    }
