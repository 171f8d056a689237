"""``python -m benchmarks.simulation [--quick] [--only PART] [--json FILE] [--plots DIR]``: simulated benchmarks.

The results go to a file as JSON (those of parts that are not run stay in it), the section of the report to standard
output.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.monitors import fleet as agents
from benchmarks.report.results import Result, ResultFile, argument_parser, machine, progress
from benchmarks.simulation import fleet, large, migration_paper, plots
from benchmarks.simulation.calibration import read_runs, validate
from benchmarks.simulation.report import section

PARTS = {
    "calibration": "Errors of the simulated batches against live ones, each workload fitted by itself",
    "paper": "The pipelined-migration paper's experiment: one migration, by variant, size and seed",
    "hour": "An hour of the same in which 85 nodes become 100, by variant and seed",
    "large": "An hour of micro-batches on many executors, by policy",
    "decisions": "One decision of many partitions, by policy, each in a process of its own",
    "fleet": "Redis and one controller under the messages of many agents and one application",
}
UNITS = {
    "calibration": {"1": "median p90 bias scale"},
    "paper": {"nodes": "size", "as its metric": "medians"},
    "hour": {"as its metric": "medians"},
    "large": {"1": "over_as_is load noise backlog scale", "s": "median costs"},
    "decisions": {"1": "before before_warm after_cold after_warm"},
}


def main() -> None:
    """Run the requested parts."""
    parser = argument_parser("benchmarks.simulation", __doc__, "smaller and fewer: some minutes", tuple(PARTS))
    parser.add_argument(
        "--live",
        type=Path,
        action="append",
        metavar="FILE",
        help="LiveRun records to calibrate with; may be given again",
    )
    parser.add_argument("--no-run", action="store_true", help="only print and draw the figures of the file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="directory for the plots")
    options = parser.parse_args()
    if missing := [str(file) for file in options.live or () if not file.is_file()]:
        parser.error(f"--live: no such file: {', '.join(missing)}; python -m benchmarks.live --runs writes one")
    results = ResultFile(options.json)
    for name, part in () if options.no_run else _parts(options.quick, options.live).items():
        if options.only and name not in options.only:
            continue
        began, at_start = time.monotonic(), machine()
        figures = {"machine": at_start, **part(), "took": time.monotonic() - began}
        results.figures[name] = Result.of(PARTS[name], figures, quick=options.quick, units=UNITS.get(name))
        progress(f"{name}: {figures['took']:.0f} s")
        results.save()
    figures = {name: result.figures() for name, result in results.figures.items()}
    if options.plots:
        plots.draw(figures, options.plots)
    sys.stdout.write(section(figures))


def _parts(quick: bool, live: Sequence[Path] | None) -> dict[str, Callable[[], dict[str, Any]]]:
    tasks, seconds = (10_000, 900.0) if quick else (100_000, 3600.0)
    policies = [(name, None) for name in large.POLICIES] + [("adaptive", large.MORE_MOVES)]
    shape = fleet.Shape(100, 12, 4, 200) if quick else fleet.Shape()
    sizes = (10, 50) if quick else migration_paper.SIZES
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "paper": lambda: migration_paper.migrations(sizes, 3 if quick else 20),
        "hour": lambda: migration_paper.expansion(1 if quick else 20, 600.0 if quick else 3600.0),
        "large": lambda: large.hour(tasks, seconds, policies),
        "decisions": lambda: {"tasks": tasks, "rows": large.decisions(tasks, 120.0)},
        "fleet": lambda: _fleet(shape, quick),
    }
    runs = [run for file in live or () for run in json.loads(file.read_text())]
    if runs:
        parts = {"calibration": lambda: validate(read_runs(runs))} | parts
    elif live:
        progress(f"calibration: no runs in {', '.join(map(str, live))}")
    return parts


def _fleet(shape: fleet.Shape, quick: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="rechannel-simulation-", ignore_cleanup_errors=True) as directory:
        root = Path(directory)
        figures = fleet.measure(root / "controller", shape, 12.0 if quick else 90.0)
        return figures | {"agents_alone": agents.measure(root / "agents", shape.agents, 10.0 if quick else 30.0)}


if __name__ == "__main__":
    main()
