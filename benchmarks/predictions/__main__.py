"""``python -m benchmarks.predictions [--quick] [--json FILE] [--document FILE]``: predictions against the truth.

Each case is decided on by a proposal of the default policy, the fewest moves of it, and the gate. The
truth of the present placement, of the few moves and of the whole proposal comes from an engine of its own.
``--live FILE...`` adds runs on a real cluster (``python -m benchmarks.live --workload service``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.live.service.report import moves_and_fewest, summary
from benchmarks.live.service.results import RunResult, read
from benchmarks.predictions.cases import REGIMES, Case, draw_case, observe, true_seconds
from benchmarks.predictions.exact_loads import moves_with_exact_loads
from benchmarks.report.plots import pyplot, save
from benchmarks.report.results import Result, ResultFile, argument_parser, progress, write_page
from benchmarks.report.templates import render
from rechannel.conf.settings import GateSettings
from rechannel.migration.plan.gate import JUDGED_DRAWS, QueryGain, evaluate_gate
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.choice import choose_by_replay
from rechannel.policies.prediction.fewest import fewest_moves
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.registry import propose

NOISES = (0.1, 0.3)
SEEN = (3, 12)  # batches seen before the decision
CASES = 36  # of each regime, noise and number of batches
EVEN_CASES = 84  # of the even ones: that fewer than 1 % move takes 300 to show
QUICK = 4
PLOT = "predictions.svg"
_WORTH = 0.10  # true gain of a query from which a plan is worth finding
_LOSS = 0.05
_UNLIKELY = 0.05
_SETTINGS = GateSettings()


def main() -> None:
    """Decide on every case and report."""
    parser = argument_parser("benchmarks.predictions", __doc__, f"{QUICK} cases in place of {CASES}")
    parser.add_argument("--document", type=Path, metavar="FILE", help="page to write, as docs/predictions.md")
    parser.add_argument("--live", type=Path, nargs="+", metavar="FILE", help="runs on a real cluster, for the page")
    parser.add_argument("--no-run", action="store_true", help="only write the page of the figures in the file")
    options = parser.parse_args()
    results = ResultFile(options.json)
    if not options.no_run:
        counts = dict.fromkeys(REGIMES, QUICK if options.quick else CASES)
        if not options.quick:
            counts["even"] = EVEN_CASES
        began = time.monotonic()
        with ProcessPoolExecutor() as pool:
            rows = [
                summarize(pool, regime, noise, seen, counts[regime])
                for regime in REGIMES
                for noise in NOISES
                for seen in SEEN
            ]
        figures = {
            "rows": rows,
            "cases": sum(row["decisions"] for row in rows),
            "regimes": REGIMES,
            "took": time.monotonic() - began,
        }
        results.figures["predictions"] = Result.of(
            "Predicted batches against those of an independent simulation", figures, quick=options.quick
        )
        results.save()
    if options.live:
        results.figures["live"] = live_result([read(path) for path in options.live])
        results.save()
    if options.document:
        if changes(results.figures["predictions"]):
            draw_changes(results.figures, options.document.parent / "figures" / PLOT)
        write_page(options.document, page(results.figures))


def page(results: dict[str, Result]) -> str:
    """Return the page of the results."""
    live, before = (results[name].figures() if name in results else None for name in ("live", "live_before"))
    plot = PLOT if changes(results["predictions"]) else ""
    figures = results["predictions"].figures()
    return render(
        "predictions",
        figures | {"totals": totals(figures["rows"]), "live": live, "before": before, "plot": plot},
        wrap=False,
    )


def totals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums over all rows; ``found``: cases worth it whose first or second decision was accepted."""
    worth, accepted = (
        {(row["regime"], row["noise"], seed) for row in rows for seed in row[name]}
        for name in ("worth_seeds", "accepted_seeds")
    )
    even_rows = [row for row in rows if row["regime"] == "even"]
    accepted_plans, loses = (sum(row[name] for row in rows) for name in ("accepted", "queries_that_lose"))
    even, moved_even = (sum(row[name] for row in even_rows) for name in ("decisions", "accepted"))
    return {
        "accepted": accepted_plans,
        "loses": loses,
        "loses_at_most": upper_limit(loses, accepted_plans),
        "even": even,
        "moved_even": moved_even,
        "moved_at_most": upper_limit(moved_even, even),
        "worth": len(worth),
        "found": len(worth & accepted),
    }


def upper_limit(count: int, total: int) -> float:
    """Return the largest share that makes so few of a total likelier than 5 % (Clopper and Pearson, one-sided)."""
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        few = sum(math.comb(total, it) * share**it * (1 - share) ** (total - it) for it in range(count + 1))
        low, high = (share, high) if few > _UNLIKELY else (low, share)
    return high


def changes(simulated: Result) -> list[tuple[float, float]]:
    """Return the predicted and the true change of each query of an accepted plan; figures of before have none."""
    return [pair for row in simulated.rows for pair in row.get("pairs", ())]


def live_result(runs: Sequence[RunResult]) -> Result:
    """Return the figures of runs on a real cluster, one row for each query; `even` stands beside only."""
    adaptive, even = ([run for run in runs if run.variant == name] for name in ("adaptive", "even"))
    rows = [
        {
            "run_seed": run.seed,
            "variant": run.variant,
            "case": run.case.summary(),
            "query": one.query,
            "before": one.before,
            "after": one.after,
            "after_error": one.after_error,
            "predicted_before": one.predicted_before if math.isfinite(one.predicted_after) else None,
            "predicted_after": one.predicted_after if math.isfinite(one.predicted_after) else None,
            "truth": _truth(run) if number == 0 and run.truth else None,
        }
        for run in adaptive
        for number, one in enumerate(run.figures())
    ]
    moved = [run for run in adaptive if run.first and not run.error and len(run.figures()) == len(run.case.queries)]
    exact = {
        "moves": sum(moves_with_exact_loads(run) for run in moved),
        "made": sum(moves_and_fewest(run)[0] for run in moved),
    }
    figures = {
        "rows": rows,
        "exact_loads": exact,
        "summary": summary(adaptive),
        "commands": [" ".join(run.command) for run in runs],
    }
    return Result.of(
        "Predicted batches against those of a real cluster whose rows take a known time",
        figures | {"beside_even": beside_even(adaptive, even)},
        units={"s": "before after predicted_before predicted_after", "1": "run_seed"},
    )


def _truth(run: RunResult) -> dict[str, float]:
    """Return the moves of a run, the fewest for the same load, and the busiest executor over the optimum."""
    moves, fewest = moves_and_fewest(run)
    return {
        "moves": moves,
        "fewest": fewest,
        "busiest_before": max(goal.busiest_before / goal.optimum for goal in run.truth),
        "busiest_after": max(goal.busiest_after / goal.optimum for goal in run.truth),
    }


def beside_even(adaptive: Sequence[RunResult], even: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Return a row for each case that both policies ran: moves, busiest executor over the optimum, batches after.

    ``ratio``: batches of ``adaptive`` over those of ``even``, the geometric mean over the queries.
    """
    rows = []
    for ours in sorted(adaptive, key=lambda run: run.seed):
        for theirs in (run for run in even if run.case == ours.case and run.figures() and ours.figures()):
            after = [[one.after for one in run.figures()] for run in (ours, theirs)]
            row: dict[str, Any] = {"run_seed": ours.seed, "case": ours.case.summary()}
            for run, seconds in zip((ours, theirs), after, strict=True):
                row[run.variant] = {
                    "moves": moves_and_fewest(run)[0],
                    "busiest": max(goal.busiest_after / goal.optimum for goal in run.truth),
                    "after": seconds,
                }
            rows.append(row | {"ratio": float(np.exp(np.mean(np.log(after[0]) - np.log(after[1]))))})
    return rows


def draw_changes(results: dict[str, Result], path: Path) -> None:
    """Draw the predicted change of each batch against the one that came: simulated, and on a real cluster."""
    figure, axes = pyplot().subplots(figsize=(5, 5), layout="constrained")
    axes.scatter(
        *zip(*changes(results["predictions"]), strict=True),
        s=4,
        alpha=0.35,
        linewidths=0,
        color="#92c5de",
        label="simulated",
    )
    live = results["live"].rows if "live" in results else []
    moved = [row for row in live if row["predicted_after"]]
    if moved:
        predicted = [row["predicted_after"] / row["predicted_before"] for row in moved]
        measured = [row["after"] / row["before"] for row in moved]
        axes.scatter(predicted, measured, s=18, color="#1b7837", label="on a real cluster")
    lowest = 0.3
    axes.plot([lowest, 1.1], [lowest, 1.1], color="black", linewidth=0.8)
    axes.fill_between([lowest, 1.1], [0.9 * lowest, 0.99], [1.1 * lowest, 1.21], color="black", alpha=0.08, linewidth=0)
    axes.set(xlim=(lowest, 1.1), ylim=(lowest, 1.25), xlabel="batch after over before, predicted", ylabel="measured")
    axes.legend(loc="upper left")
    save(figure, path)


def summarize(pool: Executor, regime: str, noise: float, seen: int, count: int) -> dict[str, Any]:
    """Return the figures of all cases of one kind."""
    decisions = list(pool.map(partial(decide, regime, noise, seen), range(count)))
    accepted = [decision for decision in decisions if decision["accepted"]]
    worth = [decision for decision in decisions if decision["worth"]]
    errors = np.abs([error for decision in accepted for error in decision["errors"]])
    row = {
        "regime": regime,
        "noise": noise,
        "seen": seen,
        "decisions": count,
        "accepted": len(accepted),
        "error_median": _quantile(errors, 0.5),
        "error_p90": _quantile(errors, 0.9),
        "predicted_change": _mean([decision["predicted"] for decision in accepted]),
        "true_change": _mean([decision["true"] for decision in accepted]),
        "queries_that_lose": sum(decision["loses"] for decision in accepted),
        "worth": len(worth),
        "worth_accepted": sum(decision["accepted"] for decision in worth),
        "worth_seeds": [seed for seed, decision in enumerate(decisions) if decision["worth"]],
        "accepted_seeds": [seed for seed, decision in enumerate(decisions) if decision["accepted"]],
        "few_moves": sum(decision["moves"] for decision in accepted),
        "proposed_moves": sum(decision["proposed_moves"] for decision in accepted),
        "few_over_proposed": _mean([decision["few_over_proposed"] for decision in accepted]),
        "cpu": _mean([decision["cpu"] for decision in decisions]),
    }
    progress(f"{regime}, noise {noise}, {seen} batches: {row}")
    return row | {"pairs": [pair for decision in accepted for pair in decision["pairs"]]}


def decide(regime: str, noise: float, seen: int, seed: int) -> dict[str, Any]:
    """Draw a case, decide on it and compare with the truth."""
    case = draw_case(regime, seed)
    now = true_seconds(case, case.placement, noise, seed)
    began = time.process_time()
    model = observe(case, noise, seen, seed)
    paced = _paced(model, now)
    proposed = propose("adaptive", case.cluster, paced.workload, case.placement).placement
    plans = fewest_moves(model, case.placement, proposed)
    few = choose_by_replay(model, case.placement, plans, _SETTINGS.max_loss)
    changes = predict_changes(model, case.placement, few, seed=JUDGED_DRAWS)
    rates = {stage.query: stage.batches_per_second for stage in paced.workload.stages}
    gains = [QueryGain(query, now[query], change, rates[query]) for query, change in changes.items()]
    accepted = few != case.placement and evaluate_gate(gains, 0.0, _SETTINGS).passes
    cpu = time.process_time() - began
    after_few, after_all = (_after(case, placement, now, noise, seed) for placement in (few, proposed))
    best = [after for after in (after_few, after_all) if all(after[query] <= (1 + _LOSS) * now[query] for query in now)]
    return {
        "accepted": accepted,
        "worth": any(after[query] <= (1 - _WORTH) * now[query] for after in best for query in now),
        "errors": [now[query] * change.ratio / after_few[query] - 1 for query, change in changes.items()],
        "pairs": [(round(it.ratio, 3), round(after_few[query] / now[query], 3)) for query, it in changes.items()],
        "predicted": _mean([change.ratio - 1 for change in changes.values()]),
        "true": _mean([after_few[query] / now[query] - 1 for query in now]),
        "loses": any(after_few[query] > (1 + _LOSS) * now[query] for query in now),
        "moves": len(few.moves_from(case.placement)),
        "proposed_moves": len(proposed.moves_from(case.placement)),
        "few_over_proposed": _mean([after_few[query] / after_all[query] - 1 for query in now]),
        "cpu": cpu,
    }


def _paced(model: PredictionModel, now: dict[str, float]) -> PredictionModel:
    """Return the model with the rates that a controller measures."""
    stages = tuple(
        replace(stage, batches_per_second=1 / max(now[stage.query], model.timing[stage.query].interval))
        for stage in model.workload.stages
    )
    return replace(model, workload=Workload(stages))


def _after(case: Case, placement: Placement, now: dict[str, float], noise: float, seed: int) -> dict[str, float]:
    return now if placement == case.placement else true_seconds(case, placement, noise, seed)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _quantile(values: np.ndarray[Any, Any], share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


if __name__ == "__main__":
    main()
