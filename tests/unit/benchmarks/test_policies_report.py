"""The page of the policies' benchmark, the algorithms read literally, and the exact optimum it compares with."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from benchmarks.policies import comparison
from benchmarks.policies.block_cyclic import BlockCyclic
from benchmarks.policies.optimum import instance, optimal_seconds
from benchmarks.policies.report import render
from benchmarks.policies.scale import check_pipelines, check_redistribution, check_stream_classification
from benchmarks.policies.situations import changed, situation
from rechannel.policies.registry import POLICIES
from rechannel.policies.scenarios.generators import GENERATORS, generate

MACHINE = {
    "cores": 2,
    "architecture": "x86_64",
    "python": "3.11.0",
    "load_average": 0.5,
    "numpy": "2.0",
    "highspy": None,
}
FIGURES = {
    "seconds_per_second": 1.5,
    "highest_utilization": 0.5,
    "load_spread": 0.1,
    "inter_node_bytes_per_second": 2e6,
    "inter_executor_bytes_per_second": 3e6,
    "cohesion": 1.0,
    "coupling": 2.0,
}


def row(policy: str, path: float | None) -> dict[str, Any]:
    figures = None if path is None else FIGURES | {"seconds_per_second": path}
    same = {"generator": "linear", "seed": 0, "bound": 1.0, "moves": 3, "bytes_moved": 5e6, "seconds": 0.01}
    return same | {"policy": policy, "figures": figures, "error": "" if figures else "add executors"}


def all_figures() -> dict[str, Any]:
    instances = {"optimum": 1.0, "bound": 0.9, "proved": True, "highs_seconds": 0.1, "policies": {"adaptive": 1.02}}
    graph = {"generator": "sparse", "seed": 0, "policy": "METIS", "cut": 0.5, "path": 1.2, "seconds": 0.1}
    graph |= {"highest_utilization": 0.5, "load_spread": 0.1}
    large = {"kind": "dense", "cores": 1, "tasks": 100_000, "executors": 1000, "pairs": 10, "classification": 0.2}
    large |= {"cold": 2.0, "warm": 0.9, "warm_with_checks": 1.0, "before": 2.0, "after_cold": 1.5, "before_warm": 1.6}
    large |= {"after_warm": 1.5, "cold_moves": 7, "warm_moves": 1, "built_mib": 100.0, "peak_mib": 150.0}
    grown = [{"what": "even", "kind": "dense", "size": 1000, "tasks": 800, "seconds": 0.001}]
    grown += [{"what": "t-storm", "kind": "dense", "size": 1000, "over": 5.0}]
    grown += [{"what": "even", "kind": "dense", "size": 100_000, "predicted": 7.0}]
    moved = {"layout": [5, 5, 4, 6], "messages": 20, "same": True, "steps": {"class": 4, "koenig": 4}}
    moved |= {"seconds": {"literal": 0.1, "classes": 0.1, "koenig": 0.1}, "cost": {"class": 12.0, "koenig": 12.0}}
    return {
        "policies": comparison.describe(),
        "compare": {
            "machine": MACHINE,
            "quick": True,
            "seeds": [0],
            "generators": {"linear": {"summary": "a line", "parameters": {"seed": 0, "scale": "1"}}},
            "rows": [row("current", 2.0), row("adaptive", 1.25), row("even", 1.125), row("t-storm", None)],
        },
        "optimum": {"machine": MACHINE, "instances": [instances], "graphs": [graph]},
        "scale": {
            "machine": MACHINE,
            "limit": 5.0,
            "rows": [large, {"kind": "sparse", "cores": 4, "tasks": 100_000, "over": 5}],
        },
        "growth": {
            "machine": MACHINE,
            "limit": 5.0,
            "rows": grown,
            "checks": {"dense": {"literal": True}},
            "redistribution": [moved],
        },
    }


def test_the_page_holds_what_the_figures_say() -> None:
    page = render(json.loads(json.dumps(all_figures())))
    assert page == render(all_figures()), "the same figures make the same page"
    assert "| linear | 2.00 | 1.25 | 1.12 | - |" in page
    assert "linear (`even` 1.125, `adaptive` 1.250)" in page
    assert "refused: add executors" in page
    assert "| adaptive | 2.00% | 2.00% | 2.00% | 0 of 1 |" in page
    missed = "Goals missed: dense with 1 core: classification + warm 1.1 s, goal 1 s; sparse with 4 cores: over 5 s."
    assert missed in page
    assert "over 5 s" in page
    assert "not run (7 s predicted)" in page
    assert all(f"### `{name}`" in page for name in POLICIES)
    assert ":func:" not in page
    assert "``" not in page
    assert [line for line in page.splitlines() if len(line) > 120 and not line.startswith(("|", "#"))] == []


@pytest.mark.parametrize("part", ["policies", "compare", "optimum", "scale", "growth"])
def test_parts_that_were_not_measured_are_left_out(part: str) -> None:
    figures = all_figures()
    del figures[part]
    assert render(figures).startswith("# Policies")
    assert render({part: all_figures()[part]}).endswith("\n")


def test_a_comparison_has_a_row_for_each_policy() -> None:
    result = comparison.measure([0], ["page-view"])
    assert [one["policy"] for one in result["rows"]][:3] == [comparison.CURRENT, "adaptive", comparison.EAGER]
    assert {one["policy"] for one in result["rows"]} >= set(POLICIES)
    json.dumps(result)


# Where bandwidths are known the policy looks at them too, the literal reading does not.
@pytest.mark.parametrize(
    "name",
    [
        *(f"{name}:seed=1" for name in sorted(GENERATORS.keys() - {"chains", "sparse"})),
        "sparse:executors=10,tasks=200,edges=1000",
    ],
)
def test_the_literal_readings_give_the_same_answers(name: str) -> None:
    scenario = generate(name)
    assert check_pipelines(scenario)
    assert check_stream_classification(scenario)


def test_counting_tasks_gives_the_classes_of_the_closed_forms() -> None:
    for layout in itertools.product((1, 2, 5), (1, 3, 5), (1, 2, 4), (1, 3, 6)):
        assert check_redistribution(BlockCyclic(*layout)), layout


def test_the_optimum_is_that_of_looking_at_everything() -> None:
    for seed in range(4):
        scenario = instance(seed)
        speed, busy = scenario.cluster.speed[:3], scenario.workload.stages[0].busy[:6]
        best = min(
            float((np.bincount(choice, weights=busy, minlength=len(speed)) / speed).max())
            for choice in itertools.product(range(len(speed)), repeat=len(busy))
        )
        seconds, proved = optimal_seconds(busy, speed)
        assert proved
        assert seconds == pytest.approx(best)


def test_large_situations_are_as_large_as_asked_for() -> None:
    dense, sparse = situation("dense", 1600, cores=2), situation("sparse", 1000)
    assert sum(stage.n for stage in dense.workload.placeable) == 1600
    assert dense.cluster.size == 16
    assert sum(shuffle.summary()[0] for shuffle in sparse.workload.shuffles) == 10_000
    later = changed(dense.workload, seed=1)
    ratio = later.stages[0].busy / dense.workload.stages[0].busy
    assert 0.9 <= ratio.min() < ratio.max() <= 1.1
