"""Sampling of one node: its executors, their usage, map outputs and closed stores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import structlog

from rechannel.conf.settings import Settings
from rechannel.monitors.node.executor_log import ClosedStoreReader
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import ExecutorSample, MachineUsage, ProcessTable, ProcessWatcher, machine_usage
from rechannel.monitors.node.shuffle import MAX_PARTITIONS, ShuffleReader
from rechannel.monitors.node.throttling import LimitedGroup, ThrottlingReader
from rechannel.monitors.node.windows import Clock, ClosedWindow, CounterReading, WindowAggregator
from rechannel.wire.measurements import AgentEvidence, AgentWindow, ClosedStore, ExecutorUsage, MapOutput

MAX_WINDOW_OUTPUTS = 20_000  # map outputs in a window; beyond: they are only counted
MAX_WINDOW_SIZES = MAX_PARTITIONS  # sizes in a window; beyond: further map outputs are only counted
HOST_MISMATCH_AFTER = 30.0  # seconds without an executor of this node, while others run here

_OVER_LIMIT = "map outputs over the limit of a window"

_log: Any = structlog.get_logger("rechannel.agent")


class NodeMonitor:
    """Samples a node: `sample` is called once for every sampling interval."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock,
        table: ProcessTable | None = None,
        machine: Callable[[], MachineUsage] = machine_usage,
        proc: Path = Path("/proc"),  # the kernel's files on processes
    ) -> None:
        self.node = settings.node
        self._settings = settings.agent
        self._clock = clock
        self._machine = machine
        self._watcher = ProcessWatcher(self.node, table, clock.monotonic)
        self._shuffle = ShuffleReader(DirectoryWatch(), clock.wall)
        self._logs = ClosedStoreReader()
        self._throttling = ThrottlingReader(proc)
        self._aggregator = WindowAggregator(settings.agent.window, settings.agent.sample, clock)
        self._usage = machine()
        self._latest: dict[tuple[int, float], tuple[ExecutorSample, tuple[LimitedGroup, ...]]] = {}
        self._map_outputs: list[MapOutput] = []
        self._sizes = 0
        self._started = clock.monotonic()
        self._host_confirmed = False  # an executor of this node was found, or its absence was logged

    def wait_time(self) -> float:
        """Return the seconds until the next sample is due."""
        return self._aggregator.wait_time()

    def sample(self) -> tuple[AgentWindow | None, AgentEvidence | None]:
        """Sample everything once; return the window that has ended, and the closed stores."""
        samples = self._watcher.sample()
        self._usage = self._machine()
        alive = {sample.executor.identity for sample in samples}
        closed: list[ClosedStore] = []
        self._logs.retain(alive)
        self._shuffle.retain(alive)
        self._throttling.retain(alive)
        self._shuffle.read_changes()
        for sample in samples:
            closed += self._logs.read(sample.executor)
            for output in self._shuffle.read(sample.executor):
                self._add_map_output(output)
        readings: dict[Hashable, CounterReading] = {
            "node": CounterReading(self._usage.cpu, 0.0),
            "stolen": CounterReading(self._usage.stolen, 0.0),
        }
        limits = [self._throttling.read(sample.executor) for sample in samples]
        for sample, groups in zip(samples, limits, strict=True):
            identity, born = sample.executor.identity, sample.executor.started
            for group in groups:  # it may be older than its executor, and hold several
                readings["throttled", group.path] = CounterReading(group.throttled, 0.0)
                readings["periods", group.path] = CounterReading(group.periods, 0.0)
            readings["jvm", identity] = CounterReading(sample.jvm_cpu, born)
            readings["python", identity] = CounterReading(sample.python_cpu, born)
        closed_window = self._aggregator.add(readings)
        window = None if closed_window is None else self._window_message(closed_window)
        for sample, groups in zip(samples, limits, strict=True):
            self._latest[sample.executor.identity] = sample, groups
        self._warn_on_host_mismatch(samples)
        return window, AgentEvidence(node=self.node, closed=closed) if closed else None

    def finish(self) -> AgentWindow | None:
        """Return the open window as far as its last sample, and close all files."""
        self._logs.close()
        self._shuffle.close()
        window = self._aggregator.close()
        return None if window is None else self._window_message(window)

    def _add_map_output(self, output: MapOutput) -> None:
        if len(self._map_outputs) >= MAX_WINDOW_OUTPUTS or self._sizes + len(output.sizes) > MAX_WINDOW_SIZES:
            self._shuffle.skipped[_OVER_LIMIT] += 1
            return
        self._map_outputs.append(output)
        self._sizes += len(output.sizes)

    def _window_message(self, window: ClosedWindow) -> AgentWindow:
        skipped = Counter([*self._watcher.lasting, *self._logs.lasting.values()])
        for part in (self._watcher, self._shuffle, self._logs, self._aggregator):
            skipped.update(part.skipped)
            part.skipped.clear()
        map_outputs, self._map_outputs, self._sizes = self._map_outputs, [], 0
        latest, self._latest = self._latest, {}
        return AgentWindow(
            node=self.node,
            start=window.start,
            end=window.end,
            complete=window.complete,
            cores=self._usage.cores,
            node_cpu=window.growth.get("node", 0.0),
            memory_total=self._usage.memory_total,
            memory_used=self._usage.memory_used,
            executors=[_usage(sample, groups, window) for sample, groups in latest.values()],
            map_outputs=map_outputs,
            skipped=dict(skipped),
            stolen=window.growth.get("stolen", 0.0),
        )

    def _warn_on_host_mismatch(self, samples: list[ExecutorSample]) -> None:
        self._host_confirmed = self._host_confirmed or bool(samples)
        if self._host_confirmed or self._clock.monotonic() - self._started < max(
            HOST_MISMATCH_AFTER, 3 * self._settings.window
        ):
            return
        if other_hosts := self._watcher.other_hosts:
            self._host_confirmed = True  # logged once
            _log.warning(
                "no executor of this node",
                problem=f"no executor on this machine carries the host name {self.node!r}",
                executors_here_carry=other_hosts,
                cure="set agent.node to the host that these executors carry in Spark; for pods see docs/kubernetes.md",
            )


def _usage(sample: ExecutorSample, groups: tuple[LimitedGroup, ...], window: ClosedWindow) -> ExecutorUsage:
    executor, identity = sample.executor, sample.executor.identity
    return ExecutorUsage(
        application=executor.application,
        executor=executor.executor,
        host=executor.host,
        pid=executor.pid,
        started=executor.started,
        cores=executor.cores,
        jvm_cpu=window.growth.get(("jvm", identity), 0.0),
        python_cpu=window.growth.get(("python", identity), 0.0),
        jvm_rss=sample.jvm_rss,
        python_rss=sample.python_rss,
        python_workers=sample.python_workers,
        samples=window.samples.get(("jvm", identity), 0),
        steps=[
            (round(end, 3), round(step.get(("jvm", identity), 0.0), 4), round(step.get(("python", identity), 0.0), 4))
            for end, step in window.steps
            if ("jvm", identity) in step
        ],
        # Groups above each other are throttled at the same time, so the times of several do not add up.
        throttled=max((_throttled(group, window) for group in groups), default=0.0),
        cpu_limit=min((group.cores for group in groups), default=0.0),
    )


def _throttled(group: LimitedGroup, window: ClosedWindow) -> float:
    """Return the seconds in which a group was throttled: the lower one of two upper bounds."""
    return min(window.growth.get((counter, group.path), 0.0) for counter in ("throttled", "periods"))
