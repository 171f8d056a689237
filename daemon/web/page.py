"""Answers the browser: the page, its changing part, the same as JSON, and the static files it needs.

Nothing here writes or orders anything. Strict content policy: what this server serves, nothing inline, nobody else.
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

from rechannel.daemon.view.model import ControllerView
from rechannel.daemon.web import rendering
from rechannel.daemon.web.view_model import document

EVERY = 3.0  # seconds between two renewals by the page's script; the view itself is made as often
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_STATIC = {
    "style.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HTML = "text/html; charset=utf-8"


class _Figures:
    """The document and its renderings, made at most once a second however many browsers ask."""

    def __init__(self, view: Callable[[], ControllerView], clock: Callable[[], float], every: float) -> None:
        self._view = view
        self._clock = clock
        self._makers: dict[str, Callable[[dict[str, Any]], bytes]] = {
            "page": lambda made: rendering.page(made, every).encode(),
            "fragment": lambda made: rendering.fragment(made).encode(),
            "json": msgspec.json.encode,
        }
        self._lock = threading.Lock()
        self._of: tuple[ControllerView | None, int] = (None, 0)
        self._document: dict[str, Any] = {}
        self._made: dict[str, bytes] = {}

    def get(self, what: str) -> bytes:
        with self._lock:
            view, now = self._view(), self._clock()
            of = view, int(now)
            if of[0] is not self._of[0] or of[1] != self._of[1]:
                self._document, self._made = document(view, now), {}
                self._of = of
            if what not in self._made:
                self._made[what] = self._makers[what](self._document)
            return self._made[what]


def routes(
    view: Callable[[], ControllerView], *, clock: Callable[[], float] = time.time, every: float = EVERY
) -> list[Route]:
    """Return the routes of the web view: ``/``, ``/fragment``, ``/api/view`` and ``/static/…``.

    ``view`` is called for every answer, from several threads, and must not wait. ``every``: seconds between two
    renewals of an open page.
    """
    figures = _Figures(view, clock, every)
    rendering.load()
    static = {name: (files(__package__) / "static" / name).read_bytes() for name in _STATIC}
    tags = {name: f'"{hashlib.sha256(data).hexdigest()[:16]}"' for name, data in static.items()}

    # Plain functions: starlette runs them in threads, so that rendering holds up no health check.
    def page(_: Request) -> Response:
        return _figures(figures.get("page"), _HTML)

    def fragment(_: Request) -> Response:
        return _figures(figures.get("fragment"), _HTML)

    def as_json(_: Request) -> Response:
        return _figures(figures.get("json"), "application/json")

    def file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static:
            return Response("no such file\n", 404, {**HEADERS, "Content-Type": "text/plain; charset=utf-8"})
        headers = {**HEADERS, "ETag": tags[name], "Cache-Control": "no-cache", "Content-Type": _STATIC[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return Response(static[name], headers=headers)

    return [
        Route("/", page),
        Route("/fragment", fragment),
        Route("/api/view", as_json),
        Route("/static/{name}", file),
    ]


def _figures(body: bytes, kind: str) -> Response:
    return Response(body, headers={**HEADERS, "Cache-Control": "no-store", "Content-Type": kind})
