"""A whole Rechannel on real parts, for tests to talk to: Redis, a standalone cluster, daemons, applications."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.daemon.view.status_builder import read_status
from rechannel.wire import keys
from rechannel.wire.measurements import BatchReport, StreamRow
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer
from testbed.spark_cluster import StandaloneCluster, WorkerSpec

ROOT = Path(__file__).parents[2]
PARTITIONS = 6
PATIENCE = 300.0  # seconds for each stage; a busy box is slow


@dataclass
class Loop:
    """What the tests talk to."""

    group: ProcessGroup
    cluster: StandaloneCluster
    redis: RedisServer
    environment: dict[str, str]
    directory: Path
    nodes: list[str] = field(default_factory=list)

    def start_daemons(self, generation: int) -> None:
        self.start_controller(generation)
        for node in self.nodes:
            self.start_agent(node, generation)

    def start_controller(self, generation: int) -> None:
        command = [sys.executable, "-m", "rechannel", "controller"]
        self.group.start(f"controller-{generation}", command, env=self.environment)

    def start_agent(self, node: str, generation: int) -> None:
        command = [sys.executable, "-m", "rechannel", "agent", "--node", node]
        self.group.start(f"agent-{node}-{generation}", command, env=self.environment)

    def start_application(self, name: str, conf: dict[str, str], *, generation: int = 1) -> Path:
        """Start the smoke test's application in a directory of its own; its checkpoints outlive it."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        for left in ("stop", "result.json"):
            (directory / left).unlink(missing_ok=True)
        conf = conf | {"spark.app.name": name, "spark.sql.shuffle.partitions": str(PARTITIONS)}
        (directory / "conf.json").write_text(json.dumps(conf))
        command = [sys.executable, str(Path(__file__).with_name("app.py")), str(directory)]
        environment = self.cluster.driver_environment() | {
            name: self.environment[name] for name in ("RECHANNEL_CONFIG", "PYTHONPATH")
        }
        self.group.start(f"{name}-{generation}", command, env=environment)
        return directory

    def stop_application(self, name: str, *, generation: int = 1) -> dict[str, Any]:
        """Have it end in good order; returns what it wrote."""
        (self.directory / name / "stop").touch()
        process = self.group.processes.pop(f"{name}-{generation}")  # it may end now
        self.wait(f"{name} ends", lambda: not process.alive())
        result: dict[str, Any] = json.loads((self.directory / name / "result.json").read_text())
        return result

    def commits(self, name: str) -> list[int]:
        """The last committed batch of each query, off its checkpoint: needs neither Redis nor anything of ours."""
        found = []
        for query in ("counts", "python"):
            commits = (self.directory / name / f"checkpoint-{query}" / "commits").iterdir()
            found.append(max((int(path.name) for path in commits if path.name.isdigit()), default=-1))
        return found

    def cli(self, *words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "rechannel", *words, "--json"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            self.group.check()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {name}\n{item.log_tail(15)}" for name, item in self.group.processes.items())
                pytest.fail(f"{what}: not within {PATIENCE:g} s\n{logs}\n{json.dumps(self.document(), indent=1)}")
            time.sleep(1.0)

    def document(self) -> dict[str, Any]:
        """What `rechannel status --json` says, asked for without a new process: waiting must not load the box."""
        with self.store() as (store, settings):
            try:
                return msgspec.to_builtins(read_status(store, settings, time.time()))
            except StoreError:
                return {}

    @contextlib.contextmanager
    def store(self) -> Iterator[tuple[Store, Settings]]:
        settings = load(Path(self.environment["RECHANNEL_CONFIG"]), {})
        store = Store(settings.redis, settings.cluster.name)
        yield store, settings
        store.close()

    def measured(self, name: str) -> tuple[list[BatchReport], dict[int, StreamRow]]:
        """The batches that Redis keeps of an application, and the agents' stream rows by map task."""
        application = self.status(name)["application"]
        with self.store() as (store, _):
            batches = [item.body for item in store.last(keys.BATCHES, application, keys.BATCHES.bound)]
            windows = [item.body for node in self.nodes for item in store.last(keys.WINDOWS, node, keys.WINDOWS.bound)]
        rows = [row for window in windows for row in window.streams if row.application == application]
        return batches, {row.map_task: row for row in rows}

    def status(self, name: str) -> dict[str, Any]:
        applications = self.document().get("applications", [])
        return next((row for row in applications if row["name"] == name), {"queries": [], "executors": []})

    def entries(self, kind: str) -> list[dict[str, Any]]:
        found = self.cli("history", "--limit", "1000")[1].get("entries", [])
        return [entry for entry in found if entry["type"] == kind]

    def states(self) -> list[str]:
        return [entry["after"] for entry in self.entries("move")]


@contextlib.contextmanager
def open_loop(directory: Path, nodes: list[str], worker: tuple[int, int]) -> Iterator[Loop]:
    """Start everything but applications; ``worker``: cores and megabytes of each of the nodes' workers."""
    private, public = make_keys(directory / "keys")
    with ProcessGroup(directory / "logs") as group:
        redis = RedisServer(group).start()
        config = directory / "rechannel.toml"
        config.write_text(
            f"""
            [cluster]
            name = "smoke"
            [redis]
            url = "{redis.url}"
            [signing]
            private_key_file = "{private}"
            public_key_file = "{public}"
            [agent]
            sample = 0.5
            window = 2.0
            [link]
            directory = "{directory / "link"}"
            [reschedule]
            mode = "apply"
            timeout = 5.0
            settle = 3.0
            batches = 2
            [gate]
            cooldown = 5.0
            move_cost = 0.1
            """
        )
        environment = {**os.environ, "RECHANNEL_CONFIG": str(config), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        workers = [WorkerSpec(node, *worker, None) for node in nodes]
        with StandaloneCluster(group, directory / "cluster", workers) as cluster:
            yield Loop(group, cluster, redis, environment, directory, list(nodes))
        redis.close()
