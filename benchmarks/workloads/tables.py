"""Tables that a stream's rows are looked up in by their number, so that real data is a deterministic stream.

A stream joined with a fixed table sends that table to the executors anew in every batch. The rows are therefore packed
into arrays, some hundred rows in each: what is sent is a few hundred rows of plain memory, and no hash table of
hundreds of thousands is built, sent and thrown away every second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812


def local(spark: SparkSession, columns: Mapping[str, Any]) -> DataFrame:
    """Return a frame whose rows are in the plan itself, so that no batch runs a job to read them."""
    import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

    return spark.createDataFrame(pa.table(dict(columns)))


@dataclass(frozen=True)
class Table:
    """Rows by number, ``chunk`` of them in each row of ``packed``."""

    frame: DataFrame
    columns: tuple[str, ...]
    rows: int
    chunk: int

    @classmethod
    def packed(cls, spark: SparkSession, columns: Mapping[str, Any], chunk: int) -> Table:
        """Pack columns of equal length; a NumPy array keeps its type, and a small type keeps the table small."""
        import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

        rows = min(len(column) for column in columns.values())
        starts = range(0, rows, chunk)
        bounds = pa.array([*starts, rows], pa.int32())
        lists = {name: pa.ListArray.from_arrays(bounds, pa.array(column)) for name, column in columns.items()}
        return cls(local(spark, {"chunk_id": pa.array(starts, pa.int64()), **lists}), tuple(columns), rows, chunk)

    def look_up(self, rows: DataFrame) -> DataFrame:
        """Give each row the columns by its ``number``, and ``again``: how often the table was through before."""
        at = F.col("number") % self.rows
        numbered = rows.withColumn("chunk_id", at - at % self.chunk)
        joined = numbered.join(F.broadcast(self.frame), "chunk_id")
        columns = [F.get(name, (at % self.chunk).cast("int")).alias(name) for name in self.columns]
        return joined.select(*rows.columns, F.expr(f"number div {self.rows}").alias("again"), *columns)
