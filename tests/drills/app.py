"""The drills' Spark application: two stateful queries whose every batch can be audited from outside.

``python app.py DIRECTORY`` reads ``conf.json`` there, keeps its checkpoints there and can be killed at any time and
started again. Every batch leaves ``out/<query>/<batch>.json``: key -> count so far, the whole file at once, so that a
batch that is run again replaces itself. ``progress.jsonl`` has a line for each batch with its duration in seconds,
``link.jsonl`` what the link logs, each step of a move above all. It runs until the file ``stop`` exists, then writes
``result.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import structlog
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import rechannel
from testbed.driver import exceptions_of, open_session, read_plan, write_answer
from tests.drills.audit import KEYS, LINK_LOG, ROWS_PER_BATCH


def count_in_python(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key, in Python state."""
    (seen,) = state.get if state.exists else (0,)
    for frame in frames:
        seen += len(frame)
    state.update((seen,))
    yield pd.DataFrame({"k": [key[0]], "n": [seen]})


def writer_of(out: Path) -> Any:
    """Return what a query calls with each of its batches."""
    out.mkdir(parents=True, exist_ok=True)

    def write(frame: DataFrame, batch: int) -> None:
        counts = {row["k"]: row["n"] for row in frame.collect()}
        write_answer(out / f"{batch}.json", counts)

    return write


def main() -> None:
    """Run the queries."""
    directory, options = read_plan("conf.json")
    spark = open_session(options["spark"])
    log = (directory / LINK_LOG).open("a", buffering=1)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(log),
    )
    link = rechannel.attach(spark)

    def rows() -> DataFrame:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_PER_BATCH)
        # Squaring makes some keys far heavier than others.
        return source.load().withColumn("k", (F.col("value") * F.col("value")) % KEYS)

    in_python = (
        rows()
        .groupBy("k")
        .applyInPandasWithState(count_in_python, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout)
    )
    frames = {"counts": rows().groupBy("k").agg(F.count("*").alias("n")), "python": in_python}
    queries = {
        name: frame.writeStream.queryName(name)
        .outputMode("update")
        .foreachBatch(writer_of(directory / "out" / name))
        .trigger(processingTime=options["trigger"])
        .option("checkpointLocation", str(directory / f"checkpoint-{name}"))
        .start()
        for name, frame in frames.items()
    }
    reported = dict.fromkeys(queries, -1)
    with (directory / "progress.jsonl").open("a") as progress:
        while not (directory / "stop").exists() and all(query.isActive for query in queries.values()):
            for name, query in queries.items():
                for item in query.recentProgress:
                    if item["batchId"] > reported[name] and item["numInputRows"]:
                        reported[name] = item["batchId"]
                        seconds = item["durationMs"]["triggerExecution"] / 1000
                        line = {"query": name, "batch": item["batchId"], "seconds": seconds, "at": item["timestamp"]}
                        progress.write(json.dumps(line) + "\n")
            progress.flush()
            time.sleep(0.5)
    exceptions = exceptions_of(queries)
    for query in queries.values():
        query.stop()
    link.detach()
    document = {"exceptions": exceptions, "problem": link.problem, "failures": link.failures}
    write_answer(directory / "result.json", document)
    spark.stop()


if __name__ == "__main__":
    main()
