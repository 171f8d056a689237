"""``python -m benchmarks.migration [--quick] [--only ROW] --json FILE [--document PAGE]``: ``docs/migration.md``."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report.results import keeping, machine, say, write

REPEATS = 2
QUICK_REPEATS = 1


def main() -> None:
    """Measure row after row, keep what there is in a file, and write the page from it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.migration", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three rows, each way once: some minutes")
    parser.add_argument("--repeats", type=int, metavar="N", help="how often each way is taken in a row")
    parser.add_argument("--resume", action="store_true", help="measure the rows that FILE does not have yet")
    parser.add_argument("--only", metavar="ROW", action="append", help="only this row; may be given again")
    parser.add_argument("--no-run", action="store_true", help="measure nothing, write the page from what the file has")
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="the figures")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="write the page, and its plots into images/")
    arguments = parser.parse_args()
    if arguments.no_run:
        figures: dict[str, Any] = json.loads(arguments.json.read_text())
    else:
        figures = _measured(arguments)
    if arguments.document:
        from benchmarks.migration import plots, report  # needs matplotlib, which the figures do not

        plots.draw(figures, arguments.document.parent / "images")
        arguments.document.write_text(report.render(figures))
        say(f"written: {arguments.document}")


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    from benchmarks.migration import matrix, measure
    from testbed.slow_disk import slow_disk_problem

    problem = slow_disk_problem()
    wanted = matrix.rows(quick=arguments.quick, slow_disk=not problem)
    if arguments.only:
        known = {row.name: row for row in [*wanted, *matrix.QUICK]}
        if unknown := [name for name in arguments.only if name not in known]:
            raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(known)}")
        wanted = [known[name] for name in arguments.only]
    repeats = arguments.repeats or (QUICK_REPEATS if arguments.quick else REPEATS)
    figures: dict[str, Any] = {
        "machine": machine(),
        "quick": arguments.quick,
        "repeats": repeats,
        "slow_disk_problem": problem,
        "settings": measure.settings(),
        "rows": [],
    }
    if arguments.resume and arguments.json.exists():
        kept = [row for row in json.loads(arguments.json.read_text())["rows"] if "row" in row and "error" not in row]
        figures["rows"] = kept
        done = {row["row"]["name"] for row in kept}
        wanted = [row for row in wanted if row.name not in done]
    root = Path(tempfile.mkdtemp(prefix="rechannel-migration-"))
    began = time.monotonic()
    try:
        for number, row in enumerate(wanted):
            minutes = (time.monotonic() - began) / 60
            say(f"row {number + 1} of {len(wanted)} after {minutes:.1f} minutes: {row.name}")
            keep: dict[str, Any] = {}
            figures["rows"].append(keep)
            with keeping(row.name, keep, lambda: write(arguments.json, figures)):
                measure.measure(root, row, repeats, say, keep)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    say(f"all rows: {(time.monotonic() - began) / 60:.1f} minutes")
    return figures


if __name__ == "__main__":
    main()
