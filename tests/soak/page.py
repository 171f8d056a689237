"""Writes the section "What attaching costs" of ``docs/reliability.md`` from the runs of the soak."""

from __future__ import annotations

import dataclasses
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
Starts of a small query of two partitions with `availableNow` in one driver, with Rechannel / without it, with threads
of Python and JVM pinned to each other and not. Python is limited to 64 descriptors, the JVM to 1,024."""


def write(path: Path, runs: Sequence[Mapping[str, Any]], starts: Sequence[Mapping[str, Any]]) -> None:
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
        f"{counters.get('landed', 0):,} moves landed, {counters.get('abandoned', 0)} abandoned, "
        f"{run['refused']} of {run['orders']} orders without an answer, "
        f"{counters.get('failed_tasks', 0)} failed tasks; "
        f"{'output exact' if not run['wrong'] else 'output NOT exact: ' + '; '.join(run['wrong'])}. "
        f"Revision {run['revision']}."
    )
    return [summary, milestones(run["milestones"]), slopes(run)]


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


def slopes(run: Mapping[str, Any]) -> str:
    """Return the table of slopes with their limits and bounds."""
    lines = [_judged_cells(line) for line in figures.judge(run["done"], run["series"])]
    text = table("growth per 1,000 batches, with Rechannel less without it | slope | 95 % limits | bound | held", lines)
    return f"{text}\n\nSlopes of the controller, the agents and Redis are their own: without Rechannel there are none."


def _judged_cells(judged: figures.Judged) -> list[str]:
    slope = ["too few samples", ""]
    if judged.slope is not None:
        value, lower, upper = (f"{round(each, 3) + 0.0:.3f}" for each in dataclasses.astuple(judged.slope))
        slope = [value, f"{lower} to {upper}"]
    return [_with_unit(judged.name, judged.unit), *slope, f"{judged.bound:g}", "yes" if judged.held else "no"]


def _starts(runs: Sequence[Mapping[str, Any]]) -> str:
    lines, judged = [], []
    for run in runs:
        ours, theirs = run["samples"]["with"], run["samples"]["without"]
        for one, other in ((ours[0], theirs[0]), (ours[-1], theirs[-1])):
            count = one["starts"]
            times = [statistics.median(run["times"][side][max(0, count - 50) : count]) for side in ("with", "without")]
            cells = []
            for name, (unit, _) in figures.STARTS_BOUNDS.items():
                cells.append(" / ".join(_number(row[name] / (figures.MIB if unit else 1)) for row in (one, other)))
            lines.append([run["name"], f"{count:,}", *cells, " / ".join(f"{value * 1000:.0f} ms" for value in times)])
        judged += [(run["name"], line) for line in figures.judge_starts(run["samples"])]
    names = [_with_unit(name, unit) for name, (unit, _) in figures.STARTS_BOUNDS.items()]
    first = table(["threads", "starts", *names, "`start()`, median"], lines)
    growth = "threads | growth per 1,000 starts, with Rechannel less without it | slope | 95 % limits | bound | held"
    return f"{_STARTS}\n\n{first}\n\n{table(growth, [[name, *_judged_cells(line)] for name, line in judged])}"


def _with_unit(name: str, unit: str) -> str:
    return f"{name}, {unit}" if unit else name


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.1f}"
