"""The stack of tests, demo and benchmarks: Redis, a Spark cluster, Rechannel's controller and agents, and drivers.

A stack starts the parts that it is given, waits until they can be used, and stops all of them when its block ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.wire import keys
from rechannel.wire.messages import ControllerState, LinkReport, QueryState
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import make_keys
from testbed.node_cluster import NodeCluster
from testbed.processes import PYTHON_PATH, ROOT, Block, ManagedProcess, ProcessGroup, wait_until
from testbed.redis_server import RedisServer
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec

PATIENCE = 600.0  # seconds; a busy machine is slow
_DEFAULT_SPARK = SparkOptions()

Sections = Mapping[str, Mapping[str, Any]]
Place = tuple[str, int, int]  # query, stage, partition
ClusterFactory = Callable[[ProcessGroup, Path], StandaloneCluster | NodeCluster]


class StackError(RuntimeError):
    """A part of the stack did not do in time what was waited for."""


def write_config(directory: Path, redis_url: str, sections: Sections, name: str = "rechannel.toml") -> Path:
    """Write a configuration with the address of Redis, the directory's pair of keys, and further sections."""
    signing = directory / "keys"
    if not signing.exists():
        make_keys(signing)
    common: dict[str, dict[str, Any]] = {
        "redis": {"url": redis_url},
        "signing": {
            "private_key_file": str(signing / "signing.key"),
            "public_key_file": str(signing / "signing.pub"),
        },
        "link": {"directory": str(directory / "link")},
    }
    lines = []
    for section in dict.fromkeys([*common, *sections]):
        lines.append(f"[{section}]")
        values = {**common.get(section, {}), **sections.get(section, {})}
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    path = directory / name
    path.write_text("\n".join([*lines, ""]))
    return path


def standalone(
    nodes: Sequence[str], cores: int, memory_mb: int, options: SparkOptions = _DEFAULT_SPARK
) -> Callable[[ProcessGroup, Path], StandaloneCluster]:
    """Return what makes a cluster of nodes that are equal, without quotas."""

    def cluster(group: ProcessGroup, directory: Path) -> StandaloneCluster:
        workers = [WorkerSpec(node, cores, memory_mb) for node in nodes]
        return StandaloneCluster(group, directory, workers, options)

    return cluster


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with our modules on the path and without settings of Rechannel."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RECHANNEL_")}
    return {**inherited, "PYTHONPATH": PYTHON_PATH, **variables}


def holders(queries: Iterable[QueryState]) -> dict[Place, str]:
    """Return the executor of each partition."""
    return {
        (query.query, stage.stage, partition): executor
        for query in queries
        for stage in query.stages
        for partition, executor in enumerate(stage.placement)
    }


def next_executors(report: LinkReport) -> dict[Place, str]:
    """Return, of every partition on an executor of the report, the executor after its own."""
    names = [executor.executor for executor in report.executors]
    following = dict(zip(names, [*names[1:], *names[:1]], strict=True))
    return {place: following[holder] for place, holder in holders(report.queries).items() if holder in following}


def saved_plan(cluster: str, application: str, report: LinkReport, targets: Mapping[Place, str]) -> dict[str, Any]:
    """Return a plan as ``rechannel apply`` reads it: the executor to which each partition goes."""
    sources = holders(report.queries)
    moves = [
        {"query": place[0], "stage": place[1], "partition": place[2], "source": sources[place], "target": target}
        for place, target in targets.items()
    ]
    return {
        "format": 1,
        "cluster": cluster,
        "application": application,
        "decision": "by-hand",
        "at": time.time(),
        "executors": {executor.executor: executor.host for executor in report.executors},
        "runs": {query.query: query.run for query in report.queries},
        "moves": moves,
    }


class Stack(Block):
    """Redis, and, where asked for, a Spark cluster; controller, agents and drivers are started by method.

    ``directory``: of logs, keys, configuration and everything that the parts write; ``sections``: settings of Rechannel
    beside the address of Redis, the keys and the link's directory; ``cluster``: makes the cluster, None for a stack
    without Spark.
    """

    redis: RedisServer
    cluster: StandaloneCluster
    settings: Settings
    config: Path
    environment: dict[str, str]

    def __init__(
        self,
        directory: Path,
        sections: Sections,
        cluster: ClusterFactory | None = None,
        redis_options: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.group = ProcessGroup(directory / "logs")
        self.node_cluster: NodeCluster | None = None
        self._sections = sections
        self._make_cluster = cluster
        self._redis_options = redis_options
        self._open = contextlib.ExitStack()

    def start(self) -> Self:
        """Start the cluster, then Redis; write the configuration."""
        self._open.enter_context(self.group)
        if self._make_cluster is not None:
            cluster = self._make_cluster(self.group, self.directory / "cluster")
            self._open.enter_context(cluster)
            self.node_cluster = cluster if isinstance(cluster, NodeCluster) else None
            self.cluster = cluster.spark if isinstance(cluster, NodeCluster) else cluster
        if self.node_cluster is not None:
            self.redis = self.node_cluster.start_redis(self._redis_options)
        else:
            self.redis = self._open.enter_context(RedisServer(self.group, options=self._redis_options))
        self.config = write_config(self.directory, self.redis.url, self._sections)
        self.settings = load(self.config, {})
        self.environment = clean_environment(RECHANNEL_CONFIG=str(self.config))
        return self

    def close(self) -> None:
        """Stop every part; logs and output stay in the directory."""
        self._open.close()

    # -- parts --

    def start_controller(self, name: str = "controller", **environment: str) -> ManagedProcess:
        """Start a controller; :meth:`await_leader` waits until it leads."""
        return self._start_ours(name, ["controller"], environment)

    def await_leader(self, since: float) -> None:
        """Wait until a controller has led later than ``since``."""

        def leads() -> bool:
            with self.open_store() as store:
                state = store.get(keys.STATE)
            return state is not None and isinstance(state.body, ControllerState) and state.time > since

        self.wait("a controller leads", leads, 60.0)

    def start_agent(self, node: str, name: str = "", **environment: str) -> ManagedProcess:
        """Start the agent of a node, in the node where nodes are namespaces."""
        if self.node_cluster is not None:
            return self.node_cluster.start_agent(node, self.config)
        return self._start_ours(name or f"agent-{node}", ["agent", "--node", node], environment)

    def _start_ours(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> ManagedProcess:
        command = [sys.executable, "-m", "rechannel", *arguments]
        return self.group.start(name, command, env={**self.environment, **environment})

    def start_driver(self, name: str, command: Sequence[str], **environment: str) -> ManagedProcess:
        """Start a Python program as a driver, which finds our modules and the configuration."""
        ours = ("RECHANNEL_CONFIG", "PYTHONPATH")
        variables = {key: value for key, value in self.environment.items() if key in ours} | environment
        if self.node_cluster is not None:
            return self.node_cluster.start_driver(name, [sys.executable, *command], variables)
        variables = self.cluster.driver_environment() | variables
        return self.group.start(name, [sys.executable, *command], env=variables, cwd=ROOT)

    def start_module(
        self, module: str, directory: Path, plan: Mapping[str, Any], name: str = "", **environment: str
    ) -> ManagedProcess:
        """Start a module as a driver whose directory holds its plan, by default under the directory's name."""
        directory.mkdir(exist_ok=True)
        (directory / "plan.json").write_text(json.dumps(plan))
        return self.start_driver(name or directory.name, ["-m", module, str(directory)], **environment)

    def end_driver(self, name: str) -> None:
        """Wait until a driver has ended, as it may from now on; one that does not end is killed."""
        process = self.group.processes.pop(name)
        try:
            self.wait(f"{name} ends", lambda: not process.alive())
        except BaseException:
            self.group.processes[name] = process
            self.group.kill(name)
            raise

    def spark_conf(self, name: str, cores: int, total: int, **conf: str) -> dict[str, str]:
        """Return the settings of an application on executors of so many cores, ``total`` cores in all."""
        return self.cluster.conf(cores) | {
            "spark.app.name": name,
            "spark.cores.max": str(total),
            "spark.driver.memory": "1g",
            "spark.executorEnv.PYTHONPATH": PYTHON_PATH,
            **conf,
        }

    # -- observation --

    @contextlib.contextmanager
    def open_store(self) -> Iterator[Store]:
        """Open Redis as every part opens it."""
        store = Store(self.settings.redis, self.settings.cluster.name)
        try:
            yield store
        finally:
            store.close()

    def cli(self, *arguments: str, patience: float = 60.0) -> tuple[int, Any]:
        """Run a command of ours in a process of its own; return its exit code and its answer, or its error text."""
        command = [sys.executable, "-m", "rechannel", *arguments, "--json"]
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, env=self.environment, capture_output=True, text=True, timeout=patience, check=False
        )
        try:
            return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}
        except json.JSONDecodeError:
            return done.returncode, {"error": (done.stderr or done.stdout).strip()[-500:]}

    def wait(self, what: str, ready: Callable[[], Any], patience: float = PATIENCE, every: float = 0.1) -> Any:
        """Wait until ``ready`` returns what is true while all processes live, and return that.

        :class:`StackError` when it does not in time.
        """

        def checked() -> Any:
            if not (result := ready()):
                self.group.check()
            return result

        try:
            return wait_until(checked, what, patience, every, self.logs)
        except TimeoutError as error:
            raise StackError(f"{error}\n{self.describe()}") from error

    def logs(self, lines: int = 15) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {name}\n{item.log_tail(lines)}" for name, item in self.group.processes.items())

    def describe(self) -> str:
        """Return what else a failed wait is to show."""
        return ""
