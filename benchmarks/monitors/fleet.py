"""Load of a thousand synthetic agents on one Redis, each with a connection of its own, at their real pace."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import redis

from benchmarks.report.results import progress
from rechannel.wire.envelope import EnvelopeFactory, encode
from rechannel.wire.keys import WINDOWS
from rechannel.wire.measurements import AgentWindow, ExecutorUsage, MapOutput
from rechannel.wire.redis.store import Store
from testbed.stack import Stack

APPLICATION = "app-20261122000000-0000"
PARTITIONS = 100  # downstream, of every map output
OUTPUTS = 20  # map outputs in a window
EXECUTORS, CORES = 2, 4
WINDOW = 5.0  # seconds


class Pace:
    """Actions that are repeated at regular times in this thread. ``late``: seconds of the largest delay so far."""

    def __init__(self) -> None:
        self.late = 0.0
        self._due: list[tuple[float, int, float, Callable[[], None]]] = []  # next time, order, period, action

    def every(self, period: float, actions: Sequence[Callable[[], None]]) -> None:
        """Repeat each action once in a period (seconds), their first times spread over one."""
        began = time.monotonic()
        for index, action in enumerate(actions):
            heapq.heappush(self._due, (began + index * period / len(actions), len(self._due), period, action))

    def run(self, until: float) -> None:
        """Call the actions that are due until a time of the monotonic clock."""
        while self._due[0][0] < until:
            due, order, period, action = self._due[0]
            rest = due - time.monotonic()
            time.sleep(max(0.0, rest))
            self.late = max(self.late, -rest)
            action()
            heapq.heapreplace(self._due, (due + period, order, period, action))
        time.sleep(max(0.0, until - time.monotonic()))


def measure(directory: Path, agents: int, seconds: float) -> dict[str, Any]:
    """Fill every agent's stream to its bound, then push at the pace of five-second windows."""
    directory.mkdir(parents=True)
    with Stack(
        directory, {"redis": {"timeout": 10.0}, "controller": {"lease": 60.0}}, redis_options={"maxmemory": "0"}
    ) as stack:
        stores = [Store(stack.settings.redis, "bench") for _ in range(agents)]
        authors = [EnvelopeFactory("bench", f"agent:{number}") for number in range(agents)]
        client = redis.Redis(unix_socket_path=str(stack.redis.socket_path))

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
        before, began, pace = client.info("all"), time.monotonic(), Pace()
        pace.every(WINDOW, [partial(push, number) for number in range(agents)])
        pace.run(began + seconds)
        load = redis_load(before, client.info("all"), time.monotonic() - began)
        connections = len(client.client_list())
        client.close()
        for store in stores:
            store.close()
    return {
        "agents": agents,
        "connections": connections,
        "window_bytes": len(encode(authors[0].envelope(window(0, time.time()), ttl=1.0))),
        "bytes_per_second": load["bytes_in_per_second"],
        "commands_per_second": load["commands_per_second"],
        "redis_cores": load["cores"],
        "memory_one_window_each": one,
        "memory_full": full,
        "worst_lateness_seconds": pace.late,
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


def window(
    node: int, now: float, executors: int = EXECUTORS, partitions: int = PARTITIONS, outputs: int = OUTPUTS
) -> AgentWindow:
    """Return the window of a node's agent: so many executors, map outputs of the first one.

    Parameters
    ----------
    node
        Number of the node.
    now
        End of the window, seconds since the epoch.
    executors
        Of :data:`APPLICATION` on the node.
    partitions
        Downstream partitions of every map output.
    outputs
        Number of map outputs.
    """
    usages = [
        ExecutorUsage(
            application=APPLICATION,
            executor=str(executors * node + index),
            host=f"node-{node}",
            pid=1000 + index,
            started=now - 3600,
            cores=CORES,
            jvm_cpu=3.217,
            python_cpu=9.871,
            jvm_rss=1_234_567_890,
            python_rss=345_678_901,
            python_workers=4,
            samples=5,
        )
        for index in range(executors)
    ]
    sizes = [1000 + 7 * part for part in range(partitions)]
    first = usages[0].executor
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
        map_outputs=[
            MapOutput(APPLICATION, first, 17, node * 100_000 + index, sizes).with_packed_sizes()
            for index in range(outputs)
        ],
    )
