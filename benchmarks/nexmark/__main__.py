"""``python -m benchmarks.nexmark``: run Nexmark's queries on a Spark, measure them, and audit their output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.measure import QueryFigures, measure
from benchmarks.nexmark.queries import IMPOSSIBLE, QUERIES, workload
from benchmarks.report.results import ResultFile, argument_parser, machine
from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.trial import NotFinishedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES, QUICK = 30, 20  # fewer close no window of ten seconds
HEADER = f"{'query':8} {'events/s':>10} {'mean':>8} {'p99':>8} {'state rows':>11} {'rows out':>10}  audit"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested queries; 0 if all ran and no audit found a difference."""
    options = _parse(arguments)
    from pyspark.errors import PySparkException

    spark, failed = _session(options.master), 0
    batches = options.batches or (QUICK if options.quick else BATCHES)
    figures: dict[str, Any] = {
        "machine": machine(),
        "spark": spark.version,
        "master": spark.sparkContext.master,
        "partitions": options.partitions,
        "seed": options.seed,
        "queries": [],
        "failed": {},
    }
    results = ResultFile(options.json, figures)
    try:
        print(f"Spark {spark.version}, {figures['master']}, {options.partitions} partitions\n{HEADER}", flush=True)
        for name in options.queries:
            chosen = workload(name)
            rows = options.events_per_batch or chosen.rows
            feed = Feed(spark, Input(rows, seed=options.seed, seconds=options.seconds_per_batch), options.partitions)
            try:
                query = measure(chosen, feed, batches, audited=options.audit, checkpoints=options.checkpoints)
            except (NotFinishedError, PySparkException, ValueError) as error:
                figures["failed"][name] = str(error).partition("\n")[0]
                print(f"{name:8} FAILED: {figures['failed'][name]}", flush=True)
                failed += 1
            else:
                print(line(query), flush=True)
                failed += query.audit is not None and not query.audit["ok"]
                figures["queries"].append(query.as_dict())
            results.save()
    finally:
        spark.stop()
    return 1 if failed else 0


def line(query: QueryFigures) -> str:
    """Return the figures as a row of the table."""
    audit = "not checked" if query.audit is None else "ok" if query.audit["ok"] else f"DIFFERENT {query.audit}"
    return (
        f"{query.query.removeprefix('nexmark-'):8} {query.events_per_second:>10,.0f} {query.mean:>7.2f}s "
        f"{query.p99:>7.2f}s {query.state_rows:>11,} {query.rows:>10,}  {audit}"
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
    parser = argument_parser("benchmarks.nexmark", __doc__, f"{QUICK} batches of each query")
    add = parser.add_argument
    add("--queries", type=chosen_queries, default="all", metavar="q3,q5", help="which ones (all)")
    add("--master", metavar="URL", help="of the Spark cluster (Spark's own configuration, or local[*])")
    add("--events-per-batch", type=int, metavar="N", help="persons, auctions and bids (by query)")
    add("--seconds-per-batch", type=int, default=1, metavar="N", help="of event time (%(default)s)")
    add("--batches", type=int, metavar="N", help=f"of each query ({BATCHES})")
    add("--partitions", type=int, default=4, metavar="N", help="of the state (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="another seed, other events (%(default)s)")
    add("--checkpoints", type=Path, metavar="DIR", help="that all executors see (a temporary one here)")
    add("--audit", action=argparse.BooleanOptionalAction, default=True, help="check the output (yes)")
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


if __name__ == "__main__":
    sys.exit(main())
