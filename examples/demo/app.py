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

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from examples.demo.audit import audit
from examples.demo.eventlog import EventLog
from examples.demo.queries import QUERIES, Layout
from testbed.driver import ProgressFile, open_session, write_answer

__all__ = ["ProgressWriter", "main", "run"]


class ProgressWriter(ProgressFile):
    """Writes one JSON line for every micro-batch."""

    def line(self, progress: StreamingQueryProgress) -> dict[str, Any]:
        """Return the line of a batch."""
        return {
            "query": progress.name,
            "batch_id": progress.batchId,
            "rows": progress.numInputRows,
            "trigger_ms": progress.durationMs.get("triggerExecution", 0),
            "wall": time.time(),
        }


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


def run(root: Path, conf: dict[str, str], *, attach: bool = False, service_ms: int = 0) -> dict[str, Any]:
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
    spark = open_session({**conf, **own}, "WARN")
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
            .start()
            for name in QUERIES
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
    parser.add_argument("--service-ms", type=int, default=0, help="service time of a row, milliseconds")
    options = parser.parse_args(arguments)
    conf: dict[str, str] = json.loads(options.conf.read_text())
    result = run(options.root, conf, attach=options.attach, service_ms=options.service_ms)
    write_answer(options.root / "result.json", result)
    return 0 if result["audit"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
