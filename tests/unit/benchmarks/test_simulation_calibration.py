"""The calibration recovers the costs of simulated batches, and a wrong model shows an error."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.simulation.calibration import Fit, errors, read_runs, validate
from benchmarks.simulation.engine import Costs, Simulation
from benchmarks.simulation.report import section
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.scenarios.scenario import Scenario, to_document

TRUTH = Costs(commit=0.8, scale=1.3, load_overhead=0.5, load_rate=1e7)
EXECUTORS, PARTITIONS = 4, 12


def record(seed: int, noise: float, wrong: bool = False) -> dict[str, Any]:
    return deepcopy(made(seed, noise, wrong))


@cache
def made(seed: int, noise: float, wrong: bool) -> dict[str, Any]:
    """Batches of a run with two steps of moves, made by the engine with known costs; or by something else."""
    random = np.random.default_rng(seed)
    ones = np.ones(EXECUTORS)
    names = tuple(f"e{i}" for i in range(EXECUTORS))
    cluster = Cluster(names, names, ones, ones * np.inf, ones, ones > 0)
    busy, state = random.uniform(0.1, 1.0, PARTITIONS), random.uniform(1e6, 3e7, PARTITIONS)
    stage = Stage("q/0", "q", True, 0.05, busy, np.ones(PARTITIONS), state)
    current = Placement({"q/0": random.choice(2, PARTITIONS)})
    simulation = Simulation(cluster, Workload((stage,)), current, TRUTH)
    moved = random.permutation(PARTITIONS)[:8].tolist()
    moves = [Move("q/0", part, int(current["q/0"][part]), 2 + i % 2) for i, part in enumerate(moved)]
    simulation.run(10 * 20.0 - 1, stagger=False)
    simulation.steer([(move,) for move in moves])
    simulation.run(30 * 20.0 - 1)
    batches = []
    for number, batch in enumerate(simulation.batches):
        seconds = random.uniform(0.5, 8.0) if wrong else batch.seconds * random.lognormal(0.0, noise)
        batches.append({"batch": number, "start": batch.start, "milliseconds": 1e3 * seconds})
    landed = [number for number, batch in enumerate(simulation.batches) if batch.landed]
    return {
        "name": f"run {seed}",
        "workload": "words",
        "situation": "steady",
        "scenario": to_document(Scenario("live", cluster, Workload((stage,)), current)),
        "query": "q",
        "batches": batches,
        "moves": [
            {
                "stage": "q/0",
                "partition": move.partition,
                "source": names[move.source],
                "target": names[move.target],
                "bytes": float(state[move.partition]),
                "batch": number,
            }
            for move, number in zip(moves, landed, strict=True)
        ],
    }


def fit(rows: list[dict[str, Any]]) -> Fit:
    return Fit(**validate(read_runs(rows))["fits"]["words"])


def test_the_fit_recovers_the_true_costs() -> None:
    result = fit([record(seed, 0.0) for seed in range(3)])
    assert result.overhead == pytest.approx(TRUTH.commit, abs=0.02)
    assert result.scale == pytest.approx(TRUTH.scale, rel=0.02)
    assert result.load_rate == pytest.approx(TRUTH.load_rate, rel=0.3)
    assert result.scale_known
    assert result.loads_known


def test_with_five_percent_of_noise_held_out_batches_are_predicted_within_it() -> None:
    logged = validate(read_runs([record(seed, 0.05) for seed in range(3)]))
    for group in ("quiet", "moving"):
        assert logged["errors"][group]["batches"] > 5
        assert logged["errors"][group]["median"] < 0.06
    assert logged["errors"]["all"]["p90"] < 0.2


def test_each_workload_has_its_own_fit_and_situations_are_left_out_among_their_own_workload() -> None:
    rows = [record(seed, 0.0) for seed in range(4)]
    for row in rows[2:]:
        row["workload"] = "slow"
        for batch in row["batches"]:
            batch["milliseconds"] += 5000
    rows[1]["situation"] = "drift"
    logged = validate(read_runs(rows))
    assert logged["fits"]["slow"]["overhead"] == pytest.approx(TRUTH.commit + 5, abs=0.1)
    assert logged["fits"]["words"]["overhead"] == pytest.approx(TRUTH.commit, abs=0.1)
    assert logged["runs"] == {"words": 2, "slow": 2}
    assert logged["errors"]["unseen"]["batches"] == len(rows[0]["batches"]) + len(rows[1]["batches"])
    assert logged["errors"]["all"]["median"] < 0.05
    text = section({"calibration": {"quick": True, "machine": {}, **logged}})
    assert "| words | 2 | 8" in text
    assert next(line for line in text.splitlines() if line.startswith("| unseen ")).split("|")[5].strip() == "-, -"


def test_a_constant_is_a_worse_guess_than_the_model_where_placements_matter() -> None:
    logged = validate(read_runs([record(seed, 0.05) for seed in range(3)]))
    assert (
        logged["constant"]["quiet"]["median"]
        > logged["turn"]["quiet"]["median"]
        > 2 * logged["errors"]["quiet"]["median"]
    )
    assert "unseen" not in logged["errors"], "there is one situation"
    assert "unseen" not in logged["turn"]


def test_batches_that_the_model_does_not_explain_show_a_large_error() -> None:
    logged = validate(read_runs([record(seed, 0.0, wrong=True) for seed in range(3)]))
    assert logged["errors"]["all"]["median"] > 0.2
    assert logged["errors"]["all"]["p90"] > 0.5


def test_a_wrong_placement_shows_an_error() -> None:
    rows = [record(seed, 0.0) for seed in range(3)]
    for row in rows:
        row["scenario"]["current"]["q/0"] = ["e0"] * PARTITIONS
    right = validate(read_runs([record(seed, 0.0) for seed in range(3)]))["errors"]["all"]["p90"]
    assert validate(read_runs(rows))["errors"]["all"]["p90"] > max(5 * right, 0.1)


def test_without_moves_and_with_one_path_only_the_overhead_is_fitted() -> None:
    row = record(0, 0.0)
    row["batches"], row["moves"] = row["batches"][:8], []
    result = fit([row])
    assert (result.scale, result.scale_known, result.loads_known) == (1.0, False, False)


def test_a_malformed_record_is_refused_by_name() -> None:
    row = record(0, 0.0)
    with pytest.raises(msgspec.ValidationError, match="missing required field `query`"):
        read_runs([{key: value for key, value in row.items() if key != "query"}])
    with pytest.raises(msgspec.ValidationError, match="unknown field `guess`"):
        read_runs([{**row, "guess": 1}])
    with pytest.raises(ValueError, match="none of the scenario's"):
        fit([{**row, "query": "other"}])


def test_errors_are_relative() -> None:
    logged = errors(np.array([1.1, 1.8, 3.0]), np.array([1.0, 2.0, 3.0]))
    assert logged["median"] == pytest.approx(0.1)
    assert logged["bias"] == pytest.approx(0.0)
    assert errors(np.array([]), np.array([]))["median"] is None
