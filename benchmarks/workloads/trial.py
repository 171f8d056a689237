"""Running a workload for some batches in a local session, and what came of it."""

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

from benchmarks.workloads.base import Feed, Input, Workload
from benchmarks.workloads.run import OBSERVED, Digest, audit, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Costs", "Ran", "costs", "put_out", "run", "session", "try_out"]

WARM = 3  # batches that are left out of what is measured: code is compiled, caches fill
LIMIT_S = 900.0


@dataclass(frozen=True)
class Costs:
    """CPU seconds of a batch's tasks, and how many of them were in stages with state."""

    cpu: float
    stateful: float


@dataclass(frozen=True)
class Ran:
    """One workload's run."""

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
        return all(found["ok"] for found in self.audit.values())

    def row(self) -> dict[str, Any]:
        """What is kept in a file."""
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
    """Run a workload's queries until each has told of so many batches; return what they told, by query."""
    queries = start(workload, feed, checkpoint)
    try:
        for query in queries:
            _await(query, batches)
    finally:
        for query in queries:
            query.stop()
    return {str(query.name): list(query.recentProgress) for query in queries}


def _await(query: StreamingQuery, batches: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while (last := query.lastProgress) is None or last.batchId < batches - 1:
        if error := query.exception():
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"{query.name}: {batches} batches took longer than {LIMIT_S:.0f} s")
        time.sleep(0.05)


def put_out(told: Iterable[StreamingQueryProgress]) -> Digest:
    """Return the sum of all that a query's batches put out."""
    total = Digest(0, 0)
    for progress in told:
        if (found := progress.observedMetrics.get(OBSERVED)) is not None:
            total += Digest(int(found["rows"]), int(found["digest"]))
    return total


def try_out(
    spark: SparkSession, workload: Workload, given: Input, partitions: int, checkpoint: Path, batches: int
) -> Ran:
    """Run a workload and audit it."""
    told = run(workload, Feed(spark, given, partitions), checkpoint, batches)
    last = {name: progresses[-1] for name, progresses in told.items()}
    found = audit(
        spark,
        workload,
        given,
        partitions,
        checkpoint,
        {name: progress.batchId + 1 for name, progress in last.items()},
        {name: put_out(progresses) for name, progresses in told.items()},
        {name: progress.eventTime.get("watermark", "") for name, progress in last.items()},
    )
    warm = {name: [one for one in progresses if one.batchId >= WARM] for name, progresses in told.items()}
    seconds = {name: sum(one.durationMs["triggerExecution"] for one in ones) / 1000 for name, ones in warm.items()}
    speeds = [sum(given.size(one.batchId) for one in ones) / seconds[name] for name, ones in warm.items() if ones]
    return Ran(
        workload.name,
        min(progress.batchId + 1 for progress in last.values()),
        sum(speeds),
        max((seconds[name] / len(ones) for name, ones in warm.items() if ones), default=0.0),
        sum(one.numRowsTotal for progress in last.values() for one in progress.stateOperators),
        sum(len(progress.stateOperators) for progress in last.values()),
        None,
        found,
    )


def costs(log: Path) -> Costs | None:
    """Read off Spark's event log what a batch's tasks cost, all queries of the session together."""
    batch_of: dict[int, tuple[str, int]] = {}
    stateful: set[int] = set()
    spent: dict[tuple[str, int], list[float]] = {}
    for line in log.read_text().splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            properties = event.get("Properties", {})
            if (batch := properties.get("streaming.sql.batchId")) is None:
                continue
            for stage in event["Stage Infos"]:
                batch_of[stage["Stage ID"]] = properties["sql.streaming.queryId"], int(batch)
                if any(rdd["Name"].startswith("StateStore") for rdd in stage["RDD Info"]):
                    stateful.add(stage["Stage ID"])
        elif event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in batch_of:
            if (metrics := event.get("Task Metrics")) is None:  # killed, as the query was stopped
                continue
            seconds = metrics["Executor CPU Time"] / 1e9
            total = spent.setdefault(batch_of[event["Stage ID"]], [0.0, 0.0])
            total[0] += seconds
            total[1] += seconds * (event["Stage ID"] in stateful)
    by_query: dict[str, list[list[float]]] = {}
    for (query, batch), pair in sorted(spent.items()):
        if batch >= WARM:
            by_query.setdefault(query, []).append(pair)
    whole = [pairs[:-1] for pairs in by_query.values() if len(pairs) > 1]  # the last batch may have been cut off
    if not whole:
        return None
    return Costs(*(sum(sum(pair[at] for pair in pairs) / len(pairs) for pairs in whole) for at in (0, 1)))
