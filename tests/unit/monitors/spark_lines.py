"""Lines of Spark's EventLoggingListener, with the fields that the reader uses and a few others."""

from __future__ import annotations

import json


def job_start(
    job: int,
    stages: list[tuple[int, list[int], bool]],
    query: str = "q",
    batch: int = 0,
    tasks: int = 2,
    pool: str = "",
    group: str = "run",
) -> bytes:
    infos = [
        {
            "Stage ID": stage,
            "Stage Attempt ID": 0,
            "Number of Tasks": tasks,
            "RDD Info": [
                {"RDD ID": 1, "Name": "MapPartitionsRDD"},
                *([{"RDD ID": 2, "Name": "StateStoreRDD"}] if stateful else []),
            ],
            "Parent IDs": parents,
            "Accumulables": [],
        }
        for stage, parents, stateful in stages
    ]
    properties = {"spark.jobGroup.id": group, "streaming.sql.batchId": str(batch)}
    if query:
        properties["sql.streaming.queryId"] = query
    if pool:
        properties["spark.scheduler.pool"] = pool
    return _line(
        "SparkListenerJobStart",
        {"Job ID": job, "Submission Time": 1000, "Stage Infos": infos, "Properties": properties},
    )


def job_end(job: int) -> bytes:
    return _line(
        "SparkListenerJobEnd", {"Job ID": job, "Completion Time": 3000, "Job Result": {"Result": "JobSucceeded"}}
    )


def stage_end(stage: int, attempt: int = 0, failure: str | None = None, tasks: int = 0) -> bytes:
    info = {
        "Stage ID": stage,
        "Stage Attempt ID": attempt,
        "Number of Tasks": tasks,
        "Accumulables": [
            {"ID": 7, "Name": "number of state store instances", "Value": "2", "Metadata": "sql"},
            {"ID": 8, "Name": "internal.metrics.executorRunTime", "Value": 5},
        ],
    }
    if failure:
        info["Failure Reason"] = failure
    return _line("SparkListenerStageCompleted", {"Stage Info": info})


def task_end(
    stage: int,
    partition: int,
    executor: str,
    task: int = 0,
    reason: str = "Success",
    attempt: int = 0,
    *,
    state: bool = True,
) -> bytes:
    updates = {
        "number of total state rows": 30,
        "memory used by state": 4096,
        "estimated size of state only on current version": 1024,
        "time to commit changes": 250,
        "time to execute Python code": 300,
        "time to initialize Python workers": 20,
        **({"number of state store instances": 1} if state else {}),
    }
    accumulables = [
        {"ID": number, "Name": name, "Update": str(value), "Metadata": "sql"}
        for number, (name, value) in enumerate(updates.items())
    ]
    info = {
        "Task ID": task,
        "Index": partition,
        "Partition ID": partition,
        "Launch Time": 1100,
        "Executor ID": executor,
        "Finish Time": 2100,
        "Accumulables": accumulables,
    }
    read = {"Local Bytes Read": 10, "Remote Bytes Read": 20, "Total Records Read": 5, "Fetch Wait Time": 100}
    metrics = {
        "Executor Run Time": 900,
        "Executor CPU Time": 400_000_000,
        "Shuffle Read Metrics": read,
        "Shuffle Write Metrics": {"Shuffle Bytes Written": 40, "Shuffle Records Written": 6},
        "Input Metrics": {"Records Read": 0},
        "Output Metrics": {"Records Written": 0},
    }
    fields = {"Stage ID": stage, "Stage Attempt ID": attempt, "Task Type": "ResultTask", "Task Info": info}
    return _line("SparkListenerTaskEnd", {**fields, "Task End Reason": {"Reason": reason}, "Task Metrics": metrics})


def progress(batch: int, query: str = "q", rows: int = 10) -> bytes:
    document = {
        "id": query,
        "runId": "run",
        "batchId": batch,
        "durationMs": {"triggerExecution": 1500},
        "sources": [{"numInputRows": rows}],
    }
    return _line("org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent", {"progress": document})


def started(run: str = "run") -> bytes:
    fields: dict[str, object] = {"id": "q", "runId": run}
    return _line("org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent", fields)


def terminated() -> bytes:
    fields: dict[str, object] = {"id": "q", "runId": "run"}
    return _line("org.apache.spark.sql.streaming.StreamingQueryListener$QueryTerminatedEvent", fields)


def executor_added(executor: str, host: str = "h", cores: int = 2, **attributes: str) -> bytes:
    info = {"Host": host, "Total Cores": cores, "Attributes": attributes}
    return _line("SparkListenerExecutorAdded", {"Timestamp": 5000, "Executor ID": executor, "Executor Info": info})


def executor_removed(executor: str) -> bytes:
    return _line("SparkListenerExecutorRemoved", {"Timestamp": 6000, "Executor ID": executor, "Removed Reason": "lost"})


def _line(event: str, fields: dict[str, object]) -> bytes:
    # Spark writes no spaces
    return json.dumps({"Event": event, **fields}, separators=(",", ":")).encode()
