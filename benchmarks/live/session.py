"""The cluster that a comparison runs on, from Redis to the application, and the events that can happen to it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.live.situations import NODES, Shape
from benchmarks.workloads.base import Input
from rechannel.wire.codes import MoveState
from rechannel.wire.messages import QueryState
from testbed import session as testbed_session
from testbed.node_cluster import NodeCluster, NodeSpec
from testbed.processes import ProcessGroup, cpu_seconds
from testbed.session import LANDED_OR_ABANDONED
from testbed.spark_cluster import FULL_JAVA, SparkOptions
from testbed.stack import Place, StackError, holders

_SAMPLE = 0.5  # seconds between two samples of the nodes
_MEMORY_MB = 900
_SECTIONS: dict[str, dict[str, Any]] = {
    "redis": {"timeout": 10.0},
    "controller": {"lease": 45.0},
    "link": {"spread": False},  # Spark as it is has nobody who spreads what a lost executor held
    # Variants are asked when it is their turn, and one after the other: no rest follows a migration, and where nodes
    # are held to a fraction of a core all of them are busy by intention.
    "reschedule": {"timeout": 3600.0, "trigger_windows": 0},
    "gate": {"cooldown": 0.0, "max_utilization": 10.0},
}


class PlacedSession(testbed_session.Session):
    """A session whose application names its queries in ``queries.json``."""

    def query(self) -> QueryState | None:
        """Return the first query once all partitions of all queries are placed."""
        return next(iter(self.queries()), None)

    def queries(self) -> list[QueryState]:
        """Return the queries in the order of their names, [] until all partitions of all of them are placed."""
        names = self.directory / "queries.json"
        report = self.report()
        if report is None or not names.exists():
            return []
        active = sorted((query for query in report.queries if query.active), key=lambda query: query.name)
        placed = [
            query
            for query in active
            if query.stages and all(stage.operators and all(stage.placement) for stage in query.stages)
        ]
        return placed if len(placed) == len(active) == len(json.loads(names.read_text())) else []

    def placement(self) -> dict[Place, str]:
        """Return executor by (query, stage, partition)."""
        return holders(self.queries())

    def await_landed(self, decision: Mapping[str, Any]) -> dict[str, int]:
        """Wait until every move of a decision has landed or is given up; returns how many did which."""
        count = len(decision["moves"])
        with contextlib.suppress(StackError):
            self.wait("the moves land", lambda: len(self.moves_in(decision, LANDED_OR_ABANDONED)) >= count, 180.0)
        states = self.moves_in(decision, LANDED_OR_ABANDONED).values()
        landed = sum(state != MoveState.ABANDONED for state in states)
        return {"landed": landed, "given_up": count - landed}

    def finish(self) -> dict[str, Any]:
        """Stop the queries; return what the application wrote about their end."""
        (self.directory / "finish").touch()
        path = self.directory / "end.json"
        self.wait("the audit", path.exists)
        end: dict[str, Any] = json.loads(path.read_text())
        return end


class Session(PlacedSession):
    """A running workload on a running cluster."""

    def __init__(self, directory: Path, shape: Shape, nodes: int) -> None:
        self.shape = shape
        self.names = [f"node{number}" for number in range(1, NODES + 1)]  # of the nodes, in order
        self.samples: list[dict[str, Any]] = []

        def cluster(group: ProcessGroup, path: Path) -> NodeCluster:
            specs = [_node(name, shape) for name in self.names[:nodes]]
            spark = SparkOptions(_MEMORY_MB, FULL_JAVA, "warn")
            return NodeCluster(group, path, specs, spark, rootless=shape.rootless)

        super().__init__(directory, _SECTIONS, cluster)

    @property
    def nodes(self) -> NodeCluster:
        """The nodes that are there at this moment."""
        if self.node_cluster is None:
            raise StackError("the session is not open")
        return self.node_cluster

    # -- the application --

    def start_workload(self, workload: str, source: Input, interval: str) -> None:
        """Start the application and wait until its link reports every query with all its partitions placed."""
        shuffle = {"spark.sql.shuffle.partitions": str(self.shape.partitions)}
        plan = {
            "workload": workload,
            "input": asdict(source),
            "partitions": self.shape.partitions,
            "checkpoint": str(self.directory / "checkpoint"),
            "interval": interval,
            "conf": self.spark_conf("rechannel-live", 1, NODES, **shuffle),
        }
        self.run_application("benchmarks.live.app", plan)

    def executors(self) -> dict[str, str]:
        """Return executor by node, of those that the link knows."""
        report = self.report()
        hosts = {info.host: info.executor for info in (report.executors if report else [])}
        addresses = {name: self.nodes.address(name) for name in self.names if name in self.nodes.nodes}
        return {name: hosts[address] for name, address in addresses.items() if address in hosts}

    def finish(self) -> dict[str, Any]:
        """Lift the quotas, since the audit is not measured, and stop the queries."""
        for name in self.nodes.nodes:
            self.nodes.set_quota(name, None)
        return super().finish()

    # -- placement --

    def place(self, target: Mapping[Place, str], reason: str) -> None:
        """Bring every partition to its executor, by force; StackError when that fails."""
        problem = ""
        for _ in range(3):
            self.wait("the link knows the queries", self.queries)
            self.await_ready()
            now = self.placement()
            moves = {place: executor for place, executor in target.items() if now.get(place) != executor}
            if not moves:
                return
            try:
                decision = self.order_moves(moves, reason)
            except StackError as error:  # refused: it is tried again
                problem = str(error)
                continue
            if self.await_landed(decision)["given_up"]:
                lines = self.journal(decision["decision"])
                reasons = {line["reason"] for line in lines if line["after"] == MoveState.ABANDONED}
                problem = ", ".join(sorted(reasons)) or "some never landed"
            else:
                problem = "they landed, and left again"
        now = self.placement()
        left = sum(now.get(key) != executor for key, executor in target.items())
        if left:
            raise StackError(f"{left} of {len(target)} partitions do not go to their executors: {problem}")

    # -- nodes --

    def hold(self, speeds: Mapping[str, float] | None = None) -> None:
        """Hold every node to its quota, times its speed where one is given."""
        for name, node in self.nodes.nodes.items():
            self.nodes.set_quota(name, (node.limit or self.shape.quota) * (speeds or {}).get(name, 1.0))

    def join(self, name: str) -> None:
        """Have a node come, with its agent and an executor."""
        self.nodes.add(_node(name, self.shape))
        self.start_agent(name)
        self._boot(name, "")

    def leave(self, name: str) -> None:
        """Have a node go outright; Spark runs its partitions elsewhere.

        Not in good order: an executor that ends by SIGTERM in the middle of a batch deletes its files while its tasks
        go on, and Spark's `BypassMergeSortShuffleWriter` takes a file that is gone for one without rows (SPARK-37473).
        """
        self.nodes.remove(name, kill=True)
        self.wait(f"{name} is gone", lambda: len(self.executors()) == len(self.nodes.nodes))
        self.wait_batches(2)

    def kill_executor(self, name: str) -> None:
        """Kill the executor of a node with SIGKILL, and wait for the one that its worker starts instead."""
        before = self.executors()[name]
        self.nodes.set_quota(name, None)
        self.cluster.kill_executor(self.nodes.address(name))
        self._boot(name, before)

    def _boot(self, name: str, before: str) -> None:
        """Wait for a new executor, with all the CPU it can get: what a Java machine takes to boot is not measured."""
        self.wait(f"an executor on {name}", lambda: self.executors().get(name, before) != before)
        self.wait_batches(1)
        self.hold()

    def sample(self) -> dict[str, Any]:
        """Look at every node: bytes it sent, and CPU seconds and resident bytes of its executors and Python workers."""
        traffic, usage, memory = self.nodes.counters(), {}, {}
        for name in list(self.nodes.nodes):
            usage[name], memory[name] = 0.0, 0
            for executor in self.cluster.executors(self.nodes.address(name)):
                process = psutil.Process(executor.pid)
                for one in [process, *process.children(recursive=True)]:  # Python workers are children
                    usage[name] += cpu_seconds(one)
                    memory[name] += one.memory_info().rss
        return {
            "at": time.time(),
            "sent": {name: traffic[name].sent for name in traffic},
            "cpu": usage,
            "memory": memory,
        }

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Look at the nodes again and again while the block runs."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(_SAMPLE):
                with contextlib.suppress(OSError, KeyError, RuntimeError, psutil.Error):  # a node comes or goes
                    self.samples.append(self.sample())

        thread = threading.Thread(target=look, name="sampling", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _node(name: str, shape: Shape) -> NodeSpec:
    speed = shape.speeds[int(name.removeprefix("node")) - 1] if shape.speeds else 1.0
    return NodeSpec(name, speed=speed, quota=shape.quota, link_mbit=shape.link, memory_mb=_MEMORY_MB + 100)


@contextlib.contextmanager
def open_session(directory: Path, shape: Shape, nodes: int) -> Iterator[Session]:
    """Start Redis, the cluster with so many of its nodes, an agent on each of them, and a controller that looks on."""
    with Session(directory, shape, nodes) as session:
        for name in session.names[:nodes]:
            session.start_agent(name)
        session.use_controller({})
        yield session
