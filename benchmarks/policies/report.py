"""``docs/policies.md`` from the figures alone: the same figures give the same page; parts without figures are omitted.

This module computes the cells; the text is in ``benchmarks/report/templates/policies.md.j2``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.policies.comparison import CURRENT
from benchmarks.report.numbers import amount, group_by, median_of, or_dash, rate, seconds
from benchmarks.report.templates import render as render_template
from rechannel.wire.printable import with_noun

_GOAL_WARM, _GOAL_COLD = 1.0, 5.0
_TIE = 5e-4  # paths that differ by less are equal
_VERSIONS = (("numpy", "NumPy"), ("highspy", "HiGHS (highspy)"), ("pymetis", "pymetis"))
_TRAFFIC = "inter_executor_bytes_per_second"
_METRICS: dict[str, tuple[str, Callable[[float], str]]] = {
    "path, s/s": ("seconds_per_second", "{:.3f}".format),
    "highest utilization": ("highest_utilization", "{:.0%}".format),
    "load spread": ("load_spread", "{:.3f}".format),
    "between nodes": ("inter_node_bytes_per_second", rate),
    "between executors": (_TRAFFIC, rate),
    "cohesion": ("cohesion", "{:.4g}".format),
    "coupling": ("coupling", "{:.4g}".format),
}

Row = Mapping[str, Any]


def render(figures: Mapping[str, Any]) -> str:
    """Return the page of the figures that ``python -m benchmarks.policies --json FILE`` leaves."""
    parts: dict[str, Callable[[Any], dict[str, Any]]] = {
        "policies": _policies,
        "compare": _compare,
        "optimum": _optimum,
        "scale": _scale,
        "growth": _growth,
    }
    context = {name: build(figures[name]) if name in figures else None for name, build in parts.items()}
    return render_template("policies", context)


def _ran_on(part: Row) -> str:
    """Describe the machine of a part in half a sentence, with the versions of some packages."""
    machine = part["machine"]
    packages = "".join(f", {label} {machine[key]}" for key, label in _VERSIONS if machine.get(key))
    quick = "; made with `--quick`" if part.get("quick") else ""
    return (
        f"{machine['cores']} shared cores ({machine['architecture']}, load average {machine['load_average']:g} at the "
        f"start), Python {machine['python']}{packages}{quick}"
    )


def _policies(policies: Sequence[Row]) -> dict[str, Any]:
    def value(setting: object) -> str:
        return "none" if setting is None else str(setting).lower() if isinstance(setting, bool) else str(setting)

    return {
        "table": [[f"`{policy['name']}`", policy["summary"], policy["source"]] for policy in policies],
        "parameters": [
            {
                "name": policy["name"],
                "values": ", ".join(f"`{name}` = {value(setting)}" for name, setting in policy["parameters"].items()),
                "text": [*policy["meaning"], *policy["deviations"]],
            }
            for policy in policies
        ],
    }


def _compare(part: Row) -> dict[str, Any]:
    rows, generators = part["rows"], part["generators"]
    policies = list(group_by(rows, "policy"))
    paths = {name: {policy: path_over_bound(rows, policy, name) for policy in policies} for name in generators}
    behind, equal = _better_policies(paths)
    return {
        "seeds": len(part["seeds"]),
        "ran_on": _ran_on(part),
        "policies": policies,
        "paths": [[name, *(or_dash(path, "{:.2f}") for path in row.values())] for name, row in paths.items()],
        "traffic": [
            [name, *(or_dash(_traffic(rows, policy, name), "{:.2f}") for policy in policies)] for name in generators
        ],
        "summary": [_summary(rows, policy, [row[policy] for row in paths.values()]) for policy in policies],
        "behind": behind,
        "equal": equal,
        "metrics": ["policy", *_METRICS, "moves", "state moved"],
        "generators": [_generator(name, about, rows) for name, about in generators.items()],
    }


def _select(rows: Sequence[Row], policy: str, generator: str) -> list[Row]:
    """Return the answers of a policy on a generator that have figures."""
    return [row for row in rows if row["policy"] == policy and row["generator"] == generator and row["figures"]]


def path_over_bound(rows: Sequence[Row], policy: str, generator: str) -> float | None:
    """Return the median over the seeds; None where the policy refused."""
    return median_of(row["figures"]["seconds_per_second"] / row["bound"] for row in _select(rows, policy, generator))


def _traffic(rows: Sequence[Row], policy: str, generator: str) -> float | None:
    current, value = (
        median_of(row["figures"][_TRAFFIC] for row in _select(rows, each, generator)) for each in (CURRENT, policy)
    )
    return value / current if current and value is not None else None


def _summary(rows: Sequence[Row], policy: str, all_paths: Sequence[float | None]) -> list[str]:
    paths = [path for path in all_paths if path is not None]
    answered = [row for row in rows if row["policy"] == policy and row["figures"]]
    if not answered:
        return [policy, *["-"] * 6]
    mean = {key: fmean(row[key] for row in answered) for key in ("moves", "bytes_moved", "seconds")}
    highest = max(row["figures"]["highest_utilization"] for row in answered)
    duration = "-" if policy == CURRENT else f"{mean['seconds']:.3f} s"
    cells = [f"{median(paths):.2f}", f"{max(paths):.2f}", f"{highest:.0%}", f"{mean['moves']:.1f}"]
    return [policy, *cells, amount(mean["bytes_moved"]), duration]


def _better_policies(paths: Mapping[str, Mapping[str, float | None]]) -> tuple[list[str], list[str]]:
    """Return the generators where another policy has the shorter path, and those where one is as good."""
    behind, equal = [], []
    for name, row in paths.items():
        own = row.get("adaptive")
        others = {policy: path for policy, path in row.items() if not policy.startswith(("adaptive", CURRENT))}
        answered = {policy: path for policy, path in others.items() if path is not None}
        if own is None or not answered:
            continue
        best = min(answered, key=answered.__getitem__)
        if answered[best] < own * (1 - _TIE):
            behind.append(f"{name} (`{best}` {answered[best]:.3f}, `adaptive` {own:.3f})")
        elif answered[best] <= own * (1 + _TIE):
            equal.append(name)
    return behind, equal


def _generator(name: str, about: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """Return every metric of every policy on one generator."""
    own = [row for row in rows if row["generator"] == name]
    values = ", ".join(f"{key}={value}" for key, value in about["parameters"].items() if key != "seed")
    return {
        "title": f"{name}: {about['summary']}",
        "command": f"{name}:{values}",
        "bound": median_of(row["bound"] for row in own),
        "rows": [_metrics(policy, answers) for policy, answers in group_by(own, "policy").items()],
    }


def _metrics(policy: str, rows: Sequence[Row]) -> list[str]:
    answered = [row for row in rows if row["figures"]]
    if not answered:
        return [policy, f"refused: {rows[0]['error']}", *["-"] * (len(_METRICS) + 1)]
    cells = [form(median(row["figures"][key] for row in answered)) for key, form in _METRICS.values()]
    moves, moved = (median(row[key] for row in answered) for key in ("moves", "bytes_moved"))
    return [policy, *cells, f"{moves:g}", amount(moved)]


def _optimum(part: Row) -> dict[str, Any]:
    rows = [row for row in part["instances"] if row["proved"]]
    certified = [100 * (row["policies"]["adaptive"] / row["bound"] - 1) for row in rows] or [0.0]
    slack = [100 * (row["optimum"] / row["bound"] - 1) for row in rows] or [0.0]
    highs = [row["highs_seconds"] for row in rows] or [0.0]
    unproved = [
        100 * (row["policies"]["adaptive"] / row["optimum"] - 1) for row in part["instances"] if row not in rows
    ]
    extremes = [f"{value:+.2f}%" for value in (min(unproved), max(unproved))] if unproved else []
    return {
        "instances": len(part["instances"]),
        "proved": len(rows),
        "ran_on": _ran_on(part),
        "above": [_above_optimum(policy, rows) for policy in rows[0]["policies"]] if rows else [],
        "certified": (median(certified), max(certified)),
        "slack": (median(slack), max(slack)),
        "highs": (median(highs), max(highs)),
        "unproved": list(dict.fromkeys(extremes)),
        "graphs": [
            _graph(graph, policy, answers)
            for graph, group in group_by(part["graphs"], "generator").items()
            for policy, answers in group_by(group, "policy").items()
        ],
    }


def _above_optimum(policy: str, rows: Sequence[Row]) -> list[str]:
    above = [row["policies"][policy] / row["optimum"] - 1 for row in rows]
    optimal = sum(value < 1e-6 for value in above)
    figures = (median(above), fmean(above), max(above))
    return [policy, *(f"{max(value, 0.0):.2%}" for value in figures), f"{optimal} of {len(rows)}"]


def _graph(graph: str, policy: str, rows: Sequence[Row]) -> list[str]:
    forms = {"cut": "{:.1%}", "path": "{:.3f}", "highest_utilization": "{:.0%}", "load_spread": "{:.3f}"}
    cells = [form.format(median(row[key] for row in rows)) for key, form in forms.items()]
    return [graph, policy, *cells, seconds(median(row["seconds"] for row in rows))]


def _scale(part: Row) -> dict[str, Any]:
    rows = part["rows"]
    return {
        "large": max(row["tasks"] for row in rows) >= 90_000,
        "goals": (f"{_GOAL_WARM:g}", f"{_GOAL_COLD:g}"),
        "ran_on": _ran_on(part),
        "times": [_times(row) for row in rows],
        "answers": [_answer(row) for row in rows if "cold" in row],
        "missed": [text for row in rows for text in _missed(row)],
    }


def _missed(row: Row) -> list[str]:
    """Return each goal that a situation missed, with its figure."""
    name = f"{row['kind']} with {with_noun(row['cores'], 'core')}"
    if "cold" not in row:
        return [f"{name}: {_no_figure(row)}"]
    warm = row["classification"] + row["warm"]
    goals = [("classification + warm", warm, _GOAL_WARM), ("cold", row["cold"], _GOAL_COLD)]
    return [f"{name}: {what} {seconds(value)}, goal {goal:g} s" for what, value, goal in goals if value >= goal]


def _times(row: Row) -> list[str]:
    if "cold" not in row:
        return [row["kind"], str(row["cores"]), "", f"{row['tasks']:,}", "", "", _no_figure(row), "", "", ""]
    counts = [f"{row[key]:,}" for key in ("executors", "tasks", "pairs")]
    together = row["classification"] + row["warm"]
    times = [row["classification"], row["cold"], row["warm"], together, row["warm_with_checks"]]
    return [row["kind"], str(row["cores"]), *counts, *map(seconds, times)]


def _answer(row: Row) -> list[str]:
    paths = ", ".join(f"{row[key]:.2f}" for key in ("before", "after_cold", "before_warm", "after_warm"))
    moves = f"{row['cold_moves']:,}, {row['warm_moves']:,}"
    return [row["kind"], str(row["cores"]), paths, moves, f"{row['built_mib']:.0f}, {row['peak_mib']:.0f} MiB"]


def _growth(part: Row) -> dict[str, Any]:
    kinds = []
    for kind, rows in group_by(part["rows"], "kind").items():
        sizes = sorted({row["size"] for row in rows})
        body = [[name, *(_duration(own, size) for size in sizes)] for name, own in group_by(rows, "what").items()]
        kinds.append({"name": kind.capitalize(), "sizes": [f"{size:,}" for size in sizes], "rows": body})
    return {
        "limit": f"{part['limit']:g}",
        "ran_on": _ran_on(part),
        "kinds": kinds,
        "wrong": [
            f"{name} ({kind})" for kind, checks in part["checks"].items() for name, same in checks.items() if not same
        ],
        "redistribution": [_redistribution(row) for row in part["redistribution"]],
    }


def _duration(rows: Sequence[Row], size: int) -> str:
    row = next((row for row in rows if row["size"] == size), None)
    if row is None:
        return ""
    if "seconds" in row:
        return seconds(row["seconds"])
    return f"not run ({seconds(row['predicted'])} predicted)" if "predicted" in row else _no_figure(row)


def _no_figure(row: Row) -> str:
    return "no figure, too busy" if "starved" in row else f"over {row['over']:g} s"


def _redistribution(row: Row) -> list[str]:
    time, steps, cost = row["seconds"], row["steps"], row["cost"]
    return [
        ", ".join(map(str, row["layout"])),
        f"{row['messages']:,}",
        seconds(time["literal"]),
        seconds(time["classes"]),
        "yes" if row["same"] else "no",
        seconds(time["koenig"]),
        f"{steps['class']:,}, {steps['koenig']:,}",
        f"{cost['class']:,.0f}, {cost['koenig']:,.0f}",
    ]
