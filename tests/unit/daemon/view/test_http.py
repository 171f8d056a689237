"""HTTP server: answers, refusals, and limits of clients."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from http.client import HTTPResponse

import httpx
import pytest
from prometheus_client import CollectorRegistry

from rechannel.conf.settings import SettingsError
from rechannel.daemon.control.leadership import Role
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view import http
from rechannel.daemon.view.metrics import ControllerMetrics, Counters
from rechannel.daemon.view.status import ControllerView, LeaderStatus
from rechannel.wire.redis.errors import StoreUnavailableError
from unit.daemon.fake_store import FakeClock
from unit.daemon.fakes import clocks

VIEW = ControllerView(
    at=10.0, cluster="c", name="me", role=Role.LEADING, controller=LeaderStatus(epoch=3), redis_up=True
)


class Served:
    """A server with one view and a job that can fail."""

    def __init__(self) -> None:
        self.clock, self.view, self.error = FakeClock(), VIEW, None
        self.monitor = JobMonitor(clocks(self.clock))
        self.observe = self.monitor.add("observe", 1.0, self._observe).run
        latest = lambda: self.view  # noqa: E731
        metrics = http.MetricsCache(ControllerMetrics(latest, self.monitor, Counters()), self.clock)
        self.server = http.HttpServer(
            "127.0.0.1:0", lambda local: http.build_app(latest, self.monitor, metrics, silence=15.0, local=local)
        )
        self.server.start()
        self.url = f"http://{self.server.address}"

    error: Exception | None

    def _observe(self) -> None:
        if self.error is not None:
            raise self.error

    def fail(self, error: Exception) -> None:
        self.error = error
        self.observe()
        self.clock.sleep(5)  # longer than it rests

    def get(self, path: str, **more: object) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=30) as client:
            return client.request(str(more.pop("method", "GET")), self.url + path, **more)  # type: ignore[arg-type]


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.server.close()


def test_metrics_in_both_formats(served: Served) -> None:
    plain = served.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert '\nrechannel_controller_leads{cluster="c"} 1.0\n' in plain.text
    query = served.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert query.headers["content-type"].startswith("application/openmetrics-text")
    assert query.text.endswith("# EOF\n")


def test_every_answer_has_the_security_headers(served: Served) -> None:
    for path in ("/metrics", "/healthz", "/readyz", "/nothing"):
        answer = served.get(path)
        assert {name: answer.headers[name] for name in http.SECURITY_HEADERS} == http.SECURITY_HEADERS
        assert "server" not in answer.headers


def test_readiness_by_role_and_redis(served: Served) -> None:
    assert (served.get("/readyz").status_code, served.get("/healthz").status_code) == (503, 200)
    served.observe()
    answer = served.get("/readyz")
    assert (answer.status_code, answer.json()["sentence"]) == (200, "leading in epoch 3")
    served.view = dataclasses.replace(VIEW, role=Role.STANDING_BY)
    assert served.get("/readyz").json()["role"] == "standing-by"
    served.fail(StoreUnavailableError("Redis at r is away"))
    problem = {"ok": False, "sentence": "Redis at r is away"}
    assert served.get("/readyz").json() == problem | {"role": "standing-by", "epoch": 3}
    assert served.get("/healthz").status_code == 200


def test_a_failing_or_stuck_job_is_unhealthy(served: Served) -> None:
    for _ in range(3):
        served.fail(ZeroDivisionError("x"))
    answer = served.get("/healthz")
    assert answer.status_code == 503
    assert "failed 3 times in a row: ZeroDivisionError" in answer.json()["sentence"]
    served.error = None
    served.observe()
    assert served.get("/healthz").status_code == 200
    served.clock.sleep(64)
    assert "has not ended for 64 s" in served.get("/healthz").json()["sentence"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_writing_methods_are_refused(served: Served, method: str) -> None:
    answer = served.get("/metrics", method=method)
    assert (answer.status_code, answer.headers["allow"], answer.json()["code"]) == (405, "GET, HEAD", 405)


def test_unknown_paths_bodies_and_long_headers_are_refused(served: Served) -> None:
    assert served.get("/nothing").json() == {"error": "there is nothing at /nothing", "code": 404}
    assert served.get("/metrics", content=b"x").status_code == 413
    assert served.get("/metrics", headers={"x": "y" * 40_000}).status_code == 431
    assert served.get("/healthz", method="HEAD").content == b""


def test_requests_for_other_hosts_are_refused(served: Served) -> None:
    assert served.get("/metrics", headers={"host": "evil.example"}).status_code == 421
    for host in ("localhost:1", "127.0.0.1", "[::1]:80"):
        assert served.get("/healthz", headers={"host": host}).status_code == 200


def _connected(served: Served, count: int) -> list[socket.socket]:
    place = ("127.0.0.1", int(served.url.rpartition(":")[2]))
    return [socket.create_connection(place, timeout=30) for _ in range(count)]


def test_hanging_clients_block_no_others(served: Served) -> None:
    hanging = _connected(served, 10)
    for client in hanging[:5]:
        client.sendall(b"GET /metrics HTTP/1.1\r\nhost: localh")
    assert served.get("/healthz").status_code == 200
    served.server.close()
    for client in hanging:
        client.close()
    with pytest.raises(OSError, match="refused"):
        _connected(served, 1)


def _ended(client: socket.socket) -> bool:
    """Whether the other side ends it, in the time that a call may take."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def _answered(client: socket.socket) -> int:
    """Read one answer whole, however many pieces it comes in, and return its status."""
    response = HTTPResponse(client)
    response.begin()
    response.read()
    return response.status


def test_idle_connections_make_room_for_new_ones(served: Served) -> None:
    idle = _connected(served, http.CONNECTIONS + 1)
    assert _ended(idle[0]), "the oldest makes room"
    assert served.get("/healthz").status_code == 200
    idle[-1].sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert _answered(idle[-1]) == 200
    for client in idle:
        client.close()


@pytest.mark.parametrize("messages", [b"", b"GET /healthz HTTP/1.1\r\nhost: localh"])
def test_a_connection_without_a_complete_request_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch, messages: bytes
) -> None:
    question = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
    (asks,) = _connected(served, 1)
    with asks:
        asks.sendall(question)
        assert _answered(asks) == 200
        monkeypatch.setattr(http, "_IDLE", 0.05)
        asks.sendall(question + messages)
        assert _answered(asks) == 200
        assert _ended(asks)
    (silent,) = _connected(served, 1)
    with silent:
        silent.sendall(messages)
        assert _ended(silent)


def test_metrics_are_rendered_once_a_second_in_each_encoding(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    choose = http.choose_encoder

    def counted(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
        encode, kind = choose(accept)

        def encoded(registry: CollectorRegistry) -> bytes:
            made.append(kind)
            return encode(registry)

        return encoded, kind

    monkeypatch.setattr(http, "choose_encoder", counted)
    for _ in range(3):
        served.get("/metrics")
        served.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert len(made) == len(set(made)) == 2
    served.clock.sleep(1)
    served.get("/metrics")
    assert len(made) == 3


def test_a_port_in_use_is_reported_with_its_setting(served: Served) -> None:
    with pytest.raises(SettingsError, match=r"controller\.listen: .* cannot be opened \(Address already in use\)"):
        http.HttpServer(served.server.address, lambda local: None)  # type: ignore[arg-type, return-value]
