"""The stack of the smoke tests: a standalone cluster, daemons by generation, applications that can be counted."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rechannel.daemon.view.status_builder import read_status
from rechannel.wire import keys
from rechannel.wire.measurements import BatchReport, MapOutput
from rechannel.wire.redis.errors import StoreError
from testbed.stack import Stack, StackError, standalone

PARTITIONS = 6
PATIENCE = 300.0  # seconds for each stage; a busy box is slow
_SECTIONS: dict[str, dict[str, Any]] = {
    "cluster": {"name": "smoke"},
    "agent": {"window": 2.0},
    "reschedule": {"mode": "apply", "timeout": 5.0, "settle": 3.0, "batches": 2},
    # A busy machine makes executors look saturated; what the tests order must not be refused for that.
    "gate": {"cooldown": 5.0, "max_utilization": 10.0, "min_gain": 0.05, "horizon": 6000.0},
}


class Loop(Stack):
    """A stack with an agent for each of ``nodes``; ``worker``: cores and megabytes of each of the first workers."""

    def __init__(self, directory: Path, nodes: list[str], worker: tuple[int, int]) -> None:
        super().__init__(directory, _SECTIONS, standalone(nodes, *worker))
        self.nodes = list(nodes)

    def start_daemons(self, generation: int) -> None:
        self.start_controller(f"controller-{generation}")
        for node in self.nodes:
            self.start_agent(node, f"agent-{node}-{generation}")

    def start_application(self, name: str, conf: dict[str, str], *, generation: int = 1) -> Path:
        """Start the smoke test's application in a directory of its own; its checkpoints outlive it."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        for stale in ("stop", "result.json"):
            (directory / stale).unlink(missing_ok=True)
        conf = conf | {"spark.app.name": name, "spark.sql.shuffle.partitions": str(PARTITIONS)}
        self.start_module("tests.smoke.app", directory, conf, f"{name}-{generation}")
        return directory

    def stop_application(self, name: str, *, generation: int = 1) -> dict[str, Any]:
        """Have the application end in good order; return what it wrote."""
        (self.directory / name / "stop").touch()
        self.end_driver(f"{name}-{generation}")
        result: dict[str, Any] = json.loads((self.directory / name / "result.json").read_text())
        return result

    def commits(self, name: str) -> list[int]:
        """Return the last committed batch of each query from its checkpoint, without Redis or anything of ours."""
        last = []
        for query in ("counts", "python"):
            commits = (self.directory / name / f"checkpoint-{query}" / "commits").iterdir()
            last.append(max((int(path.name) for path in commits if path.name.isdigit()), default=-1))
        return last

    def wait(self, what: str, ready: Callable[[], bool], patience: float = PATIENCE, every: float = 1.0) -> None:
        """Wait, or fail the test with the logs and the controller's status."""
        try:
            super().wait(what, ready, patience, every)
        except StackError as error:
            pytest.fail(str(error))

    def describe(self) -> str:
        return json.dumps(self.document(), indent=1)

    def document(self) -> dict[str, Any]:
        """Return the answer of `rechannel status --json` without a new process: waiting must not load the box."""
        with self.open_store() as store:
            try:
                return dict(msgspec.to_builtins(read_status(store, self.settings, time.time())))
            except StoreError:
                return {}

    def measured(self, name: str) -> tuple[list[BatchReport], dict[int, MapOutput]]:
        """Return the batches that Redis keeps of an application, and the agents' map outputs by map task."""
        application = self.status(name)["application"]
        with self.open_store() as store:
            batches = [item.body for item in store.last(keys.BATCHES, application, keys.BATCHES.bound)]
            windows = [item.body for node in self.nodes for item in store.last(keys.WINDOWS, node, keys.WINDOWS.bound)]
        outputs = [each for window in windows for each in window.map_outputs if each.application == application]
        return batches, {output.map_task: output for output in outputs}

    def status(self, name: str) -> dict[str, Any]:
        """Return the state of the newest application of a name; one that was killed is listed for a minute."""
        # Ids of a standalone master sort by time.
        named = (row for row in self.document().get("applications", []) if row["name"] == name)
        return max(named, key=lambda row: str(row["application"]), default={"queries": [], "executors": []})

    def entries(self, kind: str) -> list[dict[str, Any]]:
        entries = self.cli("history", "--limit", "1000")[1].get("entries", [])
        return [entry for entry in entries if entry["type"] == kind]

    def states(self) -> list[str]:
        return [entry["after"] for entry in self.entries("move")]


@contextlib.contextmanager
def open_loop(directory: Path, nodes: list[str], worker: tuple[int, int]) -> Iterator[Loop]:
    """Start everything but daemons and applications."""
    with Loop(directory, nodes, worker) as loop:
        yield loop
