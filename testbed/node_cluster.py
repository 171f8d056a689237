"""A standalone cluster whose nodes are real to it, as far as the machine allows: addresses, links, CPU.

Where there are network namespaces, each worker lives in its node, and master, driver, Redis and Rechannel's controller
live in the hub. Elsewhere the same calls give a cluster on loopback addresses. A statement stands beside every result:
what of the nodes was real.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from testbed import network as networks
from testbed.network import HUB, Network, Traffic
from testbed.processes import PYTHON_PATH, Block, ManagedProcess, ProcessGroup
from testbed.quota import available
from testbed.redis_server import RedisServer
from testbed.spark_cluster import Site, SparkOptions, StandaloneCluster, WorkerSpec

_LOOPBACK_HUB = "127.0.0.1"
_FIRST_LOOPBACK = 111  # last byte of the first node's address where there are no namespaces
_REDIS_PORT = 6379
_DEFAULT_SPARK = SparkOptions()


@dataclass(frozen=True)
class NodeSpec:
    """One node of a cluster.

    ``cores``: task slots that it offers to Spark; ``quota``: CPU cores of the machine that all its processes together
    get (None: as many as they find); ``speed``: by what the quota is multiplied, for nodes that are unequal;
    ``link_mbit``: rate of its link in Mbit/s, each way; ``memory_mb``: what it offers to Spark's executors, which
    nothing enforces. Raises ValueError for what cannot be.
    """

    name: str
    cores: int = 1
    quota: float | None = None
    speed: float = 1.0
    link_mbit: float = 1000.0
    memory_mb: int = 1024

    def __post_init__(self) -> None:
        if self.cores < 1 or self.memory_mb < 1:
            raise ValueError(f"node {self.name!r} needs a core and memory")
        if self.speed <= 0 or (self.quota is not None and self.quota <= 0):
            raise ValueError(f"quota and speed of node {self.name!r} have to be greater than 0")
        if self.quota is None and self.speed != 1.0:
            raise ValueError(f"node {self.name!r}: only a quota can make it slower or faster than others")

    @property
    def limit(self) -> float | None:
        """CPU of its processes, in cores of the machine; None for no limit."""
        return None if self.quota is None else self.quota * self.speed


@dataclass(frozen=True)
class Statement:
    """Real parts of a test bed. ``nodes``: name -> address, cores, quota (null: none), link (null: not shaped)."""

    network: str
    cpu: str
    memory: str
    nodes: dict[str, dict[str, Any]]
    machine: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return it as a result keeps it."""
        return asdict(self)


def state(
    nodes: Mapping[str, NodeSpec],
    addresses: Mapping[str, str],
    *,
    links: Mapping[str, float] | str,
    quotas: Mapping[str, float],
    enforcer: str = "",
) -> Statement:
    """Say what of these nodes is real.

    ``links``: rates in Mbit/s, or why links are not shaped; ``quotas``: what holds just now, in cores; ``enforcer``:
    what holds it.
    """
    box = machine()
    rates = {} if isinstance(links, str) else links
    described = {
        name: {
            "address": addresses[name],
            "cores": spec.cores,
            "memory_mb": spec.memory_mb,
            "quota": quotas.get(name),
            "link_mbit": rates.get(name),
        }
        for name, spec in nodes.items()
    }
    if isinstance(links, str):
        network = f"loopback: links are not shaped ({links})"
    else:
        network = f"namespaces, {_each(links)} Mbit/s each way; master and driver have no link of their own"
    if quotas:
        together = f"together {sum(quotas.values()):g} of {box['cores']}"
        free = len(nodes) - len(quotas)
        others = f"; {free} of {len(nodes)} nodes are not held" if free else ""
        cpu = f"{enforcer}: {_each(quotas)} cores, {together}{others}; master and driver are not held"
    else:
        cpu = f"no quotas (none holds just now): nodes share the machine's {box['cores']} cores"
    return Statement(network, cpu, "offered to Spark, not enforced", described, box)


def _each(values: Mapping[str, float]) -> str:
    if len(set(values.values())) == 1:
        return f"{next(iter(values.values())):g}"
    return ", ".join(f"{name} {value:g}" for name, value in values.items())


def machine() -> dict[str, Any]:
    """Return what the nodes are parts of: cores, memory, processor, kernel, versions, and how busy it is just now."""
    return {
        "cores": os.cpu_count() or 1,
        "memory_mb": (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) >> 20,
        "processor": _processor(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "spark": version("pyspark"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


class NodeCluster(Block):
    """Nodes with a worker each, and a hub with the master; all of it is gone when the block ends.

    No quota holds before `set_quota`: to boot a Java machine on a fraction of a core takes minutes, and is seldom what
    is measured. For one thread: while it is inside a part, it is there alone.

    ``nodes``: those of the start; ``rootless``: loopback addresses, and quotas held by stopping processes, even where
    namespaces and control groups are to be had.
    """

    spark: StandaloneCluster

    def __init__(
        self,
        group: ProcessGroup,
        directory: Path,
        nodes: Iterable[NodeSpec],
        spark: SparkOptions = _DEFAULT_SPARK,
        *,
        rootless: bool = False,
    ) -> None:
        self.directory = directory
        self.nodes = {node.name: node for node in nodes}
        self.network: Network | None = None
        self.redis: RedisServer | None = None
        self._group = group
        self._spark_options = spark
        self._quotas: dict[str, float] = {}  # that hold at this moment
        self._addresses: dict[str, str] = {}
        self._started: dict[str, str] = {}  # process -> the part that it lives in
        groups = available()
        self._cgroups = bool(groups) and not rootless
        why = "control groups were not asked for" if rootless else groups.reason
        self._enforcer = (
            f"{groups.reason.removesuffix(' cpu controller')} quota"
            if self._cgroups
            else f"quota by stopping processes and letting them go on ({why})"
        )
        self._no_links = "namespaces were not asked for" if rootless else networks.why_not()

    def start(self) -> Self:
        """Lay the network, then start master and workers; executors come when a driver connects."""
        if not self._no_links:
            self.network = Network(self._group, {node.name: node.link_mbit for node in self.nodes.values()})
            self.network.start()
        workers = [self._worker(node) for node in self.nodes.values()]
        site = Site(self.address(HUB), self.address(HUB), self._inside_address, self._cgroups)
        self.spark = StandaloneCluster(self._group, self.directory, workers, self._spark_options, site)
        self.spark.start()  # if that fails, `close` has what there is of it
        return self

    def close(self) -> None:
        """Stop what was started in the parts, Redis, the cluster, and the network."""
        for name in list(self._started):
            self._stop(name)
        if self.redis is not None:
            self.redis.close()
        if hasattr(self, "spark"):
            self.spark.close()
        if self.network is not None:
            self.network.close()

    # -- where things are --

    def address(self, part: str) -> str:
        """Return the address of a node, by which Spark and Rechannel know it, or of the hub."""
        if self.network is not None:
            return self.network.address(part)
        return _LOOPBACK_HUB if part == HUB else self._addresses[part]

    def inside(self, part: str) -> contextlib.AbstractContextManager[None]:
        """Have the calling thread, and the processes it starts meanwhile, live in a part; here, on loopback."""
        return contextlib.nullcontext() if self.network is None else self.network.inside(part)

    def statement(self) -> Statement:
        """Say what of the nodes is real just now."""
        addresses = {name: self.address(name) for name in self.nodes}
        links = self._no_links if self.network is None else self.network.rates
        return state(self.nodes, addresses, links=links, quotas=self._quotas, enforcer=self._enforcer)

    def counters(self) -> dict[str, Traffic]:
        """Return what went through each node's link so far; nothing at all where there are no links."""
        return {} if self.network is None else self.network.counters()

    # -- nodes that change --

    def add(self, node: NodeSpec) -> None:
        """Have one more node join, or one that was removed come back."""
        if node.name in self.nodes:
            raise ValueError(f"there is a node {node.name!r} already")
        if self.network is not None:
            self.network.add(node.name, node.link_mbit)
        self.nodes[node.name] = node
        self.spark.add_worker(self._worker(node))

    def remove(self, name: str, *, kill: bool = False) -> None:
        """Stop a node's worker, in good order or outright, and all else that was started there; its link goes too."""
        address = self.address(name)
        self.spark.stop_worker(address, kill=kill)
        for process in [process for process, part in self._started.items() if part == name]:
            self._stop(process)
        self.spark.drop_quota(address)
        if self.network is not None:
            self.network.remove(name)
        del self.nodes[name]
        self._quotas.pop(name, None)

    def set_quota(self, name: str, cores: float | None) -> None:
        """Hold a node to so many cores of the machine from now on, e.g. to slow it down; None lifts the limit."""
        self.spark.set_quota(cores, self.address(name))
        self._quotas.pop(name, None)
        if cores is not None:
            self._quotas[name] = cores

    # -- what lives in the parts --

    def start_driver(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> ManagedProcess:
        """Start a driver in the hub; ``env``: on top of what every driver of the cluster needs."""
        environment = self.spark.driver_environment() | {"PYTHONPATH": PYTHON_PATH} | dict(env or {})
        return self._start(HUB, name, command, environment)

    def start_redis(self, options: Mapping[str, str] | None = None) -> RedisServer:
        """Start the Redis of this cluster: on a unix socket and, where there is a hub, on the hub's address alone."""
        own = {} if self.network is None else {"port": str(_REDIS_PORT), "bind": self.address(HUB)}
        # In the hub nobody else is there; without a password, protected mode would turn the nodes away.
        own |= {"protected-mode": "no"} if own else {}
        self.redis = RedisServer(self._group, options=own | dict(options or {}))
        with self.inside(HUB):
            return self.redis.start()

    def redis_url(self) -> str:
        """Return the address of Redis for a process in any part; `self.redis.url` is good on the whole machine."""
        if self.redis is None:
            raise RuntimeError("Redis was not started")
        return self.redis.url if self.network is None else f"redis://{self.address(HUB)}:{_REDIS_PORT}/0"

    def start_agent(self, node: str, config: Path) -> ManagedProcess:
        """Start Rechannel's agent of a node inside it, as the process ``agent-<node>``; the quota holds it not."""
        command = [sys.executable, "-m", "rechannel", "agent", "--node", self.address(node)]
        own = {"PYTHONPATH": PYTHON_PATH, "RECHANNEL_CONFIG": str(config), "RECHANNEL_REDIS__URL": self.redis_url()}
        return self._start(node, f"agent-{node}", command, {**os.environ, **own})

    # -- the rest --

    def _start(self, part: str, name: str, command: Sequence[str], env: Mapping[str, str]) -> ManagedProcess:
        with self.inside(part):
            process = self._group.start(name, command, env=env)
        self._started[name] = part
        return process

    def _stop(self, process: str) -> None:
        del self._started[process]
        self._group.stop(process)

    def _inside_address(self, address: str) -> contextlib.AbstractContextManager[None]:
        return self.inside(next((name for name, own in self._addresses.items() if own == address), HUB))

    def _worker(self, node: NodeSpec) -> WorkerSpec:
        loopback = f"127.0.0.{_FIRST_LOOPBACK + len(self._addresses)}"
        address = self._addresses.setdefault(node.name, loopback if self.network is None else self.address(node.name))
        # Every node has a quota that does not bind, so that every node can be slowed down later.
        return WorkerSpec(address, node.cores, node.memory_mb, float(os.cpu_count() or 1))
