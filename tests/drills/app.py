"""The drills' Spark application: two stateful queries whose every batch can be audited from outside.

``python -m tests.drills.app DIRECTORY`` keeps its checkpoints there and can be killed at any time and started again.
Every batch leaves ``out/<query>/<batch>.json``: key -> count so far, the whole file at once, so that a batch that is
run again replaces itself. ``progress.jsonl`` has a line for each batch with its duration in seconds, ``link.jsonl``
what the link logs, transitions of moves above all. It runs until the file ``stop`` exists, then writes ``result.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

import rechannel
from testbed.counting import count_by_key, count_in_python, numbers
from testbed.driver import end_application, open_session, read_plan, start_query, write_answer
from tests.drills.audit import LINK_LOG, ROWS_PER_BATCH


def writer_of(out: Path) -> Callable[[Any, int], None]:
    """Return what a query calls with each of its batches."""
    out.mkdir(parents=True, exist_ok=True)
    return lambda frame, batch: write_answer(out / f"{batch}.json", {row["k"]: row["n"] for row in frame.collect()})


def main() -> None:
    """Run the queries."""
    directory, plan = read_plan()
    spark = open_session(plan["spark"])
    log = (directory / LINK_LOG).open("a", buffering=1)
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(log),
    )
    link = rechannel.attach(spark)
    frames = {
        "counts": count_by_key(numbers(spark, ROWS_PER_BATCH)),
        "python": count_in_python(numbers(spark, ROWS_PER_BATCH)),
    }
    queries = {
        name: start_query(frame, name, directory, writer_of(directory / "out" / name), plan["trigger"])
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
    end_application(directory, spark, queries, link)


if __name__ == "__main__":
    main()
