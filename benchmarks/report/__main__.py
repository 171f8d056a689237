"""``python -m benchmarks.report``: ``docs/benchmarks.md`` and its plots from the figures of the other benchmarks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.live import archive
from benchmarks.report import page
from benchmarks.report.results import read_results, rounded, write_json, write_page

_RESULTS = ("simulation", "nexmark")


def main() -> None:
    """Read the figures, and write the page."""
    parser = _parser()
    options = parser.parse_args()
    # Rounded first, so that the archive makes the same page.
    results: dict[str, Any] = {
        name: rounded(read_results(path)) for name in _RESULTS if (path := getattr(options, name))
    }
    if options.live:
        runs = [read_results(path)["live"] for path in options.live]
        results["live"] = rounded({"live": archive.compact(archive.merge(runs))})
    if not results:
        parser.error("give at least one of --live, --simulation, --nexmark")
    if options.keep and options.keep.is_file():
        parser.error(f"--keep: {options.keep} is a file; name the directory it is in")
    notes = options.notes.read_text() if options.notes else ""
    if options.keep:
        _archive(options.keep, results, notes, options.runs or ())
    figures = {"notes": notes, **page.figures_of(results)}
    page.draw(figures, options.document.parent / "images")
    write_page(options.document, page.render(figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    for name, text in (("live", "figures of benchmarks.live"), ("runs", "runs of benchmarks.live, to be archived")):
        parser.add_argument(f"--{name}", type=Path, action="append", metavar="FILE", help=f"{text}; may be given again")
    for name in _RESULTS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"results of benchmarks.{name}")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="archive the figures of the page there, rounded")
    parser.add_argument("--notes", type=Path, metavar="FILE", help="remarks on these figures")
    parser.add_argument("--document", type=Path, metavar="PAGE", default=Path("docs/benchmarks.md"))
    return parser


def _archive(directory: Path, results: dict[str, Any], notes: str, runs: Sequence[Path]) -> None:
    """Write the results of the page; notes and runs of earlier live figures are replaced or removed."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, figures in results.items():
        write_json(directory / f"{name}.json", figures, indent=None)
    if "live" not in results:
        return
    records = {json.dumps(run, separators=(",", ":")): None for path in runs for run in json.loads(path.read_text())}
    lines = ",\n".join(records)
    for name, text in (("notes.txt", notes), ("runs.json", f"[{lines}]\n" if records else "")):
        (directory / name).unlink(missing_ok=True)
        if text:
            (directory / name).write_text(text)


if __name__ == "__main__":
    main()
