"""``python -m benchmarks.simulation [--quick] [--only PART] [--json FILE] [--plots DIR]``: simulated benchmarks.

The figures go to a file as JSON (parts that are not run now are kept), the section of the report to standard output.
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
from benchmarks.report.results import ResultFile, argument_parser, machine, progress
from benchmarks.simulation import fleet, large, migration_paper
from benchmarks.simulation.calibration import read_runs, validate
from benchmarks.simulation.report import section

PARTS = ("calibration", "paper", "hour", "large", "decisions", "fleet")


def main() -> None:
    """Run the requested parts."""
    parser = argument_parser("benchmarks.simulation", __doc__, "smaller and fewer: some minutes", PARTS)
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
        began = time.monotonic()
        results.figures[name] = {"quick": options.quick, "machine": machine(), **part()}
        results.figures[name]["took"] = time.monotonic() - began
        progress(f"{name}: {results.figures[name]['took']:.0f} s")
        results.save()
    if options.plots:
        from benchmarks.simulation import plots  # needs matplotlib, which the figures do not

        plots.draw(results.figures, options.plots)
    sys.stdout.write(section(results.figures))


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
