"""One query for so many batches, and its figures."""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.workloads.base import Feed, Workload
from benchmarks.workloads.run import audit
from benchmarks.workloads.trial import committed, run

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

__all__ = ["QueryFigures", "measure", "summarize"]

WARM_UP = 3  # batches that are left out of the times, in which code is compiled


@dataclass(frozen=True)
class QueryFigures:
    """Figures of a query; times are in seconds over the batches after the warm-up."""

    query: str
    batches: int
    events: int  # in a batch
    events_per_second: float
    mean: float
    p99: float
    state_rows: int
    state_bytes: int
    rows: int | None  # that came out of an append query
    audit: dict[str, Any] | None  # None: not compared with the batch computation

    def as_dict(self) -> dict[str, Any]:
        """Return it for a JSON file."""
        return asdict(self)


def measure(
    workload: Workload, feed: Feed, batches: int, *, audited: bool = True, checkpoints: Path | None = None
) -> QueryFigures:
    """Run a workload of one query for so many batches, from a checkpoint of its own that is removed.

    Parameters
    ----------
    workload : the query
    feed : its input on a session
    batches : their number
    audited : compare the output with the batch computation; before Spark 4 nothing reads a checkpoint's state, and
        queries in update mode are not compared
    checkpoints : directory for the checkpoint, which every executor has to see; None for this machine's temporary one
    """
    feed.spark.conf.set("spark.sql.shuffle.partitions", str(feed.partitions))
    feed.spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", str(10 * batches + 100))
    with tempfile.TemporaryDirectory(prefix="nexmark-", dir=checkpoints) as directory:
        progresses = run(workload, feed, Path(directory), batches)[workload.name]
        result = None
        if audited and _can_audit(workload, feed):
            result = audit(workload, feed, Path(directory), {workload.name: committed(progresses)})[workload.name]
    return summarize(workload.name, feed.input.rows, progresses, result)


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
    seconds = sorted(progress.durationMs["triggerExecution"] / 1000 for progress in timed)
    operators = progresses[-1].stateOperators
    mean = statistics.fmean(seconds)
    return QueryFigures(
        query=name,
        batches=len(progresses),
        events=events,
        events_per_second=events / mean,
        mean=mean,
        p99=seconds[math.ceil(0.99 * len(seconds)) - 1],
        state_rows=sum(operator.numRowsTotal for operator in operators),
        state_bytes=sum(operator.memoryUsedBytes for operator in operators),
        rows=committed(progresses).output.rows,
        audit=result,
    )
