"""``python -m benchmarks.migration [--quick] [--only ROW] --json FILE [--document PAGE]``: ``docs/migration.md``."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.migration import matrix, measure, plots, report
from benchmarks.report.results import Result, ResultFile, argument_parser, progress, read_results, write_page
from testbed.slow_disk import slow_disk_problem

REPEATS = 2
QUICK_REPEATS = 1
PART = "migration"
MEASURES = "Cost of moving partitions of a running query beside a restart, by state, share, state store and disk"


def main() -> None:
    """Measure the rows one after the other, save the result, and write the page from it."""
    parser = argument_parser("benchmarks.migration", __doc__, "three rows, each variant once: some minutes")
    parser.add_argument("--repeats", type=int, metavar="N", help="phases of each variant in a row")
    parser.add_argument("--resume", action="store_true", help="measure only the rows that are not in FILE")
    parser.add_argument("--only", metavar="ROW", action="append", help="only this row; may be given again")
    parser.add_argument("--no-run", action="store_true", help="measure nothing, write the page from the figures")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="write the page, and its plots into images/")
    options = parser.parse_args()
    if options.json is None:
        parser.error("--json is needed")
    result = read_results(options.json)[PART] if options.no_run else _measure(options)
    if options.document:
        plots.draw(result.figures(), options.document.parent / "images")
        write_page(options.document, report.render(result.figures()))


def _measure(options: argparse.Namespace) -> Result:
    problem = slow_disk_problem()
    rows = matrix.rows(quick=options.quick, slow_disk=not problem)
    if options.only:
        by_name = {row.name: row for row in [*rows, *matrix.QUICK]}
        if unknown := [name for name in options.only if name not in by_name]:
            raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(by_name)}")
        rows = [by_name[name] for name in options.only]
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    records: list[dict[str, Any]] = []
    if options.resume:
        stored = [record for result in read_results(options.json).values() for record in result.rows]
        records = [record for record in stored if "row" in record and "error" not in record]
        measured = {record["row"]["name"] for record in records}
        rows = [row for row in rows if row.name not in measured]
    values = {"repeats": repeats, "slow_disk_problem": problem, "settings": measure.settings()}
    units = {"batch, partition, s": "tasks"}
    result = Result.of(MEASURES, {**values, "rows": records}, quick=options.quick, units=units)
    results = ResultFile(options.json, {PART: result})
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rechannel-migration-", ignore_cleanup_errors=True) as root:
        for number, row in enumerate(rows, start=1):
            progress(f"row {number} of {len(rows)} after {(time.monotonic() - began) / 60:.1f} minutes: {row.name}")
            record: dict[str, Any] = {}
            records.append(record)
            with results.entry(row.name, record):
                measure.measure(Path(root), row, repeats, record)
    progress(f"all rows: {(time.monotonic() - began) / 60:.1f} minutes")
    return result


if __name__ == "__main__":
    main()
