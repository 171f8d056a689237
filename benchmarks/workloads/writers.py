"""``python -m benchmarks.workloads.writers``: cost of batches with another shuffle writer.

``spark.shuffle.sort.bypassMergeThreshold=0`` keeps Spark from the writer that may lose rows when an executor is ended
by SIGTERM (SPARK-37473). On one cluster, applications with and without that setting run the same batches alternately.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report.numbers import student
from benchmarks.report.results import Result, ResultFile, argument_parser, progress
from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.measure import run
from benchmarks.workloads.registry import WORKLOADS
from testbed.driver import open_session, read_plan, write_answer
from testbed.spark_cluster import FULL_JAVA, SparkOptions
from testbed.stack import Stack, standalone

SETTING, CURE = "spark.shuffle.sort.bypassMergeThreshold", "0"
NODES = ("127.0.0.71", "127.0.0.72")
ROWS = {"word-count": 200_000, "python-totals": 60_000}
WARM_UP = 12  # batches of each application that are not counted

Pair = tuple[Sequence[float], Sequence[float]]


def ratio(pairs: Sequence[Pair]) -> tuple[float, float, float]:
    """Return the geometric mean of the pairs' ratios of medians, (with, without) the setting, and its 95 % interval.

    The interval is Student's, of pairs: batches of one application are not independent.
    """
    logs = [math.log(statistics.median(cured) / statistics.median(usual)) for cured, usual in pairs]
    middle = statistics.fmean(logs)
    reach = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def application() -> None:
    """Run the batches of the plan, and write their seconds as ``result.json``."""
    directory, plan = read_plan()
    spark = open_session(plan["conf"], "OFF")
    workload = WORKLOADS[plan["workload"]]
    feed = Feed(spark, Input(ROWS[workload.name], workload.keys, workload.skew), plan["partitions"])
    (batches,) = run(workload, feed, directory / "checkpoint", WARM_UP + plan["batches"]).values()
    seconds = [batch.durationMs["triggerExecution"] / 1000 for batch in batches]
    write_answer(directory / "result.json", seconds[WARM_UP : WARM_UP + plan["batches"]])
    spark.stop()


def measure(root: Path, workload: str, turns: int, batches: int, partitions: int) -> dict[str, Any]:
    """Return the seconds of the batches of each pair of applications, and the ratio."""
    cluster = standalone(NODES, 2, 2048, SparkOptions(900, FULL_JAVA, "warn"))

    def seconds(stack: Stack, turn: int, cured: bool) -> list[float]:
        name = f"turn-{turn}-{'with' if cured else 'without'}"
        directory = stack.directory / name
        directory.mkdir()
        conf = {"spark.sql.shuffle.partitions": str(partitions), "spark.sql.session.timeZone": "UTC"}
        conf |= {"spark.sql.streaming.numRecentProgressUpdates": "1000"} | ({SETTING: CURE} if cured else {})
        plan = {"workload": workload, "batches": batches, "partitions": partitions}
        plan["conf"] = stack.spark_conf(name, 1, len(NODES), **conf)
        (directory / "plan.json").write_text(json.dumps(plan))
        stack.start_driver(name, ["-c", f"from {__spec__.name} import application; application()", str(directory)])
        stack.end_driver(name)
        result: list[float] = json.loads((directory / "result.json").read_text())
        return result

    root.mkdir()
    with Stack(root, {}, cluster) as stack:
        pairs = []
        for turn in range(turns):
            by_setting = {
                cured: seconds(stack, turn, cured) for cured in ((True, False) if turn % 2 else (False, True))
            }
            pairs.append((by_setting[True], by_setting[False]))
            progress(f"{workload}, {turn + 1} of {turns}: ratio so far {ratio(pairs)[0]:.3f}")
    middle, *interval = ratio(pairs)
    shape = {"workload": workload, "rows": ROWS[workload], "partitions": partitions}
    return shape | {"seconds": pairs, "ratio": middle, "interval": interval}


def main() -> None:
    """Measure, and print what the setting costs."""
    parser = argument_parser("benchmarks.workloads.writers", __doc__, "two pairs of applications", sorted(ROWS))
    parser.add_argument("--pairs", type=int, default=6, help="of applications (%(default)s)")
    parser.add_argument("--batches", type=int, default=10, help="counted in each application (%(default)s)")
    parser.add_argument("--partitions", type=int, default=12, help="of the shuffle; Spark's default: 200 (%(default)s)")
    options = parser.parse_args()
    pairs = 2 if options.quick else options.pairs
    rows: list[dict[str, Any]] = []
    measures, figures = f"Batches with {SETTING}={CURE} over those without", {"rows": rows, "pairs": pairs}
    results = ResultFile(options.json, {"writers": Result.of(measures, figures, quick=options.quick)})
    with tempfile.TemporaryDirectory(prefix="rechannel-writers-", ignore_cleanup_errors=True) as root:
        for name in options.only or ROWS:
            rows.append(measure(Path(root) / name, name, pairs, options.batches, options.partitions))
            results.save()
    for row in rows:
        low, high = row["interval"]
        print(
            f"{row['workload']}: {row['ratio']:.2f} ({low:.2f} to {high:.2f}) of {pairs * options.batches} batches each"
        )


if __name__ == "__main__":
    main()
