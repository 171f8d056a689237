"""The table of several runs: predicted against measured, moves over the fewest, the busiest over the optimum. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from benchmarks.live.service.results import QueryFigures, RunResult
from benchmarks.report.numbers import percentile
from benchmarks.report.templates import table

LOSS = 1.05  # times the batch before
ASLEEP = 0.7  # share of tasks' time below which a run tells of the machine, not of the decisions
GOAL = 0.04  # largest median error of predictions
PEAK = 0.25  # of the longest batch: how near its prediction is to be
NEAR = 0.05  # of a batch: how near an assessment is to be
_HEAD = (
    *("run", "variant", "case", "query", "before", "after", "after/before", "predicted", "error", "longest/predicted"),
    *("moves/fewest", "busiest/optimum", "migrations", "asleep", "load"),
)


def report(results: Sequence[RunResult]) -> str:
    """Return the table in Markdown, a line for each query of each run, and the summary below it."""
    rows = []
    for result in results:
        if result.error:
            problem = result.error.split("\n")[0]
            rows.append([f"seed {result.seed}", result.variant, result.case.summary(), problem])
        rows += [_cells(result, figures, first=not number) for number, figures in enumerate(result.figures())]
    return "\n".join([table(_HEAD, rows), "", *summary(results), ""])


def summary(results: Sequence[RunResult]) -> list[str]:
    """Return the figures over all runs, one in a line."""
    usable = [result for result in results if not result.error]
    moved = [result for result in usable if result.first]
    still = [figures.ratio for result in usable if not result.first for figures in result.figures()]
    figures = [figures for result in moved for figures in result.figures()]
    predicted = [one for one in figures if math.isfinite(one.error)]
    peaks = [abs(one.peak_predicted / one.peak - 1) for one in figures if math.isfinite(one.peak_predicted / one.peak)]
    over = _over_optimum(moved)
    unmoved = _over_optimum([result for result in usable if not result.first])
    moves, fewest = (sum(column) for column in zip(*map(moves_and_fewest, moved), strict=True)) if moved else (0, 0)
    near = sum(error <= PEAK for error in peaks)
    losses = [f"seed {result.seed} {one.query}" for result in moved for one in result.figures() if one.ratio > LOSS]
    named = f" ({', '.join(losses)})" if losses else ""
    ratio = f" ({moves / fewest:.2f})" if fewest else ""
    shares = [result.asleep for result in usable]
    resting = sum(share >= ASLEEP for share in shares)
    lines = [
        f"runs: {len(results)}, {len(moved)} of them with moves, {len(results) - len(usable)} failed",
        f"output exact: {sum(result.exact for result in usable)} of {len(usable)}",
        f"asleep: {_span(shares)} of stateful tasks' time, at least {ASLEEP:.0%} in {resting} of {len(usable)}",
        f"batch after over before, {len(predicted)} queries: {_middle([one.ratio for one in predicted], '{:.2f}')}",
        f"predicted batch against measured, {len(predicted)} queries: {_middle([abs(one.error) for one in predicted])}",
        f"of these, within 4 % or twice the standard error of the measured mean: {_explained(predicted)}",
        f"longest batch while moving against predicted, {len(peaks)} queries: {_middle(peaks)}, within 25 % in {near}",
        f"moves over the fewest for the same load within 2 %: {moves} to {fewest}{ratio}",
        f"busiest executor over the optimum after the first decision: {_middle(over, '{:.3f}')}",
        f"the same where nothing moved, {len(unmoved)} runs: {_span(unmoved, '{:.2f}')}",
        f"queries that lost more than 5 %: {len(losses)} of {len(figures)}{named}",
        f"migrations in a run: {_span((float(result.migrations) for result in usable), '{:.0f}')}",
    ]
    assessed = [abs(one.assessed_error) for one in figures if math.isfinite(one.assessed_error)]
    if assessed:
        right = sum(error <= NEAR for error in assessed)
        lines.append(
            f"assessed from Spark's event log before the moves, {len(assessed)} queries: within 5 points of what came "
            f"in {right} ({right / len(assessed):.0%}), off by {_middle(assessed)} of the batch before"
        )
    if still:
        lines.append(
            f"chance (nothing moved), {len(still)} queries: after/before {_span(still, '{:.3f}')}, "
            f"median {statistics.median(still):.3f}"
        )
    return lines


def moves_and_fewest(result: RunResult) -> tuple[int, int]:
    """Return the moves of the first decision, and the fewest for the same load."""
    return sum(goal.moves for goal in result.truth), sum(goal.fewest_same or 0 for goal in result.truth)


def _over_optimum(results: Sequence[RunResult]) -> list[float]:
    return [max(goal.busiest_after / goal.optimum for goal in result.truth) for result in results if result.truth]


def _explained(figures: Sequence[QueryFigures]) -> str:
    within = sum(abs(one.error) <= max(GOAL, 2 * one.after_error) for one in figures)
    return f"{within} of {len(figures)}"


def _cells(result: RunResult, figures: QueryFigures, *, first: bool) -> list[str]:
    goals = [goal for goal in result.truth if figures.query in goal.queries]
    goal = goals[0] if goals and (first or len(result.truth) > 1) else None
    cut = "*" if result.cut_short else ""
    moves = busiest = ""
    if goal is not None:
        moves = f"{goal.moves}/{'-' if goal.fewest_same is None else goal.fewest_same}"
        busiest = f"{goal.busiest_before / goal.optimum:.2f} -> {goal.busiest_after / goal.optimum:.2f}"
    predicted = error = peak = "-"
    if math.isfinite(figures.predicted_after):
        predicted = f"{figures.predicted_before:.2f} -> {figures.predicted_after:.2f}"
        error = f"{figures.error:+.0%}"
        peak = f"{figures.peak:.2f}/{figures.peak_predicted:.2f}"
    return [
        f"seed {result.seed}" if first else "",
        result.variant if first else "",
        result.case.summary() if first else "",
        figures.query,
        f"{figures.before:.2f} ({figures.count_before})",
        f"{figures.after:.2f} ({figures.count_after}{cut})",
        f"{figures.ratio:.2f}",
        predicted,
        error,
        peak,
        moves,
        busiest,
        str(result.migrations) if first else "",
        f"{result.asleep:.0%}" if first else "",
        "/".join(f"{load:.0f}" for load in result.load_average) if first else "",
    ]


def _middle(values: Sequence[float], form: str = "{:.0%}") -> str:
    middle, high = (form.format(percentile(values, share)) for share in (0.5, 0.9))
    return f"median {middle}, p90 {high}" if values else "-"


def _span(values: Iterable[float], form: str = "{:.0%}") -> str:
    listed = list(values)
    return f"{form.format(min(listed))} to {form.format(max(listed))}" if listed else "-"
