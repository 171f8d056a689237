"""The page of all runs, and a timeline for each seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.report.numbers import or_dash
from benchmarks.report.plots import pyplot, save
from benchmarks.report.results import Result
from benchmarks.report.templates import render
from benchmarks.unattended.figures import LATE, PhaseFigures, RunFigures, best_batches, run_figures
from benchmarks.unattended.oracle import SLACK
from benchmarks.unattended.results import NONE, ORACLE, RESTART, Run, runs
from benchmarks.unattended.script import DRAINED, EVENTS, Script

_COLORS = ("#2166ac", "#b2182b", "#e08214")
_MOVES = "#1b7837"


def page(results: Mapping[str, Result], pictures: Path | None = None) -> str:
    """Return the page of the results, and draw a timeline for each seed into a directory."""
    seeds = []
    for (seed, minutes), group in groupby(runs(results), key=lambda run: (run.script.seed, run.script.minutes)):
        ways = list(group)
        script, usable = ways[0].script, [run for run in ways if not run.error]
        best = best_batches(script, usable)
        picture = f"unattended-{seed}-{minutes:g}.svg"
        if pictures is not None and usable:
            draw_timelines(usable, best, pictures / picture)
        drawn = {run.way: run_figures(run, best) for run in usable}
        seeds.append(
            {
                "seed": seed,
                "case": script.case.summary(),
                "minutes": minutes,
                "times": _longer_rows(script),
                "runs": [[run.way, *_run_cells(run, drawn), results[run.name].revision] for run in usable],
                "events": list(_event_rows(drawn)),
                "errors": {run.way: run.error.split("\n")[0] for run in ways if run.error},
                "picture": picture if usable else "",
            }
        )
    commands = sorted({result.command for result in results.values()})
    context: dict[str, Any] = {
        "seeds": seeds,
        "commands": commands,
        "events": EVENTS,
        "spark": NONE,
        "restart": RESTART,
        "oracle": ORACLE,
        "slack": SLACK,
        "late": LATE,
        "drained": DRAINED,
    }
    return render("unattended", context, join=True)


def _longer_rows(script: Script) -> float | None:
    """Return the service times that a row takes in a spike or on a slow node; None without these."""
    changes = [script.case.slow, *(query.spike for query in script.case.queries)]
    return next((change.times for change in changes if change), None)


def _run_cells(run: Run, drawn: Mapping[str, RunFigures]) -> list[str]:
    """Return the figures of a run; ``drawn``: of all ways by name."""
    figures, spark, oracle = drawn[run.way], drawn.get(NONE), drawn.get(ORACLE)
    return [
        f"{figures.worked:.0f}",
        f"{figures.worked / oracle.worked:.2f}" if oracle else "-",
        f"{figures.regret:.0f}",
        f"{figures.regret / spark.regret:.0%}" if spark and spark.regret > 0 else "-",
        f"{figures.over_best:.2f}",
        str(len({move.decision for move in run.moves})),
        str(len(run.moves)),
        str(figures.needless),
        f"{figures.cost:.1f}",
        f"{figures.late:.1%}",
        f"{figures.regressed} / {figures.rolled_back}",
        f"{run.asleep:.0%}",
        "yes" if run.exact else "**no**",
    ]


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
        or_dash(phase.noticed, "{:.0f}"),
        or_dash(phase.settled, "{:.0f}"),
        f"{phase.migrations} / {phase.moves}",
        or_dash(None if math.isnan(phase.longest) else phase.longest, "{:.2f}"),
        f"{phase.stretch:.2f}",
        f"{phase.best:.2f}",
        f"{phase.regret:.0f}",
        f"{phase.late:.1%}",
        f"{phase.seconds:.0f}",
    ]


def draw_timelines(ways: Sequence[Run], best: Sequence[float], path: Path) -> None:
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
            axes.hlines(least, begin, end, colors="black", linestyles="dotted", linewidth=1.0)
            axes.text(begin, 0.98, f" {kind}", transform=axes.get_xaxis_transform(), va="top", fontsize=8)
        moves = [move.begun - run.phases[0].at for move in run.moves]
        axes.plot(moves, [0.03] * len(moves), "|", color=_MOVES, transform=axes.get_xaxis_transform())
        axes.set_title(run.way, loc="right", fontsize=9)
        axes.set(ylabel="batch, s", ylim=(0, None))
    every[-1][0].set_xlabel("seconds since the start; ticks at the bottom: moves; dotted: the best possible batch")
    save(figure, path)
