"""``python -m benchmarks.report``: ``docs/benchmarks.md`` and its plots from the figures of the other benchmarks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.live import kept
from benchmarks.policies.machine import say
from benchmarks.report import page


def main() -> None:
    """Read what there is, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument(
        "--live", type=Path, action="append", metavar="FILE", help="of python -m benchmarks.live; again for another run"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="write the live figures there, as far as the page is made of them"
    )
    parser.add_argument("--simulation", type=Path, metavar="FILE", help="of python -m benchmarks.simulation")
    parser.add_argument("--nexmark", type=Path, metavar="FILE", help="of python -m benchmarks.nexmark")
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
        found["live"] = kept.merged([json.loads(path.read_text()) for path in arguments.live])
    if arguments.notes:
        found["notes"] = arguments.notes.read_text()
    if not found.keys() - {"notes"}:
        parser.error("give at least one of --live, --simulation, --nexmark")
    if arguments.keep and arguments.live:
        arguments.keep.parent.mkdir(parents=True, exist_ok=True)
        arguments.keep.write_text(json.dumps(kept.compact(found["live"]), separators=(",", ":")) + "\n")
    page.draw(found, arguments.document.parent / "images")
    arguments.document.write_text(page.render(found))
    if arguments.readme and arguments.live:
        arguments.readme.write_text(page.put_in(arguments.readme.read_text(), found["live"]))
    say(f"written: {arguments.document}")


if __name__ == "__main__":
    main()
