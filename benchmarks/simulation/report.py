"""The section on simulations of ``docs/benchmarks.md`` from the figures alone: the same figures give the same text.

This module computes the cells; the text is in ``benchmarks/report/templates/simulation.md.j2``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from statistics import median
from typing import Any

from benchmarks.report.numbers import group_by, or_dash, rate, seconds
from benchmarks.report.templates import render
from benchmarks.simulation.fleet import WINDOW
from benchmarks.simulation.variants import VARIANTS
from rechannel.wire.codes import DecisionResult, PlanResult

_METRICS = {"tuples_std": "std of tuples per node", "load_std": "std of busy share per node", "latency": "mean latency"}
_UNITS = {"tuples_std": "{:.1f} %", "load_std": "{:.1f} points", "latency": "{:.2f} s"}
_EQUAL = 0.03  # a ratio of medians that close to one is no difference, however often it points one way

Row = Mapping[str, Any]
Rows = Sequence[Row]


def section(figures: Mapping[str, Any]) -> str:
    """Return Markdown of the parts that have figures."""
    parts: dict[str, Callable[[Row], dict[str, Any]]] = {
        "calibration": _calibration,
        "paper": _paper,
        "hour": _hour,
        "large": _large,
        "decisions": _decisions,
        "fleet": _fleet,
    }
    context = {name: build(figures[name]) if name in figures else None for name, build in parts.items()}
    return render("simulation", {"metrics": " | ".join(_METRICS.values()), **context})


def _ran_on(part: Row) -> str:
    machine = part["machine"]
    quick = ", made with `--quick`" if part["quick"] else ""
    return f"{machine['cores']} shared cores, load average {machine['load_average']:g} at the start{quick}"


def _calibration(part: Row) -> dict[str, Any]:
    rows = []
    for name, model in part["errors"].items():
        guesses = [model, *(part[guess].get(name, {}) for guess in ("constant", "turn"))]
        pairs = (", ".join(or_dash(guess.get(key), "{:.1%}") for key in ("median", "p90")) for guess in guesses)
        rows.append([name, str(model["batches"]), *pairs, or_dash(model["bias"], "{:+.1%}")])
    fits = [[workload, str(part["runs"][workload]), *_fit(fit)] for workload, fit in part["fits"].items()]
    return {"rows": rows, "fits": fits}


def _fit(fit: Row) -> list[str]:
    scale = f"{fit['scale']:.3f}" if fit["scale_known"] else "1 (paths are too alike to fit it)"
    load = f"{seconds(fit['load_overhead'])} + bytes at {rate(fit['load_rate'])}" if fit["loads_known"] else "not known"
    return [seconds(fit["overhead"]), scale, load]


def _paper(part: Row) -> dict[str, Any]:
    by_variant = group_by(part["rows"], "variant")

    def first_cells(rows: Rows) -> list[str]:
        durations = [row["seconds"] for row in rows if row["moves"]]
        return [f"{_median(rows, 'moves'):g}", seconds(median(durations)) if durations else "-"]

    # Where the default policy moves more than the paper's: its moves and durations in runs that moved something.
    moving = [[row for row in by_variant.get(name, ()) if row["moves"]] for name in ("adaptive", "proposed")]
    own, paper = ({name: _median(rows, name) for name in ("moves", "seconds")} for rows in moving)
    return {
        **_experiment(part, "during", "after", first_cells),
        "sizes": sorted({row["size"] for row in part["rows"]}),
        "moves_more": {"own": own, "paper": paper} if own["moves"] > paper["moves"] else None,
    }


def _hour(part: Row) -> dict[str, Any]:
    by_variant = group_by(part["rows"], "variant")
    figures: dict[str, dict[str, Any]] = {
        name: {
            "moves": _median(rows, "moves"),
            "latency": _median(rows, "latency", "whole"),
            "deviation": _UNITS["tuples_std"].format(_median(rows, "tuples_std", "whole")),
        }
        for name, rows in by_variant.items()
    }
    own, paper = (figures.get(name) for name in ("adaptive", "proposed"))
    slower = own and paper and own["moves"] > paper["moves"] and own["latency"] > paper["latency"]
    return {
        **_experiment(
            part, "whole", "joining", lambda rows: [f"{_median(rows, key):g}" for key in ("migrations", "moves")]
        ),
        "seconds": part["seconds"],
        "moves_more": {"own": own, "paper": paper} if slower else None,
    }


def _experiment(part: Row, span: str, last: str, first_cells: Callable[[Rows], list[str]]) -> dict[str, Any]:
    """Return what both experiments of the paper show: their metrics in a span, and the latency in another one."""
    by_variant = group_by(part["rows"], "variant")
    rows = [
        [
            variant.name,
            *first_cells(own),
            *(_quartiles(own, metric, span) for metric in _METRICS),
            _quartiles(own, "latency", last),
        ]
        for variant in VARIANTS
        if (own := by_variant.get(variant.name))
    ]
    claims = [_claim(claim) for claim in part["claims"]]
    return {"seeds": part["seeds"], "rows": rows, "claims": claims, "stops": _stops(by_variant, span)}


def _stops(by_variant: Mapping[str, Rows], span: str) -> dict[str, str] | None:
    """Return why MT-like's tuples are more even than DCR-like's, where they are: its target, or that it stops all."""
    names = {"stopped": "MT-like", "steps": "MT's target, in steps", "drained": "DCR-like"}
    if not all(by_variant.get(name) for name in names.values()):
        return None
    values = {key: _median(by_variant[name], "tuples_std", span) for key, name in names.items()}
    if values["stopped"] >= values["drained"]:
        return None
    moves, drained_moves = (f"{_median(by_variant[names[key]], 'moves'):,g}" for key in ("stopped", "drained"))
    why = (
        f"its target moves {moves} instances and not {drained_moves}"
        if values["steps"] < values["drained"]
        else "while everything stands still no node serves more than another"
    )
    return {"why": why, **{key: _UNITS["tuples_std"].format(value) for key, value in values.items()}}


def _median(rows: Rows, *keys: str) -> float:
    """Return the median of a figure, which may be nested; 0 without rows."""
    values: list[Any] = [reduce(getitem, keys, row) for row in rows]
    return float(median(values or [0]))


def _quartiles(rows: Rows, metric: str, span: str) -> str:
    ordered = sorted(row[metric][span] for row in rows)
    low, high = ordered[len(ordered) // 4], ordered[(3 * len(ordered)) // 4]
    form = _UNITS[metric].format
    return f"{form(median(ordered))} ({form(low)} to {form(high)})"


def _claim(claim: Row) -> list[str]:
    ratio, low, high = claim["ratio"]
    share = claim["holds"] / claim["pairs"]
    verdicts = ((0.9, "holds"), (0.6, "mostly"), (0.4 + 1e-12, "undecided"), (0.0, "does not hold"))
    verdict = next(text for least, text in verdicts if share >= least)
    return [
        f"{claim['less']} < {claim['more']}",
        _METRICS[claim["metric"]],
        " < ".join(_UNITS[claim["metric"]].format(value) for value in claim["medians"]),
        f"{ratio:.2f} ({low:.2f} to {high:.2f})",
        f"{claim['holds']} of {claim['pairs']}",
        "no difference worth the name" if abs(ratio - 1) < _EQUAL else verdict,
    ]


def _policy(row: Row) -> str:
    return f"{row['policy']}, {row['limit']:,} moves at once" if row["limit"] else str(row["policy"])


def _large(part: Row) -> dict[str, Any]:
    rows = []
    for row in part["rows"]:
        codes = [decision["code"] for decision in row["made"]]
        durations = [decision["seconds"] for decision in row["made"] if decision["seconds"] > 0]
        ratio = row["over_as_is"]
        rows.append(
            [
                _policy(row),
                *(seconds(row[key]) for key in ("mean", "median", "p95")),
                f"{ratio['median']:.2f} ({ratio['best']:.2f} to {ratio['worst']:.2f})",
                f"{row['landed']:,}",
                f"{codes.count(PlanResult.OK)} of {len(codes)}" if codes else "-",
                seconds(median(durations)) if durations else "-",
            ]
        )
    return {
        "executors": f"{part['executors']:,}",
        "partitions": f"{part['partitions']:,}",
        **{key: part[key] for key in ("queries", "seconds", "every")},
        "ran_on": _ran_on(part),
        "rows": rows,
        "difference": f"{max(abs(row['over_as_is']['median'] - 1) for row in part['rows']):.0%}",
    }


def _decisions(part: Row) -> dict[str, Any]:
    alone = next((row["alone"] for row in part["rows"] if "cold" in row.get("alone", ())), None)
    rows = [_decision(row) for row in part["rows"] if "alone" not in row]
    return {"tasks": f"{part['tasks']:,}", "ran_on": _ran_on(part), "rows": rows, "alone": alone}


def _decision(row: Row) -> list[str]:
    if "problem" in row:
        return [_policy(row), row["problem"], "", "", "", ""]
    cold, warm, traced = row["cold"], row["warm"], row.get("traced_mib")
    return [
        _policy(row),
        *(f"{seconds(each['policy_seconds'])}, {seconds(each['seconds'])}" for each in (cold, warm)),
        f"{row['built_mib']:,.0f} → {row['peak_mib']:,.0f} MiB",
        f"{traced:,.0f} MiB" if traced else "-",
        f"{cold['moves']:,} in {cold['steps']}",
    ]


def _fleet(part: Row) -> dict[str, Any]:
    controller, server, decision, alone = part["controller"], part["redis"], part["decision"], part["agents_alone"]
    sentence = f"`{decision['outcome']}`: {decision['sentence']}" if decision else "**none**"
    if decision is None or decision["outcome"] == DecisionResult.NOT_READY:
        sentence = f"**none within four minutes**: {sentence}"
    late = part["worst_lateness_seconds"]
    deciding = f"{controller['deciding_cpu']:.1f} s of processor time in {controller['deciding_seconds']:.0f} s"
    commands = f"{server['commands_per_second']:,.0f} commands/s"
    rows = {
        "controller before it decides": f"{controller['cores']:.2f} cores, {controller['rss_mib']:,.0f} MiB",
        "controller until it has decided": f"{deciding}, {controller['deciding_rss_mib']:,.0f} MiB",
        "its decision": sentence,
        "Redis": f"{server['cores']:.3f} cores, {server['memory_mib']:,.0f} MiB",
        "into Redis": f"{rate(server['bytes_in_per_second'])}, {commands}",
        "out of Redis": rate(server["bytes_out_per_second"]),
        "latest push behind its time": seconds(late),
        "Redis with agents alone, their streams full": (
            f"{alone['redis_cores']:.3f} cores, {alone['memory_full'] / 2**20:,.0f} MiB"
        ),
    }
    return {
        **{key: part[key] for key in ("shape", "bounds", "seconds")},
        "agents": f"{part['shape']['agents']:,}",
        "total": f"{part['shape']['total']:,}",
        "ran_on": _ran_on(part),
        "rows": list(rows.items()),
        "late": late,
        "too_late": late > WINDOW,
    }
