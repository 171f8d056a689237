"""The smoke test's Spark application: two stateful queries whose output can be counted, attached to Rechannel.

``python app.py CONF.json RESULT.json STOP-FILE``: runs until the stop file exists, then writes what the queries
counted, how many rows they read, and what the link said at the end.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import rechannel

ROWS_PER_BATCH = 4000
KEYS = 97


def count_in_python(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key, in Python state."""
    (seen,) = state.get if state.exists else (0,)
    for frame in frames:
        seen += len(frame)
    state.update((seen,))
    yield pd.DataFrame({"k": [key[0]], "n": [seen]})


def main(conf: Path, result: Path, stop: Path) -> None:
    """Run the two queries."""
    builder = SparkSession.builder
    for key, value in json.loads(conf.read_text()).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    link = rechannel.attach(spark)
    counts: dict[str, dict[int, int]] = {"counts": {}, "python": {}}
    batches = {"counts": -1, "python": -1}

    def rows() -> DataFrame:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
        # Squaring makes some keys far heavier than others.
        return source.load().withColumn("k", (F.col("value") * F.col("value")) % KEYS)

    def keep(name: str) -> Any:
        def write(frame: DataFrame, batch: int) -> None:
            rows = frame.collect()
            counts[name].update({row["k"]: row["n"] for row in rows})
            batches[name] = batch

        return write

    in_python = (
        rows()
        .groupBy("k")
        .applyInPandasWithState(count_in_python, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout)
    )
    frames = {"counts": rows().groupBy("k").agg(F.count("*").alias("n")), "python": in_python}
    queries = {}
    for name, frame in frames.items():
        writer = frame.writeStream.queryName(name).outputMode("update").foreachBatch(keep(name))
        queries[name] = writer.option("checkpointLocation", str(result.parent / f"checkpoint-{name}")).start()
    runs = {name: str(query.runId) for name, query in queries.items()}
    while not stop.exists() and all(query.isActive for query in queries.values()):
        time.sleep(0.2)
    for query in queries.values():
        query.stop()
    exceptions = {name: str(query.exception()) for name, query in queries.items() if query.exception()}
    directory = str(getattr(link, "_directory", ""))
    link.detach()
    document = {
        "counts": counts,
        "batches": batches,
        "exceptions": exceptions,
        "runs": runs,
        "problem": link.problem,
        "failures": link.failures,
        "left_behind": bool(directory) and Path(directory).exists(),
    }
    result.write_text(json.dumps(document))
    spark.stop()


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
