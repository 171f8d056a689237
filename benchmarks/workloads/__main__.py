"""``python -m benchmarks.workloads [--quick] [--only NAME]``: run and audit workloads, some batches each."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report.results import argument_parser, write_json
from benchmarks.workloads.base import Feed, Input
from benchmarks.workloads.registry import WORKLOADS
from benchmarks.workloads.trial import TrialResult, costs, session, try_out

BATCHES = 12
PARTITIONS = 8
QUICK = 10
HEAD = f"{'workload':<20} {'batches':>7} {'rows/s':>9} {'batch s':>8} {'CPU s':>6} {'in state':>8} {'state rows':>10}"


def main() -> None:
    """Run and audit them one after the other, each in a session of its own; 1 if an audit found anything."""
    parser = argument_parser("benchmarks.workloads", __doc__, f"one row for {QUICK}", tuple(WORKLOADS))
    add = parser.add_argument
    add("--batches", type=int, metavar="N", default=BATCHES, help=f"of each query: {BATCHES}; below 10 some are empty")
    add("--rows", type=int, metavar="N", help="in a batch; else the workload's own number")
    add("--partitions", type=int, metavar="N", default=PARTITIONS, help=f"of a stage: {PARTITIONS}")
    options = parser.parse_args()
    print(f"{HEAD} {'stages':>6}  audit")
    rows: list[dict[str, Any]] = []
    exact = True
    for name in options.only or WORKLOADS:
        count = options.rows or WORKLOADS[name].rows // (QUICK if options.quick else 1)
        result = _try(name, options.batches, count, options.partitions)
        rows.append(result.row())
        exact &= result.ok
        print(_line(result), flush=True)
        if options.json:
            write_json(options.json, rows)
    sys.exit(not exact)


def _try(name: str, batches: int, rows: int, partitions: int) -> TrialResult:
    workload = WORKLOADS[name]
    source = Input(rows, workload.keys, workload.skew)
    with tempfile.TemporaryDirectory(prefix="rechannel-workloads-") as directory:
        events = Path(directory) / "events"
        events.mkdir()
        with session(partitions, events) as spark:
            result = try_out(workload, Feed(spark, source, partitions), Path(directory) / "checkpoint", batches)
        return replace(result, costs=costs(next(events.iterdir())))


def _line(result: TrialResult) -> str:
    cpu = f"{'-':>6} {'-':>8}"
    if result.costs:
        cpu = f"{result.costs.cpu:>6.2f} {result.costs.stateful / result.costs.cpu:>8.0%}"
    figures = f"{result.batches:>7} {result.rows_per_s:>9,.0f} {result.batch_s:>8.2f} {cpu} {result.state_rows:>10,}"
    wrong = {query: audit for query, audit in result.audit.items() if not audit["ok"]}
    return f"{result.workload:<20} {figures} {result.stages:>6}  {'ok' if result.ok else wrong}"


if __name__ == "__main__":
    main()
