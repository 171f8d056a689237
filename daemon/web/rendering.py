"""The page as HTML. Every value is escaped; no markup comes from anywhere but the templates of this package."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from rechannel.daemon.web.view_model import clock

Row = dict[str, Any]


def page(document: Row, every: float) -> str:
    """Return the whole page; its script renews it every so many seconds."""
    return _environment().get_template("page.html").render(view=document, every=f"{every:g}")


def fragment(document: Row) -> str:
    """Return the part of the page that changes."""
    return _environment().get_template("view.html").render(view=document)


def load() -> None:
    """Load every template, so that none is looked for later."""
    environment = _environment()
    for name in environment.list_templates():
        environment.get_template(name)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("rechannel.daemon.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # An upgrade replaces the directory; what runs goes on with the templates that its code was made for.
        auto_reload=False,
    )
    environment.filters |= {
        "bytes": _bytes,
        "cell": _cell_class,
        "cell_note": _cell_note,
        "clock": clock,
        "iso": _iso,
        "number": lambda value: f"{value:,}",
        "percent": lambda value: f"{value:,.0%}",
        "seconds": _seconds,
        "state": _state_class,
    }
    return environment


def _bytes(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000:
            return f"{value:,.0f} B" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} PB"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if abs(value) >= 100 else f"{value:,.1f} s" if abs(value) >= 10 else f"{value:,.2f} s"


def _iso(at: float | None) -> str:
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) if at else ""
    except (ValueError, OverflowError, OSError):
        return ""


def _cell_class(cell: Row) -> str:
    shade = "cu" if cell["shade"] is None else f"c{cell['shade']}"
    return f"{shade} m" if "to" in cell else shade


def _cell_note(cell: Row) -> str:
    """What is said of a partition beside its number: cores it keeps busy, and where it goes."""
    load = "not measured" if cell["load"] is None else f"{cell['load']:.2f} cores"
    return f"{load}, on its way to {cell['to']}" if "to" in cell else load


# Outcomes of decisions, states of moves and of drains; what is not here is shown without a color.
_KINDS = {
    "applied": "good",
    "planned": "plain",
    "refused": "warn",
    "not-ready": "plain",
    "prepared": "plain",
    "steered": "warn",
    "drained": "good",
    "draining": "warn",
    "releasing": "warn",
    "empty": "good",
    "released": "good",
    "kept": "good",
    "regressed": "bad",
}


def _state_class(word: str) -> str:
    return _KINDS.get(word, "plain")
