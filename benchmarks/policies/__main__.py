"""``python -m benchmarks.policies [--quick] [--only PART] --json FILE [--document PAGE]``: ``docs/policies.md``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.policies import comparison, optimum, scale
from benchmarks.policies.report import render
from benchmarks.report.results import say, write

PARTS = ("compare", "optimum", "scale", "growth")
LIMIT = 120.0  # processor seconds for one run of one policy
QUICK_LIMIT = 5.0


def main() -> None:
    """Measure the parts that are asked for, keep their figures in a file, and write the page from it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few instances, small sizes: some minutes")
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; may be given again")
    parser.add_argument("--no-run", action="store_true", help="measure nothing, write the page from what the file has")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help=f"for one run of one policy ({LIMIT:g})")
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="the figures; other parts' are kept")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="write the page, and its plots into images/")
    arguments = parser.parse_args()
    figures: dict[str, Any] = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
    figures["policies"] = comparison.describe()
    for part in () if arguments.no_run else arguments.only or PARTS:
        figures[part] = {"quick": arguments.quick, **_measured(part, arguments.quick, arguments.limit)}
        write(arguments.json, figures)  # what there is, should the next part fail
    if arguments.document:
        from benchmarks.policies import plots  # needs matplotlib, which the figures do not

        plots.draw(figures, arguments.document.parent / "images")
        arguments.document.write_text(render(figures))
        say(f"written: {arguments.document}")


def _measured(part: str, quick: bool, limit: float | None) -> dict[str, Any]:
    seconds = limit or (QUICK_LIMIT if quick else LIMIT)
    calls: dict[str, Callable[[], dict[str, Any]]] = {
        "compare": lambda: comparison.measure(range(1 if quick else 3)),
        "optimum": lambda: optimum.measure(20 if quick else 100, 1 if quick else 3),
        "scale": lambda: scale.large(30_000 if quick else scale.LARGE, limit or LIMIT),
        "growth": lambda: scale.growth(scale.SIZES[:2] if quick else scale.SIZES, seconds),
    }
    return calls[part]()


if __name__ == "__main__":
    main()
