"""``python -m benchmarks.unattended --seed N... --json FILE``: a script of events in every way.

Each way is a fresh cluster: Spark as it is, and Rechannel with ``mode = "apply"`` and its default settings.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.report.results import Result, ResultFile, machine, progress, write_page
from benchmarks.unattended.page import page
from benchmarks.unattended.results import WAYS, Run, stored
from benchmarks.unattended.run import measure
from benchmarks.unattended.script import MINUTES, draw_script


def main() -> int:
    """Run each script in every way, and write the page; 1 where a run failed or is not exact."""
    options = _parser().parse_args()
    results = ResultFile(options.json)
    ended = []
    for seed, way in product(options.seed, options.variants):
        script = draw_script(seed, options.minutes, options.burned)
        run = Run(script=script, way=way)
        if options.resume and (earlier := _finished(results.figures, run)):
            progress(f"{run.name}: in the file already")
            ended.append(earlier)
            continue
        began, facts = time.monotonic(), machine()
        with tempfile.TemporaryDirectory(prefix="rechannel-unattended-", ignore_cleanup_errors=True) as root:
            run = measure(Path(root), script, way)
        results.figures[run.name] = stored(run, facts)
        results.save()
        progress(f"{run.name}: {time.monotonic() - began:.0f} s, exact: {run.exact} {run.error}")
        ended.append(run)
    if options.document:
        write_page(options.document, page(results.figures, options.document.parent / "figures"))
    return 0 if all(run.exact and not run.error for run in ended) else 1


def _finished(results: Mapping[str, Result], run: Run) -> Run | None:
    """Return the whole run of the same script and way that a file has; None without one."""
    result = results.get(run.name)
    earlier = msgspec.convert(result.values["run"], Run) if result else None
    return earlier if earlier and earlier.script == run.script and not earlier.error else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unattended", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, nargs="+", default=[1], metavar="N", help="of case and events [default: 1]")
    add("--minutes", type=float, default=MINUTES, metavar="N", help=f"of a run, about [default: {MINUTES:g}]")
    add("--burned", type=float, default=0.0, metavar="X", help="share of a row's time in which it works [default: 0]")
    add("--variants", nargs="+", choices=WAYS, default=WAYS, help=f"[default: {' '.join(WAYS)}]")
    add("--json", type=Path, metavar="FILE", help="file of the runs; those of other seeds and variants stay in it")
    add("--document", type=Path, metavar="FILE", help="page to write of all runs in FILE, as docs/unattended.md")
    add("--resume", action="store_true", help="measure only what FILE does not have from the same script")
    return parser


if __name__ == "__main__":
    sys.exit(main())
