"""Markdown tables and numbers for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

__all__ = ["amount", "by_policy", "filled", "middle", "ran_on", "rate", "seconds", "table", "wrapped"]


def filled(text: str) -> str:
    """A paragraph of a template on one line."""
    return " ".join(text.split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; what is in the cells may not break it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def seconds(value: float) -> str:
    """Three digits, in the unit that suits."""
    if value < 1e-3:
        return "below 1 ms"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 100 else f"{value:,.0f} s"


def amount(value: float) -> str:
    """Bytes in a unit of thousands."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:,.0f} {unit}"
    return f"{value:.3g} B"


def rate(value: float) -> str:
    """Bytes per second."""
    return f"{amount(value)}/s"


def middle(values: Iterable[float | None]) -> float | None:
    """The median of those there are."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def by_policy(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of each policy, in the order of the first of each."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["policy"], []).append(row)
    return found


def ran_on(part: dict[str, Any]) -> str:
    """The machine in half a sentence."""
    machine = part["machine"]
    versions = ", ".join(
        f"{label} {machine[key]}"
        for key, label in (("numpy", "NumPy"), ("highspy", "HiGHS (highspy)"), ("pymetis", "pymetis"))
        if machine.get(key)
    )
    quick = "; made with `--quick`" if part.get("quick") else ""
    return (
        f"{machine['cores']} shared cores ({machine['architecture']}, "
        f"load average {machine['load_average']:g} at the start), "
        f"Python {machine['python']}, {versions}{quick}"
    )


def wrapped(line: str) -> str:
    """A line of text as lines that are not too long."""
    indent = "  " if line.startswith(("* ", "  ")) else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
