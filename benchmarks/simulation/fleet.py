"""Load on Redis and a real controller from a thousand agents and one link with a hundred thousand partitions.

The messages are synthetic, the server and the controller are not: agents write a window every five seconds, a link its
report every second and a batch of each query as often as it runs, and ``rechannel controller`` reads and decides.
Measured are processor time and resident memory of both, before and while it decides, and the decision. The agents'
windows are those of :mod:`benchmarks.monitors.fleet`; the size of windows with every map output of these queries is
computed, they are not sent.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import redis
from msgspec.structs import replace

from benchmarks.monitors import fleet as agents
from benchmarks.report.results import progress
from rechannel.conf.settings import Settings
from rechannel.daemon.control.cluster_state import MAX_CLUSTER_SIZES
from rechannel.monitors.node.output_share import choose_outputs
from rechannel.policies.model.arrays import FloatArray
from rechannel.wire import keys
from rechannel.wire.codes import DecisionResult
from rechannel.wire.envelope import EnvelopeFactory, encode
from rechannel.wire.keys import MAX_MESSAGE_BYTES
from rechannel.wire.measurements import BatchReport, StageRun, TaskRow
from rechannel.wire.messages import AnyBody, Decision, ExecutorInfo, LinkReport, Operator, QueryState, StatefulStage
from rechannel.wire.redis.capacity import batch_budget
from rechannel.wire.redis.store import Store
from testbed.processes import cpu_seconds
from testbed.stack import Stack

APPLICATION, WINDOW, CORES = agents.APPLICATION, agents.WINDOW, agents.CORES
JOINED = 0.25  # share of the executors that joined late and hold nothing
BUSY = 0.5  # share of the time for which executors are at work, on average
UNEVEN = 0.6  # standard deviation of the logarithm of a task's duration
STARTING = 8.0  # seconds of the controller's start that are not measured
_CLUSTER = "default"


@dataclass(frozen=True)
class Shape:
    """Size of the fleet: ``agents`` nodes of one executor; queries of so many stages of so many partitions.

    ``period``: seconds from one batch of a query to its next; ``cores`` of an executor.
    """

    agents: int = 1000
    queries: int = 125
    stages: int = 4
    partitions: int = 200
    period: float = 5.0
    cores: int = CORES

    @property
    def total(self) -> int:
        """All partitions."""
        return self.queries * self.stages * self.partitions

    def executor(self, query: int, stage: int, partition: int) -> str:
        """Executor of a partition: spread over those that did not join late, in another order for each stage."""
        return str((partition * 7 + stage * 131 + query * 977) % (self.agents - int(self.agents * JOINED)))

    def first_task(self, query: int, stage: int, batch: int) -> int:
        """Task of a stage's first partition; those of the others follow."""
        return ((batch * self.queries + query) * self.stages + stage) * self.partitions

    def task_seconds(self, query: int, stage: int) -> FloatArray:
        """Duration of each partition's task, (P,): uneven, and so long that executors are at work for `BUSY`."""
        mean = BUSY * self.period * self.cores * self.agents / self.total
        weights = np.random.default_rng((query, stage)).lognormal(sigma=UNEVEN, size=self.partitions)
        return np.asarray(mean * weights / np.exp(UNEVEN**2 / 2))


def report(shape: Shape, now: float) -> LinkReport:
    """Return the link's report of its application."""
    infos = [
        ExecutorInfo(executor=str(i), host=f"node-{i}", cores=shape.cores, added=now - 3600, memory=2**33)
        for i in range(shape.agents)
    ]
    operators = [Operator(operator=0, name="stateStoreSave", stores=["default"])]
    queries = [
        QueryState(
            query=f"q{query}",
            run=f"r{query}",
            name=f"query-{query}",
            batch=1000,
            active=True,
            stages=[
                StatefulStage(
                    stage=stage,
                    partitions=shape.partitions,
                    operators=operators,
                    placement=[shape.executor(query, stage, part) for part in range(shape.partitions)],
                    snapshot_lag=[3] * shape.partitions,
                )
                for stage in range(shape.stages)
            ],
        )
        for query in range(shape.queries)
    ]
    return LinkReport(
        name="synthetic", spark_version="4.3.0", attached=now - 3600, executors=infos, queries=queries, moves=[]
    )


def batch(shape: Shape, query: int, number: int, now: float) -> BatchReport:
    """A finished batch, some partitions heavier than others."""
    runs = []
    for stage in range(shape.stages):
        first = shape.first_task(query, stage, number)
        seconds = shape.task_seconds(query, stage).round(3).tolist()  # Spark counts milliseconds
        tasks = [
            TaskRow(
                task=first + part,
                partition=part,
                executor=shape.executor(query, stage, part),
                launch=round(now - 1.0 - seconds[part], 3),
                finish=round(now - 1.0, 3),
                run=seconds[part],
                cpu=round(seconds[part] / 2, 3),
                fetch_wait=0.001,
                rows_in=1000 + part,
                rows_out=900,
                bytes_local=10_000,
                bytes_remote=1_000_000,
                bytes_out=900_000,
                state_rows=50_000,
                state_bytes=5_000_000,
                commit=0.05,
                state_size=4_000_000,
            )
            for part in range(shape.partitions)
        ]
        parents = [number * shape.stages + stage - 1] if stage else []
        runs.append(
            StageRun(spark_stage=number * shape.stages + stage, parents=parents, stateful_stage=stage, tasks=tasks)
        )
    return BatchReport(
        query=f"q{query}", batch=number, start=now - 3.0, end=now, input_rows=10**6, stages=runs, duration=3.0
    )


def _map_tasks(shape: Shape) -> dict[str, list[tuple[int, int, int]]]:
    """Return the tasks of a batch whose outputs each executor's agent reports: query, stage, partition."""
    ran: dict[str, list[tuple[int, int, int]]] = {}
    for query in range(shape.queries):
        for stage in range(shape.stages - 1):  # nothing reads the last one
            for part in range(shape.partitions):
                ran.setdefault(shape.executor(query, stage, part), []).append((query, stage, part))
    return {name: tasks[:: max(1, len(tasks) // agents.OUTPUTS)][: agents.OUTPUTS] for name, tasks in ran.items()}


def bounds(shape: Shape) -> dict[str, Any]:
    """Return the bytes of the messages, their limit, and those of a window with every map output."""
    now, author = time.time(), EnvelopeFactory(_CLUSTER, "bench")

    def size(body: AnyBody) -> int:
        return len(encode(author.envelope(body, ttl=60.0, application=APPLICATION)))

    one = Shape(shape.agents, 1, 1, shape.total, shape.period)
    outputs = round(shape.total / shape.period / shape.agents * WINDOW)
    every = size(agents.window(0, now, 1, shape.partitions, outputs))
    return {
        "largest": MAX_MESSAGE_BYTES,
        "report": size(report(shape, now)),
        "batch": size(batch(shape, 0, 1, now)),
        "window": size(agents.window(0, now, 1, shape.partitions)),
        "one_query_batch": size(batch(one, 0, 1, now)),
        "every_output": {"outputs": outputs, "window": every, "bytes_per_second": every * shape.agents / WINDOW},
    }


def measure(directory: Path, shape: Shape, seconds: float) -> dict[str, Any]:
    """Run a controller for so long before it decides, and until it has decided (four minutes at most)."""
    sections = {
        "redis": {"timeout": 10.0},
        "controller": {"lease": 60.0},
        "reschedule": {"timeout": STARTING + seconds},
    }
    directory.mkdir(parents=True)
    with Stack(directory, sections, redis_options={"maxmemory": "0"}) as stack:
        messages = Messages(stack.settings, shape)
        with contextlib.closing(messages.store):
            progress(f"fleet: {shape.agents:,} agents and {shape.total:,} partitions: filling")
            messages.fill()
            process = psutil.Process(stack.start_controller().pid)
            messages.begin()
            figures = _watch(stack, messages, process, seconds)
    return {"shape": {**shape.__dict__, "total": shape.total}, "bounds": bounds(shape), **figures}


class Messages:
    """Messages of all agents and of the link, each at its pace."""

    def __init__(self, settings: Settings, shape: Shape) -> None:
        self.shape, self.pace = shape, agents.Pace()
        self.store = Store(settings.redis, _CLUSTER)
        self.authors = [EnvelopeFactory(_CLUSTER, f"agent:{number}") for number in range(shape.agents)]
        self.link = EnvelopeFactory(_CLUSTER, "link:synthetic")
        self.number = 0  # of the batches
        self._places = _map_tasks(shape)

    def fill(self) -> None:
        """Send enough of the past for a decision: three batches of each query, a window of each agent."""
        for age in (3, 2, 1):
            self.send_batches(age * self.shape.period)
        self.send_windows()

    def send_windows(self) -> None:
        """Send a window of each agent, with outputs of the newest batches."""
        for number in range(self.shape.agents):
            self._window(number)

    def send_batches(self, age: float = 0.0) -> None:
        """Send a report, and a batch of each query that ended so many seconds ago."""
        self.send_report()
        for query in range(self.shape.queries):
            self._batch(query, age)

    def begin(self) -> None:
        """Set the times of all messages from now on."""
        self.pace.every(1.0, [self.send_report])
        self.pace.every(WINDOW, [partial(self._window, number) for number in range(self.shape.agents)])
        self.pace.every(self.shape.period, [partial(self._batch, query) for query in range(self.shape.queries)])

    def send_report(self) -> None:
        """Send a report of the link."""
        self.number += 1
        body = report(self.shape, time.time())
        self.store.put(keys.REPORT, APPLICATION, self.link.envelope(body, ttl=keys.REPORT.ttl, application=APPLICATION))
        self.store.register_application(APPLICATION, time.time())

    def _batch(self, query: int, age: float = 0.0) -> None:
        body = batch(self.shape, query, self.number, time.time() - age)
        envelope = self.link.envelope(body, ttl=keys.BATCHES.ttl, application=APPLICATION, run=f"r{query}")
        self.store.append(keys.BATCHES, APPLICATION, envelope, size=batch_budget(self.shape.total))

    def _window(self, number: int) -> None:
        places = self._places.get(str(number), [])
        body = agents.window(number, time.time(), 1, self.shape.partitions, len(places))
        tasks = [self.shape.first_task(query, stage, self.number) + part for query, stage, part in places]
        outputs = [replace(output, map_task=task) for output, task in zip(body.map_outputs, tasks, strict=True)]
        body = replace(body, map_outputs=choose_outputs(outputs, MAX_CLUSTER_SIZES // self.shape.agents))
        self.store.append(keys.WINDOWS, body.node, self.authors[number].envelope(body, ttl=keys.WINDOWS.ttl))


def _watch(stack: Stack, messages: Messages, process: psutil.Process, seconds: float) -> dict[str, Any]:
    client = redis.Redis(unix_socket_path=str(stack.redis.socket_path))
    messages.pace.run(time.monotonic() + STARTING)
    progress(f"fleet: the controller runs, {seconds:g} s before it decides")
    before, cpu, began = client.info("all"), cpu_seconds(process), time.monotonic()
    rss: list[int] = []
    while time.monotonic() < began + seconds - 3.0:
        messages.pace.run(time.monotonic() + 1.0)
        stack.group.check()
        rss.append(process.memory_info().rss)
    took, quiet, after = time.monotonic() - began, cpu_seconds(process) - cpu, client.info("all")
    progress("fleet: it decides")
    cpu, deciding, peak = cpu_seconds(process), time.monotonic(), 0
    decision: Decision | None = None
    while (decision is None or decision.result == DecisionResult.NOT_READY) and time.monotonic() < deciding + 240.0:
        messages.pace.run(time.monotonic() + 1.0)
        stack.group.check()
        peak = max(peak, process.memory_info().rss)
        bodies = [item.body for item in messages.store.last(keys.DECISIONS, "", 1)]
        decision = next((body for body in bodies if isinstance(body, Decision)), decision)
    memory = client.info("memory")["used_memory"]
    client.close()
    return {
        "seconds": took,
        "controller": {
            "cores": quiet / took,
            "rss_mib": max(rss) / 2**20,
            "deciding_cpu": cpu_seconds(process) - cpu,
            "deciding_seconds": time.monotonic() - deciding,
            "deciding_rss_mib": max(peak, *rss) / 2**20,
        },
        "decision": None
        if decision is None
        else {"outcome": decision.result, "reason": decision.reason, "sentence": decision.sentence},
        "redis": {**agents.redis_load(before, after, took), "memory_mib": memory / 2**20},
        "worst_lateness_seconds": messages.pace.late,
    }
