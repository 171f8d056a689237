"""Running one query for so many batches, and what it did."""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads.base import Feed, Input, Workload
from benchmarks.workloads.run import OBSERVED, Digest, audit, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Measured", "NotFinishedError", "measured_of", "run"]

WARM_UP = 3  # batches that are left out of the times, in which code is compiled
LIMIT = 600.0  # seconds without a batch after which a query is given up


class NotFinishedError(RuntimeError):
    """The query stood still."""


@dataclass(frozen=True)
class Measured:
    """What a query did: its times are in seconds over the batches after the warm-up."""

    query: str
    batches: int
    events: int  # in a batch
    events_per_second: float
    mean: float
    p99: float
    state_rows: int
    state_bytes: int
    rows: int | None  # that came out of an append query
    audit: dict[str, Any] | None  # None: not held against the batch computation

    def as_dict(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return asdict(self)


def run(
    spark: SparkSession,
    workload: Workload,
    given: Input,
    partitions: int,
    batches: int,
    audited: bool = True,
    checkpoints: Path | None = None,
) -> Measured:
    """Run a workload of one query for so many batches, from a checkpoint of its own that is removed.

    ``checkpoints``: the directory for it, which every executor has to see; None: this machine's temporary one.
    ``audited``: hold the output against the batch computation. Before Spark 4 nothing reads a checkpoint's state, and
    queries in update mode are not checked.
    """
    spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(10 * batches + 100))
    with tempfile.TemporaryDirectory(prefix="nexmark-", dir=checkpoints) as folder:
        checkpoint = Path(folder)
        (query,) = start(workload, Feed(spark, given, partitions), checkpoint)
        try:
            _wait(query, batches)
            done = _progress(query)
        finally:
            query.stop()
        found = None
        if audited and _can_check(spark, workload, given, partitions):
            found = _audited(spark, workload, given, partitions, checkpoint, done)
    return measured_of(workload.name, given, done, found)


def _can_check(spark: SparkSession, workload: Workload, given: Input, partitions: int) -> bool:
    if int(spark.version.split(".", 1)[0]) >= 4:
        return True
    return all(output.mode == "append" for output in workload.build(Feed(spark, given, partitions, replay=1)))


def _wait(query: StreamingQuery, batches: int) -> None:
    last, since = -1, time.monotonic()
    while True:
        progress = query.lastProgress
        batch = int(progress["batchId"]) if progress else -1
        if batch >= batches - 1:
            return
        if batch > last:
            last, since = batch, time.monotonic()
        if not query.isActive or time.monotonic() - since > LIMIT:
            raise NotFinishedError(f"{query.name}: batch {batch} of {batches}: {query.exception() or 'no progress'}")
        time.sleep(0.1)


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return the progress of every batch so far, in order; what the query does after that is not looked at."""
    reports: dict[int, dict[str, Any]] = {}
    for progress in query.recentProgress:
        # Reports between batches repeat the last one's number, without its output.
        known = reports.get(int(progress["batchId"]))
        if known is None or not known[OBSERVED]:
            row = progress.observedMetrics.get(OBSERVED)
            report = json.loads(progress.json)
            report[OBSERVED] = None if row is None else Digest(int(row["rows"]), int(row["digest"]))
            reports[int(progress["batchId"])] = report
    done = [reports[number] for number in sorted(reports)]
    if [report["batchId"] for report in done] != list(range(len(done))):
        raise NotFinishedError(f"{query.name}: progress of some batches is missing")
    return done


def _audited(
    spark: SparkSession,
    workload: Workload,
    given: Input,
    partitions: int,
    checkpoint: Path,
    done: list[dict[str, Any]],
) -> dict[str, Any]:
    total = Digest(0, 0)
    for report in done:
        total += report[OBSERVED] or Digest(0, 0)
    name, watermark = workload.name, done[-1].get("eventTime", {}).get("watermark", "")
    found = audit(spark, workload, given, partitions, checkpoint, {name: len(done)}, {name: total}, {name: watermark})
    result: dict[str, Any] = found[name]
    return result


def measured_of(name: str, given: Input, done: list[dict[str, Any]], audit_found: dict[str, Any] | None) -> Measured:
    """Sum up what the batches' progress says."""
    timed = done[WARM_UP:] or done
    seconds = sorted(report["durationMs"]["triggerExecution"] / 1000 for report in timed)
    states = done[-1].get("stateOperators", [])
    mean = statistics.fmean(seconds)
    return Measured(
        query=name,
        batches=len(done),
        events=given.rows,
        events_per_second=given.rows / mean,
        mean=mean,
        p99=seconds[math.ceil(0.99 * len(seconds)) - 1],
        state_rows=sum(int(state["numRowsTotal"]) for state in states),
        state_bytes=sum(int(state["memoryUsedBytes"]) for state in states),
        rows=sum(report[OBSERVED].rows for report in done if report[OBSERVED]),
        audit=audit_found,
    )
