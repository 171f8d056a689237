"""A driver whose end is tested: ``python -m smoke.endings_app DIRECTORY``, as ``conf.json`` there says.

``spark`` (settings), ``attach``, ``tick`` (seconds of the watchdog) and ``sessions``: how many sessions are stopped
one after the other before the last one runs its query until the file ``stop`` exists. ``ready.json``, written once it
runs, has ``alive``, the number of stopped SparkContexts that the JVM still holds, and the listeners before attaching.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import rechannel
from rechannel.migration.spark import hooks

_COLLECTIONS = 20  # of garbage, before a context that still lives counts as held


def main(directory: Path) -> None:
    """Run until stopped."""
    plan = json.loads((directory / "conf.json").read_text())
    hooks.WATCHDOG_TICK = plan["tick"]
    stopped = [session(directory, plan, number) for number in range(plan["sessions"])]
    spark = open_session(plan)
    query = start(spark, directory / "checkpoint")
    while not query.lastProgress:
        time.sleep(0.1)
    before = listeners(spark._jsparkSession)
    if plan["attach"]:
        rechannel.attach(spark, strict=True)
    write(directory / "ready.json", {"alive": alive(spark, stopped), "listeners": before})
    while not (directory / "stop").exists():
        time.sleep(0.2)
    query.stop()
    spark.stop()


def session(directory: Path, plan: dict[str, Any], number: int) -> Any:
    """Have a session with a batch, and stop it as a notebook does; returns a weak reference to its SparkContext."""
    spark = open_session(plan)
    if plan["attach"]:
        rechannel.attach(spark, strict=True)
    query = start(spark, directory / f"checkpoint-{number}")
    while not query.lastProgress:
        time.sleep(0.1)
    query.stop()
    jvm: Any = spark._jvm
    held = jvm.java.lang.ref.WeakReference(spark._jsparkSession.sparkContext())
    spark.stop()
    return held


def open_session(plan: dict[str, Any]) -> SparkSession:
    """Return a new session."""
    builder = SparkSession.builder
    for key, value in plan["spark"].items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def start(spark: SparkSession, checkpoint: Path) -> Any:
    """Start a stateful query."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    writer = rows.groupBy((rows.value % 10).alias("k")).count().writeStream.format("noop").outputMode("update")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="500 milliseconds").start()


def listeners(session: Any) -> int:
    """Return how many listeners Spark's bus and the streaming queries of a Java session have."""
    return int(session.sparkContext().listenerBus().listeners().size()) + len(session.streams().listListeners())


def alive(spark: SparkSession, references: list[Any]) -> int:
    """Return how many of the referenced objects outlive collections of garbage in Python and the JVM."""
    jvm: Any = spark._jvm
    for _ in range(_COLLECTIONS):
        gc.collect()
        jvm.System.gc()
        count = sum(reference.get() is not None for reference in references)
        if not count:
            break
        time.sleep(0.5)
    return count if references else 0


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a file as a whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(document))
    partial.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
