"""Script of a user who knows nothing of Rechannel: two stateful queries whose every batch can be audited.

``app.py DIRECTORY`` keeps its checkpoints there and runs for ever. Every batch leaves ``out/<query>/<batch>.json``:
key -> count so far, the whole file at once. Keys are those of `testbed.counting`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ROWS_PER_BATCH = 1000
QUERIES = ("counts", "sums")


def writer_of(out: Path) -> Callable[[Any, int], None]:
    """Return what a query calls with each of its batches."""
    out.mkdir(parents=True, exist_ok=True)

    def write(frame: Any, batch: int) -> None:
        partial = out / f"{batch}.json.partial"
        partial.write_text(json.dumps({row["k"]: row["n"] for row in frame.collect()}))
        partial.replace(out / f"{batch}.json")

    return write


def main() -> None:
    """Run the queries."""
    directory = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()
    for name in QUERIES:
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH).load()
        counts = numbers.selectExpr("value * value % 97 AS k").groupBy("k").count().withColumnRenamed("count", "n")
        writer = counts.writeStream.queryName(name).outputMode("update")
        writer = writer.foreachBatch(writer_of(directory / "out" / name))
        writer = writer.option("checkpointLocation", str(directory / f"checkpoint-{name}"))
        writer.trigger(processingTime="2 seconds").start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
