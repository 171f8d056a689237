"""``python -m benchmarks.simulation [--quick] [--only PART] [--json FILE] [--plots DIR]``: past the machine.

The figures go to a file as JSON (parts that are not run now are kept), the section of the report to standard output.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.monitors import fleet as agents
from benchmarks.report.results import machine, say, write
from benchmarks.simulation import fleet, large, migration_paper
from benchmarks.simulation.calibration import read_runs, validate
from benchmarks.simulation.report import section

PARTS = ("calibration", "paper", "hour", "large", "decisions", "fleet")


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller and fewer: some minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be given again")
    parser.add_argument(
        "--live",
        type=Path,
        action="append",
        metavar="FILE",
        help="measured runs to calibrate with, a list of LiveRun; may be given again",
    )
    parser.add_argument("--no-run", action="store_true", help="only tell and draw what the file has")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="where the plots go")
    given = parser.parse_args()
    if missing := [str(file) for file in given.live or () if not file.is_file()]:
        parser.error(f"--live: no such file: {', '.join(missing)}; python -m benchmarks.live --runs writes one")
    figures: dict[str, Any] = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    for name, part in () if given.no_run else _parts(given.quick, given.live).items():
        if given.only and name not in given.only:
            continue
        began = time.monotonic()
        figures[name] = {"quick": given.quick, "machine": machine(), **part()}
        figures[name]["took"] = time.monotonic() - began
        say(f"{name}: {figures[name]['took']:.0f} s")
        if given.json:
            write(given.json, figures)  # what there is, should the next part fail
    if given.plots:
        from benchmarks.simulation import plots  # needs matplotlib, which the figures do not

        plots.draw(figures, given.plots)
    sys.stdout.write(section(figures))


def _parts(quick: bool, live: Sequence[Path] | None) -> dict[str, Callable[[], dict[str, Any]]]:
    tasks, seconds = (10_000, 900.0) if quick else (100_000, 3600.0)
    policies = large.POLICIES
    ways = [(name, None) for name in policies] + [("adaptive", large.MORE_MOVES)]
    shape = fleet.Shape(100, 12, 4, 200) if quick else fleet.Shape()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "paper": lambda: migration_paper.migrations(
            (10, 50) if quick else migration_paper.SIZES, 3 if quick else 20, say
        ),
        "hour": lambda: migration_paper.expansion(1 if quick else 20, 600.0 if quick else 3600.0, say),
        "large": lambda: large.hour(tasks, seconds, ways, say),
        "decisions": lambda: {"tasks": tasks, "rows": large.decisions(tasks, 120.0, say)},
        "fleet": lambda: _fleet(shape, quick),
    }
    runs = [run for file in live or () for run in json.loads(file.read_text())]
    if runs:
        parts = {"calibration": lambda: validate(read_runs(runs))} | parts
    elif live:
        say(f"calibration: no runs in {', '.join(map(str, live))}")
    return parts


def _fleet(shape: fleet.Shape, quick: bool) -> dict[str, Any]:
    root = Path(tempfile.mkdtemp(prefix="rechannel-simulation-"))
    try:
        found = fleet.measure(root / "controller", shape, 12.0 if quick else 90.0, say)
        return found | {"agents_alone": agents.measure(root / "agents", shape.agents, 10.0 if quick else 30.0, say)}
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
