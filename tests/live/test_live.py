"""The live comparison on a real cluster: a session measures, moves, audits, and states the real parts of its nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.live.summary import group, noise, table
from benchmarks.simulation.calibration import read_runs
from testbed.quota import available

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def compare(directory: Path, *options: str) -> dict[str, object]:
    command = [sys.executable, "-m", "benchmarks.live", "--quick", "--rows", "50000", "--variant", "even", *options]
    command += ["--json", str(directory / "live.json"), "--runs", str(directory / "runs.json")]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=1500)
    assert not done.returncode, done.stdout + done.stderr
    (session,) = json.loads((directory / "live.json").read_text())["sessions"]
    groups: dict[str, object] = session
    return groups


@pytest.mark.parametrize("options", [(), ("--rootless",)], ids=["namespaces", "rootless"])
def test_a_node_becomes_slow(tmp_path: Path, options: tuple[str, ...]) -> None:
    session = compare(tmp_path, "--situation", "slowed", *options)
    assert session["exact"], session
    figures = session["figures"]
    assert isinstance(figures, list)
    assert sorted(each["way"] for each in figures) == ["even", "spark", "spark"]
    for each in figures:
        assert each["landed"] == each["moves"]
        assert not each["given_up"]
    (even,) = (each for each in figures if each["way"] == "even")
    assert even["moves"], "the placement that all begin with is not even"
    assert sorted(even["placed"].values()) == [3, 3, 3, 3]
    groups = group({"sessions": [session]})
    (counted,) = groups.values()
    assert set(table(counted, noise(groups))) == {"even"}
    statement = session["testbed"]
    assert isinstance(statement, dict)
    assert ("by stopping processes" in statement["cpu"]) is (bool(options) or not available())
    assert not options or statement["network"].startswith("loopback")
    assert read_runs(json.loads((tmp_path / "runs.json").read_text()))
