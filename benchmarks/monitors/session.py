"""A small Rechannel to measure: Redis, a standalone cluster, agents that come and go, the application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from testbed.processes import ManagedProcess, ProcessGroup
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec
from testbed.stack import Stack, StackError

__all__ = ["NODES", "MonitorSession"]

NODES = ("127.0.0.71", "127.0.0.72")
PATIENCE = 900.0  # seconds for one phase


class MonitorSession(Stack):
    """A stack on two nodes with executors of so many cores. The application asks for each phase by a file."""

    def __init__(self, directory: Path, cores: int) -> None:
        def cluster(group: ProcessGroup, path: Path) -> StandaloneCluster:
            workers = [WorkerSpec(node, cores, 1500, None) for node in NODES]
            return StandaloneCluster(group, path, workers, SparkOptions(900, log_level="warn"))

        super().__init__(directory, {}, cluster)
        self.cores = cores

    def start_agents(self) -> list[ManagedProcess]:
        """Start an agent for each node."""
        return [self.start_agent(node) for node in NODES]

    def stop_agents(self) -> None:
        """Stop the agents again."""
        for node in NODES:
            self.group.stop(f"agent-{node}")

    def start_application(self, name: str, plan: dict[str, Any], partitions: int) -> Path:
        """Start the application with a plan; return its directory."""
        directory = self.directory / name
        (directory / "inbox").mkdir(parents=True)
        conf = {
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            "spark.sql.shuffle.partitions": str(partitions),
        }
        conf = self.spark_conf(name, self.cores, self.cores * len(NODES), **conf)
        (directory / "plan.json").write_text(json.dumps({**plan, "conf": conf}))
        self.start_driver(name, ["-m", "benchmarks.monitors.app", str(directory)])
        return directory

    def await_phase(self, application: Path, number: int) -> None:
        """Wait until the application asks for a phase."""
        self.wait(f"phase {number}", (application / f"asks-{number}").exists, PATIENCE)

    def result(self, application: Path) -> dict[str, Any]:
        """Wait for the end of the application, and return its result."""
        process = self.group.processes.pop(application.name)
        self.wait(f"the end of {application.name}", lambda: not process.alive(), PATIENCE)
        path = application / "result.json"
        if not path.exists():
            raise StackError(f"{application.name} ended without a result:\n{process.log_tail(30)}")
        result: dict[str, Any] = json.loads(path.read_text())
        return result
