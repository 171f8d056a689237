"""Load of a thousand synthetic agents on one Redis, each with a connection of its own, at their real pace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from benchmarks.report.results import progress
from rechannel.conf.settings import RedisSettings
from rechannel.wire.envelope import EnvelopeFactory, encode
from rechannel.wire.keys import WINDOWS
from rechannel.wire.measurements import AgentWindow, ExecutorUsage, StreamRow
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer

PARTITIONS = 100  # downstream, of every map output
OUTPUTS = 20  # map outputs in a window
EXECUTORS = 2
WINDOW = 5.0  # seconds


def measure(directory: Path, agents: int, seconds: float) -> dict[str, Any]:
    """Fill every agent's stream to its bound, then push at the pace of five-second windows."""
    directory.mkdir(parents=True)
    with ProcessGroup(directory / "logs") as group:
        server = RedisServer(group, options={"maxmemory": "0"}).start()
        settings = RedisSettings(url=server.url, timeout=10.0)
        stores = [Store(settings, "bench") for _ in range(agents)]
        authors = [EnvelopeFactory("bench", f"agent:{number}") for number in range(agents)]
        client = redis.Redis(unix_socket_path=str(server.socket_path))

        def push(number: int, count: int = 1) -> None:
            bodies = [window(number, time.time()) for _ in range(count)]
            envelopes = [authors[number].envelope(body, ttl=WINDOWS.ttl) for body in bodies]
            stores[number].append(WINDOWS, f"node-{number}", *envelopes)

        for number in range(agents):
            push(number)
        one = client.info("memory")["used_memory"]
        for number in range(agents):
            if number % 100 == 0:
                progress(f"filling streams: {number} of {agents}")
            push(number, WINDOWS.bound + 2)
        full = client.info("memory")["used_memory"]
        progress(f"{agents} agents push for {seconds:g} s")
        before = client.info("all")
        began = time.monotonic()
        pushed, late = 0, 0.0
        while (due := began + pushed * WINDOW / agents) < began + seconds:
            rest = due - time.monotonic()
            if rest > 0:
                time.sleep(rest)
            late = max(late, -rest)
            push(pushed % agents)
            pushed += 1
        load = redis_load(before, client.info("all"), time.monotonic() - began)
        connections = len(client.client_list())
        client.close()
        for store in stores:
            store.close()
        server.close()
    return {
        "agents": agents,
        "connections": connections,
        "window_bytes": len(encode(authors[0].envelope(window(0, time.time()), ttl=1.0))),
        "bytes_per_second": load["bytes_in_per_second"],
        "commands_per_second": load["commands_per_second"],
        "redis_cores": load["cores"],
        "memory_one_window_each": one,
        "memory_full": full,
        "worst_lateness_seconds": late,
    }


def redis_load(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Return what a server did between two of its ``INFO`` answers."""

    def per_second(*names: str) -> float:
        return float(sum(after[name] - before[name] for name in names) / seconds)

    return {
        "cores": per_second("used_cpu_user", "used_cpu_sys"),
        "bytes_in_per_second": per_second("total_net_input_bytes"),
        "bytes_out_per_second": per_second("total_net_output_bytes"),
        "commands_per_second": per_second("total_commands_processed"),
    }


@dataclass(frozen=True)
class WindowShape:
    """Size of one window of a node."""

    application: str = "app-20261122000000-0000"
    executors: int = EXECUTORS
    cores: int = 4
    partitions: int = PARTITIONS
    outputs: int = OUTPUTS


def window(node: int, now: float, shape: WindowShape | None = None) -> AgentWindow:
    """Return the window of a node's agent: so many executors, map outputs of the first one."""
    shape = shape or WindowShape()
    usages = [
        ExecutorUsage(
            application=shape.application,
            executor=str(shape.executors * node + index),
            host=f"node-{node}",
            pid=1000 + index,
            started=now - 3600,
            cores=shape.cores,
            jvm_cpu=3.217,
            python_cpu=9.871,
            jvm_rss=1_234_567_890,
            python_rss=345_678_901,
            python_workers=4,
            samples=5,
        )
        for index in range(shape.executors)
    ]
    sizes = [1000 + 7 * part for part in range(shape.partitions)]
    executor = usages[0].executor
    rows = [StreamRow(shape.application, executor, 17, node * 100_000 + index, sizes) for index in range(shape.outputs)]
    return AgentWindow(
        node=f"node-{node}",
        start=now - WINDOW,
        end=now,
        complete=1.0,
        cores=8,
        node_cpu=14.5,
        memory_total=2**36,
        memory_used=2**35,
        executors=usages,
        streams=rows,
    )
