"""The driver program: starts the queries, runs them to the end of the replay, audits their output.

A plain Structured Streaming application in a process of its own. It joins Rechannel with one line, and only if asked.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from examples.demo.audit import audit
from examples.demo.eventlog import EventLog
from examples.demo.queries import QUERIES, Layout

__all__ = ["ProgressWriter", "main", "run"]


class ProgressWriter(StreamingQueryListener):
    """Writes one JSON line for every micro-batch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to write yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Write the batch down."""
        progress = event.progress
        durations = dict(progress.durationMs)
        record = {
            "query": progress.name,
            "batch_id": progress.batchId,
            "rows": progress.numInputRows,
            "trigger_ms": durations.get("triggerExecution", 0),
            "duration_ms": durations,
            "timestamp": progress.timestamp,
            "id": str(progress.id),
            "run_id": str(progress.runId),
            "wall": time.time(),
        }
        with self._path.open("a") as stream:
            stream.write(json.dumps(record) + "\n")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """An idle query has no batch to tell of."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The event log has it."""


def _wait_for_end(control: Path, queries: list[StreamingQuery]) -> bool:
    """Wait until the feeder says that nothing more comes; False if told to stop before, or if a query failed."""
    while not (control / "finished").exists():
        if (control / "stop").exists() or any(query.exception() is not None for query in queries):
            return False
        time.sleep(0.2)
    return True


def _drain(control: Path, queries: list[StreamingQuery]) -> bool:
    """Run the queries to the end of their input, or until the stop file appears."""
    failures: list[BaseException] = []

    def drain() -> None:
        try:
            for query in queries:
                query.processAllAvailable()
        except Exception as error:  # noqa: BLE001 - a query's failure, whatever it is, is told in the result
            failures.append(error)

    worker = threading.Thread(target=drain, daemon=True)
    worker.start()
    while worker.is_alive():
        if (control / "stop").exists():
            return False
        worker.join(0.2)
    return not failures


def _session(conf: dict[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def run(
    root: Path,
    conf: dict[str, str],
    *,
    attach: bool = False,
    service_ms: float = 0.0,
    trigger: str = "0 seconds",
    names: list[str] | None = None,
) -> dict[str, Any]:
    """Run the queries over what is fed to ``root`` and return the result that `main` writes."""
    layout, control = Layout(root), root / "control"
    events = root / "events"
    events.mkdir(parents=True, exist_ok=True)
    control.mkdir(parents=True, exist_ok=True)
    layout.inbox.mkdir(parents=True, exist_ok=True)
    own = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = _session({**conf, **own})
    result: dict[str, Any] = {"application": spark.sparkContext.applicationId, "queries": {}, "audit": {"ok": False}}
    try:
        if attach:
            import rechannel

            rechannel.attach(spark)
        spark.streams.addListener(ProgressWriter(root / "progress.jsonl"))
        queries = [
            QUERIES[name](spark, layout, service_ms)
            .queryName(name)
            .option("checkpointLocation", str(layout.checkpoint(name)))
            .trigger(processingTime=trigger)
            .start()
            for name in (names or list(QUERIES))
        ]
        result["queries"] = {query.name: {"id": str(query.id), "run_id": str(query.runId)} for query in queries}
        (root / "app.json").write_text(json.dumps(result))
        finished = _wait_for_end(control, queries) and _drain(control, queries)
        result["finished"] = finished
        result["errors"] = [str(query.exception()) for query in queries if query.exception() is not None]
        for query in queries:
            query.stop()
        if finished:
            verdicts = audit(spark, layout, [str(query.name) for query in queries])
            result["audit"] = {
                "ok": all(verdict.ok for verdict in verdicts),
                "queries": {verdict.query: verdict.as_dict() for verdict in verdicts},
            }
    finally:
        spark.stop()
    log = EventLog(events)
    log.poll()
    result["restarts"] = log.restarts
    result["failed_task_attempts"] = len(log.failed_attempts)
    result["failures"] = log.failed_attempts[:20]
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run as a program; the exit code says whether the audit passed."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.app", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="directory of the run")
    parser.add_argument("--conf", type=Path, required=True, help="JSON file with Spark's settings")
    parser.add_argument("--attach", action="store_true", help="join Rechannel (configured by RECHANNEL_CONFIG)")
    parser.add_argument(
        "--service-ms", type=float, default=0.0, help="service time per row, where no quota is possible"
    )
    parser.add_argument("--trigger", default="0 seconds", help="processing-time trigger of the queries")
    options = parser.parse_args(arguments)
    conf: dict[str, str] = json.loads(options.conf.read_text())
    result = run(options.root, conf, attach=options.attach, service_ms=options.service_ms, trigger=options.trigger)
    partial = options.root / "result.json.partial"
    partial.write_text(json.dumps(result, indent=2))
    partial.replace(options.root / "result.json")
    return 0 if result["audit"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
