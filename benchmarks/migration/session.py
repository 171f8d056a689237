"""The stack of one row: Redis, a standalone cluster with an agent on each node, a controller, the application."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.migration.app import NAME
from benchmarks.migration.placements import Placement
from benchmarks.orders import Orders
from rechannel.wire.messages import QueryState
from testbed.session import Session
from testbed.spark_cluster import FULL_JAVA, SparkOptions
from testbed.stack import StackError, standalone

NODES = ("127.0.0.81", "127.0.0.82", "127.0.0.83", "127.0.0.84")
# Nothing is moved but by order, no rest follows, and no order is refused since the machine is busy.
_SECTIONS: dict[str, dict[str, Any]] = {
    "redis": {"timeout": 10.0},
    "controller": {"lease": 45.0},
    "reschedule": {"timeout": 3600.0},
    "gate": {"cooldown": 0.0, "max_utilization": 10.0},
}


class MigrationSession(Session):
    """One query that can be restarted, attached anew and stopped by orders."""

    orders: Orders

    def __init__(self, directory: Path, executor_memory_mb: int) -> None:
        spark = SparkOptions(executor_memory_mb, FULL_JAVA)
        super().__init__(directory, _SECTIONS, standalone(NODES, 1, executor_memory_mb + 100, spark))

    def start_application(self, plan: Mapping[str, Any], conf: Mapping[str, str]) -> None:
        """Start the agents and the application, and wait until its link reports a query with all partitions placed."""
        for node in NODES:
            self.start_agent(node)
        self.orders = Orders(self)
        conf = self.spark_conf("rechannel-migration", 1, len(NODES), **conf)
        self.run_application("benchmarks.migration.app", {**plan, "conf": conf})

    def query(self) -> QueryState | None:
        """Return the query as the link sees it, once all its partitions are placed."""
        report = self.report()
        for query in report.queries if report else []:
            if query.name == NAME and query.active and query.stages and all(query.stages[0].placement):
                return query if query.stages[0].operators else None
        return None

    def attached_since(self, since: float) -> bool:
        """Whether a link that was attached later reports."""
        report = self.report()
        return report is not None and report.attached >= since

    def placement(self) -> dict[int, str]:
        """Wait until the link knows the query, and return the executor of each partition."""
        query: QueryState = self.wait("the link knows the query", self.query)
        return dict(enumerate(query.stages[0].placement))

    def apply(self, moves: Placement, reason: str) -> dict[str, Any]:
        """Order that partitions go to executors; return the decision, or raise StackError with the refusal."""
        query = self.query()
        if query is None:
            raise StackError("the link reports no query")
        stage = query.stages[0].stage
        return self.order_moves({(query.query, stage, at): target for at, target in moves.items()}, reason)
