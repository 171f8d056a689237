"""The agent's figures for Prometheus: the same windows that go to Redis, added up since the agent began."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rechannel.wire.messages import AgentWindow

REASONS = 100  # a reason may name an executor: what comes beyond so many is counted together
_PREFIX = "rechannel_agent_"


class EndpointError(RuntimeError):
    """The endpoint cannot be opened where the settings want it."""


class AgentMetrics(Collector):
    """Takes windows in one thread, is scraped in another. Executors that are gone are forgotten with their figures."""

    def __init__(self, waiting: Callable[[], int], reachable: Callable[[], bool]) -> None:
        self._waiting = waiting
        self._reachable = reachable
        self._lock = threading.Lock()
        self._last: AgentWindow | None = None
        self._windows = 0
        self._node_cpu = 0.0
        self._cpu: defaultdict[tuple[str, str, str], float] = defaultdict(float)  # the last is jvm or python
        self._bytes: Counter[tuple[str, str]] = Counter()
        self._outputs: Counter[tuple[str, str]] = Counter()
        self._skipped: Counter[str] = Counter()

    def add(self, window: AgentWindow) -> None:
        """Take in a closed window."""
        here = {(usage.application, usage.executor) for usage in window.executors}
        with self._lock:
            self._last = window
            self._windows += 1
            self._node_cpu += window.node_cpu
            for usage in window.executors:
                self._cpu[usage.application, usage.executor, "jvm"] += usage.jvm_cpu
                self._cpu[usage.application, usage.executor, "python"] += usage.python_cpu
            for row in window.streams:
                self._outputs[row.application, row.executor] += 1
                self._bytes[row.application, row.executor] += sum(row.sizes)
            for reason, count in window.skipped.items():
                known = reason in self._skipped or len(self._skipped) < REASONS
                self._skipped[reason if known else "other reasons"] += count
            for counter in (self._bytes, self._outputs):
                for key in [key for key in counter if key not in here]:
                    del counter[key]
            for gone in [key for key in self._cpu if key[:2] not in here]:
                del self._cpu[gone]

    def collect(self) -> Iterator[Metric]:
        """Yield every figure; Prometheus' client calls this."""
        with self._lock:
            yield from self._collected()

    def _collected(self) -> Iterator[Metric]:
        last = self._last
        yield _gauge("redis_up", "1 while Redis takes what the agent pushes", float(self._reachable()))
        yield _gauge("waiting_messages", "Messages that wait to be pushed", float(self._waiting()))
        yield _counter("windows", "Windows closed", float(self._windows))
        yield _counter("node_cpu_seconds", "CPU seconds of the whole node", self._node_cpu)
        skipped = CounterMetricFamily(_PREFIX + "skipped", "What was not measured, by reason", labels=["reason"])
        for reason, count in sorted(self._skipped.items()):
            skipped.add_metric([reason], count)
        yield skipped
        if last is None:
            return
        yield _gauge("last_window_timestamp_seconds", "End of the last window", last.end)
        yield _gauge("node_memory_bytes", "Memory of the node", float(last.memory_total))
        yield _gauge("node_memory_used_bytes", "Memory of the node in use", float(last.memory_used))
        cpu = CounterMetricFamily(
            _PREFIX + "executor_cpu_seconds",
            "CPU seconds of an executor's JVM and of its Python workers",
            labels=["application", "executor", "kind"],
        )
        for cpu_key, seconds in sorted(self._cpu.items()):
            cpu.add_metric(cpu_key, seconds)
        yield cpu
        memory = GaugeMetricFamily(
            _PREFIX + "executor_memory_bytes",
            "Resident memory of an executor's JVM and of its Python workers",
            labels=["application", "executor", "kind"],
        )
        workers = GaugeMetricFamily(
            _PREFIX + "executor_python_workers", "Python workers of an executor", labels=["application", "executor"]
        )
        for usage in last.executors:
            memory.add_metric([usage.application, usage.executor, "jvm"], usage.jvm_rss)
            memory.add_metric([usage.application, usage.executor, "python"], usage.python_rss)
            workers.add_metric([usage.application, usage.executor], usage.python_workers)
        yield memory
        yield workers
        for name, text, counter in (
            ("shuffle_bytes", "Bytes that map tasks of an executor left for later stages", self._bytes),
            ("map_outputs", "Map outputs of an executor that were read", self._outputs),
        ):
            family = CounterMetricFamily(_PREFIX + name, text, labels=["application", "executor"])
            for key, count in sorted(counter.items()):
                family.add_metric(key, count)
            yield family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def serve(metrics: AgentMetrics, address: str) -> Callable[[], None]:
    """Answer Prometheus at ``address``, which is host:port; returns what ends it. Raises EndpointError."""
    registry = CollectorRegistry()
    registry.register(metrics)
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except (OSError, ValueError, OverflowError) as error:
        raise EndpointError(
            f"agent.metrics: {address} cannot be opened ({error}); use a free host:port, or none"
        ) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5.0)

    return end
