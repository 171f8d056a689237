"""The page of all runs, and a timeline for each script."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from benchmarks.live.service.truth import PATIENCE
from benchmarks.report.numbers import or_dash
from benchmarks.report.plots import pyplot, save
from benchmarks.report.results import Result
from benchmarks.report.templates import render
from benchmarks.unattended.figures import (
    GAP,
    LATE,
    LEAST_GAIN,
    SOON,
    SOON_BATCHES,
    Best,
    PhaseFigures,
    RunFigures,
    best_batches,
    run_figures,
)
from benchmarks.unattended.oracle import SLACK
from benchmarks.unattended.results import NONE, OBSERVED, ORACLE, RESTART, WAYS, Run, runs
from benchmarks.unattended.script import DRAINED, EVENTS, JOINED, Script

_COLORS = ("#2166ac", "#b2182b", "#e08214")
_MOVES = "#1b7837"


def page(results: Mapping[str, Result], pictures: Path | None = None) -> str:
    """Return the page of the results, and draw a timeline for each script into a directory."""
    scripts: list[dict[str, Any]] = []
    every: list[dict[str, RunFigures]] = []  # by script
    alike: Counter[str] = Counter()  # scripts by the name of their picture
    measured = runs(results)
    for script, group in groupby(measured, key=lambda run: run.script):
        ways = list(group)
        usable = [run for run in ways if not run.error]
        best = best_batches(script, usable)
        name = f"unattended-{script.seed}-{script.minutes:g}"
        alike[name] += 1
        picture = f"{name}.svg" if alike[name] == 1 else f"{name}-{alike[name]}.svg"
        if pictures is not None and usable:
            draw_timelines(usable, best, pictures / picture)
        drawn = {run.way: run_figures(run, best) for run in usable}
        every.append(drawn)
        scripts.append(
            {
                "seed": script.seed,
                "case": script.case.summary(),
                "minutes": script.minutes,
                "end": script.end,
                "times": _longer_rows(script),
                "runs": [
                    [run.way, *_run_cells(run, drawn), _beside(run, measured), results[run.name].revision]
                    for run in usable
                ],
                "summaries": {way: _summary(figures) for way, figures in drawn.items() if way not in OBSERVED},
                "events": list(_event_rows(drawn)),
                "errors": {run.way: run.error.split("\n")[0] for run in ways if run.error},
                "picture": picture if usable else "",
            }
        )
    commands = sorted({result.command for result in results.values()})
    context: dict[str, Any] = {
        "scripts": scripts,
        "totals": [[way, *_total_cells(way, every)] for way in WAYS if way != NONE and any(way in it for it in every)],
        "commands": commands,
        "events": EVENTS,
        "spark": NONE,
        "restart": RESTART,
        "oracle": ORACLE,
        "slack": SLACK,
        "late": LATE,
        "gap": GAP,
        "patience": PATIENCE,
        "least_gain": LEAST_GAIN,
        "soon": SOON,
        "soon_batches": SOON_BATCHES,
        "drained": DRAINED,
    }
    return render("unattended", context, join=True)


def _longer_rows(script: Script) -> float | None:
    """Return the service times that a row takes in a spike or on a slow node; None without these."""
    changes = [script.case.slow, *(query.spike for query in script.case.queries)]
    return next((change.times for change in changes if change), None)


def _run_cells(run: Run, drawn: Mapping[str, RunFigures]) -> list[str]:
    """Return the figures of a run; ``drawn``: of the script's ways by name."""
    figures, spark, oracle = drawn[run.way], drawn.get(NONE), drawn.get(ORACLE)
    return [
        f"{figures.worked:.0f}",
        f"{figures.worked / oracle.worked:.2f}" if oracle else "-",
        f"{figures.regret:.0f}",
        f"{figures.regret / spark.regret:.0%}" if spark and spark.regret > 0 else "-",
        f"{figures.over_best:.2f}",
        _sets(*(len({move.decision for move in run.moves if move.by_link == link}) for link in (False, True))),
        str(len(run.moves)),
        str(figures.needless),
        f"{figures.cost:.1f}",
        f"{figures.late:.1%}",
        f"{figures.regressed} / {figures.rolled_back}",
        f"{run.asleep:.0%}",
        "yes" if run.exact else "**no**",
    ]


def _beside(run: Run, measured: Sequence[Run]) -> str:
    """Return the runs that were under way on the machine at the same time."""
    begun = run.phases[0].at
    others = [other for other in measured if other.name != run.name and other.phases]
    beside = [other for other in others if other.phases[0].at < run.ended and begun < other.ended]
    return ", ".join(f"{it.way} {it.script.seed} of {it.script.minutes:g} min" for it in beside) or "-"


def _total_cells(way: str, every: Sequence[Mapping[str, RunFigures]]) -> list[str]:
    """Return the figures of one way over all scripts; ``every``: figures of each script's ways by name."""
    drawn = [one[way] for one in every if way in one]
    pairs = [(one[way], one[NONE]) for one in every if way in one and NONE in one]
    joined = [phase.longest for figures in drawn for phase in figures.phases if phase.kind == JOINED]
    drained = [
        last.longest * before.stretch / last.best
        for figures in drawn
        for before, last in pairwise(figures.phases)
        if last.kind == DRAINED
    ]
    return [
        f"{len(drawn)}, {len(pairs)}",
        _median([one.worked / spark.worked for one, spark in pairs], "{:.2f}"),
        _median([one.regret / spark.regret for one, spark in pairs if spark.regret > 0], "{:.0%}"),
        *(["-"] * 3 if way in OBSERVED else _event_cells([phase for figures in drawn for phase in figures.events])),
        str(sum(figures.needless for figures in drawn)),
        _median(joined, "{:.2f}"),
        _median(drained, "{:.2f}"),
    ]


def _event_cells(events: Sequence[PhaseFigures]) -> list[str]:
    """Return how many events were reacted to in time, and how many needed one migration at most, and two."""
    migrations = (sum(phase.migrations <= count for phase in events) for count in (1, 2))
    return [_in_time(events), *(f"{count} of {len(events)}" for count in migrations)]


def _in_time(events: Sequence[PhaseFigures]) -> str:
    """Return how many of the events that ask for a reaction had one in time."""
    asking = [phase for phase in events if phase.asks]
    return f"{sum(phase.in_time for phase in asking)} of {len(asking)}"


def _median(values: Sequence[float], form: str) -> str:
    """Return the median of some values, with the least and the largest one."""
    if not values:
        return "-"
    return f"{form} ({form} to {form})".format(statistics.median(values), min(values), max(values))


def _summary(figures: RunFigures) -> dict[str, Any]:
    """Return which events of a run were reacted to in time, and how many took 0, 1, 2 or more migrations."""
    needed = [min(phase.migrations, 3) for phase in figures.events]
    return {"in_time": _in_time(figures.events), "migrations": [needed.count(count) for count in range(4)]}


def _sets(migrations: int, spreads: int) -> str:
    """Return the controller's migrations and the link's sets of moves."""
    return f"{migrations} + {spreads}"


def _event_rows(drawn: Mapping[str, RunFigures]) -> list[list[str]]:
    """Return a row for each way of each phase, phase by phase."""
    count = max((len(figures.phases) for figures in drawn.values()), default=0)
    return [
        [figures.phases[number].kind, way, *_phase_cells(figures.phases[number])]
        for number in range(count)
        for way, figures in drawn.items()
        if number < len(figures.phases)
    ]


def _phase_cells(phase: PhaseFigures) -> list[str]:
    return [
        or_dash(phase.to_gain, "{:.0%}"),
        or_dash(phase.reacted, "{:.0f}"),
        or_dash(phase.limit, "{:.0f}"),
        or_dash(phase.first_move, "{:.0f}"),
        or_dash(phase.settled, "{:.0f}"),
        f"{_sets(phase.migrations, phase.spreads)} / {phase.moves}",
        or_dash(None if math.isnan(phase.longest) else phase.longest, "{:.2f}"),
        f"{phase.stretch:.2f}",
        f"{phase.best:.2f}",
        f"{phase.regret:.0f}",
        f"{phase.late:.1%}",
        f"{phase.seconds:.0f}",
    ]


def draw_timelines(ways: Sequence[Run], best: Sequence[Best], path: Path) -> None:
    """Draw the batches of all ways above each other, with their events, moves and best batch."""
    figure, every = pyplot(svg_text=True).subplots(
        len(ways), 1, figsize=(9, 2.1 * len(ways)), squeeze=False, sharex=True, sharey=True, layout="constrained"
    )
    for (axes,), run in zip(every, ways, strict=True):
        begins = [phase.at - run.phases[0].at for phase in run.phases]
        ended = run.ended - run.phases[0].at
        for query, color in zip(run.script.case.queries, _COLORS, strict=False):
            lines = [line for line in run.batches if line.query == query.name and line.end >= run.phases[0].at]
            times = [line.end - run.phases[0].at for line in lines]
            axes.plot(times, [line.seconds for line in lines], color=color, linewidth=0.8)
        for kind, begin, end, least in zip(run.script.kinds, begins, [*begins[1:], ended], best, strict=False):
            axes.axvline(begin, color="black", linewidth=0.8)
            axes.hlines(least.batch, begin, end, colors="black", linestyles="dotted", linewidth=1.0)
            axes.text(begin, 0.98, f" {kind}", transform=axes.get_xaxis_transform(), va="top", fontsize=8)
        moves = [move.begun - run.phases[0].at for move in run.moves]
        axes.plot(moves, [0.03] * len(moves), "|", color=_MOVES, transform=axes.get_xaxis_transform())
        axes.set_title(run.way, loc="right", fontsize=9)
        axes.set(ylabel="batch, s", ylim=(0, None))
    every[-1][0].set_xlabel("seconds since the start; ticks at the bottom: moves; dotted: the best possible batch")
    save(figure, path)
