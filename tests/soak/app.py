"""A driver of the soak: ``python -m tests.soak.app DIRECTORY``, with or without Rechannel.

``plan.json`` there has ``spark`` (settings) and ``attach``. It writes ``batches.jsonl`` (each batch of each query, with
its digest) and ``starts.jsonl``, runs until the file ``stop`` exists, then writes ``result.json``.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

import rechannel
from testbed.driver import exceptions_of, open_session, read_plan, write_answer
from tests.soak import queries

_POLL = 8.0  # seconds; Spark keeps more batches of a query than it has in this time, and each costs when it is read
_REST = 3.0  # seconds between the end of a run of the loop and its next start
_PATIENCE = 120.0  # seconds for a run of the loop


class Application:
    """The session with its queries, and the files that tell of them."""

    def __init__(self, directory: Path, requested: dict[str, Any]) -> None:
        self._spark = open_session(requested["spark"])
        self._directory = directory
        self._batches = (directory / "batches.jsonl").open("w")
        self._starts = (directory / "starts.jsonl").open("w")
        self._seen = dict.fromkeys(queries.NAMES, -1)
        self._counts: dict[str, int] = {}
        self._foreach_batches = 0
        self.link = rechannel.attach(self._spark, strict=True) if requested["attach"] else None
        self._frames = {name: queries.frame(self._spark, name) for name in queries.NAMES}
        jvm, application = self._jvm().java.lang.ProcessHandle.current().pid(), self._spark.sparkContext.applicationId
        write_answer(directory / "pids.json", {"jvm": jvm, "application": application})

    def _jvm(self) -> Any:
        return self._spark._jvm

    def _stopping(self) -> bool:
        return (self._directory / "stop").exists()

    def _start(self, name: str) -> Any:
        writer = self._frames[name].writeStream.queryName(name).outputMode(queries.output_mode(name))
        writer = writer.option("checkpointLocation", str(self._directory / "checkpoints" / name))
        writer = writer.foreachBatch(self._keep) if name == queries.FOREACH else writer.format("noop")
        if name == queries.LOOP:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{queries.TRIGGERS[name] * 1000:.0f} milliseconds")
        began = time.monotonic()
        query = writer.start()
        took = time.monotonic() - began
        self._write(self._starts, {"query": name, "start": took, "at": time.time()})
        return query

    def _keep(self, frame: DataFrame, batch: int) -> None:
        self._counts.update({str(row["k"]): row["n"] for row in frame.collect()})
        self._foreach_batches = batch + 1

    def _loop(self) -> None:
        while not self._stopping():
            query = self._start(queries.LOOP)
            ended = query.awaitTermination(_PATIENCE)
            self._note(queries.LOOP, query)
            query.stop()
            if not ended or query.exception():
                self._problem = f"a run of the loop did not end well: {query.exception()}"
                return
            time.sleep(_REST)

    def run(self) -> dict[str, Any]:
        """Run all queries until it is asked to stop; returns how it ended."""
        running = {name: self._start(name) for name in queries.TRIGGERS}
        self._problem = ""
        loop = threading.Thread(target=self._loop)
        loop.start()
        while not self._stopping() and not self._problem and all(query.isActive for query in running.values()):
            for name, query in running.items():
                self._note(name, query)
            time.sleep(_POLL)
        # A query that is stopped in the middle of a batch may say that it was interrupted: that is no failure.
        exceptions = exceptions_of(running)
        (self._directory / "stop").touch()
        loop.join()
        for name, query in running.items():
            query.stop()
            self._note(name, query)
        return {
            "exceptions": exceptions,
            "problem": self._problem or (self.link.problem if self.link else ""),
            "failures": self.link.failures if self.link else 0,
            "foreach": {"batches": self._foreach_batches, "counts": self._counts},
        }

    def _note(self, name: str, query: Any) -> None:
        for item in query.recentProgress:
            progress = json.loads(item.json) if hasattr(item, "json") else item
            batch = progress["batchId"]
            if batch > self._seen[name] and progress.get("numInputRows"):
                self._seen[name] = batch
                seconds = progress["durationMs"]["triggerExecution"] / 1000
                digest = queries.digest_of(progress)
                line = {"query": name, "batch": batch, "seconds": seconds, "at": progress["timestamp"], "out": digest}
                self._write(self._batches, line)

    def _write(self, file: Any, line: dict[str, Any]) -> None:
        file.write(json.dumps(line) + "\n")
        file.flush()

    def close(self) -> None:
        """Detach and stop the session."""
        if self.link is not None:
            self.link.detach()
        self._spark.stop()


def main() -> None:
    """Run until stopped."""
    directory, plan = read_plan()
    application = Application(directory, plan)
    result = application.run()
    application.close()
    write_answer(directory / "result.json", result)


if __name__ == "__main__":
    main()
