"""``python -m benchmarks.workloads [--quick] [--only NAME]``: run and audit workloads, some batches each."""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report.results import write
from benchmarks.workloads.base import Input
from benchmarks.workloads.registry import WORKLOADS
from benchmarks.workloads.trial import Ran, costs, session, try_out

BATCHES = 12
PARTITIONS = 8
QUICK = 10
HEAD = f"{'workload':<20} {'batches':>7} {'rows/s':>9} {'batch s':>8} {'CPU s':>6} {'in state':>8} {'state rows':>10}"


def main() -> None:
    """Run and audit them one after the other, each in a session of its own; 1 if an audit found anything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"one row for {QUICK}")
    parser.add_argument("--only", metavar="NAME", action="append", choices=WORKLOADS, help="may be given again")
    parser.add_argument(
        "--batches",
        type=int,
        metavar="N",
        default=BATCHES,
        help=f"of each query: {BATCHES}; below 10 some put out nothing yet",
    )
    parser.add_argument("--rows", type=int, metavar="N", help="in a batch; else what the workload says")
    parser.add_argument("--partitions", type=int, metavar="N", default=PARTITIONS, help=f"of a stage: {PARTITIONS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    arguments = parser.parse_args()
    print(f"{HEAD} {'stages':>6}  audit")
    rows: list[dict[str, Any]] = []
    exact = True
    for name in arguments.only or WORKLOADS:
        chosen = arguments.rows or WORKLOADS[name].rows // (QUICK if arguments.quick else 1)
        ran = _try(name, arguments.batches, chosen, arguments.partitions)
        rows.append(ran.row())
        exact &= ran.ok
        print(_line(ran), flush=True)
        if arguments.json:  # what there is, should the next one fail
            write(arguments.json, rows)
    sys.exit(not exact)


def _try(name: str, batches: int, rows: int, partitions: int) -> Ran:
    workload = WORKLOADS[name]
    given = Input(rows, workload.keys, workload.skew)
    with tempfile.TemporaryDirectory(prefix="rechannel-workloads-") as directory:
        events = Path(directory) / "events"
        events.mkdir()
        with session(partitions, events) as spark:
            ran = try_out(spark, workload, given, partitions, Path(directory) / "checkpoint", batches)
        return replace(ran, costs=costs(next(events.iterdir())))


def _line(ran: Ran) -> str:
    spent = f"{ran.costs.cpu:>6.2f} {ran.costs.stateful / ran.costs.cpu:>8.0%}" if ran.costs else f"{'-':>6} {'-':>8}"
    figures = f"{ran.batches:>7} {ran.rows_per_s:>9,.0f} {ran.batch_s:>8.2f} {spent} {ran.state_rows:>10,}"
    wrong = {query: found for query, found in ran.audit.items() if not found["ok"]}
    return f"{ran.workload:<20} {figures} {ran.stages:>6}  {'ok' if ran.ok else wrong}"


if __name__ == "__main__":
    main()
