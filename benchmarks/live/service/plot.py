"""Picture of one run: batches over time, and the work of each executor before and after the moves."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.live.service.results import RunResult
from benchmarks.report.plots import pyplot, save

_COLORS = ("#2166ac", "#b2182b", "#1b7837", "#762a83")
_BEFORE, _AFTER = "#92c5de", "#2166ac"


def draw_run(run: RunResult, path: Path) -> None:
    """Draw a run whose partitions moved; ValueError if none did."""
    decision = run.decision()
    if decision is None:
        raise ValueError(f"nothing moved in the run of seed {run.seed}: there is no picture of it")
    figure, (left, right) = pyplot().subplots(1, 2, figsize=(9, 3), width_ratios=(2, 1), layout="constrained")
    begin = run.before_from
    for number, query in enumerate(run.case.queries):
        lines = [line for line in run.batches if line.query == query.name and begin <= line.begin <= run.after_until]
        times = [line.begin - begin for line in lines]
        left.plot(times, [line.seconds for line in lines], ".-", color=_COLORS[number], linewidth=0.8, label=query.name)
        if query.name in decision.batch_after:
            predicted, span = decision.batch_after[query.name], (run.after_from - begin, run.after_until - begin)
            left.hlines(predicted, *span, colors=_COLORS[number], linestyles="dashed", linewidth=1.2)
    left.axvspan(decision.at - begin, decision.settled - begin, color="black", alpha=0.12, linewidth=0)
    left.set(xlabel="seconds; dashed: predicted", ylabel="batch, s", ylim=(0, None))
    left.text(decision.at - begin, 0.1, f" {decision.moves} moves")
    if len(run.case.queries) > 1:
        left.legend(loc="lower left")
    executors = np.arange(run.case.executors)
    before, after = (
        np.sum([getattr(goal, name) for goal in run.truth], axis=0) for name in ("loads_before", "loads_after")
    )
    right.bar(executors - 0.2, before, 0.4, color=_BEFORE, label="before")
    right.bar(executors + 0.2, after, 0.4, color=_AFTER, label="after")
    right.axhline(sum(goal.optimum for goal in run.truth), color="black", linewidth=0.8, linestyle="dotted")
    right.set(xticks=executors, xlabel="executor; dotted: best possible", ylabel="work in a batch, s")
    right.legend()
    save(figure, path)
