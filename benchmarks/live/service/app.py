"""The testbed's Spark application: ``python -m benchmarks.live.service.app DIRECTORY`` runs the ``plan.json`` there.

Each query has a trigger of its own, and a pool of its own where the scheduler is fair. ``active.json`` names those that
are to run, and how often all of them are to have been restarted. A file ``finish`` ends it, and the result of the audit
is then in ``end.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql.streaming.query import StreamingQuery

import rechannel
from benchmarks.live.app import Progress, run_to_finish
from benchmarks.live.service.cases import Case
from benchmarks.live.service.rows import hashed_per_ms, keys_of, service_feed, service_workload
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
    kilobytes = hashed_per_ms(spark) if case.burned else 0.0
    for query in case.queries:
        keys = keys_of(spark, query.partitions)
        feed = service_feed(spark, query.rows)
        parts[query.name] = query, feed, service_workload(query, keys, case, plan["slow_host"], kilobytes)

    def begin(name: str) -> StreamingQuery:
        query, feed, workload = parts[name]
        spark.conf.set("spark.sql.shuffle.partitions", str(query.partitions))
        if case.scheduler == "FAIR":  # without a pool of its own a query shares the default one, which is FIFO
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
        return start(workload, feed, checkpoint, f"{round(query.interval * 1000)} milliseconds")[0]

    orders = _Orders(directory / "active.json", begin)
    run_to_finish(directory, orders.running, orders.carry_out)
    link.detach()
    failed = failed_attempts(spark)
    result: dict[str, Any] = {}
    for name, committed in progress.committed.items():
        _, feed, workload = parts[name]
        result |= audit(workload, feed, checkpoint, {name: committed})
    write_answer(directory / "end.json", {"audit": result, "failed_attempts": failed, "problem": link.problem})
    spark.stop()


class _Orders:
    """Orders in ``active.json``: the queries that are to run. ``begin`` starts one by its name."""

    def __init__(self, path: Path, begin: Callable[[str], StreamingQuery]) -> None:
        self.running: dict[str, StreamingQuery] = {}
        self._path, self._begin = path, begin
        self._restarts = 0

    def carry_out(self) -> bool:
        """Stop and start queries; returns whether there were any to stop or start."""
        order = json.loads(self._path.read_text())
        restart, self._restarts = order["restarts"] != self._restarts, order["restarts"]
        leaving = [name for name in self.running if restart or name not in order["queries"]]
        for name in leaving:
            self.running.pop(name).stop()
        coming = [name for name in order["queries"] if name not in self.running]
        for name in coming:
            self.running[name] = self._begin(name)
        return bool(leaving or coming)


if __name__ == "__main__":
    main()
