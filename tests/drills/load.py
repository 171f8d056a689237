"""Load tests: durations of batches while Rechannel hangs, is dead, or gets garbage.

Batches run back to back. Every phase of trouble stands between two healthy ones in the same run, so that what the
machine does beside it hits both; the healthy phases beside each other tell the noise.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import redis

from rechannel.wire import keys
from testbed.progress import JsonLines
from tests.drills.proxy import Proxy
from tests.drills.session import to_stderr
from tests.drills.world import CLUSTER_NAME, CONTROLLERS, NODES, World, WorldOptions

PHASE = 40.0  # seconds of each phase
_REST = 5.0  # seconds at a phase's begin that are not counted: batches that began before it
AGENTS = [f"agent-{node}" for node in NODES]
LEADERS = [f"controller-{name}" for name in CONTROLLERS]
EVERYTHING = [*AGENTS, *LEADERS, "redis"]
HEALTHY = "healthy"


@dataclass(frozen=True)
class Batch:
    """A batch of a query; ``ended`` in seconds since the epoch."""

    query: str
    ended: float
    seconds: float


@dataclass(frozen=True)
class Phase:
    """A span of the run in which one thing was done to Rechannel."""

    name: str
    begin: float
    end: float


def inside(batches: Sequence[Batch], phase: Phase) -> list[Batch]:
    """Return the batches that lie in a phase."""
    return [batch for batch in batches if phase.begin <= batch.ended - batch.seconds and batch.ended <= phase.end]


def medians(batches: Sequence[Batch], phase: Phase) -> dict[str, float]:
    """Query -> median duration of the batches that lie in a phase, in seconds."""
    own: dict[str, list[float]] = {}
    for batch in inside(batches, phase):
        own.setdefault(batch.query, []).append(batch.seconds)
    return {query: statistics.median(figures) for query, figures in own.items()}


def ratio(mine: dict[str, float], others: Sequence[dict[str, float]]) -> float:
    """Return a phase's median beside the mean of the others' medians, the mean over the queries; 0: not known."""
    ratios = [
        median / statistics.mean(beside)
        for query, median in mine.items()
        if (beside := [other[query] for other in others if query in other])
    ]
    return statistics.mean(ratios) if ratios else 0.0


def compared(batches: Sequence[Batch], phases: Sequence[Phase]) -> dict[str, Any]:
    """Compare every phase of trouble with the healthy ones before and after it, and those with each other."""
    figures = [medians(batches, phase) for phase in phases]
    rows = []
    for index, phase in enumerate(phases):
        if phase.name == HEALTHY:
            continue
        beside = [figures[at] for at in (index - 1, index + 1) if 0 <= at < len(phases) and phases[at].name == HEALTHY]
        rows.append(
            {
                "phase": phase.name,
                "batches": len(inside(batches, phase)),
                "median": round(statistics.mean(figures[index].values()), 3) if figures[index] else 0.0,
                "healthy": round(statistics.mean(value for other in beside for value in other.values()), 3),
                "ratio": round(ratio(figures[index], beside), 3),
            }
        )
    healthy = [medians for medians, phase in zip(figures, phases, strict=True) if phase.name == HEALTHY and medians]
    noise = [ratio(later, [earlier]) for earlier, later in itertools.pairwise(healthy)]
    return {"phases": rows, "noise": [round(min(noise, default=0.0), 3), round(max(noise, default=0.0), 3)]}


def read_batches(path: Path) -> list[Batch]:
    """Read what the application told of its batches."""
    return [Batch(line["query"], _ended(line), line["seconds"]) for line in JsonLines(path).read()]


def _ended(line: dict[str, Any]) -> float:
    return datetime.fromisoformat(line["at"]).timestamp() + float(line["seconds"])


@contextlib.contextmanager
def _hung(world: World, names: Sequence[str]) -> Iterator[None]:
    for name in names:
        world.pause(name)
    yield
    for name in names:
        world.resume(name)


@contextlib.contextmanager
def _dead(world: World) -> Iterator[None]:
    for name in EVERYTHING:
        world.group.kill(name)
    yield
    world.start_redis()
    for name in CONTROLLERS:
        world.start_controller(name)
    for node in NODES:
        world.start_agent(node)


@contextlib.contextmanager
def _slow(proxy: Proxy, delay: float) -> Iterator[None]:
    proxy.delay = delay
    yield
    proxy.delay = 0.0


@contextlib.contextmanager
def _nonsense(proxy: Proxy) -> Iterator[None]:
    proxy.garbage = True
    yield
    proxy.garbage = False


@contextlib.contextmanager
def _hostile(world: World) -> Iterator[None]:
    """Put things into Redis where the link reads them: no JSON, far too large, of the wrong kind."""
    figures = world.report()
    application = figures.application if figures is not None else ""
    names = keys.Keys(CLUSTER_NAME)
    # Megabytes at once may have the server wait for its disk.
    client = redis.Redis(unix_socket_path=str(world.redis.socket_path), socket_timeout=60)
    client.set(names(keys.DESIRED, application), b"\xff" * 20_000_000)
    client.set(names(keys.ORDERS), b'{"schema":2,' * 100_000)
    for node in NODES:
        client.xadd(names(keys.EVIDENCE, node), {"m": b"[" * 1_000_000})
    client.close()
    yield
    client = redis.Redis(unix_socket_path=str(world.redis.socket_path))
    client.delete(names(keys.DESIRED, application), names(keys.ORDERS))
    client.close()


def run(provider: str, seconds: float) -> dict[str, Any]:
    """Run all phases on a world of its own; the link's way to Redis leads through the proxy."""
    place = Path(tempfile.mkdtemp(prefix="rechannel-load-"))
    world = LoadWorld(place / "world", provider)
    with world:
        since, batches = time.time(), world.last_batches()
        world.wait("all is well", lambda: world.lacking(since, batches))
        time.sleep(seconds)  # the JVMs warm up
        troubles = {
            "all agents hang": _hung(world, AGENTS),
            "both controllers hang": _hung(world, LEADERS),
            "Redis hangs": _hung(world, ["redis"]),
            "everything hangs": _hung(world, EVERYTHING),
            "everything is killed": _dead(world),
            "Redis answers 1.5 s late": _slow(world.proxy, 1.5),
            "Redis answers 5 s late, later than it is waited for": _slow(world.proxy, 5.0),
            "Redis answers with garbage": _nonsense(world.proxy),
            "Redis holds garbage": _hostile(world),
        }
        phases = [_phase(world, seconds)]
        for name, trouble in troubles.items():
            phases.append(_phase(world, seconds, name, trouble))
            phases.append(_phase(world, seconds))
        time.sleep(_REST)
        figures = compared(read_batches(world.app_directory / "progress.jsonl"), phases)
        ending = world.stop_application()
    shutil.rmtree(place, ignore_errors=True)
    return figures | {"exceptions": ending["exceptions"], "problem": ending["problem"]}


class LoadWorld(World):
    """A world whose link reaches Redis through a proxy that can misbehave."""

    def __init__(self, directory: Path, provider: str) -> None:
        super().__init__(directory, provider, WorldOptions(trigger="0 seconds"))
        self.proxy: Proxy

    def start_application(self) -> None:
        """Start the proxy, then the application."""
        self.proxy = self._open.enter_context(Proxy(self.redis.socket_path, lambda: self.inside("cluster")))
        self._link_url = self.proxy.url
        super().start_application()


def _phase(
    world: World,
    seconds: float,
    name: str = HEALTHY,
    trouble: contextlib.AbstractContextManager[None] = contextlib.nullcontext(),  # noqa: B008  it does nothing
) -> Phase:
    to_stderr(f"{seconds:g} s: {name}")
    with trouble:
        time.sleep(_REST)
        begin = time.time()
        time.sleep(seconds)
        world.group.check()
        return Phase(name, begin, time.time())
