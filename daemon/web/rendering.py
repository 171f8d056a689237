"""Rendering of the document as HTML.

All values are escaped; all markup is in the templates of this package.
"""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from rechannel.daemon.view.status import DrainState
from rechannel.daemon.view.wording import format_bytes
from rechannel.daemon.web.placement import Row
from rechannel.daemon.web.view_model import format_time
from rechannel.wire.codes import DecisionResult, MoveState, OutcomeVerdict


def page(document: Row, every: float) -> str:
    """Return the whole page; its script refreshes it after ``every`` seconds."""
    return _environment().get_template("page.html").render(view=document, every=f"{every:g}")


def fragment(document: Row) -> str:
    """Return the part of the page that is refreshed."""
    return _environment().get_template("view.html").render(view=document)


def load() -> None:
    """Load all templates, so that none is read from disk later."""
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
        # An upgrade replaces the directory; a running process keeps the templates that belong to its code.
        auto_reload=False,
    )
    environment.globals["DecisionResult"] = DecisionResult
    environment.filters |= {
        "bytes": format_bytes,
        "cell": _cell_class,
        "cell_note": _cell_note,
        "clock": format_time,
        "iso": lambda at: format_time(at, "%Y-%m-%dT%H:%M:%SZ", ""),
        "number": lambda value: f"{value:,}",
        "percent": lambda value: f"{value:,.0%}",
        "seconds": _seconds,
        "state": lambda word: _KINDS.get(word, "plain"),
    }
    return environment


def _seconds(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} s"


def _cell_class(cell: Row) -> str:
    shade = "cu" if cell["shade"] is None else f"c{cell['shade']}"
    return f"{shade} m" if "to" in cell else shade


def _cell_note(cell: Row) -> str:
    """Return the tooltip of a partition: its load and the target of its move."""
    load = "not measured" if cell["load"] is None else f"{cell['load']:.2f} cores"
    return f"{load}, moving to {cell['to']}" if "to" in cell else load


# Colors of outcomes, move states and drain states; other words have none.
_KINDS: dict[str, str] = {
    DecisionResult.APPLIED: "good",
    DecisionResult.REFUSED: "warn",
    MoveState.STEERED: "warn",
    MoveState.DRAINED: "good",
    DrainState.DRAINING: "warn",
    DrainState.RELEASING: "warn",
    DrainState.EMPTY: "good",
    DrainState.RELEASED: "good",
    OutcomeVerdict.CONFIRMED: "good",
    OutcomeVerdict.REGRESSED: "bad",
}
