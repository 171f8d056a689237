"""``python -m benchmarks.workloads``: run the workloads on a Spark, measure them, and audit their output."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException

from benchmarks.report.results import Result, ResultFile, argument_parser
from benchmarks.workloads.base import Feed, Input, Workload
from benchmarks.workloads.measure import NotFinishedError, QueryFigures, measure, session
from benchmarks.workloads.registry import WORKLOADS

BATCHES, QUICK = 30, 20  # fewer close no window of ten seconds
HEADER = f"{'query':20} {'events/s':>10} {'mean':>8} {'p99':>8} {'state rows':>11} {'rows out':>10}  audit"
MEASURES = "Streaming queries, each workload alone; the output compared with the batch computation"


def main(
    module: str = "benchmarks.workloads",
    workloads: Mapping[str, Workload] = WORKLOADS,
    impossible: Mapping[str, str] | None = None,
) -> int:
    """Run the requested workloads; 0 if all ran and no audit showed a difference.

    The last part of ``module``, the command's name, is that of the result; ``impossible``: why others cannot be run.
    """
    options = _parser(module, workloads, impossible or {}).parse_args()
    failed = 0
    batches = options.batches or (QUICK if options.quick else BATCHES)
    with session(options.master) as spark:
        rows: list[dict[str, Any]] = []
        figures: dict[str, Any] = {"spark": spark.version, "master": spark.sparkContext.master, "seed": options.seed}
        figures |= {"partitions": options.partitions, "rows": rows, "failed": {}}
        result = Result.of(MEASURES, figures, quick=options.quick)
        results = ResultFile(options.json, {module.rpartition(".")[2]: result})
        print(f"Spark {spark.version}, {figures['master']}, {options.partitions} partitions\n{HEADER}", flush=True)
        for name in options.queries:
            chosen = workloads[name]
            count = options.events_per_batch or chosen.rows
            arguments = Input(count, chosen.keys, chosen.skew, seed=options.seed, seconds=options.seconds_per_batch)
            feed = Feed(spark, arguments, options.partitions)
            try:
                queries = measure(chosen, feed, batches, audited=options.audit, checkpoints=options.checkpoints)
            except (NotFinishedError, PySparkException, ValueError) as error:
                figures["failed"][name] = str(error).partition("\n")[0]
                print(f"{name:20} FAILED: {figures['failed'][name]}", flush=True)
                failed += 1
                queries = []
            for query in queries:
                print(line(query), flush=True)
                failed += query.audit is not None and not query.audit["ok"]
                rows.append(asdict(query))
            results.save()
    return 1 if failed else 0


def line(query: QueryFigures) -> str:
    """Return the figures as a row of the table."""
    audit = "not checked" if query.audit is None else "ok" if query.audit["ok"] else f"DIFFERENT {query.audit}"
    return (
        f"{query.query.removeprefix('nexmark-'):20} {query.events_per_second:>10,.0f} {query.mean:>7.2f}s "
        f"{query.p99:>7.2f}s {query.state_rows:>11,} {query.rows:>10,}  {audit}"
    )


def chosen_queries(text: str, workloads: Mapping[str, Workload], impossible: Mapping[str, str]) -> list[str]:
    """Return the names in a list with commas; ``all`` is every workload."""
    names = list(workloads) if text == "all" else [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name in impossible:
            raise argparse.ArgumentTypeError(f"{name}: {impossible[name]}")
        if name not in workloads:
            raise argparse.ArgumentTypeError(f"no query {name!r}: there are {', '.join(workloads)}")
    return names


def _parser(module: str, workloads: Mapping[str, Workload], impossible: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argument_parser(module, __doc__, f"{QUICK} batches of each query")
    add = parser.add_argument
    choose = partial(chosen_queries, workloads=workloads, impossible=impossible)
    add("--queries", type=choose, default="all", metavar="NAME,NAME", help="queries to run (all)")
    add("--master", metavar="URL", help="of the Spark cluster (Spark's own configuration, or local[*])")
    add("--events-per-batch", type=int, metavar="N", help="rows of the input (by query)")
    add("--seconds-per-batch", type=int, default=1, metavar="N", help="of event time (%(default)s)")
    add("--batches", type=int, metavar="N", help=f"of each query ({BATCHES})")
    add("--partitions", type=int, default=4, metavar="N", help="of the state (%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="another seed, other events (%(default)s)")
    add("--checkpoints", type=Path, metavar="DIR", help="that all executors see (a temporary one here)")
    add("--audit", action=argparse.BooleanOptionalAction, default=True, help="check the output (yes)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
