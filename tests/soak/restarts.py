"""A driver that runs a stateful query again and again from its checkpoint: ``python -m tests.soak.restarts DIRECTORY``.

``plan.json`` there: ``spark`` (settings), ``restarts``, ``batches`` (of each run, at least) and ``available_now``.
Spark's own event log says afterwards where every task ran.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rechannel
from rechannel.migration.link import initial_placement
from testbed.driver import end_application, open_session, read_plan
from testbed.processes import wait_until

_PATIENCE = 600.0  # seconds for the batches of a run; a busy machine is slow


def main() -> None:
    """Run the query, and run it again as often as it is asked for."""
    directory, plan = read_plan()
    initial_placement._AT_ONCE = 5  # so that the partitions are steered in several parts
    spark = open_session(plan["spark"])
    link = rechannel.attach(spark, strict=True)
    source = directory / "source"
    source.mkdir()
    if plan["available_now"]:
        rows = spark.readStream.schema("value long").option("maxFilesPerTrigger", 1).csv(str(source))
    else:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 200).load()
    counted = rows.groupBy((rows.value % 97).alias("k")).count()
    writer = counted.writeStream.format("noop").outputMode("update").queryName("restarts")
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    for run in range(plan["restarts"] + 1):
        if plan["available_now"]:
            for number in range(plan["batches"]):
                _put(source / f"{run}-{number}.csv")
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination(_PATIENCE)
        else:
            query = writer.trigger(processingTime="0 seconds").start()
            enough = functools.partial(_has_run, query, plan["batches"])
            wait_until(enough, "the batches of a run", _PATIENCE, details=lambda query=query: str(query.exception()))
        query.stop()
    end_application(directory, spark, {}, link)


def _has_run(query: Any, batches: int) -> bool:
    assert query.isActive, query.exception()
    return len([item for item in query.recentProgress if item["numInputRows"]]) >= batches


def _put(path: Path) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text("".join(f"{value}\n" for value in range(200)))
    partial.rename(path)


def placements(events: Iterable[dict[str, Any]]) -> dict[str, dict[int, dict[int, str]]]:
    """Run of a query -> batch -> partition -> the executor that ran its stateful task, in the order of the runs."""
    stages: dict[int, tuple[str, int]] = {}
    result: dict[str, dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
    runs: list[str] = []
    for event in events:
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            properties = event["Properties"]
            # The job's group is the run; stages are named by the RDDs they compute.
            run, batch = properties.get("spark.jobGroup.id"), properties.get("streaming.sql.batchId")
            for stage in event["Stage Infos"]:
                if batch is not None and any(rdd["Name"].startswith("StateStoreRDD") for rdd in stage["RDD Info"]):
                    stages[stage["Stage ID"]] = (run, int(batch))
        elif kind == "SparkListenerTaskEnd" and event["Stage ID"] in stages:
            run, batch = stages[event["Stage ID"]]
            task = event["Task Info"]
            if event["Task End Reason"]["Reason"] == "Success":
                if run not in runs:
                    runs.append(run)
                result[run][batch][task["Partition ID"]] = task["Executor ID"]
    return {run: {batch: dict(result[run][batch]) for batch in sorted(result[run])} for run in runs}


if __name__ == "__main__":
    main()
