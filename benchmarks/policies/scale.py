"""Decision times: the default policy at a thousand executors, and the growth of all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.policies import reference_implementations as reference
from benchmarks.policies.block_cyclic import BlockCyclic, class_schedule, edge_schedule
from benchmarks.policies.measure import ADAPTIVE, LITERAL, LITERAL_PIPELINES, PIPELINES, run, timed
from benchmarks.policies.situations import KINDS, situation
from benchmarks.report.results import machine, progress
from rechannel.migration.plan.edge_coloring import color_edges
from rechannel.policies.published.closeness import operator_edges
from rechannel.policies.published.locality_fairness import pipelines
from rechannel.policies.published.stream_classification import STREAM_CLASSIFICATION
from rechannel.policies.published.units import flatten
from rechannel.policies.registry import POLICIES
from rechannel.policies.scenarios.scenario import Scenario

LARGE = 100_000
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
LAYOUTS = ((5, 5, 4, 6), (16, 16, 3, 5), (40, 48, 6, 5), (100, 100, 100, 101), (200, 240, 24, 20))
_SMALL = {"dense": (800,), "sparse": (500, 2000)}


def large(tasks: int, limit: float) -> dict[str, Any]:
    """``adaptive`` with so many tasks: from Spark's placement, and from its own after every busy time changed."""
    began, rows = machine(), []
    for kind, cores in (("dense", 1), ("dense", 4), ("sparse", 4)):
        progress(f"scale: {kind}, {cores} cores an executor, {tasks:,} tasks")
        figures = run(ADAPTIVE, kind, tasks, limit, cores=cores, seed=0)
        rows.append({"kind": kind, "cores": cores, "tasks": tasks, **figures})
    return {"machine": began, "limit": limit, "seed": 0, "rows": rows}


def growth(sizes: Sequence[int], limit: float) -> dict[str, Any]:
    """Every policy and the literal readings at growing sizes, each until it takes longer than the limit."""
    began, rows = machine(), []
    for what in (*POLICIES, LITERAL, PIPELINES, LITERAL_PIPELINES):
        for kind in KINDS:
            if kind == "dense" or what not in (PIPELINES, LITERAL_PIPELINES):
                rows += _grown(what, kind, sizes, limit)
    checks = {kind: _checks(kind) for kind in KINDS}
    return {
        "machine": began,
        "limit": limit,
        "rows": rows,
        "checks": checks,
        "redistribution": [_redistribution(each) for each in LAYOUTS],
    }


def _grown(what: str, kind: str, sizes: Sequence[int], limit: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for size in sizes:
        if size == LARGE and _predicted(rows, size) > limit:
            rows.append({"what": what, "kind": kind, "size": size, "predicted": _predicted(rows, size)})
            break
        figures = run(what, kind, size, limit)
        text = f"{figures['seconds']:.3g} s" if "seconds" in figures else f"ended, {figures}"
        progress(f"growth: {what}, {kind}, {size:,} tasks: {text}")
        rows.append({"what": what, "kind": kind, "size": size, **figures})
        if "seconds" not in figures and what != "adaptive":  # which looks at large situations less often, not longer
            break
    return rows


def _predicted(rows: Sequence[dict[str, Any]], size: int) -> float:
    """Return the seconds at a size if they go on growing as they did at last, at least in proportion."""
    if not rows or "seconds" not in rows[-1]:
        return 0.0
    exponent, last = 1.0, rows[-1]
    for row in (row for row in rows[-2:-1] if "seconds" in row):
        ratio = max(last["seconds"], 1e-3) / max(row["seconds"], 1e-3)
        exponent = max(1.0, math.log(ratio) / math.log(last["size"] / row["size"]))
    return float(last["seconds"] * (size / last["size"]) ** exponent)


def _checks(kind: str) -> dict[str, bool]:
    scenarios = [situation(kind, tasks) for tasks in _SMALL[kind]]
    return {
        LITERAL: all(check_stream_classification(one) for one in scenarios),
        LITERAL_PIPELINES: all(check_pipelines(one) for one in scenarios),
    }


def check_stream_classification(scenario: Scenario) -> bool:
    """Return whether the literal reading places everything as the policy does."""
    cluster, workload, current = scenario.cluster, scenario.workload, scenario.current
    units = flatten(cluster, workload, current)
    placement = units.placement(np.array(reference.stream_classification(units), dtype=np.int64))
    return placement == STREAM_CLASSIFICATION.place(cluster, workload, current).placement


def check_pipelines(scenario: Scenario) -> bool:
    """Return whether the literal reading has the same pipelines in the same order."""
    workload = scenario.workload
    keys = [stage.key for stage in workload.placeable]
    expected = reference.pipelines([stage.n for stage in workload.placeable], operator_edges(workload))
    return [{keys[operator]: index for operator, index in one.items()} for one in expected] == pipelines(workload)


def check_redistribution(layout: BlockCyclic) -> bool:
    """Return whether counting every task gives the same classes, costs and steps as the closed forms."""
    counted = reference.classes(layout.sources, layout.targets, layout.before, layout.after)
    return tuple(counted) == layout.classes()


def _redistribution(numbers: tuple[int, int, int, int]) -> dict[str, Any]:
    progress(f"growth: redistribution {numbers}")
    layout = BlockCyclic(*numbers)
    sources, targets, sizes = layout.messages()
    calls: dict[str, Callable[[], object]] = {
        "literal": lambda: reference.classes(*numbers),
        "classes": layout.classes,
        "koenig": lambda: color_edges(sources, targets, sizes),
    }
    schedules = {"class": class_schedule(layout), "koenig": edge_schedule(sources, targets, sizes)}
    return {
        "layout": numbers,
        "messages": len(sizes),
        "same": check_redistribution(layout),
        "seconds": {name: timed(call)[0] for name, call in calls.items()},
        "steps": {name: schedule.length for name, schedule in schedules.items()},
        "cost": {name: schedule.cost for name, schedule in schedules.items()},
    }
