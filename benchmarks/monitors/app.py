"""The benchmark's Spark application: ``python -m benchmarks.monitors.app DIRECTORY`` runs the ``plan.json`` there.

It and the benchmark talk by files: the application touches ``asks-<n>`` when phase n may be prepared, and goes on when
``ready-<n>`` is there.
"""

from __future__ import annotations

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
from testbed.driver import open_session, read_plan, write_answer

SETTLE = 3  # batches after a phase begins that do not count
ROWS = 20_000
KEYS = 4999


def burn(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Use the CPU that this key's rows ask for, and tell how much it was and in which partition."""
    before = time.thread_time()
    seconds = sum(float(frame["cost"].sum()) for frame in frames)
    while time.thread_time() - before < seconds:
        pass
    context = TaskContext.get()
    partition = context.partitionId() if context else -1
    state.update((key[0],))
    yield pd.DataFrame({"partition": [partition], "burned": [time.thread_time() - before]})


class Handshake:
    """The files by which application and benchmark wait for each other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def next(self, number: int) -> None:
        """Ask for phase ``number`` and wait until it is prepared."""
        (self.directory / f"asks-{number}").touch()
        while not (self.directory / f"ready-{number}").exists():
            time.sleep(0.1)


class DriverCpu:
    """CPU seconds of this process and of its JVM so far."""

    def __init__(self) -> None:
        own = psutil.Process()
        (java,) = [child for child in own.children() if child.name() == "java"]
        self._processes = {"python": own, "jvm": java}

    def __call__(self) -> dict[str, float]:
        """Return what both used."""
        used = {name: process.cpu_times() for name, process in self._processes.items()}
        return {name: times.user + times.system for name, times in used.items()}


def overhead(spark: SparkSession, plan: dict[str, Any], handshake: Handshake) -> dict[str, Any]:
    """Run batches back to back, in phases without and with link and agents, by turns; without at both ends."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    counts = rows.groupBy((F.col("value") % KEYS).alias("k")).count()
    writer = counts.writeStream.outputMode("update").format("noop").trigger(processingTime="0 seconds")
    driver_cpu = DriverCpu()
    query = writer.option("checkpointLocation", str(handshake.directory / "checkpoint")).start()
    phases = []

    def batch() -> int:
        progress = query.lastProgress
        return -1 if progress is None else int(progress["batchId"])

    def wait(until: int) -> None:
        while batch() < until:
            if not query.isActive:
                raise RuntimeError(f"the query ended: {query.exception()}")
            time.sleep(0.2)

    wait(plan["warm_up"])
    for number in range(2 * plan["rounds"] + 1):
        on = number % 2 == 1
        link = rechannel.attach(spark, strict=True) if on else None
        handshake.next(number)
        first = batch() + SETTLE
        wait(first)
        before, began = driver_cpu(), time.time()
        wait(first + plan["batches"])
        after, ended = driver_cpu(), time.time()
        took = {int(item["batchId"]): item["durationMs"]["triggerExecution"] for item in query.recentProgress}
        counted = [took[item] / 1000 for item in range(first + 1, first + plan["batches"] + 1) if item in took]
        cpu = {name: (after[name] - before[name]) / plan["batches"] for name in before}
        phases.append({"on": on, "seconds": counted, "cpu": cpu, "period": (ended - began) / plan["batches"]})
        if link is not None:
            link.detach()
            if link.problem:
                raise RuntimeError(link.problem)
    handshake.next(2 * plan["rounds"] + 1)
    query.stop()
    return {"phases": phases}


def accuracy(spark: SparkSession, plan: dict[str, Any], handshake: Handshake) -> dict[str, Any]:
    """Burn known CPU in Python state; an idle pause before and after keeps other work out of the windows."""
    rechannel.attach(spark, strict=True)
    burned: Counter[int] = Counter()
    batches: list[int] = []

    def keep(frame: DataFrame, batch: int) -> None:
        for row in frame.collect():
            if batch >= plan["warm_up"]:
                burned[row["partition"]] += row["burned"]
        batches.append(batch)

    reader = spark.readStream.schema("k long, cost double").option("maxFilesPerTrigger", 1)
    rows = reader.json(str(handshake.directory / "inbox"))
    state = rows.groupBy("k").applyInPandasWithState(
        burn, "partition int, burned double", "k long", "update", GroupStateTimeout.NoTimeout
    )
    writer = state.writeStream.outputMode("update").foreachBatch(keep)
    query = writer.option("checkpointLocation", str(handshake.directory / "checkpoint")).start()
    for number in range(3):  # warm up, measure, end
        query.processAllAvailable()
        handshake.next(number)
    query.stop()
    return {"burned": {str(partition): seconds for partition, seconds in burned.items()}, "batches": len(batches)}


def main() -> None:
    """Run the plan and leave ``result.json``."""
    directory, plan = read_plan()
    spark = open_session(plan["conf"], "ERROR")
    result = {"overhead": overhead, "accuracy": accuracy}[plan["kind"]](spark, plan, Handshake(directory))
    write_answer(directory / "result.json", result)
    spark.stop()


if __name__ == "__main__":
    main()
