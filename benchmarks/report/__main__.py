"""``python -m benchmarks.report``: ``docs/benchmarks.md`` and its plots from the figures of the other benchmarks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.policies.machine import say
from benchmarks.report import page


def main() -> None:
    """Read what there is, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("--live", type=Path, metavar="FILE", help="of python -m benchmarks.live")
    parser.add_argument("--simulation", type=Path, metavar="FILE", help="of python -m benchmarks.simulation")
    parser.add_argument("--nexmark", type=Path, metavar="FILE", help="of python -m benchmarks.nexmark")
    parser.add_argument("--document", type=Path, metavar="PAGE", default=Path("docs/benchmarks.md"))
    arguments = parser.parse_args()
    found = {
        name: json.loads(path.read_text())
        for name in ("live", "simulation", "nexmark")
        if (path := getattr(arguments, name)) is not None
    }
    if not found:
        parser.error("give at least one of --live, --simulation, --nexmark")
    page.draw(found, arguments.document.parent / "images")
    arguments.document.write_text(page.render(found))
    say(f"written: {arguments.document}")


if __name__ == "__main__":
    main()
