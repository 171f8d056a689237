"""The smoke tests' Spark application: stateful queries whose output can be counted, attached to Rechannel.

``python app.py DIRECTORY`` reads ``conf.json`` there and keeps its checkpoints there; a file ``idle`` adds a query that
runs one batch an hour, a file ``slow`` has the others begin one every three seconds, a file ``restart`` has the first
query stopped and started again. It runs until the file ``stop`` exists, then writes ``result.json``: what the queries
counted, and what the link said at the end.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import rechannel
from testbed.driver import exceptions_of, open_session, read_plan, write_answer

ROWS_PER_BATCH = 4000
KEYS = 97


def count_in_python(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Count the rows of a key, in Python state."""
    (seen,) = state.get if state.exists else (0,)
    for frame in frames:
        seen += len(frame)
    state.update((seen,))
    yield pd.DataFrame({"k": [key[0]], "n": [seen]})


def wrong_counts(result: dict[str, Any]) -> dict[str, Any]:
    """Compare what the application counted with its input; returns what differs, nothing if all is exact."""
    wrong = {}
    for name, counts in result["counts"].items():
        rows = (result["batches"][name] + 1) * ROWS_PER_BATCH
        expected = dict(Counter(value * value % KEYS for value in range(rows)))
        actual = {int(key): count for key, count in counts.items()}
        if actual != expected:
            wrong[name] = {key: (actual.get(key), expected.get(key)) for key in expected.keys() | actual.keys()}
    return wrong


def main() -> None:
    """Run the queries."""
    directory, conf = read_plan("conf.json")
    spark = open_session(conf)
    link = rechannel.attach(spark)
    counts: dict[str, dict[int, int]] = {}
    batches: dict[str, int] = {}

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

    def start(name: str) -> Any:
        counts.setdefault(name, {})
        batches.setdefault(name, -1)
        writer = frames[name].writeStream.queryName(name).outputMode("update").foreachBatch(keep(name))
        often = "3 seconds" if (directory / "slow").exists() else "0 seconds"
        writer = writer.trigger(processingTime="1 hour" if name == "idle" else often)
        return writer.option("checkpointLocation", str(directory / f"checkpoint-{name}")).start()

    in_python = (
        rows()
        .groupBy("k")
        .applyInPandasWithState(count_in_python, "k long, n long", "n long", "update", GroupStateTimeout.NoTimeout)
    )
    counted = rows().groupBy("k").agg(F.count("*").alias("n"))
    frames = {"counts": counted, "python": in_python}
    if (directory / "idle").exists():
        frames["idle"] = counted
    queries = {name: start(name) for name in frames}
    runs = {name: str(query.runId) for name, query in queries.items()}
    while not (directory / "stop").exists() and all(query.isActive for query in queries.values()):
        if (directory / "restart").exists():
            queries["counts"].stop()
            queries["counts"] = start("counts")
            (directory / "restart").unlink()
        time.sleep(0.2)
    for query in queries.values():
        query.stop()
    exceptions = exceptions_of(queries)
    own = str(getattr(link, "_directory", ""))
    link.detach()
    document = {
        "counts": counts,
        "batches": batches,
        "exceptions": exceptions,
        "runs": runs,
        "problem": link.problem,
        "failures": link.failures,
        "left_behind": bool(own) and Path(own).exists(),
    }
    write_answer(directory / "result.json", document)
    spark.stop()


if __name__ == "__main__":
    main()
