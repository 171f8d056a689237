"""The benchmark's Spark application: ``python -m benchmarks.migration.app DIRECTORY`` runs the ``plan.json`` there.

It follows the orders of :mod:`benchmarks.orders`. Every batch leaves a line in ``progress.jsonl``, from Spark's own
progress event.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent
from pyspark.sql.streaming.query import StreamingQuery

import rechannel
from benchmarks.migration.workload import Input, audit, stream
from benchmarks.orders import serve
from rechannel.conf.loader import load
from testbed.driver import ProgressFile, failed_attempts, open_session, read_plan

PATIENCE = 300.0  # seconds for one batch
NAME = "counts"


class Progress(ProgressFile):
    """Writes one line for every batch, and lets the application wait for the next."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._committed = threading.Event()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Write the line, and wake up who waits for a batch."""
        super().onQueryProgress(event)
        if self.line(event.progress) is not None:
            self._committed.set()

    def wait(self, query: StreamingQuery) -> None:
        """Return as soon as a batch is committed: what follows happens at a batch boundary."""
        self._committed.clear()
        deadline = time.monotonic() + PATIENCE
        while not self._committed.wait(0.5):
            if not query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"no batch is committed: {query.exception()}")


class Application:
    """The running query, and what can be done to it."""

    def __init__(self, spark: SparkSession, plan: dict[str, Any], directory: Path) -> None:
        self._spark, self._plan = spark, plan
        self._input = Input(**plan["input"])
        self._counts = stream(spark, self._input)
        self._progress = Progress(directory / "progress.jsonl")
        spark.streams.addListener(self._progress)
        self._link = rechannel.attach(spark, load(), strict=True)
        self._query = self._start()

    def _start(self) -> StreamingQuery:
        writer = self._counts.writeStream.queryName(NAME).outputMode("update").format("noop")
        writer = writer.option("checkpointLocation", self._plan["checkpoint"]).trigger(processingTime="0 seconds")
        return writer.start()

    def require_active(self) -> None:
        """Raise the exception of a query that ended."""
        if not self._query.isActive:
            raise RuntimeError(f"the query ended: {self._query.exception()}")

    def attach(self, environment: dict[str, str]) -> dict[str, Any]:
        """Attach a new link with other settings."""
        self._link.detach()
        self._link = rechannel.attach(self._spark, load(None, os.environ | environment), strict=True)
        return {}

    def restart(self) -> dict[str, Any]:
        """Stop the query at a batch boundary, and start it again from its checkpoint."""
        self._progress.wait(self._query)
        stopping = time.time()
        self._query.stop()
        stopped = time.time()
        self._query = self._start()
        return {"stopping": stopping, "stopped": stopped, "started": time.time()}

    def finish(self) -> dict[str, Any]:
        """Stop the query for good and compare its state with the input."""
        self._progress.wait(self._query)
        self._query.stop()
        self._link.detach()
        checkpoint = Path(self._plan["checkpoint"])
        batches = 1 + max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
        failed = failed_attempts(self._spark)
        began = time.monotonic()
        result = audit(self._spark, self._input, str(checkpoint), batches)
        return {
            "audit": result | {"seconds": time.monotonic() - began},
            "failed_attempts": failed,
            "problem": self._link.problem,
        }


def main() -> None:
    """Follow the orders until the one to finish."""
    directory, plan = read_plan()
    spark = open_session(plan["conf"], "ERROR")
    application = Application(spark, plan, directory)
    verbs = {name: getattr(application, name) for name in ("attach", "restart", "finish")}
    serve(directory, verbs, application.require_active)
    spark.stop()


if __name__ == "__main__":
    main()
