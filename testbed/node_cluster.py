"""A standalone cluster whose nodes are real to it, as far as the machine allows: addresses, links, CPU.

Where there are network namespaces, each worker lives in its node, and master, driver, Redis and Rechannel's controller
live in the hub. Elsewhere the same calls give a cluster on loopback addresses. The statement says which it was.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from testbed import network as networks
from testbed.network import HUB, Network, Traffic
from testbed.nodes import NodeSpec, Statement, UnavailableError, state
from testbed.processes import Block, ManagedProcess, ProcessGroup
from testbed.quota import available
from testbed.redis_server import RedisServer
from testbed.spark_cluster import Site, SparkOptions, StandaloneCluster, WorkerSpec

__all__ = ["ClusterOptions", "NodeCluster"]

_ROOT = Path(__file__).resolve().parents[1]
_LOOPBACK_HUB = "127.0.0.1"
_REDIS_PORT = 6379


@dataclass(frozen=True)
class ClusterOptions:
    """Real parts of the nodes.

    Parameters
    ----------
    namespaces, quotas, cgroups : False does without, even where they can be had; without control groups, quotas are
        held by stopping processes
    held : whether the quotas hold from the start; if not, `hold` makes them, e.g. once executors are up: to boot a Java
        machine on a fraction of a core takes minutes, and is seldom what is measured
    delay_ms : one way through each link; where there are namespaces but the kernel makes no delays, the start raises
        `UnavailableError`
    subnet : of the namespaces
    loopback : last byte of the first node's address where there are no namespaces
    """

    namespaces: bool = True
    quotas: bool = True
    cgroups: bool = True
    held: bool = True
    delay_ms: float = 0.0
    subnet: str = "10.77.0"
    loopback: int = 111


_DEFAULT_CLUSTER, _DEFAULT_SPARK = ClusterOptions(), SparkOptions()


class NodeCluster(Block):
    """Nodes with a worker each, and a hub with the master; all of it is gone when the block ends.

    For one thread: while it is inside a part, it is there alone.
    """

    spark: StandaloneCluster

    def __init__(
        self,
        group: ProcessGroup,
        directory: Path,
        nodes: Iterable[NodeSpec],
        options: ClusterOptions = _DEFAULT_CLUSTER,
        spark: SparkOptions = _DEFAULT_SPARK,
    ) -> None:
        self.directory = directory
        self.nodes = {node.name: node for node in nodes}
        self.network: Network | None = None
        self.redis: RedisServer | None = None
        self._group = group
        self._options = options
        self._spark_options = spark
        self._quotas: dict[str, float] = {}  # that hold at this moment
        self._addresses: dict[str, str] = {}
        self._started: dict[str, str] = {}  # process -> the part that it lives in
        groups = available()
        self._cgroups = options.cgroups and bool(groups)
        why = groups.reason if options.cgroups else "control groups were not asked for"
        self._enforcer = (
            f"{groups.reason.removesuffix(' cpu controller')} quota"
            if self._cgroups
            else f"quota by stopping processes and letting them go on ({why})"
        )
        self._no_links = networks.why_not() if options.namespaces else "namespaces were not asked for"
        self._no_quotas = "" if options.quotas else "quotas were not asked for"

    def start(self) -> Self:
        """Lay the network, then start master and workers; executors come when a driver connects."""
        if not self._no_links:
            if self._options.delay_ms and (why := networks.delay_why_not()):
                raise UnavailableError(why)
            links = {node.name: node.link_mbit for node in self.nodes.values()}
            self.network = Network(self._group, links, subnet=self._options.subnet, delay_ms=self._options.delay_ms)
            self.network.start()
        for name in self.nodes:
            self._place(name)
        self.spark = StandaloneCluster(
            self._group,
            self.directory,
            [self._worker(node, held=self._options.held) for node in self.nodes.values()],
            self._spark_options,
            Site(self.address(HUB), self.address(HUB), self._inside_address, self._cgroups),
        )
        self.spark.start()  # if that fails, `close` has what there is of it
        self._apply(self.nodes if self._options.held else [])
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
        return state(
            self.nodes,
            {name: self.address(name) for name in self.nodes},
            links=self._no_links if self.network is None else self.network.rates,
            quotas=self._no_quotas or self._quotas,
            enforcer=self._enforcer,
            delay_ms=self._options.delay_ms,
        )

    def counters(self) -> dict[str, Traffic]:
        """Return what went through each node's link so far; nothing at all where there are no links."""
        return {} if self.network is None else self.network.counters()

    # -- nodes that change --

    def add(self, node: NodeSpec, *, held: bool = True) -> None:
        """Have one more node join, or one that was removed come back; ``held`` as for the whole cluster."""
        if node.name in self.nodes:
            raise ValueError(f"there is a node {node.name!r} already")
        if self.network is not None:
            self.network.add(node.name, node.link_mbit)
        self._place(node.name)
        self.nodes[node.name] = node
        self.spark.add_worker(self._worker(node, held=held))
        self._apply([node.name] if held else [])

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

    def hold(self) -> None:
        """Hold every node to the quota of its specification from now on."""
        self._apply(self.nodes)

    def set_quota(self, name: str, cores: float | None) -> None:
        """Hold a node to so many cores of the machine from now on, e.g. to slow it down; None lifts the limit.

        Raises `UnavailableError` where there are no quotas.
        """
        if self._no_quotas:
            raise UnavailableError(self._no_quotas)
        self.spark.set_quota(cores, self.address(name))
        self._quotas.pop(name, None)
        if cores is not None:
            self._quotas[name] = cores

    def set_link(self, name: str, mbit: float) -> None:
        """Shape a node's link to another rate, in Mbit/s. Raises `UnavailableError` where there are no links."""
        if self.network is None:
            raise UnavailableError(self._no_links)
        self.network.set_rate(name, mbit)

    # -- what lives in the parts --

    def start_process(
        self, part: str, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path | None = None
    ) -> ManagedProcess:
        """Start a process in the hub or in a node, outside of the node's quota; it ends with the node."""
        with self.inside(part):
            process = self._group.start(name, command, env=env, cwd=cwd)
        self._started[name] = part
        return process

    def start_driver(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> ManagedProcess:
        """Start a driver in the hub; ``env``: on top of what every driver of the cluster needs."""
        python_path = {"PYTHONPATH": f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"}
        return self.start_process(HUB, name, command, self.spark.driver_environment() | python_path | dict(env or {}))

    def start_redis(self, options: Mapping[str, str] | None = None, timeout_s: float = 60.0) -> RedisServer:
        """Start the Redis of this cluster: on a unix socket and, where there is a hub, on the hub's address alone."""
        own = {} if self.network is None else {"port": str(_REDIS_PORT), "bind": self.address(HUB)}
        # In the hub nobody else is there; without a password, protected mode would turn the nodes away.
        own |= {"protected-mode": "no"} if own else {}
        self.redis = RedisServer(self._group, options=own | dict(options or {}))
        with self.inside(HUB):
            return self.redis.start(timeout_s)

    def redis_url(self) -> str:
        """Return the address of Redis for a process in any part; `self.redis.url` is good on the whole machine."""
        if self.redis is None:
            raise RuntimeError("Redis was not started")
        return self.redis.url if self.network is None else f"redis://{self.address(HUB)}:{_REDIS_PORT}/0"

    def rechannel_environment(self, config: Path) -> dict[str, str]:
        """Return what one of Rechannel's processes, or a driver with its link, needs to know, in any part."""
        return {"RECHANNEL_CONFIG": str(config), "RECHANNEL_REDIS__URL": self.redis_url()}

    def start_controller(self, config: Path, *, name: str = "controller", **env: str) -> ManagedProcess:
        """Start a controller of Rechannel in the hub."""
        return self._start_rechannel(HUB, name, ["controller"], config, env)

    def start_agent(self, node: str, config: Path, **env: str) -> ManagedProcess:
        """Start Rechannel's agent of a node inside it, as the process ``agent-<node>``; the quota holds it not."""
        return self._start_rechannel(node, f"agent-{node}", ["agent", "--node", self.address(node)], config, env)

    def _start_rechannel(
        self, part: str, name: str, arguments: list[str], config: Path, env: Mapping[str, str]
    ) -> ManagedProcess:
        python_path = f"{_ROOT / 'src'}{os.pathsep}{_ROOT}"
        environment = {**os.environ, "PYTHONPATH": python_path, **self.rechannel_environment(config), **env}
        return self.start_process(part, name, [sys.executable, "-m", "rechannel", *arguments], environment)

    # -- the rest --

    def _stop(self, process: str) -> None:
        del self._started[process]
        self._group.stop(process)

    def _place(self, name: str) -> None:
        self._addresses.setdefault(
            name,
            f"127.0.0.{self._options.loopback + len(self._addresses)}" if self.network is None else self.address(name),
        )

    def _inside_address(self, address: str) -> contextlib.AbstractContextManager[None]:
        return self.inside(next((name for name, own in self._addresses.items() if own == address), HUB))

    def _worker(self, node: NodeSpec, *, held: bool) -> WorkerSpec:
        # Every node has a control group, so that every node can be slowed down later.
        everything = float(os.cpu_count() or 1)
        quota = (node.limit if held else None) or everything
        return WorkerSpec(self._addresses[node.name], node.cores, node.memory_mb, None if self._no_quotas else quota)

    def _apply(self, names: Iterable[str]) -> None:
        for name in [] if self._no_quotas else list(names):
            self.set_quota(name, self.nodes[name].limit)
