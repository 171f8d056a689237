"""Writes the matrix in ``docs/compatibility.md`` from the results of its test: ``python -m tests.matrix.document``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import templates

ROOT = Path(__file__).parents[2]


def table(result: dict[str, Any]) -> str:
    """Return the matrix in Markdown; ``result`` is what ``test_matrix`` wrote."""
    stores = list(dict.fromkeys(store for run in result.values() for store in run["cells"]))
    columns = [(store, cores) for store in stores for cores in sorted(result) if store in result[cores]["cells"]]
    names = list(dict.fromkeys(name for run in result.values() for cells in run["cells"].values() for name in cells))
    head = ["", *(f"{store}, {cores} core{'s' if cores != '1' else ''}" for store, cores in columns)]
    rows = [[name, *(_cell(result[cores]["cells"][store].get(name)) for store, cores in columns)] for name in names]
    total = {
        what: sum(
            cell["moves"].get(what, 0)
            for run in result.values()
            for cells in run["cells"].values()
            for cell in cells.values()
        )
        for what in ("busy", "idle", "missed", "abandoned")
    }
    failed = sum(sum(run["failed_tasks"].values()) for run in result.values())
    landed = total["busy"] + total["idle"]
    summary = (
        f"In all {landed:,} moves landed, {total['busy']:,} of them back to back and {total['idle']:,} while idle; "
        f"{total['missed']:,} steers missed and were repeated, {total['abandoned']:,} moves were abandoned, "
        f"{failed} task attempts failed."
    )
    return f"{templates.table(head, rows)}\n\n{summary}"


def _cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "not possible"
    moves = cell["moves"]
    if cell["exact"] and moves.get("busy") and moves.get("idle"):
        return f"exact, {moves['busy']} + {moves['idle']}"
    return f"**{cell['error'] or ('exact, but not moved both ways' if cell['exact'] else 'not exact')}**"


def main() -> None:
    """Put the matrix between its marks."""
    result = json.loads((ROOT / "out" / "matrix.json").read_text())
    page = ROOT / "docs" / "compatibility.md"
    page.write_text(templates.between_marks(page.read_text(), "matrix", table(result)))
    sys.stdout.write(f"{page.relative_to(ROOT)} is written\n")


if __name__ == "__main__":
    main()
