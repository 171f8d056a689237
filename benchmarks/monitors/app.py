"""The benchmark's Spark application: ``python -m benchmarks.monitors.app DIRECTORY`` runs the ``plan.json`` there.

It follows the orders of :mod:`benchmarks.orders`.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name PySpark's own documentation uses
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import rechannel
from benchmarks.orders import serve
from testbed.driver import open_session, read_plan
from testbed.processes import cpu_seconds

THREADS = {
    "link_listener": re.compile("spark-listener-group-rechannel"),
    "event_log": re.compile("spark-listener-group-eventLog"),
    "py4j": re.compile(r"Thread-\d+"),  # those that answer the calls of Python
}
"""Groups of the driver's Java threads, by their names."""
ROWS = 20_000
KEYS = 4999


def burn(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Use the CPU seconds of this key's rows; return the partition and the seconds used."""
    before = time.thread_time()
    seconds = sum(float(frame["cost"].sum()) for frame in frames)
    while time.thread_time() - before < seconds:
        pass
    context = TaskContext.get()
    partition = context.partitionId() if context else -1
    state.update((key[0],))
    yield pd.DataFrame({"partition": [partition], "burned": [time.thread_time() - before]})


class Overhead:
    """A query whose batches run back to back, in phases without and with a link."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
        stateful = spark.conf.get("spark.benchmark.stateful") == "true"
        counts = rows.groupBy((F.col("value") % KEYS).alias("k")).count()
        if not stateful:  # with a number, adaptive execution leaves the partitions as they are
            counts = rows.repartition(int(spark.conf.get("spark.sql.shuffle.partitions")), "value")
        writer = counts.writeStream.outputMode("update").format("noop").trigger(processingTime="0 seconds")
        own = psutil.Process()
        (java,) = [child for child in own.children() if child.name() == "java"]
        self._spark, self._processes = spark, {"python": own, "jvm": java}
        self.query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    def check(self) -> None:
        """Raise the exception of a query that ended."""
        if not self.query.isActive:
            raise RuntimeError(f"the query ended: {self.query.exception()}")

    def _wait(self, count: int) -> int:
        """Wait for so many more batches; return the number of the last."""

        def batch() -> int:
            progress = self.query.lastProgress
            return -1 if progress is None else int(progress["batchId"])

        until = batch() + count
        while batch() < until:
            self.check()
            time.sleep(0.2)
        return until

    def _driver_cpu(self) -> dict[str, float]:
        """Return the CPU seconds of this process, of its JVM, and of groups of their threads so far."""
        cpu = {name: cpu_seconds(process) for name, process in self._processes.items()} | self._java_threads_cpu()
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        for thread in self._processes["python"].threads():
            if (name := names.get(thread.id, "")).startswith("rechannel"):
                cpu[name] = cpu.get(name, 0.0) + thread.user_time + thread.system_time
        return cpu

    def _java_threads_cpu(self) -> dict[str, float]:
        jvm: Any = self._spark.sparkContext._jvm
        management = jvm.java.lang.management.ManagementFactory.getThreadMXBean()
        cpu = dict.fromkeys(THREADS, 0.0)
        for thread in jvm.java.lang.Thread.getAllStackTraces().keySet().toArray():
            name = thread.getName()
            for group in [group for group, pattern in THREADS.items() if pattern.fullmatch(name)]:
                cpu[group] += max(0, management.getThreadCpuTime(thread.getId())) / 1e9  # -1: it has ended
        return cpu

    def phase(self, *, on: bool, settle: int, batches: int) -> dict[str, Any]:
        """Return seconds, CPU and period of so many batches, with a link if ``on``, after some that do not count."""
        link = rechannel.attach(self._spark, strict=True) if on else None
        first = self._wait(settle)
        before, began = self._driver_cpu(), time.time()
        last = self._wait(batches)
        after, ended = self._driver_cpu(), time.time()
        took = {int(item["batchId"]): item["durationMs"]["triggerExecution"] for item in self.query.recentProgress}
        counted = [took[item] / 1000 for item in range(first + 1, last + 1) if item in took]
        if link is not None:
            link.detach()
            if link.problem:
                raise RuntimeError(link.problem)
        cpu = {name: (after[name] - before.get(name, 0.0)) / batches for name in after}
        return {"on": on, "seconds": counted, "cpu": cpu, "period": (ended - began) / batches}

    def finish(self) -> dict[str, Any]:
        """Stop the query."""
        self.query.stop()
        return {}


class Accuracy:
    """A query that burns known CPU in Python state."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        rechannel.attach(spark, strict=True)
        self.burned: Counter[int] = Counter()
        reader = spark.readStream.schema("k long, cost double").option("maxFilesPerTrigger", 1)
        state = (
            reader.json(str(directory / "inbox"))
            .groupBy("k")
            .applyInPandasWithState(
                burn, "partition int, burned double", "k long", "update", GroupStateTimeout.NoTimeout
            )
        )
        writer = state.writeStream.outputMode("update").foreachBatch(self._add)
        self.query = writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    def _add(self, frame: DataFrame, _batch: int) -> None:
        for row in frame.collect():
            self.burned[row["partition"]] += row["burned"]

    def check(self) -> None:
        """Nothing: a failure is raised by the next order."""

    def process(self) -> dict[str, Any]:
        """Process all files so far; return the CPU seconds burned since the last order, by partition."""
        self.query.processAllAvailable()
        burned = {str(partition): seconds for partition, seconds in self.burned.items()}
        self.burned.clear()
        return burned

    def finish(self) -> dict[str, Any]:
        """Stop the query."""
        self.query.stop()
        return {}


def main() -> None:
    """Follow the orders until the one to finish."""
    directory, plan = read_plan()
    spark = open_session(plan["conf"], "ERROR")
    application = (Overhead if plan["kind"] == "overhead" else Accuracy)(spark, directory)
    verbs = {name: getattr(application, name) for name in ("phase", "process", "finish") if hasattr(application, name)}
    serve(directory, verbs, application.check)
    spark.stop()


if __name__ == "__main__":
    main()
