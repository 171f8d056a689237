"""Queries that are started again and again in one driver, with Rechannel and without it, short of descriptors."""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from testbed.processes import ManagedProcess
from testbed.progress import JsonLines
from testbed.spark_cluster import QUICK_CHECKPOINTS, StandaloneCluster
from testbed.stack import Stack
from tests.soak import starts

pytestmark = [pytest.mark.spark, pytest.mark.redis]
PYTHON_DESCRIPTORS = int(os.environ.get("STARTS_DESCRIPTORS", "64"))
OUT = os.environ.get("STARTS_JSON", "")  # where the long test writes its figures; without it, it is not run
PATIENCE = 240.0  # seconds for one start; a busy machine is slow
ALLOWANCE = 8  # of each: pools of Spark and its libraries fill as they like, and the link goes on while it is counted
LATER = 2  # times what `start()` takes by itself (some 15 ms): what putting two partitions back may take
WIDE, WIDE_LATER = 200, 0.5  # partitions of a join with four stores each, and seconds that putting them back may take
COUNTED = ("python threads", "python descriptors", "jvm threads", "jvm descriptors", "jvm references")
MEMORY = {"python memory": 10 << 20, "jvm heap": 16 << 20}  # growth that is no leak, in bytes


def settings(cluster: StandaloneCluster, partitions: int = 2) -> dict[str, str]:
    return cluster.conf(executor_cores=1) | {
        "spark.cores.max": "1",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.driver.memory": "600m",
        **QUICK_CHECKPOINTS,
    }


def wait_for(processes: dict[Path, ManagedProcess], count: int) -> None:
    """Wait until all starts of both drivers are done; fails as soon as one start takes longer than it may."""
    starts = {path: JsonLines(path / "starts.jsonl") for path in processes}
    done, since = dict.fromkeys(processes, 0), dict.fromkeys(processes, time.monotonic())
    while any(process.alive() for process in processes.values()):
        for path, process in processes.items():
            if new := len(starts[path].read()):
                done[path], since[path] = done[path] + new, time.monotonic()
            elif process.alive() and time.monotonic() - since[path] > PATIENCE:
                last = (JsonLines(path / "samples.jsonl").read() or [{}])[-1]
                pytest.fail(
                    f"{path.name}: start {done[path] + 1} of {count} did not end within {PATIENCE:g} s; "
                    f"last sample {last}\n{process.log_tail(20)}"
                )
        time.sleep(0.5)
    for process in processes.values():
        assert process.popen.returncode == 0, f"{process.name} failed:\n{process.log_tail(40)}"


def growth(samples: list[dict[str, Any]], what: str) -> float:
    """Growth of a resource from the first fifth of the samples to the last, without the very first as warm-up."""
    samples = samples[1:]
    count = max(1, len(samples) // 5)
    first, last = ([row[what] for row in part] for part in (samples[:count], samples[-count:]))
    return statistics.median(last) - statistics.median(first)


def check(count: int, every: int, pinned: bool, stack: Stack, tmp_path: Path, *, join: int = 0) -> dict[str, Any]:
    """Run both drivers; ``join``: partitions of a join that is started in place of a count."""
    plan = {"spark": settings(stack.cluster, join or 2), "starts": count, "every": every, "join": bool(join)}
    plan["descriptors"] = PYTHON_DESCRIPTORS
    processes = {
        tmp_path / name: stack.start_module(
            "tests.soak.starts",
            tmp_path / name,
            plan | {"attach": name == "with"},
            PYSPARK_PIN_THREAD=str(pinned).lower(),
        )
        for name in ("without", "with")
    }
    try:
        wait_for(processes, count)
    finally:
        for process in processes.values():
            stack.group.kill(process.name)
    samples = {path.name: JsonLines(path / "samples.jsonl").read() for path in processes}
    times = {path.name: [line["start"] for line in JsonLines(path / "starts.jsonl").read()] for path in processes}
    result = json.loads((tmp_path / "with" / "result.json").read_text())
    assert (result["problem"], result["failures"]) == ("", 0)
    return {"samples": samples, "times": times, "pinned": pinned, "starts": count}


def excess(result: dict[str, Any]) -> dict[str, float]:
    samples = result["samples"]
    return {what: growth(samples["with"], what) - growth(samples["without"], what) for what in (*COUNTED, *MEMORY)}


def assert_free(result: dict[str, Any]) -> None:
    """No growth beyond Spark's own, and a start that waits for nothing but for its partitions to be put back."""
    more = excess(result)
    print(json.dumps({"excess": more, "first": result["samples"]["with"][0], "last": result["samples"]["with"][-1]}))
    assert {what: more[what] for what in COUNTED if more[what] > ALLOWANCE} == {}
    assert {what: more[what] for what in MEMORY if more[what] > MEMORY[what]} == {}
    later, noise = lateness(result["times"])
    print(json.dumps({"later": later, "noise": noise}))
    usual = statistics.median(result["times"]["without"])
    assert later <= max(noise, LATER * usual), f"{later * 1000:.0f} ms longer than the usual {usual * 1000:.0f} ms"


def lateness(times: dict[str, list[float]]) -> tuple[float, float]:
    """Return the median of the paired differences, and half the distance between the quartiles without Rechannel.

    Both drivers start the same query at nearly the same time; the first starts load classes, which is not a start's
    usual cost.
    """
    pairs = list(zip(times["with"], times["without"], strict=True))[5:]
    lower, _, upper = statistics.quantiles([without for _, without in pairs], n=4)
    return statistics.median(ours - without for ours, without in pairs), (upper - lower) / 2


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "pinned", [pytest.param(True, id="pinned"), pytest.param(False, id="not-pinned", marks=pytest.mark.slow)]
)
def test_fifty_starts_leave_nothing_open(pinned: bool, stack: Stack, tmp_path: Path) -> None:
    assert starts.JVM_DESCRIPTORS == 1024
    assert_free(check(50, 10, pinned, stack, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_start_of_a_wide_join_waits_little_longer(stack: Stack, tmp_path: Path) -> None:
    result = check(10, 10, True, stack, tmp_path, join=WIDE)
    later, noise = lateness(result["times"])
    print(json.dumps({"later": later, "noise": noise, "times": result["times"]}))
    assert later <= max(noise, WIDE_LATER)


@pytest.mark.slow
@pytest.mark.skipif(not OUT, reason="takes long: make soak-starts")
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "not-pinned"])
def test_two_thousand_starts_leave_nothing_open(pinned: bool, stack: Stack, tmp_path: Path) -> None:
    result = check(2000, 50, pinned, stack, tmp_path)
    Path(f"{OUT}-{'pinned' if pinned else 'not-pinned'}.json").write_text(json.dumps(result))
    assert_free(result)
