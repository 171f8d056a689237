"""``python -m benchmarks.nexmark``: run Nexmark's queries on a Spark, measure them, and check what they put out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.bench import Measured, NotFinishedError, run
from benchmarks.nexmark.queries import IMPOSSIBLE, QUERIES, workload
from benchmarks.report.results import machine, write
from benchmarks.workloads.base import Input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES, QUICK = 30, 20  # fewer close no window of ten seconds
HEADER = f"{'query':8} {'events/s':>10} {'mean':>8} {'p99':>8} {'state rows':>11} {'rows out':>10}  audit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the queries that are asked for; 0 if all ran and no audit found a difference."""
    given = _parse(arguments)
    from pyspark.errors import PySparkException

    spark, failed = _session(given.master), 0
    batches = given.batches or (QUICK if given.quick else BATCHES)
    figures: dict[str, Any] = {
        "machine": machine(),
        "spark": spark.version,
        "master": spark.sparkContext.master,
        "partitions": given.partitions,
        "seed": given.seed,
        "queries": [],
        "failed": {},
    }
    try:
        _say(f"Spark {spark.version}, {spark.sparkContext.master}, {given.partitions} partitions")
        _say(HEADER)
        for name in given.queries:
            chosen = workload(name)
            rows = given.events_per_batch or chosen.rows
            source = Input(rows=rows, seed=given.seed, seconds=given.seconds_per_batch)
            try:
                measured = run(spark, chosen, source, given.partitions, batches, given.audit, given.checkpoints)
            except (NotFinishedError, PySparkException, ValueError) as error:
                figures["failed"][name] = str(error).partition("\n")[0]
                _say(f"{name:8} FAILED: {figures['failed'][name]}")
                failed += 1
            else:
                _say(line(measured))
                failed += measured.audit is not None and not measured.audit["ok"]
                figures["queries"].append(measured.as_dict())
            if given.json:  # what there is, should a later query fail
                write(given.json, figures)
    finally:
        spark.stop()
    return 1 if failed else 0


def line(measured: Measured) -> str:
    """Return a result as a row of the table."""
    found = measured.audit
    checked = "not checked" if found is None else "ok" if found["ok"] else f"DIFFERENT {found}"
    return (
        f"{measured.query.removeprefix('nexmark-'):8} {measured.events_per_second:>10,.0f} {measured.mean:>7.2f}s "
        f"{measured.p99:>7.2f}s {measured.state_rows:>11,} {measured.rows:>10,}  {checked}"
    )


def chosen_queries(text: str) -> list[str]:
    """Return the names in a list with commas; ``all`` is every query."""
    names = list(QUERIES) if text == "all" else [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name in IMPOSSIBLE:
            raise argparse.ArgumentTypeError(f"{name}: {IMPOSSIBLE[name]}")
        if name not in QUERIES:
            raise argparse.ArgumentTypeError(f"no query {name!r}: there are {', '.join(QUERIES)}")
    return names


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("--queries", type=chosen_queries, default="all", metavar="q3,q5", help="which ones (all)")
    parser.add_argument("--master", metavar="URL", help="of the Spark cluster (Spark's own configuration, or local[*])")
    parser.add_argument("--events-per-batch", type=int, metavar="N", help="persons, auctions and bids (by query)")
    parser.add_argument("--seconds-per-batch", type=int, default=1, metavar="N", help="of event time (%(default)s)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} batches of each query")
    parser.add_argument("--batches", type=int, metavar="N", help=f"of each query ({BATCHES})")
    parser.add_argument("--partitions", type=int, default=4, metavar="N", help="of the state (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="another seed, other events (%(default)s)")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="that all executors see (a temporary one here)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the figures")
    parser.add_argument("--audit", action=argparse.BooleanOptionalAction, default=True, help="check the output (yes)")
    return parser.parse_args(arguments)


def _session(master: str | None) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    conf = SparkConf()
    if master or not conf.contains("spark.master"):
        conf.setMaster(master or "local[*]")
    conf.setIfMissing("spark.app.name", "nexmark").setIfMissing("spark.ui.enabled", "false")
    conf.setIfMissing("spark.ui.showConsoleProgress", "false")
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    spark.sparkContext.setLogLevel("FATAL")  # a query that is stopped in the middle of a batch logs errors
    return spark


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
