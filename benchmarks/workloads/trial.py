"""Runs of a workload for some batches in a local session, with their figures."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads.base import Feed, Workload
from benchmarks.workloads.run import OBSERVED, Committed, Digest, audit, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Costs", "NotFinishedError", "TrialResult", "committed", "costs", "run", "session", "try_out"]

WARM = 3  # batches that are left out of what is measured: code is compiled, caches fill
LIMIT_S = 600.0  # seconds without a batch after which a query is given up


class NotFinishedError(RuntimeError):
    """A query stood still."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a batch's tasks, and how many of them were in stages with state."""

    cpu: float
    stateful: float


@dataclass(frozen=True)
class TrialResult:
    """Figures of one workload's run."""

    workload: str
    batches: int
    rows_per_s: float
    batch_s: float
    state_rows: int
    stages: int  # stateful operators, of all queries
    costs: Costs | None
    audit: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every query put out what the batch computation says."""
        return all(audit["ok"] for audit in self.audit.values())

    def row(self) -> dict[str, Any]:
        """Return the row of the figures."""
        return {**asdict(self), "ok": self.ok}


@contextmanager
def session(partitions: int, events: Path | None = None) -> Iterator[SparkSession]:
    """Open a session of two cores; ``events``: where Spark writes what its tasks cost."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not whatever python3 there is: functions want pandas
    builder = SparkSession.builder.master("local[2]").appName("workloads")
    conf: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": partitions,
        "spark.sql.streaming.numRecentProgressUpdates": 100_000,
    }
    if events:
        conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
        conf |= {"spark.eventLog.rolling.enabled": "false", "spark.eventLog.compress": "false"}
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # stopping a query is loud, and what fails is raised
    try:
        yield spark
    finally:
        spark.stop()


def run(workload: Workload, feed: Feed, checkpoint: Path, batches: int) -> dict[str, list[StreamingQueryProgress]]:
    """Run a workload's queries for so many batches; return the progress of every batch, by query.

    Raises the exception of a query that fails, NotFinishedError for one that stands still.
    """
    queries = start(workload, feed, checkpoint)
    try:
        for query in queries:
            _wait(query, batches)
        return {str(query.name): _batches(query) for query in queries}
    finally:
        for query in queries:
            query.stop()


def _wait(query: StreamingQuery, batches: int) -> None:
    last, since = -1, time.monotonic()
    while True:
        progress = query.lastProgress
        batch = progress.batchId if progress else -1
        if batch >= batches - 1:
            return
        if error := query.exception():
            raise error
        if batch > last:
            last, since = batch, time.monotonic()
        if not query.isActive or time.monotonic() - since > LIMIT_S:
            raise NotFinishedError(f"{query.name}: batch {batch} of {batches}: no progress")
        time.sleep(0.05)


def _batches(query: StreamingQuery) -> list[StreamingQueryProgress]:
    """Return the progress of every batch so far, in order."""
    by_number: dict[int, StreamingQueryProgress] = {}
    for progress in query.recentProgress:
        # An event between batches repeats the last one's number, without its output.
        earlier = by_number.get(progress.batchId)
        if earlier is None or OBSERVED not in earlier.observedMetrics:
            by_number[progress.batchId] = progress
    if sorted(by_number) != list(range(len(by_number))):
        raise NotFinishedError(f"{query.name}: progress of some batches is missing")
    return [by_number[number] for number in sorted(by_number)]


def committed(progresses: Iterable[StreamingQueryProgress]) -> Committed:
    """Return the batches of one query with the digest of all that they put out."""
    batches = Committed()
    for progress in progresses:
        output = Digest.of(progress.observedMetrics.get(OBSERVED))
        batches = batches.add(progress.batchId, output, progress.eventTime.get("watermark", ""))
    return batches


def try_out(workload: Workload, feed: Feed, checkpoint: Path, batches: int) -> TrialResult:
    """Run a workload and audit it."""
    by_query = run(workload, feed, checkpoint, batches)
    last = [progresses[-1] for progresses in by_query.values()]
    result = audit(workload, feed, checkpoint, {name: committed(progresses) for name, progresses in by_query.items()})
    warm = [progresses[WARM:] for progresses in by_query.values() if len(progresses) > WARM]
    seconds = [sum(batch.durationMs["triggerExecution"] for batch in batches) / 1000 for batches in warm]
    rows = [sum(feed.input.size(batch.batchId) for batch in batches) for batches in warm]
    return TrialResult(
        workload.name,
        min(progress.batchId + 1 for progress in last),
        sum(count / duration for count, duration in zip(rows, seconds, strict=True)),
        max((duration / len(batches) for duration, batches in zip(seconds, warm, strict=True)), default=0.0),
        sum(operator.numRowsTotal for progress in last for operator in progress.stateOperators),
        sum(len(progress.stateOperators) for progress in last),
        None,
        result,
    )


def costs(log: Path) -> Costs | None:
    """Read off Spark's event log what a batch's tasks cost, all queries of the session together."""
    by_batch: dict[tuple[str, int], list[float]] = {}
    for batch, seconds, stateful in _task_seconds(log):
        total = by_batch.setdefault(batch, [0.0, 0.0])
        total[0] += seconds
        total[1] += seconds * stateful
    by_query: dict[str, list[list[float]]] = {}
    for (query, batch_number), pair in sorted(by_batch.items()):
        if batch_number >= WARM:
            by_query.setdefault(query, []).append(pair)
    complete = [pairs[:-1] for pairs in by_query.values() if len(pairs) > 1]  # the last batch may have been cut off
    if not complete:
        return None
    return Costs(*(sum(sum(pair[at] for pair in pairs) / len(pairs) for pairs in complete) for at in (0, 1)))


def _task_seconds(log: Path) -> Iterator[tuple[tuple[str, int], float, bool]]:
    """Yield (query, batch), CPU seconds, and whether its stage has state, of each task that ran for a batch."""
    batch_of: dict[int, tuple[str, int]] = {}
    stateful: set[int] = set()
    for line in log.read_text().splitlines():
        event = json.loads(line)
        properties = event.get("Properties", {})
        if event["Event"] == "SparkListenerJobStart" and "streaming.sql.batchId" in properties:
            batch = properties["sql.streaming.queryId"], int(properties["streaming.sql.batchId"])
            for stage in event["Stage Infos"]:
                batch_of[stage["Stage ID"]] = batch
                if any(rdd["Name"].startswith("StateStore") for rdd in stage["RDD Info"]):
                    stateful.add(stage["Stage ID"])
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in batch_of:
            metrics = event.get("Task Metrics")  # none where it was killed, as the query was stopped
            if metrics is not None:
                stage_id = event["Stage ID"]
                yield batch_of[stage_id], metrics["Executor CPU Time"] / 1e9, stage_id in stateful
