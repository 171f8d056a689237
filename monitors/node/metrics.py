"""Metrics of the agent for Prometheus: its windows, summed since it started."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from rechannel.conf.settings import SettingsError
from rechannel.wire.measurements import AgentWindow
from rechannel.wire.metric_samples import MetricDefinition, MetricSamples
from rechannel.wire.version import __version__

REASONS = 100  # a reason may name an executor: the ones beyond so many are counted together

_EXECUTOR = ("application", "executor")
_KIND = (*_EXECUTOR, "kind")

BUILD = MetricDefinition("rechannel_agent_build_info", "1; the label names the release", ("version",))
REDIS_UP = MetricDefinition("rechannel_agent_redis_up", "1 while Redis accepts the messages of the agent")
WAITING = MetricDefinition("rechannel_agent_waiting_messages", "Messages that wait to be pushed")
WINDOWS = MetricDefinition("rechannel_agent_windows_total", "Windows closed")
LAST_WINDOW = MetricDefinition("rechannel_agent_last_window_timestamp_seconds", "End of the last window")
NODE_CPU = MetricDefinition("rechannel_agent_node_cpu_seconds_total", "CPU seconds of the whole node")
NODE_MEMORY = MetricDefinition("rechannel_agent_node_memory_bytes", "Memory of the node")
NODE_USED = MetricDefinition("rechannel_agent_node_memory_used_bytes", "Memory of the node in use")
CPU = MetricDefinition(
    "rechannel_agent_executor_cpu_seconds_total",
    "CPU seconds of an executor's JVM (`kind` is `jvm`) and of its Python workers (`python`)",
    _KIND,
)
MEMORY = MetricDefinition(
    "rechannel_agent_executor_memory_bytes", "Resident memory of an executor's JVM and of its Python workers", _KIND
)
WORKERS = MetricDefinition("rechannel_agent_executor_python_workers", "Python workers of an executor", _EXECUTOR)
SHUFFLED = MetricDefinition(
    "rechannel_agent_shuffle_bytes_total", "Bytes that map tasks of an executor left for later stages", _EXECUTOR
)
OUTPUTS = MetricDefinition("rechannel_agent_map_outputs_total", "Map outputs of an executor that were read", _EXECUTOR)
SKIPPED = MetricDefinition("rechannel_agent_skipped_total", "What was not measured, by reason", ("reason",))

TABLE = tuple(item for item in vars().values() if isinstance(item, MetricDefinition))


class AgentMetrics(Collector):
    """Windows added on one thread, scraped on another; executors that are gone are dropped."""

    def __init__(self, waiting: Callable[[], int], reachable: Callable[[], bool], cluster: str) -> None:
        self._cluster = cluster
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
        """Add a closed window."""
        present = {(usage.application, usage.executor) for usage in window.executors}
        with self._lock:
            self._last = window
            self._windows += 1
            self._node_cpu += window.node_cpu
            for usage in window.executors:
                self._cpu[usage.application, usage.executor, "jvm"] += usage.jvm_cpu
                self._cpu[usage.application, usage.executor, "python"] += usage.python_cpu
            for output in window.map_outputs:
                self._outputs[output.application, output.executor] += 1
                self._bytes[output.application, output.executor] += sum(output.sizes)
            for reason, count in window.skipped.items():
                named = reason in self._skipped or len(self._skipped) < REASONS
                self._skipped[reason if named else "other reasons"] += count
            for counter in (self._bytes, self._outputs):
                for key in [key for key in counter if key not in present]:
                    del counter[key]
            for cpu_key in [key for key in self._cpu if key[:2] not in present]:
                del self._cpu[cpu_key]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; Prometheus' client calls this."""
        with self._lock:
            values = self._values()
        yield from values.families()

    def _values(self) -> MetricSamples:
        last, values = self._last, MetricSamples(TABLE, self._cluster)
        values.set(BUILD, 1, __version__)
        values.set(REDIS_UP, self._reachable())
        values.set(WAITING, self._waiting())
        values.set(WINDOWS, self._windows)
        values.set(NODE_CPU, self._node_cpu)
        for reason, count in sorted(self._skipped.items()):
            values.set(SKIPPED, count, reason)
        if last is None:
            return values
        values.set(LAST_WINDOW, last.end)
        values.set(NODE_MEMORY, last.memory_total)
        values.set(NODE_USED, last.memory_used)
        for usage in last.executors:
            values.set(MEMORY, usage.jvm_rss, usage.application, usage.executor, "jvm")
            values.set(MEMORY, usage.python_rss, usage.application, usage.executor, "python")
            values.set(WORKERS, usage.python_workers, usage.application, usage.executor)
        for cpu_key, seconds in sorted(self._cpu.items()):
            values.set(CPU, seconds, *cpu_key)
        for item, counter in ((SHUFFLED, self._bytes), (OUTPUTS, self._outputs)):
            for key, count in sorted(counter.items()):
                values.set(item, count, *key)
        return values


def serve(metrics: AgentMetrics, address: str) -> Callable[[], None]:
    """Serve metrics at host:port; return a function that ends it. Raises SettingsError."""
    registry = CollectorRegistry()
    registry.register(metrics)
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), addr=host.strip("[]"), registry=registry)
    except (OSError, ValueError, OverflowError) as error:
        raise SettingsError(
            [f"agent.metrics: {address} cannot be opened ({error}); use a free host:port, or none"]
        ) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5.0)

    return end
