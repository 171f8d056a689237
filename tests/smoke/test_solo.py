"""`rechannel submit --solo --apply` where nothing is configured: it decides, moves, is found, and leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.processes import wait_until
from testbed.spark_cluster import WorkerSpec
from testbed.stack import PATIENCE, ROOT, Stack, standalone

pytestmark = [pytest.mark.spark, pytest.mark.redis]
NODES = ["127.0.0.97", "127.0.0.98"]
# Sooner than by default, and on a busy machine too.
VARIABLES = {
    "RECHANNEL_RESCHEDULE__TIMEOUT": "5",
    "RECHANNEL_RESCHEDULE__SETTLE": "3",
    "RECHANNEL_RESCHEDULE__BATCHES": "2",
    "RECHANNEL_GATE__MIN_GAIN": "0.05",
    "RECHANNEL_GATE__MAX_UTILIZATION": "10",
}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    with Stack(tmp_path / "stack", {}, standalone(NODES[:1], 1, 1024)) as stack:
        yield stack


def test_two_commands_lead_to_moves_and_a_kill_leaves_nothing(stack: Stack, tmp_path: Path, temporary: Path) -> None:
    venv.create(tmp_path / "bare", symlinks=True)  # the driver's Python has nothing that link and controller need
    python = {"PYSPARK_DRIVER_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    environment = {**stack.cluster.driver_environment(), **python, "PYTHONPATH": str(ROOT / "src")}
    environment = {name: value for name, value in environment.items() if not name.startswith("RECHANNEL_")}
    environment |= {**VARIABLES, "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "rechannel", "submit", "--solo", "--apply"]
    for key, value in {**stack.cluster.conf(executor_cores=1), "spark.sql.shuffle.partitions": "6"}.items():
        command += ["--conf", f"{key}={value}"]
    command += [str(Path(__file__).with_name("slow_numbers.py")), str(tmp_path / "checkpoint")]
    process = stack.group.start("submit", command, env=environment, cwd=tmp_path)

    def ask(*arguments: str) -> dict[str, Any]:
        line = [sys.executable, "-m", "rechannel", *arguments, "--json"]
        done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        assert not answer or "(the live solo run)" in done.stderr
        return answer

    def placements() -> list[set[str]]:
        applications = ask("status").get("applications", [])
        queries = [query for application in applications for query in application["queries"]]
        return [set(stage["placement"]) for query in queries for stage in query["stages"]]

    def entries(kind: str) -> list[dict[str, Any]]:
        return [entry for entry in ask("history").get("entries", []) if entry["type"] == kind]

    stack.wait("all partitions are on the only executor", lambda: placements() == [{"0"}], every=1.0)
    stack.cluster.add_worker(WorkerSpec(NODES[1], 1, 1024))
    stack.wait("partitions are on both", lambda: placements() == [{"0", "1"}], every=1.0)
    assert {entry["result"] for entry in entries("decision")} >= {"applied"}
    assert ask("status")["controller"]["mode"] == "apply"
    assert ask("doctor")["counts"]["failed"] == 0, "missing agents are no failure"

    stack.group.processes.pop("submit")  # it may end now
    os.killpg(process.pid, signal.SIGKILL)
    process.popen.wait(PATIENCE)
    wait_until(lambda: list(temporary.glob("rechannel*")) == [], "nothing is left", 30.0)
    text = process.log.read_text()
    assert "mode=apply" in text
    assert text.count("decisions need no agents") == 1
