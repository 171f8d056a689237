"""``python -m benchmarks.policies [--quick] [--only PART] --json FILE [--document PAGE]``: ``docs/policies.md``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.policies import comparison, optimum, plots, scale
from benchmarks.policies.report import render
from benchmarks.report.results import Result, ResultFile, argument_parser, write_page

PARTS = {
    "compare": "Placements of every policy on generated workloads",
    "optimum": "Placements beside the exact optimum and beside graph partitioning",
    "scale": "Processor time of one decision of many partitions",
    "growth": "Processor time of the policies and of their sources' algorithms by size",
}
UNITS = {
    "s": "bound optimum policies limit",
    "1": "cost before before_warm after_cold after_warm",
    "tasks": "size layout",
    "as its generator": "parameters",
}
LIMIT = 120.0  # processor seconds for one run of one policy
QUICK_LIMIT = 5.0


def main() -> None:
    """Measure the requested parts, keep their figures in a file, and write the page from it."""
    parser = argument_parser(
        "benchmarks.policies", __doc__, "one seed, few instances, small sizes: some minutes", tuple(PARTS)
    )
    parser.add_argument("--no-run", action="store_true", help="measure nothing, write the page from the figures")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help=f"for one run of one policy ({LIMIT:g})")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="write the page, and its plots into images/")
    options = parser.parse_args()
    results = ResultFile(options.json)
    for part in () if options.no_run else options.only or PARTS:
        figures = _measure(part, options.quick, options.limit)
        results.figures[part] = Result.of(PARTS[part], figures, quick=options.quick, units=UNITS)
        results.save()
    if options.document:
        figures = {part: result.figures() for part, result in results.figures.items()}
        plots.draw(figures, options.document.parent / "images")
        write_page(options.document, render({"policies": comparison.describe(), **figures}))


def _measure(part: str, quick: bool, limit: float | None) -> dict[str, Any]:
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
