"""The testbed with known truth on a real cluster: a run measures, moves, audits, and knows what was best."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.live.service.results import read

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
CASE = ["--seed", "1", "--queries", "2", "--executors", "3", "--cores", "1", "--partitions", "12", "--batches", "4"]


def test_a_short_run_knows_loads_optimum_and_moves(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    options = [*CASE, "--no-triggers", "--scheduler", "FAIR", "--noise", "0.2", "--ask", "--json", str(path)]
    command = [sys.executable, "-m", "benchmarks.live", "--workload", "service", *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=1200)
    assert not done.returncode, done.stdout + done.stderr
    result = read(path)
    assert result.exact
    assert not result.failed_attempts
    assert 0 < result.asleep < 1  # by how much others use the machine
    (truth,) = result.truth
    assert truth.queries == ["service-0", "service-1"]
    assert sum(truth.loads_before) == pytest.approx(sum(truth.loads_after))
    assert truth.optimum_bound <= truth.optimum <= min(truth.busiest_before, truth.busiest_after) + 1e-6
    figures = result.figures()
    assert len(figures) == 2
    assert all(each.count_before >= 4 for each in figures)
    assert result.decisions, "a rebalance was requested"
    decision = result.decision()
    if decision is not None:
        assert decision.landed + decision.given_up == decision.moves
        assert truth.moves <= decision.moves
        assert all(each.predicted_after > 0 and each.peak > 0 for each in figures)
    for each in figures:  # no batch is shorter than the slept time of the query's own largest partition
        rows = next(query.rows for query in result.case.queries if query.name == each.query)
        assert min(each.before, each.after) > max(rows) * result.case.service_ms / 1000
