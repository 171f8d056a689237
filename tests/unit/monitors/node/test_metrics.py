from __future__ import annotations

import socket
import urllib.request

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rechannel.conf.settings import SettingsError
from rechannel.monitors.node.metrics import AgentMetrics, serve
from rechannel.wire.measurements import MapOutput
from unit.daemon.fakes import APP, window

Samples = dict[tuple[str, ...], float]


def _samples(text: str) -> Samples:
    return {
        (
            sample.name.removeprefix("rechannel_agent_"),
            *(value for label, value in sample.labels.items() if label != "cluster"),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["cluster"] == "c"
    }


def _scraped(metrics: AgentMetrics) -> Samples:
    registry = CollectorRegistry()
    registry.register(metrics)
    return _samples(generate_latest(registry).decode())


@pytest.fixture
def metrics() -> AgentMetrics:
    return AgentMetrics(lambda: 3, lambda: True, "c")


def test_metrics_before_the_first_window(metrics: AgentMetrics) -> None:
    samples = _scraped(metrics)
    assert samples["windows_total",] == 0
    assert (samples["waiting_messages",], samples["redis_up",]) == (3, 1)


def test_counters_add_up_over_windows(metrics: AgentMetrics) -> None:
    outputs = [MapOutput(APP, "0", 1, 1, [10, 20]), MapOutput(APP, "0", 1, 2, [5])]
    for _ in range(2):
        metrics.add(msgspec.structs.replace(window(0, map_outputs=outputs), skipped={"why": 2}))
    samples = _scraped(metrics)
    assert samples["executor_cpu_seconds_total", APP, "0", "jvm"] == 4.0
    assert samples["executor_cpu_seconds_total", APP, "0", "python"] == 2.0
    assert samples["node_cpu_seconds_total",] == 6.0
    assert samples["shuffle_bytes_total", APP, "0"] == 70
    assert samples["map_outputs_total", APP, "0"] == 4
    assert samples["skipped_total", "why"] == 4
    assert samples["executor_memory_bytes", APP, "0", "jvm"] == 2**28


def test_an_executor_that_is_gone_has_no_series(metrics: AgentMetrics) -> None:
    metrics.add(window(0, map_outputs=[MapOutput(APP, "0", 1, 1, [10])]))
    metrics.add(window(1))
    samples = _scraped(metrics)
    assert {key[2] for key in samples if key[0].startswith(("executor", "shuffle", "map"))} == {"1"}


def test_the_endpoint_answers_and_ends(metrics: AgentMetrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    end = serve(metrics, f"127.0.0.1:{port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert _samples(answer.read().decode())["windows_total",] == 0
    end()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)


def test_an_address_that_cannot_be_opened_is_named(metrics: AgentMetrics) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        for address in (f"127.0.0.1:{occupied.getsockname()[1]}", "127.0.0.1:99999", "no.such.host.invalid:9417"):
            with pytest.raises(SettingsError, match=r"agent\.metrics"):
                serve(metrics, address)
