"""The soak's processes: two drivers with the same queries, each on its own cluster, one of them with us.

Nothing of it outlives the block, and the run ends by itself: at its time, or when a process of it ends too soon.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from rechannel.wire import keys
from rechannel.wire.messages import LinkReport
from rechannel.wire.redis.errors import StoreError
from testbed.processes import ProcessGroup
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec
from testbed.stack import Stack, next_executors, saved_plan
from tests.soak import queries
from tests.soak.drivers import start_driver
from tests.soak.processes import disk, usage

SIDES = ("with", "without")
NODES = {"with": ("127.0.0.81", "127.0.0.82"), "without": ("127.0.0.83", "127.0.0.84")}
CORES = 4  # of each executor, so that no query waits for another's tasks to end
PATIENCE = 600.0  # seconds for the drivers to begin and to end; a busy machine is slow
# The quick compiler alone: the other one is at work for the first hour, and that is no cost of a batch.
# Hadoop starts a process for each file that it makes: as cheaply as can be.
_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djdk.lang.Process.launchMechanism=VFORK"
# Queries begin as Spark places them, on both sides: what is compared is attaching and moving, not two placements.
_SECTIONS: dict[str, dict[str, Any]] = {
    "cluster": {"name": "soak"},
    "link": {"spread": False},
    "reschedule": {"mode": "observe"},
    "gate": {"max_utilization": 10},
    "migration": {"settle_batches": 2, "rollback": False},
}


class SoakError(RuntimeError):
    """The soak cannot go on; the message says why."""


class World(Stack):
    """Everything that runs. ``collect``: seconds between two collections of garbage in the drivers' JVMs."""

    def __init__(self, directory: Path, collect: float) -> None:
        super().__init__(directory, _SECTIONS)
        self._collect = collect
        self._read: dict[Path, tuple[int, int]] = {}
        self._pids: dict[str, dict[str, Any]] = {}

    def start(self) -> Self:
        super().start()
        self.start_controller()
        self.clusters = {side: self._open.enter_context(self._cluster(side)) for side in SIDES}
        for node in NODES["with"]:
            self.start_agent(node)
        for side in SIDES:
            options = {"spark": self._spark(side), "attach": side == "with", "collect": self._collect}
            config = {"RECHANNEL_CONFIG": str(self.config)} if side == "with" else {}
            start_driver(self.group, self.clusters[side], "app", self.directory / side, options, **config)
        self._await_batches()
        return self

    def _cluster(self, side: str) -> StandaloneCluster:
        group = ProcessGroup(self.directory / f"logs-{side}")  # the names of a cluster's processes are always the same
        self._open.enter_context(group)
        workers = [WorkerSpec(node, CORES, 1024) for node in NODES[side]]
        return StandaloneCluster(
            group,
            self.directory / f"cluster-{side}",
            workers,
            SparkOptions(700, _JAVA, "warn"),
        )

    def _spark(self, side: str) -> dict[str, str]:
        return self.clusters[side].conf(executor_cores=CORES) | {
            "spark.app.name": f"soak-{side}",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "900m",
            "spark.driver.extraJavaOptions": _JAVA,
            # What Spark remembers of jobs, queries and batches is full early, and grows no more after that.
            **dict.fromkeys(
                ("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "100"
            ),
            "spark.ui.retainedTasks": "1000",
            "spark.sql.streaming.numRecentProgressUpdates": "20",
            "spark.sql.streaming.minBatchesToRetain": "10",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            # Batches of ten rows: their code need not be compiled, and each file needs no second one with a checksum,
            # for which the local file system starts a process.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
            "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        }

    def _await_batches(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not all(len(self.queries_seen(side)) == len(queries.NAMES) for side in SIDES):
            self.check()
            if time.monotonic() > deadline:
                tails = "\n".join(f"--- {side}\n{self.group.processes[side].log_tail(20)}" for side in SIDES)
                raise SoakError(f"not every query has a batch after {PATIENCE:g} s\n{tails}")
            time.sleep(1.0)
        self._pids = {side: json.loads((self.directory / side / "pids.json").read_text()) for side in SIDES}

    def check(self) -> None:
        """Raise if a process ended on its own; of a driver with what its queries failed of."""
        for side in SIDES:
            path = self.directory / side / "result.json"
            if path.exists():
                current = json.loads(path.read_text())
                texts = [current["problem"], *current["exceptions"].values()]
                raise SoakError(f"{side}: ended too soon: {' '.join(text[:1000] for text in texts if text)}")
        self.group.check()

    def queries_seen(self, side: str) -> set[str]:
        """Return the queries of a driver that have had a batch."""
        return {line["query"] for line in read_lines(self.directory / side / "batches.jsonl")}

    def batches(self, side: str) -> int:
        """Return how many batches a driver has had; only what is new is read."""
        path = self.directory / side / "batches.jsonl"
        offset, count = self._read.get(path, (0, 0))
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._read[path] = (offset + end, count + text.count(b"\n"))
        return self._read[path][1]

    # -- samples --

    def sample(self) -> dict[str, Any]:
        """Return what every process holds now."""
        made: dict[str, Any] = {"at": time.time()}
        for side in SIDES:
            executors = [current.pid for current in self.clusters[side].executors()]
            made[side] = {
                "batches": self.batches(side),
                "python": _sum([self.group.processes[side].pid]),
                "jvm": _sum([int(self._pids[side]["jvm"])]),
                "executors": _sum([*executors, *_children(executors)]),
                "disk": disk(self.clusters[side].directory)
                + (disk(self.directory / "link") if side == "with" else 0)
                + disk(self.directory / f"logs-{side}"),
            }
        ours = {name: process.pid for name, process in self.group.processes.items()}
        made["ours"] = {
            "controller": _sum([ours["controller"]]),
            "agents": _sum([pid for name, pid in ours.items() if name.startswith("agent-")]),
            "redis": _sum([pid for name, pid in ours.items() if name.startswith("redis")]),
        }
        return made

    # -- moves --

    def report(self) -> tuple[str, float, LinkReport] | None:
        """Return the newest report of the link: application, time, body."""
        try:
            with self.open_store() as store:
                current = store.get(keys.REPORT, self._pids["with"]["application"])
        except StoreError:
            return None
        if current is None or not isinstance(current.body, LinkReport):
            return None
        return str(self._pids["with"]["application"]), current.time, current.body

    def move(self) -> str:
        """Have every partition go to the other executor; "" or why that was refused."""
        current = self.report()
        if current is None:
            return "the link has not reported"
        application, _, report = current
        # A run of the loop is over before a plan for it is read.
        lasting = msgspec.structs.replace(report, queries=[q for q in report.queries if q.name != queries.LOOP])
        targets = next_executors(lasting)
        path = self.directory / "plan.json"
        path.write_text(json.dumps(saved_plan(self.settings.cluster.name, application, lasting, targets)))
        try:
            code, answer = self.cli("apply", str(path), "--force", "--reason", "soak", patience=120)
        except subprocess.TimeoutExpired:
            return "no answer within 120 s"
        return "" if code == 0 else str(answer)[-500:]

    # -- the end --

    def stop(self) -> dict[str, Any]:
        """Have both drivers end in good order; returns what they wrote, and the link's last counters."""
        current = self.report()
        counters = dict(_counters(current[2])) if current is not None else {}
        for side in SIDES:
            (self.directory / side / "stop").touch()
        drivers = {side: self.group.processes.pop(side) for side in SIDES}  # they may end now
        deadline = time.monotonic() + PATIENCE
        while any(process.alive() for process in drivers.values()) and time.monotonic() < deadline:
            time.sleep(0.5)
        self.group.processes.update(drivers)
        made: dict[str, Any] = {"counters": counters}
        for side in SIDES:
            path = self.directory / side / "result.json"
            if not path.exists():
                raise SoakError(f"{side}: ended without a result\n{drivers[side].log_tail(30)}")
            made[side] = json.loads(path.read_text())
            made[side] |= {
                name: read_lines(self.directory / side / f"{name}.jsonl") for name in ("batches", "starts", "heap")
            }
        left = [path.name for path in (self.directory / "link").glob("rechannel-*")]
        return made | {"left_behind": left}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that is still written."""
    try:
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    except FileNotFoundError:
        return []


def _counters(report: LinkReport) -> Iterator[tuple[str, int]]:
    for name in ("landed", "abandoned", "failed_tasks", "drifted_partitions", "rejected_messages"):
        value = getattr(report, name, None)
        if isinstance(value, int):
            yield name, value


def _children(pids: list[int]) -> list[int]:
    current = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            current += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return current


def _sum(pids: list[int]) -> dict[str, float]:
    """Return what some processes hold together."""
    held = [current for pid in pids if (current := usage(pid)) is not None]
    return {
        "memory": sum(item.memory for item in held),
        "threads": sum(item.threads for item in held),
        "descriptors": sum(item.descriptors for item in held),
        "cpu": sum(item.cpu for item in held),
    }
