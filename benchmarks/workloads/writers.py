"""``python -m benchmarks.workloads.writers``: cost of batches with another shuffle writer.

``spark.shuffle.sort.bypassMergeThreshold=0`` keeps Spark from the writer that may lose rows when an executor is ended
by SIGTERM (SPARK-37473). Two applications stand on one cluster, one with that setting and one without; they run the
same batches by turns, each while the other rests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.registry import WORKLOADS
from benchmarks.workloads.run import start
from testbed.processes import ProcessGroup
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec

SETTING, CURE = "spark.shuffle.sort.bypassMergeThreshold", "0"
ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.71", "127.0.0.72")
PARTITIONS = 12
ROWS = {"word-count": 200_000, "python-totals": 60_000}
WARM_UP = 10  # batches before the first turn
SKIPPED = 2  # batches at the beginning of each turn: the query has just started
RESAMPLES = 10_000


def ratio(pairs: Sequence[tuple[Sequence[float], Sequence[float]]], seed: int = 0) -> tuple[float, float, float]:
    """Return the ratio of the medians of all batches, (with, without) the cure by turns, and its 95 % interval.

    The interval is a bootstrap's over turns: batches of one turn are not independent.
    """

    def of(some: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        with_cure, without = ([value for pair in some for value in pair[side]] for side in (0, 1))
        return statistics.median(with_cure) / statistics.median(without)

    generator = random.Random(seed)  # noqa: S311  not for secrets
    again = sorted(of(generator.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return of(pairs), again[int(0.025 * RESAMPLES)], again[int(0.975 * RESAMPLES) - 1]


def application(path: Path) -> None:
    """Be one of the two applications: run as many batches as each line of standard input says, and tell their times."""
    from pyspark.sql import SparkSession

    plan = json.loads(path.read_text())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints does not answer
    builder = SparkSession.builder
    for key, value in plan["spark"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    workload = WORKLOADS[plan["workload"]]
    feed = Feed(spark, Input(plan["rows"], workload.keys, workload.skew), PARTITIONS)
    for line in sys.stdin:
        (query,) = start(workload, feed, path.parent / "checkpoint")
        while sum(one.numInputRows > 0 for one in query.recentProgress) < int(line):
            if error := query.exception():
                raise error
            time.sleep(0.02)
        seconds = [one.durationMs["triggerExecution"] / 1000 for one in query.recentProgress if one.numInputRows]
        query.stop()
        answers.write(json.dumps(seconds[: int(line)]) + "\n")
        answers.flush()
    spark.stop()


def measure(workload: str, turns: int, batches: int) -> dict[str, Any]:
    """Run one workload's turns; times of batches in seconds, by turn."""
    with tempfile.TemporaryDirectory(prefix="rechannel-writers-") as name, ProcessGroup(Path(name) / "logs") as group:
        directory = Path(name)
        workers = [WorkerSpec(node, 2, 2048) for node in NODES]
        with StandaloneCluster(
            group, directory / "cluster", workers, SparkOptions(executor_memory_mb=900, log_level="warn")
        ) as cluster:
            applications = {cured: _application(cluster, directory, workload, cured) for cured in (True, False)}
            try:
                for process in applications.values():
                    _batches(process, WARM_UP)
                pairs = []
                for turn in range(turns):
                    order = (True, False) if turn % 2 else (False, True)
                    seconds = {cured: _batches(applications[cured], batches + SKIPPED)[SKIPPED:] for cured in order}
                    pairs.append((seconds[True], seconds[False]))
                    with_cure, without = (statistics.median(side) for side in pairs[-1])
                    sys.stderr.write(f"{workload}, turn {turn + 1}: {with_cure:.3f} s with, {without:.3f} s without\n")
            finally:
                for process in applications.values():
                    process.kill()
                    process.wait()
    middle, low, high = ratio(pairs)
    return {"workload": workload, "rows": ROWS[workload], "turns": pairs, "ratio": middle, "interval": [low, high]}


def _application(cluster: StandaloneCluster, directory: Path, workload: str, cured: bool) -> subprocess.Popen[str]:
    spark = cluster.conf(executor_cores=1) | {
        "spark.cores.max": str(len(NODES)),
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.driver.memory": "700m",
    }
    if cured:
        spark[SETTING] = CURE
    own = directory / ("with" if cured else "without")
    own.mkdir()
    path = own / "conf.json"
    path.write_text(json.dumps({"spark": spark, "workload": workload, "rows": ROWS[workload]}))
    command = [sys.executable, "-m", "benchmarks.workloads.writers", "--application", str(path)]
    environment = cluster.driver_environment() | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with (own / "log").open("w") as log:
        return subprocess.Popen(  # noqa: S603  our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, env=environment
        )


def _batches(process: subprocess.Popen[str], count: int) -> list[float]:
    assert process.stdin is not None and process.stdout is not None  # noqa: S101  opened with pipes
    process.stdin.write(f"{count}\n")
    process.stdin.flush()
    seconds: list[float] = json.loads(process.stdout.readline())
    return seconds


def main() -> int:
    """Measure, and say what the cure costs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads.writers", description=__doc__)
    parser.add_argument("--only", choices=sorted(ROWS), action="append", help="[default: all]")
    parser.add_argument("--turns", type=int, default=6, help="of each of the two [default: 6]")
    parser.add_argument("--batches", type=int, default=10, help="counted in a turn [default: 10]")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--application", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.application:
        application(options.application)
        return 0
    results = [measure(name, options.turns, options.batches) for name in options.only or ROWS]
    for result in results:
        low, high = result["interval"]
        counted = len(result["turns"]) * options.batches
        print(f"{result['workload']}: {result['ratio']:.2f} ({low:.2f} to {high:.2f}) of {counted} batches each")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
