"""A workload's queries for a number of batches in one session, their figures, and the audit of their output."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark import SparkConf
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.report.numbers import percentile
from benchmarks.workloads.base import Feed, Workload
from benchmarks.workloads.run import OBSERVED, Committed, audit, start

WARM_UP = 3  # batches that are left out of the times, in which code is compiled
LIMIT_S = 600.0  # seconds without a batch after which a query is given up


class NotFinishedError(RuntimeError):
    """A query made no progress."""


@dataclass(frozen=True)
class QueryFigures:
    """Figures of a query; times are in seconds over the batches after the warm-up."""

    query: str
    batches: int
    events: int  # rows of the input in a batch
    events_per_second: float
    mean: float
    p99: float
    state_rows: int
    state_bytes: int
    rows: int | None  # that came out of an append query
    audit: dict[str, Any] | None  # None: not compared with the batch computation


@contextmanager
def session(master: str | None = None) -> Iterator[SparkSession]:
    """Open a session on a cluster: by default Spark's own configuration, else all cores of this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not whatever python3 there is: functions want pandas
    conf = SparkConf()
    if master or not conf.contains("spark.master"):
        conf.setMaster(master or "local[*]")
    conf.setIfMissing("spark.app.name", "workloads").setIfMissing("spark.ui.enabled", "false")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false").setIfMissing("spark.sql.session.timeZone", "UTC")
    conf.setIfMissing("spark.sql.streaming.numRecentProgressUpdates", "100000")
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # a query that is stopped within a batch logs errors; failures are raised
    try:
        yield spark
    finally:
        spark.stop()


def measure(
    workload: Workload, feed: Feed, batches: int, *, audited: bool = True, checkpoints: Path | None = None
) -> list[QueryFigures]:
    """Return the figures of each of a workload's queries, run from a checkpoint of its own that is removed.

    Parameters
    ----------
    workload
        The queries.
    feed
        Their input on a session.
    batches
        Number of batches.
    audited
        Compare the output with the batch computation; before Spark 4 nothing reads a checkpoint's state, and queries in
        update mode are not compared.
    checkpoints
        Directory for the checkpoint, which every executor has to see; None for this machine's temporary one.
    """
    feed.spark.conf.set("spark.sql.shuffle.partitions", str(feed.partitions))
    feed.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(10 * batches + 100))
    with tempfile.TemporaryDirectory(prefix="workloads-", dir=checkpoints) as directory:
        by_query = run(workload, feed, Path(directory), batches)
        audits: dict[str, Any] = {}
        if audited and _can_audit(workload, feed):
            ends = {name: committed(progresses) for name, progresses in by_query.items()}
            audits = audit(workload, feed, Path(directory), ends)
    return [summarize(name, feed.input.rows, progresses, audits.get(name)) for name, progresses in by_query.items()]


def _can_audit(workload: Workload, feed: Feed) -> bool:
    if int(feed.spark.version.split(".", 1)[0]) >= 4:
        return True
    replay = Feed(feed.spark, feed.input, feed.partitions, replay=1)
    return all(output.mode == "append" for output in workload.build(replay))


def summarize(
    name: str, events: int, progresses: Sequence[StreamingQueryProgress], result: dict[str, Any] | None
) -> QueryFigures:
    """Return the figures of a query with so many events in a batch."""
    timed = progresses[WARM_UP:] or progresses
    seconds = [progress.durationMs["triggerExecution"] / 1000 for progress in timed]
    operators = progresses[-1].stateOperators
    mean = statistics.fmean(seconds)
    return QueryFigures(
        query=name,
        batches=len(progresses),
        events=events,
        events_per_second=events / mean,
        mean=mean,
        p99=percentile(seconds, 0.99),
        state_rows=sum(operator.numRowsTotal for operator in operators),
        state_bytes=sum(operator.memoryUsedBytes for operator in operators),
        rows=committed(progresses).output.rows,
        audit=result,
    )


def run(workload: Workload, feed: Feed, checkpoint: Path, batches: int) -> dict[str, list[StreamingQueryProgress]]:
    """Run a workload's queries for so many batches; return the progress of every batch, by query.

    Raises the exception of a query that fails, NotFinishedError for one that makes no progress.
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
    return reduce(Committed.add, progresses, Committed())
