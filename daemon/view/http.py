"""The controller's HTTP server: metrics, health, readiness and the web view, to be read and never written.

It runs in a thread of its own and answers from what the controller's jobs have put down: it takes no lock of theirs and
asks Redis nothing. What clients can do to it is bounded: methods that write are refused, bodies too, headers are short,
connections are few, one that asks nothing is cut after seconds and the others after a minute, whatever a client does or
leaves undone.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

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
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view.counters import Counters
from rechannel.daemon.view.metrics import ControllerMetrics
from rechannel.daemon.view.model import ControllerView, Role

CONNECTIONS = 64  # at once; for one more, the one is cut that has asked nothing for longest
_LONGEST = 60.0  # seconds that a connection lasts, whatever it is used for
_IDLE = 5  # seconds that one is kept until a request is complete, the first or the next
_ENCODINGS = 8  # of the metrics that are kept: whoever asks may think up versions
_HEADERS = 16_384  # bytes
_TO_END = 5.0  # seconds in which the server ends
_READ = ("GET", "HEAD")
_WEB = "rechannel.daemon.web"

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def build_app(
    take: Callable[[], ControllerView],
    loops: JobMonitor,
    counts: Counters,
    *,
    silence: float,
    local: bool = True,
    routes: list[BaseRoute] | None = None,
    steady: Callable[[], float] = time.monotonic,
) -> Starlette:
    """Return the application.

    ``take`` returns the newest view; ``silence``: seconds without a word from Redis after which this controller is not
    ready. ``local``: it listens on loopback alone, so a request for another host comes from a page that tricked a
    browser and is refused. ``routes`` are those of the web view; ``steady``: seconds that nobody sets.
    """
    figures = _Figures(ControllerMetrics(take, loops, counts), steady)

    def metrics(request: Request) -> Response:
        body, kind = figures.get(", ".join(request.headers.getlist("accept")))
        return Response(body, headers={"content-type": kind, "vary": "accept"})

    def healthz(request: Request) -> Response:  # noqa: ARG001 starlette hands it over
        return _word(loops.stuck(), "the controller's jobs get on")

    def readyz(request: Request) -> Response:  # noqa: ARG001 starlette hands it over
        view = take()
        reason = loops.stuck() or loops.heard("observe", silence)
        if not reason and not view.redis_up:
            reason = view.redis_problem or "nothing was read from Redis yet"
        if not reason and view.role is Role.STARTING:
            reason = "it is not known yet who leads"
        return _word(reason, f"{view.role} in epoch {view.epoch}", role=view.role, epoch=view.epoch)

    own = [
        Route("/metrics", metrics, name="metrics"),
        Route("/healthz", healthz, name="healthz"),
        Route("/readyz", readyz, name="readyz"),
    ]
    app = Starlette(
        routes=[*own, *(routes or [])],
        middleware=[Middleware(_Guard, local=local)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


class _Figures:
    """The metrics in each encoding, made at most once a second however many ask."""

    def __init__(self, metrics: ControllerMetrics, steady: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(metrics)
        self._steady = steady
        self._lock = threading.Lock()
        self._second = 0
        self._made: dict[str, bytes] = {}  # content type -> body

    def get(self, accept: str) -> tuple[bytes, str]:
        encode, kind = choose_encoder(accept)
        with self._lock:
            second = int(self._steady())
            if second != self._second or len(self._made) >= _ENCODINGS:
                self._second, self._made = second, {}
            if kind not in self._made:
                self._made[kind] = encode(self._registry)
            return self._made[kind], kind


def web_routes(take: Callable[[], ControllerView]) -> list[BaseRoute]:
    """Return the routes of the web view, none where it is not installed."""
    if importlib.util.find_spec(_WEB) is None:
        return []
    found: Any = importlib.import_module(_WEB)
    return list(found.routes(take)) if hasattr(found, "routes") else []


def _word(reason: str, otherwise: str, **more: object) -> Response:
    ok = not reason
    return JSONResponse({"ok": ok, "sentence": reason or otherwise, **more}, status_code=200 if ok else 503)


async def _refused(request: Request, error: Exception) -> Response:
    code, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "failed")
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    sentence = f"there is nothing at {request.url.path}" if code == 404 else detail
    return JSONResponse({"error": sentence, "code": code}, status_code=code, headers=headers)


async def _failed(request: Request, error: Exception) -> Response:  # noqa: ARG001 starlette hands it over
    return JSONResponse({"error": "the controller failed to answer; see its log", "code": 500}, status_code=500)


class _Guard:
    """Refuses what may not be asked before any route sees it, and puts the security headers on every answer."""

    def __init__(self, app: ASGIApp, *, local: bool) -> None:
        self._app = app
        self._local = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if scope["method"] not in _READ:
            code, why = 405, f"{scope['method']} is not answered here: this can be read, never written"
        elif headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            code, why = 413, "a question has no body"
        elif sum(len(name) + len(value) for name, value in headers.raw) + len(scope["raw_path"]) > _HEADERS:
            code, why = 431, f"a question has no more than {_HEADERS} bytes of headers"
        elif self._local and not _is_local(headers.get("host", "")):
            code, why = 421, "this is not that host; ask by its address or as localhost"
        else:
            return None
        more = {"allow": ", ".join(_READ)} if code == 405 else {}
        return JSONResponse({"error": why, "code": code}, code, {"connection": "close", **more})


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
    """HTTP/1.1 for clients that may be anything: few connections, none for long, and shorter those that ask nothing."""

    _cut: asyncio.TimerHandle | None = None
    _cut_idle: asyncio.TimerHandle | None = None
    _idle_since = 0.0  # by the loop's clock
    _aborted = False  # it is among the connections until the loop's next turn

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._cut = self.loop.call_later(_LONGEST, transport.abort)
        self._rest()
        others = [it for it in self.connections if isinstance(it, _Protocol) and it is not self and not it._aborted]
        if len(others) >= CONNECTIONS:
            # Whoever does not read its answer asks no more than who says nothing.
            idle = [it for it in others if not it._busy or it.flow.write_paused]
            cut = min(idle, key=lambda it: it._idle_since, default=self)
            cut._aborted = True
            cut.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._busy:
            self._wake()

    def on_response_complete(self) -> None:
        self._rest()
        super().on_response_complete()  # which may begin with the next request
        if self._busy:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wake()
        if self._cut is not None:
            self._cut.cancel()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _rest(self) -> None:
        self._wake()
        self._idle_since = self.loop.time()
        self._cut_idle = self.loop.call_later(_IDLE, self.transport.close)  # what is left of an answer is sent yet

    def _wake(self) -> None:
        if self._cut_idle is not None:
            self._cut_idle.cancel()


class HttpServer:
    """A server in a thread of its own. ``address``: where it listens, with the port that was really taken."""

    def __init__(self, listen: str, build: Callable[[bool], Callable[..., Awaitable[None]]]) -> None:
        """Take the port at once; SettingsError where that cannot be. ``build`` is told whether all is local."""
        host, _, port = listen.rpartition(":")
        try:
            self._socket = _listening(host.strip("[]"), int(port))
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise SettingsError(
                [f"controller.listen: {listen} cannot be opened ({why}); use a free host:port of this machine, or none"]
            ) from error
        taken = self._socket.getsockname()
        self.local = ipaddress.ip_address(taken[0].partition("%")[0]).is_loopback
        self.address = f"[{taken[0]}]:{taken[1]}" if ":" in taken[0] else f"{taken[0]}:{taken[1]}"
        self._build = build
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._log = structlog.get_logger("rechannel.http")

    def start(self) -> None:
        """Answer from now on."""
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
        """End, and give the port back; a client that hangs is cut."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(_TO_END)
        self._socket.close()

    def _run(self, server: uvicorn.Server) -> None:
        try:
            server.run(sockets=[self._socket])
        except Exception:  # noqa: BLE001 the controller goes on without it
            self._log.exception("http-failed", address=self.address)
        finally:
            self._socket.close()


def _listening(host: str, port: int) -> socket.socket:
    family, kind, number, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    made = socket.socket(family, kind, number)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(place)
        made.listen(CONNECTIONS)
    except BaseException:
        made.close()
        raise
    return made
