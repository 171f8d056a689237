"""``python -m benchmarks.report``: ``docs/benchmarks.md`` and its plots from the figures of the other benchmarks."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live import archive
from benchmarks.report import page
from benchmarks.report.results import say

_COMPACT: dict[str, Callable[[Any], Any]] = {
    "live": archive.compact,
    "simulation": archive.rounded,
    "nexmark": archive.rounded,
}


def main() -> None:
    """Read what there is, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument(
        "--live", type=Path, action="append", metavar="FILE", help="of python -m benchmarks.live; again for another run"
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="write what is given there, rounded, of live figures what is shown",
    )
    parser.add_argument("--simulation", type=Path, metavar="FILE", help="of python -m benchmarks.simulation")
    parser.add_argument("--nexmark", type=Path, metavar="FILE", help="of python -m benchmarks.nexmark")
    parser.add_argument(
        "--runs",
        type=Path,
        action="append",
        metavar="FILE",
        help="of the same, only to be kept; again for another run",
    )
    parser.add_argument("--notes", type=Path, metavar="FILE", help="what is to be said of just these figures")
    parser.add_argument("--readme", type=Path, metavar="PAGE", help="a page to put the headline into")
    parser.add_argument("--document", type=Path, metavar="PAGE", default=Path("docs/benchmarks.md"))
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        name: json.loads(path.read_text())
        for name in ("simulation", "nexmark")
        if (path := getattr(arguments, name)) is not None
    }
    if arguments.live:
        found["live"] = archive.merged([json.loads(path.read_text()) for path in arguments.live])
    if arguments.notes:
        found["notes"] = arguments.notes.read_text()
    if arguments.keep and arguments.keep.is_file():
        parser.error(f"--keep: {arguments.keep} is a file; name the directory it is in")
    if not found.keys() - {"notes"}:
        parser.error("give at least one of --live, --simulation, --nexmark")
    for name, compact in _COMPACT.items():
        if name in found:
            found[name] = compact(found[name])  # so that what is kept makes the same page
            if arguments.keep:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                text = json.dumps(found[name], separators=(",", ":"))
                (arguments.keep / f"{name}.json").write_text(text + "\n")
    if arguments.keep and "live" in found:
        _keep_beside(arguments.keep, found.get("notes"), arguments.runs or ())
    page.draw(found, arguments.document.parent / "images")
    arguments.document.write_text(page.render(found))
    if arguments.readme and arguments.live:
        arguments.readme.write_text(page.insert_headline(arguments.readme.read_text(), found["live"]))
    say(f"written: {arguments.document}")


def _keep_beside(directory: Path, notes: str | None, runs: Sequence[Path]) -> None:
    """Keep what goes with live figures: notes, and what the simulation was calibrated with; what others had goes."""
    records = {json.dumps(run, separators=(",", ":")): None for path in runs for run in json.loads(path.read_text())}
    for name in ("notes.txt", "runs.json"):
        (directory / name).unlink(missing_ok=True)
    if notes is not None:
        (directory / "notes.txt").write_text(notes)
    if records:
        (directory / "runs.json").write_text("[" + ",\n".join(records) + "]\n")


if __name__ == "__main__":
    main()
