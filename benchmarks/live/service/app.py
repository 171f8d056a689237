"""The testbed's Spark application: ``python -m benchmarks.live.service.app DIRECTORY`` runs the ``plan.json`` there.

Each query has a trigger of its own, and a pool of its own where the scheduler is fair. ``active.json`` names those that
are to run, and how often all of them are to have been restarted. A file ``finish`` ends it, and the result of the audit
is then in ``end.json``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

import rechannel
from benchmarks.live.app import Progress
from benchmarks.live.service.cases import Case
from benchmarks.live.service.rows import keys_of, service_feed, service_workload
from benchmarks.workloads.run import audit, start
from rechannel.conf.loader import load
from testbed.driver import failed_attempts, open_session, read_plan, write_answer


def main() -> None:
    """Run until the file ``finish`` exists; then stop every query and audit it."""
    directory, plan = read_plan()
    case = msgspec.convert(plan["case"], Case)
    spark = open_session(plan["conf"], "ERROR")
    progress = Progress(directory / "progress.jsonl")
    spark.streams.addListener(progress)
    link = rechannel.attach(spark, load(), strict=True)
    checkpoint = Path(plan["checkpoint"])
    parts = {}
    for query in case.queries:
        keys = keys_of(spark, query.partitions)
        feed = service_feed(spark, query.rows)
        parts[query.name] = query, feed, service_workload(query, keys, case.service_ms, case.slow, plan["slow_host"])

    def begin(name: str) -> StreamingQuery:
        query, feed, workload = parts[name]
        spark.conf.set("spark.sql.shuffle.partitions", str(query.partitions))
        if case.scheduler == "FAIR":  # without a pool of its own a query shares the default one, which is FIFO
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
        return start(workload, feed, checkpoint, f"{round(query.interval * 1000)} milliseconds")[0]

    _run_to_finish(directory, begin)
    link.detach()
    failed = failed_attempts(spark)
    result: dict[str, Any] = {}
    for name, committed in progress.committed.items():
        _, feed, workload = parts[name]
        result |= audit(workload, feed, checkpoint, {name: committed})
    write_answer(directory / "end.json", {"audit": result, "failed_attempts": failed, "problem": link.problem})
    spark.stop()


def _run_to_finish(directory: Path, begin: Callable[[str], StreamingQuery]) -> None:
    """Run the queries that are to be active until ``finish`` exists; RuntimeError if one ends by itself.

    ``queries.json`` names those that run.
    """
    running: dict[str, StreamingQuery] = {}
    restarts = 0
    while not (directory / "finish").exists():
        order = json.loads((directory / "active.json").read_text())
        restart, restarts = order["restarts"] != restarts, order["restarts"]
        leaving = [name for name in running if restart or name not in order["queries"]]
        for name in leaving:
            running.pop(name).stop()
        coming = [name for name in order["queries"] if name not in running]
        for name in coming:
            running[name] = begin(name)
        if leaving or coming:
            write_answer(directory / "queries.json", list(running))
        for name, query in running.items():
            if not query.isActive:
                raise RuntimeError(f"query {name} ended: {query.exception()}")
        time.sleep(0.2)
    for query in running.values():
        query.stop()


if __name__ == "__main__":
    main()
