"""One driver that starts and stops a small stateful query again and again: ``python -m tests.soak.starts DIRECTORY``.

``plan.json`` there says how: ``spark`` (settings), ``attach``, ``join`` (a join of two streams in place of a count),
``starts``, ``every`` (starts between two samples) and ``descriptors`` (the limit of this process once its JVM runs; the
JVM has 1,024). Each start is a line of ``starts.jsonl`` with the seconds that ``start()`` and the whole run took, each
sample a line of ``samples.jsonl``.
"""

from __future__ import annotations

import gc
import json
import resource
import time
from typing import Any

from pyspark.sql import SparkSession

import rechannel
from rechannel.migration.spark.gateway import _BoundedClient
from testbed.driver import end_application, open_session, read_plan
from tests.soak import queries
from tests.soak.processes import usage

JVM_DESCRIPTORS = 1024
_SETTLE = 1.0  # seconds for what ends with a query: its stream's thread, its executors' stores


def main() -> None:
    """Start and stop the query as often as it is asked for."""
    directory, plan = read_plan()
    # The JVM inherits this limit and raises the soft one to the hard one by itself.
    resource.setrlimit(resource.RLIMIT_NOFILE, (JVM_DESCRIPTORS, JVM_DESCRIPTORS))
    spark = open_session(plan["spark"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (plan["descriptors"],) * 2)
    link = rechannel.attach(spark, strict=True) if plan["attach"] else None
    if plan["join"]:
        writer = queries.frame(spark, "join").writeStream.format("noop").outputMode("append")
    else:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = rows.groupBy((rows.value % 10).alias("k")).count().writeStream.format("noop").outputMode("update")
    writer = writer.queryName("starts").option("checkpointLocation", str(directory / "checkpoint"))
    starts, samples = (directory / "starts.jsonl").open("w"), (directory / "samples.jsonl").open("w")
    with starts, samples:
        for number in range(1, plan["starts"] + 1):
            began = time.monotonic()
            query = writer.trigger(availableNow=True).start()
            started = time.monotonic()
            query.awaitTermination()
            query.stop()
            _write(starts, {"start": started - began, "run": time.monotonic() - began, "at": time.time()})
            if number % plan["every"] == 0:
                _write(samples, {"starts": number, **sample(spark)})
    end_application(directory, spark, {}, link)


def sample(spark: SparkSession) -> dict[str, float]:
    """Return what Python and the JVM hold once both have collected their garbage."""
    jvm: Any = spark._jvm
    del spark
    gc.collect()
    jvm.System.gc()
    time.sleep(_SETTLE)
    python, java = usage(), usage(jvm.java.lang.ProcessHandle.current().pid())
    assert python is not None and java is not None
    runtime = jvm.java.lang.Runtime.getRuntime()
    return {
        "python threads": python.threads,
        "python descriptors": python.descriptors,
        "python memory": python.memory,
        "jvm threads": java.threads,
        "jvm descriptors": java.descriptors,
        "jvm memory": java.memory,
        "jvm heap": runtime.totalMemory() - runtime.freeMemory(),
        "jvm references": held_for_the_link(),
    }


def held_for_the_link() -> int:
    """Return how many Java objects the JVM holds for the link, without those that its next call releases."""
    gc.collect()  # the link goes on, and its objects in Python refer to each other
    clients = [client for client in gc.get_objects() if type(client) is _BoundedClient]
    return sum(len(client._references.difference(client._garbage)) for client in clients)


def _write(file: Any, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
