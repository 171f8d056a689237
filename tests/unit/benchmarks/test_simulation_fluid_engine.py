"""Conservation of tuples in the fluid engine, ends of migrations, and the section on simulations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import fleet, large, plots
from benchmarks.simulation.fluid_engine import COMPONENTS, Fluid, make_jobs, nodes, view
from benchmarks.simulation.migration_paper import claims, expansion, one_migration
from benchmarks.simulation.report import section
from benchmarks.simulation.variants import VARIANTS, migrate, target
from rechannel.daemon.model.collector import implausibility
from rechannel.wire.keys import MAX_MESSAGE_BYTES

MACHINE = {"cores": 2, "load_average": 0.5}


def run(fluid: Fluid, seconds: float) -> None:
    for _ in range(round(seconds / fluid.tick)):
        fluid.step()


def held(fluid: Fluid) -> np.ndarray[Any, Any]:
    """Tuples of each job that are somewhere, each counted as what it makes at the end: three words a sentence."""
    jobs = fluid.jobs
    sentence = np.array([3.0, 3.0, 1.0, 1.0, 1.0])[jobs.component % COMPONENTS]
    return np.asarray(((fluid.queue + fluid.transit) * sentence).sum())


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 99), st.integers(3, 12))
def test_every_tuple_is_queued_or_has_left(seed: int, size: int) -> None:
    jobs = make_jobs(6 * size, size, seed)
    fluid = Fluid(jobs, np.arange(jobs.size) % size, size)
    run(fluid, 20.0)
    fluid.down[::3] = True
    run(fluid, 20.0)
    fluid.down[:] = False
    run(fluid, 300.0)
    fluid.paused = True
    run(fluid, 5.0)
    # What an overloaded node makes in the last tick is on its way: a word behind the second component, else three.
    under_way = float((fluid._sent * np.resize([3.0, 1.0, 1.0, 1.0, 0.0], jobs.count)).sum())
    assert 3.0 * fluid.entered == pytest.approx(fluid.left + held(fluid) + under_way, rel=1e-9)


def test_a_restart_replays_tuples_in_flight() -> None:
    jobs = make_jobs(30, 5, 0)
    fluid = Fluid(jobs, np.arange(jobs.size) % 5, 5)
    fluid.down[jobs.component >= 2] = True
    run(fluid, 10.0)
    before = held(fluid)
    made = fluid._sent * np.array([3.0, 1.0, 1.0, 1.0, 0.0])
    fluid.lose()
    assert fluid.in_flight == 0.0
    assert held(fluid) == pytest.approx(before + made.sum(), rel=0.01)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_migration_ends_where_it_is_to_go_with_all_in_service(variant: Any) -> None:
    jobs = make_jobs(60, 10, 1)
    fluid = Fluid(jobs, np.zeros(jobs.size, dtype=np.int64), 10)
    goal = fluid.node.copy() if variant.means == "none" else target(variant, nodes(10), jobs, fluid.node)
    assert variant.means == "none" or (goal != fluid.node).any()
    total = 0.0
    for wait in migrate(variant, fluid, goal):
        total += wait
        run(fluid, wait)
        if variant.means == "steps":
            assert np.bincount(goal[fluid.down], minlength=10).max() <= 3  # those set up beside the one transferred
    assert (fluid.node == goal).all()
    assert not fluid.down.any()
    assert not fluid.paused
    assert not fluid.frozen.any()
    assert (total > 0) == (variant.means != "none")


def test_policies_see_the_load_that_the_nodes_have() -> None:
    jobs = make_jobs(60, 10, 2)
    node = np.arange(jobs.size) % 10
    for whole in (False, True):
        workload, placement = view(jobs, node, whole=whole)
        placement.validate(nodes(10), workload)
        assert sum(stage.busy.sum() for stage in workload.stages) == pytest.approx(jobs.load(node, 10).sum())


def test_the_same_seed_makes_the_same_experiment() -> None:
    one, two = (one_migration(5, 3, VARIANTS[:3]) for _ in range(2))
    for first, second in zip(one, two, strict=True):
        assert first["windows"] == second["windows"]


def test_claims_are_tested_by_pairs() -> None:
    rows = [
        {
            "variant": variant,
            "size": 5,
            "seed": seed,
            **{name: {"during": value} for name in ("tuples_std", "load_std", "latency")},
        }
        for seed in range(4)
        for variant, value in (("proposed", 1.0), ("DCR-like", 2.0 if seed else 0.5), ("MT-like", 4.0))
    ]
    result = claims(rows, "during")
    first = next(one for one in result if (one["less"], one["more"]) == ("proposed", "DCR-like"))
    assert (first["holds"], first["pairs"], first["medians"]) == (3, 4, [1.0, 2.0])
    assert not any(one["less"] == "adaptive" for one in result)


def row(variant: str, moves: int, deviation: float, latency: float) -> dict[str, Any]:
    existing = {"variant": variant, "moves": moves, "migrations": 1, "load_std": {"whole": 5.0, "joining": 5.0}}
    return existing | {
        "tuples_std": {"whole": deviation, "joining": deviation},
        "latency": {"whole": latency, "joining": latency},
    }


def hour(stopped: float, steps: float, adaptive: int) -> str:
    rows = [row("as it is", 0, 40.0, 0.07), row("proposed", 100, 21.5, 0.08), row("adaptive", adaptive, 17.5, 0.2)]
    rows += [row("DCR-like", 100, 21.6, 0.6), row("MT-like", 2000, stopped, 5.0)]
    rows += [row("MT's target, in steps", 2000, steps, 0.4)]
    existing = {"quick": True, "machine": MACHINE, "seconds": 3600.0, "seeds": 1, "rows": rows, "claims": []}
    return " ".join(section({"hour": existing}).split())


def test_the_section_explains_a_ranking_from_the_figures() -> None:
    assert "ranking: its target moves 2,000 instances and not 100." in hour(19.6, 19.9, 700)
    assert "ranking: while everything stands still" in hour(14.0, 26.0, 700)
    assert "ranking:" not in hour(30.0, 26.0, 700)
    assert "it moves 700 instances in the hour, the proposed variant 100" in hour(19.6, 19.9, 700)
    assert "behind in latency" not in hour(19.6, 19.9, 50)


def test_the_section_and_the_plots_are_made_of_figures_alone(tmp_path: Path) -> None:
    existing = {"quick": True, "machine": MACHINE}
    figures: dict[str, Any] = {
        "paper": existing
        | {"rows": (rows := one_migration(5, 0, VARIANTS[:4])), "seeds": 1, "claims": claims(rows, "during")},
        "large": existing | large.hour(1000, 420.0, [("even", None)]),
    }
    text = section(figures)
    assert "### The pipelined-migration paper's experiment" in text
    assert "10 executors, 800 partitions" in text
    assert "Redis" not in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    assert section(figures) == text
    pytest.importorskip("matplotlib")  # the benchmark's own
    plots.draw(figures, tmp_path)
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(first) == {"simulation-migration.svg", "simulation-large.svg"}
    plots.draw(figures, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == first


def test_an_hour_of_no_seed_is_empty_and_five_nodes_are_a_sub_cluster() -> None:
    assert expansion(0, 60.0)["rows"] == []
    assert nodes(100).subcluster.max() == 19


def test_a_controller_accepts_the_synthetic_messages() -> None:
    shape = fleet.Shape(20, 2, 2, 50)
    assert implausibility(fleet.report(shape, 1e9)) == ""
    existing = fleet.bounds(shape)
    assert existing["report"] < existing["largest"] == MAX_MESSAGE_BYTES
    assert existing["one_query_batch"] > existing["batch"] / 2
    assert len(fleet.batch(shape, 1, 7, 1e9).stages) == 2
