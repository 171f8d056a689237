"""A small Rechannel to measure: Redis, a standalone cluster, agents that come and go, the application."""

from __future__ import annotations

from pathlib import Path

from benchmarks.orders import Orders
from testbed.processes import ManagedProcess
from testbed.spark_cluster import FULL_JAVA, SparkOptions
from testbed.stack import Stack, standalone

NODES = ("127.0.0.71", "127.0.0.72")


class MonitorSession(Stack):
    """A stack on two nodes with executors of so many cores, and an application that follows orders."""

    def __init__(self, directory: Path, cores: int) -> None:
        super().__init__(directory, {}, standalone(NODES, cores, 1500, SparkOptions(900, FULL_JAVA, "warn")))
        self.cores = cores

    def start_agents(self) -> list[ManagedProcess]:
        """Start an agent for each node."""
        return [self.start_agent(node) for node in NODES]

    def stop_agents(self) -> None:
        """Stop the agents again."""
        for node in NODES:
            self.group.stop(f"agent-{node}")

    def start_application(self, kind: str, partitions: int, *, stateful: bool = True) -> Orders:
        """Start the application of a kind of measurement; return the orders that it follows."""
        (self.directory / "inbox").mkdir()
        orders = Orders(self)
        (events := self.directory / "events").mkdir()
        conf = {
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.benchmark.stateful": str(stateful).lower(),
            "spark.eventLog.enabled": "true",  # for its cost beside that of the link's own listener
            "spark.eventLog.dir": events.as_uri(),
        }
        conf = self.spark_conf(kind, self.cores, self.cores * len(NODES), **conf)
        self.start_module("benchmarks.monitors.app", self.directory, {"kind": kind, "conf": conf}, "application")
        return orders
