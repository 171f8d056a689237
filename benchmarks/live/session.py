"""The cluster that a comparison runs on, from Redis to the application, and what can be done to it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.live.situations import NODES, Shape
from benchmarks.migration.bench import Bench, BenchError, Place
from benchmarks.workloads.base import Input
from rechannel.conf.loader import load
from rechannel.wire.messages import QueryState
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.node_cluster import NodeCluster
from testbed.nodes import NodeSpec
from testbed.processes import ProcessGroup

__all__ = ["Session", "open_session"]

ROOT = Path(__file__).parents[2]
CONFIG = "rechannel.toml"
_SAMPLE = 0.5  # seconds between two looks at nodes
_SETTLED = {"drained", "killed", "abandoned"}
_MEMORY_MB = 900


@dataclass
class Session(Bench):
    """A running workload on a running cluster."""

    nodes: NodeCluster = field(kw_only=True)
    shape: Shape = field(kw_only=True)
    names: Sequence[str] = field(kw_only=True)  # of the nodes, in order
    samples: list[dict[str, Any]] = field(default_factory=list)
    _queries: int = 0

    # -- the application --

    def start_workload(self, workload: str, given: Input, interval: str) -> None:
        """Start the application and wait until its link reports every query with all its partitions placed."""
        conf = self.nodes.spark.conf(1) | {
            "spark.app.name": "rechannel-live",
            "spark.cores.max": str(NODES),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
            "spark.executorEnv.PYTHONPATH": self.environment["PYTHONPATH"],
            "spark.sql.shuffle.partitions": str(self.shape.partitions),
        }
        plan = {
            "workload": workload,
            "input": asdict(given),
            "partitions": self.shape.partitions,
            "checkpoint": str(self.directory / "checkpoint"),
            "interval": interval,
            "conf": conf,
        }
        (self.directory / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, "-m", "benchmarks.live.app", str(self.directory)]
        self.nodes.start_driver("application", command, self.environment)
        started = self.directory / "queries.json"
        self.wait("the queries are started", started.exists)
        self._queries = len(json.loads(started.read_text()))
        self.wait("the application's link reports", self._reports)

    def query(self) -> QueryState | None:
        """Return the first query once all partitions of all queries are placed."""
        found = self.queries()
        return found[0] if found else None

    def queries(self) -> list[QueryState]:
        """Return the queries in the order of their names, [] until all partitions of all of them are placed."""
        report = self.report()
        known = report.queries if report else []
        active = sorted((query for query in known if query.active), key=lambda query: query.name)
        placed = [
            query
            for query in active
            if query.stages and all(stage.operators and all(stage.placement) for stage in query.stages)
        ]
        return placed if len(placed) == len(active) == self._queries else []

    def executors(self) -> dict[str, str]:
        """Return executor by node, of those that the link knows."""
        report = self.report()
        hosts = {info.host: info.executor for info in (report.executors if report else [])}
        addresses = {name: self.nodes.address(name) for name in self.names if name in self.nodes.nodes}
        return {name: hosts[address] for name, address in addresses.items() if address in hosts}

    def finish(self) -> dict[str, Any]:
        """Stop the queries; returns what the audit found."""
        for name in self.nodes.nodes:  # the audit is not measured
            self.nodes.set_quota(name, None)
        (self.directory / "finish").touch()
        path = self.directory / "end.json"
        self.wait("the audit", path.exists)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    # -- placement --

    def placement(self) -> dict[Place, str]:
        """Return executor by (query, stage, partition)."""
        return {
            (query.query, stage.stage, partition): executor
            for query in self.queries()
            for stage in query.stages
            for partition, executor in enumerate(stage.placement)
        }

    def place(self, wanted: Mapping[Place, str], reason: str) -> None:
        """Have every partition where it is wanted, by force; BenchError when that does not come about."""
        problem = ""
        for _ in range(3):
            self.wait("the link knows the queries", lambda: bool(self.queries()))
            self.await_ready()
            now = self.placement()
            moves = {place: executor for place, executor in wanted.items() if now.get(place) != executor}
            if not moves:
                return
            try:
                decision = self.order_moves(moves, reason)
            except BenchError as error:  # refused: it is tried again
                problem = str(error)
                continue
            if self.await_landed(decision)["given_up"]:
                lines = self.journal(decision["decision"])
                reasons = {line["reason"] for line in lines if line["after"] == "abandoned"}
                problem = ", ".join(sorted(reasons)) or "some never landed"
            else:
                problem = "they landed, and left again"
        now = self.placement()
        left = sum(now.get(key) != executor for key, executor in wanted.items())
        if left:
            raise BenchError(f"{left} of {len(wanted)} partitions do not go where they are wanted: {problem}")

    def await_landed(self, decision: Mapping[str, Any], patience: float = 180.0) -> dict[str, int]:
        """Wait until every move of a decision has landed or is given up; returns how many did which."""
        count = len(decision["moves"])

        def states() -> dict[str, str]:
            lines = self.journal(decision["decision"])
            return {line["move"]: line["after"] for line in lines if line["after"] in _SETTLED}

        with contextlib.suppress(BenchError):
            self.wait("the moves land", lambda: len(states()) >= count, patience)
        landed = sum(state != "abandoned" for state in states().values())
        return {"landed": landed, "given_up": count - landed}

    # -- nodes --

    def hold(self, speeds: Mapping[str, float] | None = None) -> None:
        """Hold every node to its quota, times its speed where one is given."""
        for name, node in self.nodes.nodes.items():
            self.nodes.set_quota(name, (node.limit or self.shape.quota) * (speeds or {}).get(name, 1.0))

    def join(self, name: str) -> None:
        """Have a node come, with its agent and an executor."""
        self.nodes.add(_node(name, self.shape), held=False)
        self.nodes.start_agent(name, self.directory / CONFIG)
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
        self.nodes.spark.kill_executor(self.nodes.address(name))
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
            for executor in self.nodes.spark.executors(self.nodes.address(name)):
                process = psutil.Process(executor.pid)
                for one in [process, *process.children(recursive=True)]:  # Python workers are children
                    times = one.cpu_times()
                    usage[name] += times.user + times.system
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
    private, public = make_keys(directory / "keys")
    names = [f"node{number}" for number in range(1, NODES + 1)]
    specs = [_node(name, shape) for name in names[:nodes]]
    with (
        ProcessGroup(directory / "logs") as group,
        NodeCluster(
            group,
            directory / "cluster",
            specs,
            held=False,
            namespaces=not shape.rootless,
            cgroups=not shape.rootless,
            executor_memory_mb=_MEMORY_MB,
            log_level="warn",
        ) as cluster,
        contextlib.ExitStack() as stack,
    ):
        config = directory / CONFIG
        config.write_text(
            f'[redis]\nurl = "{cluster.start_redis().url}"\ntimeout = 10.0\n[controller]\nlease = 45.0\n'
            f'[signing]\nprivate_key_file = "{private}"\npublic_key_file = "{public}"\n'
            # Spark as it is has nobody who spreads what a lost executor held.
            f'[link]\ndirectory = "{directory / "link"}"\nspread = false\n'
            # Ways are asked when it is their turn, and one after the other: no rest follows a migration, and where
            # nodes are held to a fraction of a core all of them are busy by intention.
            "[reschedule]\ntimeout = 3600.0\noverload_windows = 0\n[gate]\ncooldown = 0.0\nmax_utilization = 10.0\n"
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RECHANNEL_")},
            "RECHANNEL_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", ".")),
        }
        settings = load(config, {})
        store = Store(settings.redis, settings.cluster.name)
        stack.callback(store.close)
        session = Session(
            group, cluster.spark, store, settings, directory, environment, nodes=cluster, shape=shape, names=names
        )
        for name in names[:nodes]:
            cluster.start_agent(name, config)
        session.controller({})
        yield session
