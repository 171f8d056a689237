"""The testbed's Spark application: ``python -m benchmarks.live.service.app DIRECTORY`` runs the ``plan.json`` there.

Each query has a trigger of its own, and a pool of its own where the scheduler is fair. A file ``finish`` ends it, and
the result of the audit is then in ``end.json``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import rechannel
from benchmarks.live.app import Progress, run_to_finish
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
    parts = []
    for query in case.queries:
        keys = keys_of(spark, query.partitions)
        feed = service_feed(spark, query.rows)
        parts.append((query, feed, service_workload(query, keys, case.service_ms)))
    started: list[Any] = []
    for query, feed, workload in parts:
        spark.conf.set("spark.sql.shuffle.partitions", str(query.partitions))
        if case.scheduler == "FAIR":  # without a pool of its own a query shares the default one, which is FIFO
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.name)
        started += start(workload, feed, checkpoint, f"{round(query.interval * 1000)} milliseconds")
    run_to_finish(directory, started)
    link.detach()
    failed = failed_attempts(spark)
    result: dict[str, Any] = {}
    for _, feed, workload in parts:
        result |= audit(workload, feed, checkpoint, {workload.name: progress.committed[workload.name]})
    write_answer(directory / "end.json", {"audit": result, "failed_attempts": failed, "problem": link.problem})
    spark.stop()


if __name__ == "__main__":
    main()
