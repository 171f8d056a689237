"""Endpoints of the web view: page, refreshed part, JSON, and static files.

All are read-only. The content policy allows files of this server alone, and nothing inline.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rechannel.daemon.view.http import SECURITY_HEADERS
from rechannel.daemon.view.status import ControllerView
from rechannel.daemon.web import rendering
from rechannel.daemon.web.view_model import build_document

EVERY = 3.0  # seconds between two refreshes by the page's script
HEADERS = SECURITY_HEADERS | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
}
_STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HTML = "text/html; charset=utf-8"


class _PageCache:
    """The document and its renderings, made at most once a second for all browsers together."""

    def __init__(self, view: Callable[[], ControllerView], clock: Callable[[], float], every: float) -> None:
        self._latest = view
        self._clock = clock
        self._renderers: dict[str, Callable[[dict[str, Any]], bytes]] = {
            "page": lambda document: rendering.page(document, every).encode(),
            "fragment": lambda document: rendering.fragment(document).encode(),
            "json": msgspec.json.encode,
        }
        self._lock = threading.Lock()
        self._view: ControllerView | None = None
        self._second = 0
        self._document: dict[str, Any] = {}
        self._bodies: dict[str, bytes] = {}

    def get(self, kind: str) -> bytes:
        with self._lock:
            view, now = self._latest(), self._clock()
            if view is not self._view or int(now) != self._second:
                self._document, self._bodies = build_document(view, now), {}
                self._view, self._second = view, int(now)
            if kind not in self._bodies:
                self._bodies[kind] = self._renderers[kind](self._document)
            return self._bodies[kind]


def routes(
    view: Callable[[], ControllerView], *, clock: Callable[[], float] = time.time, every: float = EVERY
) -> list[Route]:
    """Return the routes ``/``, ``/fragment``, ``/api/view`` and ``/static/…``.

    ``view`` is called for every response, from several threads, and must not wait. ``every``: seconds between two
    refreshes of an open page.
    """
    cache = _PageCache(view, clock, every)
    rendering.load()
    static = {name: (files(__package__) / "static" / name).read_bytes() for name in _STATIC}
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in static.items()}

    def uncached(kind: str, content_type: str) -> Callable[[Request], Response]:
        return lambda _: Response(cache.get(kind), headers=HEADERS | {"content-type": content_type})

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static:
            return Response("no such file\n", 404, HEADERS | {"content-type": "text/plain; charset=utf-8"})
        headers = HEADERS | {"etag": tags[name], "cache-control": "no-cache", "content-type": _STATIC[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(static[name], headers=headers)

    # Starlette runs plain functions in threads, so that rendering delays no health check.
    return [
        Route("/", uncached("page", _HTML)),
        Route("/fragment", uncached("fragment", _HTML)),
        Route("/api/view", uncached("json", "application/json")),
        Route("/static/{name}", file),
    ]
