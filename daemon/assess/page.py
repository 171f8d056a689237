"""Assessment as one self-contained HTML page with pictures.

All values are escaped; all markup is in the template, coordinates of the pictures come from here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from rechannel.daemon.assess.result import Assessment, ExecutorWork, QueryAssessment, change
from rechannel.wire.printable import plain

_WIDTH, _HEIGHT = 720.0, 180.0  # of a picture, in its own units
_MAX_EXECUTORS = 40  # executors in an assessment's picture; beyond: the busiest are shown
_KINDS = ("now", "even", "best")
_TICKS = 4


def render_page(assessment: Assessment) -> str:
    """Return the page of an assessment."""
    return _template().render(assessment=plain(assessment), bars=_bars, line=_line)


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("rechannel.daemon.assess"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": lambda value: f"{value:,.2f} s",
        "percent": lambda value: f"{value:.0%}",
        "change": change,
        "clock": lambda at: time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)),
    }
    return environment.get_template("page.html")


def _bars(executors: Sequence[ExecutorWork]) -> dict[str, Any]:
    """Return the bars of executors: work now, even and best, the busiest executors first."""
    shown = sorted(executors, key=lambda it: -it.now)[:_MAX_EXECUTORS]
    top = _round_up(max((value for it in shown for value in (it.now, it.even, it.best)), default=0.0))
    group = _WIDTH / max(1, len(shown))
    width = min(24.0, group / (len(_KINDS) + 1))
    groups = []
    for index, executor in enumerate(shown):
        left = group * (index + 0.5) - width * len(_KINDS) / 2
        bars = [
            {
                "kind": kind,
                "x": left + width * position,
                "y": _HEIGHT * (1 - getattr(executor, kind) / top),
                "height": _HEIGHT * getattr(executor, kind) / top,
                "seconds": getattr(executor, kind),
            }
            for position, kind in enumerate(_KINDS)
        ]
        groups.append({"executor": executor, "x": group * (index + 0.5), "bars": bars})
    return _frame(top) | {"groups": groups, "bar": width, "others": len(executors) - len(shown)}


def _line(query: QueryAssessment) -> dict[str, Any]:
    """Return the points of a query's batches over time, and the span that was assessed."""
    timed = [batch for batch in query.timeline if batch.start > 0]
    top = _round_up(max((batch.seconds for batch in timed), default=0.0))
    first = min((batch.start for batch in timed), default=0.0)
    last = max((batch.start for batch in timed), default=0.0)
    scale = _WIDTH / max(last - first, 1.0)
    points = [((batch.start - first) * scale, _HEIGHT * (1 - batch.seconds / top)) for batch in timed]
    since, until = (min(max((at - first) * scale, 0.0), _WIDTH) for at in (query.since, query.until))
    return _frame(top) | {"points": points, "since": since, "span": until - since, "first": first, "last": last}


def _frame(top: float) -> dict[str, Any]:
    """Return the size of a picture, and its ticks: height of the line, and seconds."""
    ticks = [(_HEIGHT * (1 - number / _TICKS), top * number / _TICKS) for number in range(_TICKS + 1)]
    return {"width": _WIDTH, "height": _HEIGHT, "ticks": ticks}


def _round_up(value: float) -> float:
    """Return the next number of one figure and 1, 2 or 5."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1.0, 2.0, 5.0, 10.0) if value <= step * unit * (1 + 1e-9))
