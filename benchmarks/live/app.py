"""The benchmark's Spark application: ``python -m benchmarks.live.app DIRECTORY`` runs the ``plan.json`` there.

Every batch leaves a line in ``progress.jsonl``, from Spark's own progress event; a file ``finish`` ends it, and the
result of the audit is then in ``end.json``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.listener import StreamingQueryProgress

import rechannel
from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.registry import all_workloads
from benchmarks.workloads.run import Committed, audit, start
from rechannel.conf.loader import load
from testbed.driver import ProgressFile, failed_attempts, open_session, read_plan, write_answer


class Progress(ProgressFile):
    """Writes one line for every batch and adds up what was put out."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.committed: dict[str, Committed] = {}

    def line(self, progress: StreamingQueryProgress) -> dict[str, Any] | None:
        """Return the line, and note what the batch put out."""
        line = super().line(progress)
        if line is not None:
            self.committed[line["query"]] = self.committed.get(line["query"], Committed()).add(progress)
        return line


def run_to_finish(
    directory: Path, running: dict[str, StreamingQuery], change: Callable[[], bool] = lambda: False
) -> None:
    """Name the queries in ``queries.json`` and run them until ``finish`` exists; RuntimeError if one ends before.

    Parameters
    ----------
    directory
        Place of both files.
    running
        Name -> query.
    change
        Is called again and again; returns whether it changed what runs.
    """
    write_answer(directory / "queries.json", list(running))
    while not (directory / "finish").exists():
        if change():
            write_answer(directory / "queries.json", list(running))
        for name, query in running.items():
            if not query.isActive:
                raise RuntimeError(f"query {name} ended: {query.exception()}")
        time.sleep(0.2)
    for query in running.values():
        query.stop()


def main() -> None:
    """Run until the file ``finish`` exists; then stop every query and audit it."""
    directory, plan = read_plan()
    spark = open_session(plan["conf"], "ERROR")
    progress = Progress(directory / "progress.jsonl")
    spark.streams.addListener(progress)
    link = rechannel.attach(spark, load(), strict=True)
    source = Input(**{**plan["input"], "drift_at": tuple(plan["input"]["drift_at"])})
    workload, checkpoint = all_workloads()[plan["workload"]], Path(plan["checkpoint"])
    feed = Feed(spark, source, plan["partitions"])
    queries = start(workload, feed, checkpoint, plan["interval"])
    run_to_finish(directory, {str(query.name): query for query in queries})
    link.detach()
    failed = failed_attempts(spark)
    began = time.monotonic()
    result = audit(workload, feed, checkpoint, progress.committed)
    seconds = time.monotonic() - began
    end = {"audit": result, "seconds": seconds, "failed_attempts": failed, "problem": link.problem}
    write_answer(directory / "end.json", end)
    spark.stop()


if __name__ == "__main__":
    main()
