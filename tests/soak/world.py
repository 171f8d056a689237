"""The soak's processes: two drivers with the same queries, each on its own cluster, one of them with Rechannel.

Nothing of it outlives the block, and the run ends by itself: at its time, or when a process of it ends too soon.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from rechannel.wire import keys
from rechannel.wire.messages import LinkReport
from rechannel.wire.redis.errors import StoreError
from testbed.processes import ProcessGroup
from testbed.progress import JsonLines
from testbed.spark_cluster import QUICK_CHECKPOINTS, QUICK_JAVA, SparkOptions, StandaloneCluster
from testbed.stack import Stack, StackError, next_executors, saved_plan, standalone
from tests.soak import queries
from tests.soak.heap import live_heap
from tests.soak.processes import disk, usage

SIDES = ("with", "without")
NODES = {"with": ("127.0.0.81", "127.0.0.82"), "without": ("127.0.0.83", "127.0.0.84")}
CORES = 4  # of each executor, so that no query waits for another's tasks to end
PATIENCE = 600.0  # seconds for the drivers to begin and to end; a busy machine is slow
# The quick compiler alone: the other one is at work for the first hour, and that is no cost of a batch.
# Hadoop starts a process for each file that it makes: as cheaply as can be.
_JAVA = f"{QUICK_JAVA} -Djdk.lang.Process.launchMechanism=VFORK"
_SECTIONS: dict[str, dict[str, Any]] = {
    "cluster": {"name": "soak"},
    "reschedule": {"mode": "observe"},
    "gate": {"max_utilization": 10},
    "migration": {"settle_batches": 2, "rollback": False},
}


class SoakError(StackError):
    """The soak cannot go on; the message says why."""


class World(Stack):
    """Everything that runs. ``collect``: seconds between two collections of garbage in the JVMs."""

    def __init__(self, directory: Path, collect: float) -> None:
        super().__init__(directory, _SECTIONS)
        self._collect = collect
        self._batches = {side: self._lines(side, "batches") for side in SIDES}
        self._count = dict.fromkeys(SIDES, 0)
        self._pids: dict[str, dict[str, Any]] = {}
        self._next_collection = 0.0

    def start(self) -> Self:
        super().start()
        self.start_controller()
        self.clusters = {side: self._open.enter_context(self._cluster(side)) for side in SIDES}
        for node in NODES["with"]:
            self.start_agent(node)
        for side in SIDES:
            plan = {"spark": self._spark(side), "attach": side == "with"}
            self.cluster = self.clusters[side]
            self.start_module("tests.soak.app", self.directory / side, plan)
        self._await_batches()
        return self

    def _cluster(self, side: str) -> StandaloneCluster:
        group = ProcessGroup(self.directory / f"logs-{side}")  # the names of a cluster's processes are always the same
        self._open.enter_context(group)
        cluster = standalone(NODES[side], CORES, 1024, SparkOptions(700, _JAVA, "warn"))
        return cluster(group, self.directory / f"cluster-{side}")

    def _spark(self, side: str) -> dict[str, str]:
        return self.clusters[side].conf(executor_cores=CORES) | {
            "spark.app.name": f"soak-{side}",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "900m",
            # What Spark remembers of jobs, queries and batches is full early, and grows no more after that.
            **dict.fromkeys(
                ("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions"), "100"
            ),
            "spark.ui.retainedTasks": "1000",
            "spark.sql.streaming.numRecentProgressUpdates": "8",
            "spark.sql.streaming.minBatchesToRetain": "10",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            # Batches of ten rows: their code need not be compiled. A file of a checkpoint needs neither a second one
            # with a checksum nor three processes (chmod, readlink) of some 7 ms of CPU each. RocksDB does not run like
            # this: it asks Hadoop for the usual local file system by its class.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
            **QUICK_CHECKPOINTS,
            "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
            "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
        }

    def _await_batches(self) -> None:
        def begun() -> bool:
            self.check()
            return all(len(self.queries_seen(side)) == len(queries.NAMES) for side in SIDES)

        self.wait("every query has a batch", begun, PATIENCE, 1.0)
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
        return {line["query"] for line in self._lines(side, "batches").read()}

    def _lines(self, side: str, name: str) -> JsonLines:
        return JsonLines(self.directory / side / f"{name}.jsonl")

    def batches(self, side: str) -> int:
        """Return how many batches a driver has had; only what is new is read."""
        self._count[side] += len(self._batches[side].read())
        return self._count[side]

    # -- samples --

    def sample(self) -> dict[str, Any]:
        """Return what every process holds now."""
        made: dict[str, Any] = {"at": time.time()}
        collected = time.monotonic() >= self._next_collection
        if collected:
            self._next_collection = time.monotonic() + self._collect
        for side in SIDES:
            executors = [current.pid for current in self.clusters[side].executors()]
            made[side] = {
                "batches": self.batches(side),
                "python": _sum([self.group.processes[side].pid]),
                "jvm": _sum([int(self._pids[side]["jvm"])]),
                "executors": _sum([*executors, *_children(executors)]),
                "jvm_heap": _live_heaps([int(self._pids[side]["jvm"])]) if collected else None,
                "executors_heap": _live_heaps(executors) if collected else None,
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
        names = ("landed", "abandoned", "failed_tasks", "drifted_partitions", "rejected_messages")
        counters = {name: getattr(current[2], name) for name in names} if current is not None else {}
        for side in SIDES:
            (self.directory / side / "stop").touch()
        drivers = {side: self.group.processes.pop(side) for side in SIDES}  # they may end now
        self.wait("both drivers end", lambda: not any(item.alive() for item in drivers.values()), PATIENCE, 0.5)
        self.group.processes.update(drivers)
        made: dict[str, Any] = {"counters": counters}
        for side in SIDES:
            path = self.directory / side / "result.json"
            if not path.exists():
                raise SoakError(f"{side}: ended without a result\n{drivers[side].log_tail(30)}")
            made[side] = json.loads(path.read_text())
            made[side] |= {name: self._lines(side, name).read() for name in ("batches", "starts")}
        left = [path.name for path in (self.directory / "link").glob("rechannel-*")]
        return made | {"left_behind": left}


def _live_heaps(pids: list[int]) -> float | None:
    """Return the bytes of live objects of some JVMs together, None if one of them does not answer."""
    sizes = [live_heap(pid) for pid in pids]
    return None if None in sizes or not sizes else sum(size for size in sizes if size is not None)


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
