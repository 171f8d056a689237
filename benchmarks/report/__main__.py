"""``python -m benchmarks.report``: ``docs/benchmarks.md`` and its plots from the figures of the other benchmarks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live import archive
from benchmarks.report import page
from benchmarks.report.results import rounded, write_page

_COMPACT: dict[str, Callable[[Any], Any]] = {"live": archive.compact, "simulation": rounded, "nexmark": rounded}


def main() -> None:
    """Read the figures, and write the page."""
    parser = _parser()
    options = parser.parse_args()
    figures: dict[str, Any] = {
        name: json.loads(path.read_text())
        for name in ("simulation", "nexmark")
        if (path := getattr(options, name)) is not None
    }
    if options.live:
        figures["live"] = archive.merge([json.loads(path.read_text()) for path in options.live])
    if not figures:
        parser.error("give at least one of --live, --simulation, --nexmark")
    if options.keep and options.keep.is_file():
        parser.error(f"--keep: {options.keep} is a file; name the directory it is in")
    figures = {name: _COMPACT[name](part) for name, part in figures.items()}  # so that the archive makes the same page
    if options.notes:
        figures["notes"] = options.notes.read_text()
    if options.keep:
        _archive(options.keep, figures, options.runs or ())
    page.draw(figures, options.document.parent / "images")
    write_page(options.document, page.render(figures))
    if options.readme and options.live:
        options.readme.write_text(page.insert_headline(options.readme.read_text(), figures["live"]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    for name, what in (("live", "figures of benchmarks.live"), ("runs", "runs of benchmarks.live, to be archived")):
        parser.add_argument(f"--{name}", type=Path, action="append", metavar="FILE", help=f"{what}; may be given again")
    for name in ("simulation", "nexmark"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"figures of benchmarks.{name}")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="archive the figures of the page there, rounded")
    parser.add_argument("--notes", type=Path, metavar="FILE", help="remarks on these figures")
    parser.add_argument("--readme", type=Path, metavar="PAGE", help="a page to put the headline into")
    parser.add_argument("--document", type=Path, metavar="PAGE", default=Path("docs/benchmarks.md"))
    return parser


def _archive(directory: Path, figures: dict[str, Any], runs: Sequence[Path]) -> None:
    """Write the figures of the page; notes and runs of earlier live figures are replaced or removed."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in _COMPACT:
        if name in figures:
            (directory / f"{name}.json").write_text(json.dumps(figures[name], separators=(",", ":")) + "\n")
    if "live" not in figures:
        return
    records = {json.dumps(run, separators=(",", ":")): None for path in runs for run in json.loads(path.read_text())}
    for name in ("notes.txt", "runs.json"):
        (directory / name).unlink(missing_ok=True)
    if "notes" in figures:
        (directory / "notes.txt").write_text(figures["notes"])
    if records:
        (directory / "runs.json").write_text("[" + ",\n".join(records) + "]\n")


if __name__ == "__main__":
    main()
