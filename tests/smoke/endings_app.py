"""A driver whose end is tested: ``python -m tests.smoke.endings_app DIRECTORY``, as ``plan.json`` there says.

``spark`` (settings), ``attach``, ``tick`` (seconds of the watchdog), ``most`` (bytes of events, 0 for the usual limit),
``sessions``: how many sessions are stopped one after the other before the last one runs its query until the file
``stop`` exists, ``hangs``: whether placing a starting query takes for ever, and ``short``: whether the locality wait is
kept short, as after the loss of an executor. ``ready.json``, written once it runs, has ``alive``, the number of stopped
SparkContexts that the JVM still holds, the listeners before attaching, ``callbacks``: whether the JVM can call this
process, and ``starts``: where placing hangs, the seconds that two queries took to start, the second one after the
watchdog's tick.
"""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

from py4j.java_gateway import CallbackServer
from pyspark.sql import SparkSession

import rechannel
from rechannel.migration.link.initial_placement import InitialPlacement
from rechannel.migration.spark import hooks
from testbed.driver import open_session, read_plan, write_answer

_COLLECTIONS = 20  # of garbage, before a context that still lives counts as held


def main() -> None:
    """Run until stopped."""
    directory, plan = read_plan()
    hooks.WATCHDOG_TICK = plan["tick"]
    hooks.MAX_EVENT_BYTES = plan["most"] or hooks.MAX_EVENT_BYTES
    stopped = [session(directory, plan, number) for number in range(plan["sessions"])]
    spark = open_session(plan["spark"])
    query = start(spark, directory / "checkpoint")
    before = listeners(spark._jsparkSession)
    if plan["short"]:  # called every second
        InitialPlacement.restore_wait = lambda own, _: own._adapter.locality_wait.shorten()  # type: ignore[assignment]
    if plan["attach"]:
        rechannel.attach(spark, strict=True)
    starts = []
    if plan["hangs"]:
        InitialPlacement.place_before_first_batch = lambda *_: threading.Event().wait()  # type: ignore[assignment]
        for pause in (0, plan["tick"] + 2):
            time.sleep(pause)
            starts.append(start_seconds(spark, directory / f"checkpoint-{pause}"))
    callbacks = any(isinstance(instance, CallbackServer) for instance in gc.get_objects())
    answer = {"alive": alive(spark, stopped), "listeners": before, "callbacks": callbacks, "starts": starts}
    write_answer(directory / "ready.json", answer)
    while not (directory / "stop").exists():
        time.sleep(0.2)
    query.stop()
    spark.stop()


def session(directory: Path, plan: dict[str, Any], number: int) -> Any:
    """Have a session with a batch, and stop it as a notebook does; returns a weak reference to its SparkContext."""
    spark = open_session(plan["spark"])
    if plan["attach"]:
        rechannel.attach(spark, strict=True)
    start(spark, directory / f"checkpoint-{number}").stop()
    jvm: Any = spark._jvm
    held = jvm.java.lang.ref.WeakReference(spark._jsparkSession.sparkContext())
    spark.stop()
    return held


def start_seconds(spark: SparkSession, checkpoint: Path) -> float:
    """Return how long a query takes to start."""
    begin = time.monotonic()
    query = writer(spark, checkpoint).start()
    took = time.monotonic() - begin
    query.stop()
    return took


def start(spark: SparkSession, checkpoint: Path) -> Any:
    """Start a stateful query and wait for its first batch."""
    query = writer(spark, checkpoint).start()
    while not query.lastProgress:
        time.sleep(0.1)
    return query


def writer(spark: SparkSession, checkpoint: Path) -> Any:
    """Return a stateful query that is to be started."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    result = rows.groupBy((rows.value % 10).alias("k")).count().writeStream.format("noop").outputMode("update")
    return result.option("checkpointLocation", str(checkpoint)).trigger(processingTime="500 milliseconds")


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


if __name__ == "__main__":
    main()
