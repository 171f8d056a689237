"""Event logs as Spark writes them (``JsonProtocol``, ``EventLoggingListener``), of a streaming query made up here.

Fields, their order and their texts are Spark's, of 3.5 (``version="3.5.8"``) or 4.x. A batch has a stage that reads the
source and one with state, whose tasks run on the executors of ``placement`` for ``seconds`` each.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

QUERY, RUN = "3f5a1c52-0000-4000-8000-000000000001", "3f5a1c52-0000-4000-8000-0000000000aa"
_STREAMING = "org.apache.spark.sql.streaming.StreamingQueryListener$"
_STATE_METRICS = ("number of total state rows", "memory used by state", "time to commit changes")


def line(event: str, **fields: Any) -> bytes:
    """Return one line; Spark writes no spaces, and the name of the event first."""
    fields = {key.replace("_", " "): value for key, value in fields.items()}
    return json.dumps({"Event": event, **fields}, separators=(",", ":")).encode() + b"\n"


def _by_batch(log: SparkLog) -> list[tuple[int, list[bytes]]]:
    """Split a log after the progress of each batch: time of its last task's end, and its lines."""
    groups, lines, end = [], [], 0
    for text in log.lines:
        lines.append(text)
        document = json.loads(text)
        end = document.get("Completion Time", document.get("Timestamp", end))
        if "progress" in document:
            groups.append((end, lines))
            lines = []
    return groups


@dataclass
class SparkLog:
    """An application under way; each method appends the lines of what happens, and ``now`` goes on, in ms."""

    version: str = "4.0.1"
    properties: dict[str, str] = field(default_factory=dict)
    now: int = 1_760_000_000_000
    seed: int = 1
    lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._job = self._stage = self._task = 0
        self.executors: dict[str, int] = {}

    def text(self) -> bytes:
        return b"".join(self.lines)

    def _log(self, event: str, **fields: Any) -> None:
        self.lines.append(line(event, **fields))

    def begin(self, executors: dict[str, int], application: str = "app-20251009105320-0000") -> None:
        self._log("SparkListenerLogStart", Spark_Version=self.version)
        self._log("SparkListenerResourceProfileAdded", Resource_Profile_Id=0)
        self._log(
            "SparkListenerEnvironmentUpdate",
            JVM_Information={"Java Version": "17.0.9 (Debian)"},
            Spark_Properties={"spark.app.name": "clicks", "spark.scheduler.mode": "FIFO", **self.properties},
            Hadoop_Properties={},
            System_Properties={},
            Metrics_Properties={},
            Classpath_Entries={},
        )
        start = {"App_Name": "clicks", "App_ID": application, "Timestamp": self.now, "User": "spark"}
        self._log("SparkListenerApplicationStart", **start)
        for executor, cores in executors.items():
            self.add_executor(executor, cores)

    def add_executor(self, executor: str, cores: int = 1) -> None:
        self.executors[executor] = cores
        info = {"Host": f"10.0.0.{executor}", "Total Cores": cores, "Log Urls": {}, "Attributes": {}, "Resources": {}}
        self._log("SparkListenerExecutorAdded", Timestamp=self.now, Executor_ID=executor, Executor_Info=info)

    def remove_executor(self, executor: str) -> None:
        del self.executors[executor]
        self._log("SparkListenerExecutorRemoved", Timestamp=self.now, Executor_ID=executor, Removed_Reason="lost")

    def batch(
        self,
        number: int,
        placement: Sequence[str],
        seconds: Sequence[float],
        *,
        query: str = QUERY,
        run: str = RUN,
        name: str | None = "clicks",
        stateful: bool = True,
        extra: float = 0.0,
        operators: int | None = None,
        pool: str = "",
    ) -> None:
        """One micro-batch: 0.2 s of planning, a stage of sources, the stage of ``seconds``, 0.1 s of commit."""
        triggered = self.now
        self.now += 200
        self._log(
            "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart",
            executionId=number,
            description=name,
            time=self.now,
            sparkPlanInfo={"nodeName": "WriteToDataSourceV2", "children": [], "metadata": {}, "metrics": []},
        )
        source, state = self._stage, self._stage + 1
        self._stage += 2
        properties = {
            "spark.jobGroup.id": run,
            "spark.job.description": f"{name}\nid = {query}\nrunId = {run}\nbatch = {number}",
            "sql.streaming.queryId": query,
            "streaming.sql.batchId": str(number),
            "spark.sql.execution.id": str(number),
            "__is_continuous_processing": "false",
        }
        if pool:
            properties["spark.scheduler.pool"] = pool
        sources = len(self.executors)
        infos = [self._info(state, len(seconds), [source], stateful=stateful), self._info(source, sources, [])]
        self._log(
            "SparkListenerJobStart",
            Job_ID=self._job,
            Submission_Time=self.now,
            Stage_Infos=infos,
            Stage_IDs=[state, source],
            Properties=properties,
        )
        where = [it for it in self.executors for _ in range(self.executors[it])][:sources]
        rows = np.array([100] * sources)
        self._run(source, [], list(zip(where, [0.05] * sources, rows.tolist(), strict=True)), stateful=False)
        noise = np.exp(self._random.normal(0, 0.03, len(seconds)))
        rows = np.round(np.array(seconds) * 1000).astype(int)
        tasks = list(zip(placement, (np.array(seconds) * noise).tolist(), rows.tolist(), strict=True))
        self._run(state, [source], tasks, stateful=stateful)
        result = {"Result": "JobSucceeded"}
        self._log("SparkListenerJobEnd", Job_ID=self._job, Completion_Time=self.now, Job_Result=result)
        self._job += 1
        self.now += 100 + round(extra * 1000)
        operator = {
            "operatorName": "stateStoreSave",
            "numRowsTotal": 1000,
            "numRowsUpdated": 10,
            "numShufflePartitions": operators or len(seconds),
            "numStateStoreInstances": operators or len(seconds),
            "customMetrics": {},
        }
        progress = {
            "id": query,
            "runId": run,
            "name": name,
            "timestamp": datetime.fromtimestamp(triggered / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "batchId": number,
            "batchDuration": self.now - triggered,
            "durationMs": {"addBatch": self.now - triggered - 300, "triggerExecution": self.now - triggered},
            "eventTime": {},
            "stateOperators": [operator] if stateful else [],
            "sources": [{"description": "KafkaV2", "numInputRows": int(rows.sum()), "metrics": {}}],
            "sink": {"description": "console", "numOutputRows": -1, "metrics": {}},
            "observedMetrics": {},
        }
        self._log(_STREAMING + "QueryProgressEvent", progress=progress)

    def batches(self, count: int, placement: Sequence[str], seconds: Sequence[float], **options: Any) -> None:
        first = options.pop("first", 0)
        for number in range(first, first + count):
            self.batch(number, placement, seconds, **options)

    def side_by_side(self, other: SparkLog) -> None:
        """Append the batches of another log that ran at the same time, each where it ended."""
        groups = sorted([*_by_batch(self), *_by_batch(other)], key=lambda group: group[0])
        self.lines = [text for _, lines in groups for text in lines]

    def beside(self) -> SparkLog:
        """Return a log of the same executors that begins now, with other jobs, stages and tasks."""
        other = SparkLog(self.version, self.properties, self.now, self.seed + 1)
        other.executors = dict(self.executors)
        other._job = other._stage = other._task = 1_000_000
        return other

    def terminate(self, query: str = QUERY, run: str = RUN) -> None:
        errors = {"exception": None, "errorClassOnException": None}
        self._log(_STREAMING + "QueryTerminatedEvent", id=query, runId=run, **errors)

    def end(self) -> None:
        self._log("SparkListenerApplicationEnd", Timestamp=self.now)

    def _info(self, stage: int, tasks: int, parents: list[int], *, stateful: bool = False) -> dict[str, Any]:
        names = ["MapPartitionsRDD", *(["StateStoreRDD"] if stateful else []), "ShuffledRowRDD"]
        rdds = [
            {
                "RDD ID": number,
                "Name": name,
                "Scope": '{"id":"1","name":"StateStoreSave"}',
                "Callsite": "start at <unknown>:0",
                "Parent IDs": [],
                "Storage Level": {"Use Disk": False, "Use Memory": False, "Deserialized": False, "Replication": 1},
                "Barrier": False,
                "DeterministicLevel": "DETERMINATE",
                "Number of Partitions": tasks,
                "Number of Cached Partitions": 0,
                "Memory Size": 0,
                "Disk Size": 0,
            }
            for number, name in enumerate(names)
        ]
        return {
            "Stage ID": stage,
            "Stage Attempt ID": 0,
            "Stage Name": "start at NativeMethodAccessorImpl.java:0",
            "Number of Tasks": tasks,
            "RDD Info": rdds,
            "Parent IDs": parents,
            "Details": "org.apache.spark.sql.streaming.DataStreamWriter.start",
            "Accumulables": [],
            "Resource Profile Id": 0,
            "Shuffle Push Enabled": False,
        }

    def _run(self, stage: int, parents: list[int], tasks: Sequence[tuple[str, float, int]], *, stateful: bool) -> None:
        """Run tasks in the order of their partitions, on the cores of their executors."""
        info = self._info(stage, len(tasks), parents, stateful=stateful) | {"Submission Time": self.now}
        self._log("SparkListenerStageSubmitted", Stage_Info=info, Properties={})
        free = {it: [self.now] * max(1, cores) for it, cores in self.executors.items()}
        ends = []
        for partition, (executor, seconds, rows) in enumerate(tasks):
            start = heapq.heappop(free[executor])
            end = start + max(1, round(seconds * 1000))
            heapq.heappush(free[executor], end)
            ends.append((end, self._task_end(stage, partition, executor, (start, end), rows, stateful=stateful)))
        self.lines += [text for _, text in sorted(ends)]
        self.now = max(end for end, _ in ends)
        ended = info | {"Completion Time": self.now, "Accumulables": []}
        self._log("SparkListenerStageCompleted", Stage_Info=ended)

    def _task_end(
        self, stage: int, partition: int, executor: str, times: tuple[int, int], rows: int, *, stateful: bool
    ) -> bytes:
        values = (rows, 4096, 20) if stateful else ()
        accumulables = [
            {"ID": number, "Name": name, "Update": str(value), "Value": str(value), "Internal": True}
            | {"Count Failed Values": True, "Metadata": "sql"}
            for number, (name, value) in enumerate(
                [*zip(_STATE_METRICS, values, strict=False), *([("number of state store instances", 1)] * stateful)]
            )
        ]
        if not self.version.startswith("4"):  # spark.eventLog.includeTaskMetricsAccumulators came with 4.0
            accumulables.append(
                {"ID": 99, "Name": "internal.metrics.executorRunTime", "Update": 5, "Value": 9}
                | {"Internal": True, "Count Failed Values": True}
            )
        start, end = times
        self._task += 1
        return line(
            "SparkListenerTaskEnd",
            Stage_ID=stage,
            Stage_Attempt_ID=0,
            Task_Type="ResultTask" if stateful else "ShuffleMapTask",
            Task_End_Reason={"Reason": "Success"},
            Task_Info={
                "Task ID": self._task,
                "Index": partition,
                "Attempt": 0,
                "Partition ID": partition,
                "Launch Time": start,
                "Executor ID": executor,
                "Host": f"10.0.0.{executor}",
                "Locality": "PROCESS_LOCAL",
                "Speculative": False,
                "Getting Result Time": 0,
                "Finish Time": end,
                "Failed": False,
                "Killed": False,
                "Accumulables": accumulables,
            },
            Task_Executor_Metrics={"JVMHeapMemory": 0},
            Task_Metrics={
                "Executor Deserialize Time": 1,
                "Executor Run Time": end - start,
                "Executor CPU Time": (end - start) * 900_000,
                "Result Size": 2000,
                "Shuffle Read Metrics": {
                    "Remote Bytes Read": 1000,
                    "Local Bytes Read": 500,
                    "Fetch Wait Time": 0,
                    "Total Records Read": rows if stateful else 0,
                },
                "Shuffle Write Metrics": {"Shuffle Bytes Written": 0 if stateful else 1500},
                "Input Metrics": {"Bytes Read": 0, "Records Read": 0 if stateful else rows},
                "Output Metrics": {"Bytes Written": 0, "Records Written": 0},
                "Updated Blocks": [],
            },
        )
