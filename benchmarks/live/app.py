"""The benchmark's Spark application: ``python -m benchmarks.live.app DIRECTORY`` runs what ``plan.json`` says.

Every batch leaves a line in ``progress.jsonl``, from Spark's own progress event; a file ``finish`` ends it, and what
the audit found is then in ``end.json``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

import rechannel
from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.registry import all_workloads
from benchmarks.workloads.run import OBSERVED, Digest, audit, start
from rechannel.conf.settings import load
from testbed.progress import progress_line


class Progress(StreamingQueryListener):
    """Writes one line for every batch and adds up what was put out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.batches: dict[str, int] = {}
        self.put_out: dict[str, Digest] = {}
        self.watermarks: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to write yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Write the batch down."""
        progress = event.progress
        line = progress_line(progress)
        if line is None:
            return
        name = line["query"]
        if OBSERVED in progress.observedMetrics:
            row = progress.observedMetrics[OBSERVED]
            digest = Digest(int(row["rows"]), int(row["digest"]))
            self.put_out[name] = self.put_out.get(name, Digest(0, 0)) + digest
            line["output_rows"] = digest.rows
        self.batches[name] = progress.batchId + 1
        self.watermarks[name] = progress.eventTime.get("watermark", "")
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """An idle query has no batch to tell of."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The application knows."""


def _failed(spark: SparkSession) -> int:
    """Task attempts that failed, as Spark's own status store counts them, on executors that are gone as well."""
    store = cast("Any", spark)._jsparkSession.sparkContext().statusStore().executorList(False)
    return sum(int(store.apply(index).failedTasks()) for index in range(store.size()))


def main(directory: Path) -> None:
    """Run until told to finish; then stop every query and audit it as far as progress events tell of it."""
    plan = json.loads((directory / "plan.json").read_text())
    builder: Any = SparkSession.builder
    for key, value in plan["conf"].items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    progress = Progress(directory / "progress.jsonl")
    spark.streams.addListener(progress)
    link = rechannel.attach(spark, load(), strict=True)
    given = Input(**{**plan["input"], "drift_at": tuple(plan["input"]["drift_at"])})
    workload, checkpoint = all_workloads()[plan["workload"]], Path(plan["checkpoint"])
    queries = start(workload, Feed(spark, given, plan["partitions"]), checkpoint, plan["interval"])
    (directory / "queries.partial").write_text(json.dumps([query.name for query in queries]))
    (directory / "queries.partial").rename(directory / "queries.json")
    while not (directory / "finish").exists():
        for query in queries:
            if not query.isActive:
                raise RuntimeError(f"query {query.name} ended: {query.exception()}")
        time.sleep(0.2)
    for query in queries:
        query.stop()
    link.detach()
    failed = _failed(spark)
    began = time.monotonic()
    found = audit(
        spark, workload, given, plan["partitions"], checkpoint, progress.batches, progress.put_out, progress.watermarks
    )
    end = {"audit": found, "seconds": time.monotonic() - began, "failed_attempts": failed, "problem": link.problem}
    (directory / "end.partial").write_text(json.dumps(end))
    (directory / "end.partial").rename(directory / "end.json")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
