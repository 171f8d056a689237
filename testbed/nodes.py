"""Specification of a test bed's nodes, and the statement that stands beside every result: what of them was real."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["NodeSpec", "Statement", "machine", "state"]


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
