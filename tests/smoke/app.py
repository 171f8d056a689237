"""The smoke tests' Spark application: stateful queries whose output can be counted, attached to Rechannel.

``python -m tests.smoke.app DIRECTORY`` keeps its checkpoints there; a file ``idle`` adds a query that runs one batch an
hour, a file ``slow`` has the others begin one every three seconds, a file ``restart`` has the first query stopped and
started again. It runs until the file ``stop`` exists, then writes ``result.json``: what the queries counted, and what
the link said at the end.
"""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import DataFrame

import rechannel
from testbed.counting import count_by_key, count_in_python, expected_counts, numbers
from testbed.driver import end_application, open_session, read_plan, start_query

ROWS_PER_BATCH = 4000  # most of a batch is its tasks, which need no processor: moves are worth it on any machine


def wrong_counts(result: dict[str, Any]) -> dict[str, Any]:
    """Compare what the application counted with its input; returns what differs, nothing if all is exact."""
    wrong = {}
    for name, counts in result["counts"].items():
        expected = expected_counts(range((result["batches"][name] + 1) * ROWS_PER_BATCH))
        actual = {int(key): count for key, count in counts.items()}
        if actual != expected:
            wrong[name] = {key: (actual.get(key), expected.get(key)) for key in expected.keys() | actual.keys()}
    return wrong


def main() -> None:
    """Run the queries."""
    directory, conf = read_plan()
    spark = open_session(conf)
    link = rechannel.attach(spark)
    frames = {
        "counts": count_by_key(numbers(spark, ROWS_PER_BATCH), pause_ms=30),
        "python": count_in_python(numbers(spark, ROWS_PER_BATCH), pause=0.04),
    }
    if (directory / "idle").exists():
        frames["idle"] = frames["counts"]
    counts: dict[str, dict[int, int]] = {name: {} for name in frames}
    batches = dict.fromkeys(frames, -1)

    def start(name: str) -> Any:
        def write(frame: DataFrame, batch: int) -> None:
            counts[name].update({row["k"]: row["n"] for row in frame.collect()})
            batches[name] = batch

        often = "3 seconds" if (directory / "slow").exists() else "0 seconds"
        return start_query(frames[name], name, directory, write, "1 hour" if name == "idle" else often)

    queries = {name: start(name) for name in frames}
    runs = {name: str(query.runId) for name, query in queries.items()}
    while not (directory / "stop").exists() and all(query.isActive for query in queries.values()):
        if (directory / "restart").exists():
            queries["counts"].stop()
            queries["counts"] = start("counts")
            (directory / "restart").unlink()
        time.sleep(0.2)
    end_application(directory, spark, queries, link, counts=counts, batches=batches, runs=runs)


if __name__ == "__main__":
    main()
