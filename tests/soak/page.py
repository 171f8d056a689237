"""Writes the section "What attaching costs" of ``docs/reliability.md`` from the runs of the soak."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.templates import BEGIN, END, between_marks, table
from tests.soak import figures

_NAME = "soak"
_HEADING = "## What attaching costs\n"
_PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_STARTS = """\
Starts of a small query with `availableNow` in one driver, with Rechannel / without it; Python is limited to 64
descriptors, the JVM to 1,024."""
_PROCESSES = ("python threads", "python descriptors", "jvm threads", "jvm descriptors")


def write(path: Path, runs: Sequence[Mapping[str, Any]], starts: Mapping[str, Mapping[str, Any]]) -> None:
    """Put the tables between their marks; a page without the section gets that of the documentation."""
    page = path.read_text()
    if BEGIN.format(name=_NAME) not in page:
        section = _PAGE.read_text().partition(_HEADING)[2].partition(END.format(name=_NAME))[0]
        page = f"{page.rstrip()}\n\n{_HEADING}{section}{END.format(name=_NAME)}\n"
    parts = [text for number, run in enumerate(runs, start=1) for text in _run(number, run)]
    if starts:
        parts.append(_starts(starts))
    path.write_text(between_marks(page, _NAME, "\n\n".join(parts)))


def _run(number: int, run: Mapping[str, Any]) -> list[str]:
    counters = run["counters"]
    summary = (
        f"Run {number}: {run['hours']:g} hours on {run['cores']} cores, {run['batches']['with']:,} batches with "
        f"Rechannel and {run['batches']['without']:,} without, {run['compared']:,} of them compared; "
        f"{counters.get('landed', 0):,} moves landed, {counters.get('abandoned', 0)} given up, "
        f"{counters.get('failed_tasks', 0)} failed tasks; "
        f"{'output exact' if not run['wrong'] else 'output NOT exact: ' + '; '.join(run['wrong'])}."
    )
    return [summary, milestones(run["milestones"]), slopes(run["slopes"])]


def milestones(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of what the drivers cost after so many batches, with Rechannel / without it."""
    reached = sorted({row["batches"] for row in rows})
    by = {(row["batches"], row["side"]): row for row in rows}
    names = [name for name in rows[0] if name not in ("batches", "side")] if rows else []
    units = {resource.name: resource.unit for resource in figures.RESOURCES}
    head = [
        "with Rechannel / without it",
        *(f"after {count:,} {'batch' if count == 1 else 'batches'}" for count in reached),
    ]
    lines = []
    for name in names:
        cells = [
            " / ".join(_number(by.get((count, side), {}).get(name)) for side in ("with", "without"))
            for count in reached
        ]
        lines.append([_with_unit(name, units.get(name, "")), *cells])
    return table(head, lines)


def slopes(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of slopes with their limits and bounds."""
    lines = []
    for row in rows:
        slope = ["too few samples", ""]
        if row["slope"] is not None:
            slope = [f"{row['slope']:.3f}", f"{row['lower']:.3f} to {row['upper']:.3f}"]
        held = "yes" if row["held"] else "no"
        lines.append([_with_unit(row["name"], row["unit"]), *slope, f"{row['bound']:g}", held])
    text = table("growth per 1,000 batches, with Rechannel less without it | slope | 95 % limits | bound | held", lines)
    return f"{text}\n\nSlopes of the controller, the agents and Redis are their own: without Rechannel there are none."


def _starts(actual: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, run in actual.items():
        ours, theirs = run["samples"]["with"], run["samples"]["without"]
        for one, other in ((ours[0], theirs[0]), (ours[-1], theirs[-1])):
            count = one["starts"]
            times = [statistics.median(run["times"][side][max(0, count - 50) : count]) for side in ("with", "without")]
            cells = [f"{one[what]:.0f} / {other[what]:.0f}" for what in _PROCESSES]
            lines.append([name, f"{count:,}", *cells, " / ".join(f"{value * 1000:.0f} ms" for value in times)])
    head = ["threads of Python and JVM", "starts", *_PROCESSES, "`start()`, median"]
    return f"{_STARTS}\n\n{table(head, lines)}"


def _with_unit(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.1f}"
