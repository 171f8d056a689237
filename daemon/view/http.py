"""The controller's HTTP server: metrics, health, readiness and the web view, read-only.

The server has a thread of its own and answers from the newest view and the records of the jobs; it takes no lock of
theirs and does not call Redis. All that clients can do is bounded: only GET and HEAD, no bodies, short headers, few
connections. A connection without a complete request is closed after seconds, any other after a minute.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence

import structlog
import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rechannel.conf.settings import SettingsError
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.leadership import Role
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view.metrics import ControllerMetrics, Counters
from rechannel.daemon.view.publisher import CurrentView, Publisher
from rechannel.daemon.view.status import ControllerView
from rechannel.wire.redis.store import Store

CONNECTIONS = 64  # at once; one more closes the connection that has been idle for longest
_LONGEST = 60.0  # seconds of any connection
_IDLE = 5  # seconds until a request is complete, the first or the next
_ENCODINGS = 8  # of the metrics that are cached; clients may ask for any version
_HEADERS = 16_384  # bytes
_JOIN = 5.0  # seconds in which the server ends
_METHODS = ("GET", "HEAD")

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class HttpFrontend:
    """The HTTP side of a controller: publisher of its views, server of the newest one.

    Takes its port at once; raises SettingsError if the port cannot be opened. ``pages`` makes the routes of further
    pages, given a function that returns the newest view.
    """

    def __init__(
        self,
        controller: Controller,
        store: Store,
        monitor: JobMonitor,
        counters: Counters,
        clock: Clock,
        pages: Callable[[Callable[[], ControllerView]], Sequence[BaseRoute]],
    ) -> None:
        settings = controller.settings
        self.publisher = Publisher(controller.snapshot, store, settings, monitor, counters, clock)
        latest = CurrentView(self.publisher.latest, controller.lead).get
        metrics = MetricsCache(ControllerMetrics(latest, monitor, counters), clock.monotonic)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every invalid request
        self.server = HttpServer(
            settings.controller.listen,
            lambda local: build_app(
                latest,
                monitor,
                metrics,
                silence=settings.controller.lease,
                local=local,
                routes=pages(latest),
            ),
        )


class MetricsCache:
    """The metrics in each encoding, made at most once a second for all clients together."""

    def __init__(self, metrics: ControllerMetrics, steady: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(metrics)
        self._steady = steady
        self._lock = threading.Lock()
        self._second = 0
        self._bodies: dict[str, bytes] = {}  # by content type

    def get(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the best accepted encoding, with its content type."""
        encode, content_type = choose_encoder(accept)
        with self._lock:
            second = int(self._steady())
            if second != self._second or len(self._bodies) >= _ENCODINGS:
                self._second, self._bodies = second, {}
            if content_type not in self._bodies:
                self._bodies[content_type] = encode(self._registry)
            return self._bodies[content_type], content_type


def build_app(
    latest: Callable[[], ControllerView],
    monitor: JobMonitor,
    metrics: MetricsCache,
    *,
    silence: float,
    local: bool,
    routes: Sequence[BaseRoute] = (),
) -> Starlette:
    """Build the ASGI application.

    ``silence``: seconds without an answer of Redis after which the controller is not ready. With ``local`` the server
    listens on loopback alone, and a request for another host is refused: it comes from a page that tricked a browser.
    """

    def scrape(request: Request) -> Response:
        body, content_type = metrics.get(", ".join(request.headers.getlist("accept")))
        return Response(body, headers={"content-type": content_type, "vary": "accept"})

    def healthz(request: Request) -> Response:  # noqa: ARG001 a parameter of every endpoint
        return _health(monitor.stuck(), "all jobs of the controller make progress")

    def readyz(request: Request) -> Response:  # noqa: ARG001 a parameter of every endpoint
        view = latest()
        reason = monitor.stuck() or monitor.staleness("observe", silence)
        if not reason and not view.redis_up:
            reason = view.redis_problem or "nothing was read from Redis yet"
        if not reason and view.role is Role.STARTING:
            reason = "no leader is known yet"
        epoch = view.leader.epoch
        return _health(reason, f"{view.role} in epoch {epoch}", role=view.role, epoch=epoch)

    own = [
        Route("/metrics", scrape, name="metrics"),
        Route("/healthz", healthz, name="healthz"),
        Route("/readyz", readyz, name="readyz"),
    ]
    app = Starlette(
        routes=[*own, *routes],
        middleware=[Middleware(_RequestGuard, local=local)],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
    )
    app.router.redirect_slashes = False
    return app


def _health(problem: str, sentence: str, **more: object) -> Response:
    ok = not problem
    return JSONResponse({"ok": ok, "sentence": problem or sentence, **more}, status_code=200 if ok else 503)


async def _http_error(request: Request, error: Exception) -> Response:
    code, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "failed")
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    sentence = f"there is nothing at {request.url.path}" if code == 404 else detail
    return JSONResponse({"error": sentence, "code": code}, status_code=code, headers=headers)


async def _server_error(request: Request, error: Exception) -> Response:  # noqa: ARG001 parameters of every handler
    return JSONResponse({"error": "the controller failed to answer; see its log", "code": 500}, status_code=500)


class _RequestGuard:
    """Middleware that refuses forbidden requests and adds the security headers."""

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _METHODS:
            code, sentence = 405, f"{scope['method']} is not supported: this server is read-only"
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            code, sentence = 413, "a request must have no body"
        elif sum(len(name) + len(value) for name, value in headers.raw) + len(scope["raw_path"]) > _HEADERS:
            code, sentence = 431, f"the headers of a request must not exceed {_HEADERS} bytes"
        elif self._local and not _is_local(headers.get("host", "")):
            code, sentence = 421, "this server is not that host; use its address or localhost"
        else:
            return None
        more = {"allow": ", ".join(_METHODS)} if code == 405 else {}
        return JSONResponse({"error": sentence, "code": code}, code, {"connection": "close", **more})


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    name = name.strip("[]").lower()
    if name in ("", "localhost", socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class _Protocol(H11Protocol):
    """HTTP/1.1 with bounds on connections that uvicorn does not have.

    uvicorn's ``limit_concurrency`` answers the newest client with 503 and keeps the idle ones, and its
    ``timeout_keep_alive`` starts only after a first response.
    """

    _lifetime: asyncio.TimerHandle | None = None
    _idle_timeout: asyncio.TimerHandle | None = None
    _idle_since = 0.0  # by the loop's clock
    _aborted = False  # still among the connections until the loop's next turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._lifetime = self.loop.call_later(_LONGEST, transport.abort)
        self._start_idle_timeout()
        others = [it for it in self.connections if isinstance(it, _Protocol) and it is not self and not it._aborted]
        if len(others) >= CONNECTIONS:
            # A client that does not read its answer counts as idle.
            idle = [it for it in others if not it._busy or it.flow.write_paused]
            victim = min(idle, key=lambda it: it._idle_since, default=self)
            victim._aborted = True
            victim.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._busy:
            self._cancel_idle_timeout()

    def on_response_complete(self) -> None:
        self._start_idle_timeout()
        super().on_response_complete()  # may begin with the next request
        if self._busy:
            self._cancel_idle_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_idle_timeout()
        if self._lifetime is not None:
            self._lifetime.cancel()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        """A request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_idle_timeout(self) -> None:
        self._cancel_idle_timeout()
        self._idle_since = self.loop.time()
        self._idle_timeout = self.loop.call_later(_IDLE, self.transport.close)  # the rest of an answer is still sent

    def _cancel_idle_timeout(self) -> None:
        if self._idle_timeout is not None:
            self._idle_timeout.cancel()


class HttpServer:
    """A server in a thread of its own. ``address``: its host and port."""

    def __init__(self, listen: str, build: Callable[[bool], Callable[..., Awaitable[None]]]) -> None:
        """Open the port, or raise SettingsError.

        ``build`` makes the application, given whether the address is on loopback.
        """
        host, _, port = listen.rpartition(":")
        try:
            self._socket = _listen(host.strip("[]"), int(port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(
                [f"controller.listen: {listen} cannot be opened ({reason}); use a free one of this machine, or none"]
            ) from error
        ip, opened = self._socket.getsockname()[:2]
        self.local = ipaddress.ip_address(ip.partition("%")[0]).is_loopback
        self.address = f"[{ip}]:{opened}" if ":" in ip else f"{ip}:{opened}"
        self._build = build
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._log = structlog.get_logger("rechannel.http")

    def start(self) -> None:
        """Start to answer."""
        config = uvicorn.Config(
            self._build(self.local),
            http=_Protocol,
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_IDLE,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=_HEADERS,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(self._server,), name="rechannel-http", daemon=True)
        self._thread.start()
        self._log.info("http-listens", address=self.address, local=self.local)

    def close(self) -> None:
        """Stop and release the port; open connections are closed."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(_JOIN)
        self._socket.close()

    def _run(self, server: uvicorn.Server) -> None:
        try:
            server.run(sockets=[self._socket])
        except Exception:  # noqa: BLE001 the controller runs on without it
            self._log.exception("http-failed", address=self.address)
        finally:
            self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(CONNECTIONS)
    except BaseException:
        listening.close()
        raise
    return listening
