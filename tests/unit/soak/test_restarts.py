from __future__ import annotations

from typing import Any

from tests.soak.restarts import placements


def job(stage: int, run: str, batch: int, name: str = "StateStoreRDD") -> dict[str, Any]:
    properties = {"spark.jobGroup.id": run, "streaming.sql.batchId": str(batch)}
    return {
        "Event": "SparkListenerJobStart",
        "Properties": properties,
        "Stage Infos": [{"Stage ID": stage, "RDD Info": [{"Name": name}]}],
    }


def task(stage: int, partition: int, executor: str, reason: str = "Success") -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Task Info": {"Partition ID": partition, "Executor ID": executor},
        "Task End Reason": {"Reason": reason},
    }


def test_a_partitions_place_is_where_its_stateful_task_succeeded() -> None:
    events = [
        job(1, "b", 0, "ShuffledRowRDD"),
        job(2, "b", 0),
        task(1, 0, "9"),
        task(2, 0, "1", "ExecutorLostFailure"),
        task(2, 0, "2"),
        job(3, "a", 1),
        task(3, 0, "0"),
    ]
    assert placements(events) == {"b": {0: {0: "2"}}, "a": {1: {0: "0"}}}
