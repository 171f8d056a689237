"""A small Rechannel to measure: Redis, a standalone cluster, agents that come and go, the application."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.processes import ManagedProcess, ProcessGroup
from testbed.redis_server import RedisServer
from testbed.spark_cluster import StandaloneCluster, WorkerSpec

ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.71", "127.0.0.72")
PATIENCE = 900.0  # seconds for one phase


class BenchError(RuntimeError):
    """The benchmark cannot go on."""


@dataclass
class Bench:
    """What the measurements work with."""

    group: ProcessGroup
    cluster: StandaloneCluster
    settings: Settings
    directory: Path
    environment: dict[str, str]

    def start_agents(self) -> list[ManagedProcess]:
        """Start an agent for each node."""
        command = [sys.executable, "-m", "rechannel", "agent", "--node"]
        return [self.group.start(f"agent-{node}", [*command, node], env=self.environment) for node in NODES]

    def stop_agents(self) -> None:
        """Stop them again."""
        for node in NODES:
            self.group.stop(f"agent-{node}")

    def start_application(self, name: str, plan: dict[str, Any], conf: dict[str, str], cores: int) -> Path:
        """Start the application with a plan; returns its directory."""
        directory = self.directory / name
        (directory / "inbox").mkdir(parents=True)
        conf = self.cluster.conf(cores) | {
            "spark.app.name": name,
            "spark.cores.max": str(cores * len(NODES)),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", ".")),
            "spark.sql.streaming.numRecentProgressUpdates": "1000",
            **conf,
        }
        (directory / "plan.json").write_text(json.dumps({**plan, "conf": conf}))
        command = [sys.executable, "-m", "benchmarks.monitors.app", str(directory)]
        environment = self.cluster.driver_environment() | self.environment
        self.group.start(name, command, env=environment, cwd=ROOT)
        return directory

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Wait until something is so, while all processes live."""
        deadline = time.monotonic() + PATIENCE
        while not ready():
            self.group.check()
            if time.monotonic() > deadline:
                raise BenchError(f"{what}: not within {PATIENCE:g} s")
            time.sleep(0.1)

    def result(self, directory: Path, name: str) -> dict[str, Any]:
        """Wait for what the application writes at its end, and for its end."""
        process = self.group.processes.pop(name)
        deadline = time.monotonic() + PATIENCE
        while process.alive():
            if time.monotonic() > deadline:
                raise BenchError(f"{name} does not end")
            time.sleep(0.1)
        path = directory / "result.json"
        if not path.exists():
            raise BenchError(f"{name} ended without a result:\n{process.log_tail(30)}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        """Redis, read as any other part reads it."""
        store = Store(self.settings.redis, self.settings.cluster.name)
        try:
            yield store
        finally:
            store.close()


@contextlib.contextmanager
def open_bench(directory: Path, cores: int) -> Iterator[Bench]:
    """Start Redis and the cluster; everything is gone when the block ends."""
    directory.mkdir(parents=True)
    _, public = make_keys(directory / "keys")
    with ProcessGroup(directory / "logs") as group:
        redis = RedisServer(group).start()
        config = directory / "rechannel.toml"
        config.write_text(f'[redis]\nurl = "{redis.url}"\n[signing]\npublic_key_file = "{public}"\n')
        environment = {
            **os.environ,
            "RECHANNEL_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", ".")),
        }
        workers = [WorkerSpec(node, cores, 1500, None) for node in NODES]
        with StandaloneCluster(
            group, directory / "cluster", workers, executor_memory_mb=900, log_level="warn"
        ) as cluster:
            yield Bench(group, cluster, load(config, {}), directory, environment)
        redis.close()


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)
