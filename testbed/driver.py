"""Parts of the Spark applications that tests and benchmarks start: session, progress file, answers written whole."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from rechannel.conf.loader import load
from testbed.progress import progress_line

if TYPE_CHECKING:
    from rechannel.migration.link.loop import Link


def read_plan() -> tuple[Path, dict[str, Any]]:
    """Return the directory that the command line names, and the plan in it."""
    directory = Path(sys.argv[1])
    plan: dict[str, Any] = json.loads((directory / "plan.json").read_text())
    return directory, plan


def open_session(conf: Mapping[str, str], log_level: str = "") -> SparkSession:
    """Open a Spark session with these settings."""
    builder: Any = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    if log_level:
        spark.sparkContext.setLogLevel(log_level)
    return spark


def write_answer(path: Path, answer: object) -> None:
    """Write JSON, the whole file at once."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(answer))
    partial.replace(path)


def failed_attempts(spark: SparkSession) -> int:
    """Return the failed task attempts in Spark's status store, executors that are gone included, killed tasks not."""
    store = cast("Any", spark)._jsparkSession.sparkContext().statusStore().executorList(False)
    return sum(int(store.apply(index).failedTasks()) for index in range(store.size()))


def exceptions_of(queries: Mapping[str, Any]) -> dict[str, str]:
    """Return the exception of each query that has one."""
    return {name: str(query.exception()) for name, query in queries.items() if query.exception()}


def start_query(frame: Any, name: str, directory: Path, write: Callable[[Any, int], None], trigger: str) -> Any:
    """Start a query in update mode whose batches are written by a function; its checkpoint is in the directory."""
    writer = frame.writeStream.queryName(name).outputMode("update").foreachBatch(write)
    writer = writer.option("checkpointLocation", str(directory / f"checkpoint-{name}"))
    return writer.trigger(processingTime=trigger).start()


def link_directories() -> list[Path]:
    """Return the directories of event streams where a link with the settings of this process has its own."""
    return list(Path(load().link.directory or tempfile.gettempdir()).glob("rechannel-*"))


def end_application(
    directory: Path, spark: SparkSession, queries: Mapping[str, Any], link: Link | None, **more: Any
) -> None:
    """Stop queries, link and session in good order, and write ``result.json``: what failed, and ``more``.

    ``link_directories``: how many there were with the link, and how many of them after it, the session still open.
    """
    # Before they are stopped: in the middle of a batch a query may say that it was interrupted, which is no failure.
    exceptions = exceptions_of(queries)
    for query in queries.values():
        query.stop()
    result: dict[str, Any] = {"exceptions": exceptions, "problem": "", "failures": 0}
    if link is not None:
        before = link_directories() if link.active else []
        link.detach()
        left = [path for path in before if path.exists()]
        result |= {"problem": link.problem, "failures": link.failures, "link_directories": [len(before), len(left)]}
    write_answer(directory / "result.json", result | more)
    spark.stop()


class ProgressFile(StreamingQueryListener):
    """Listener that writes one line of JSON for every batch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def line(self, progress: StreamingQueryProgress) -> dict[str, Any] | None:
        """Return the line of a progress event; None for an event without a batch."""
        return progress_line(progress)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Write the line."""
        line = self.line(event.progress)
        if line is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to write yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """An idle query has no batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The application knows."""
