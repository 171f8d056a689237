"""Writes the tables of ``docs/reliability.md`` from the results of the drills."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from tests.drills import results, sigterm
from tests.drills.scenarios import SCENARIOS

_PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def machine() -> dict[str, Any]:
    """Say on what the drills ran."""
    return {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def write(path: Path, document: results.Document) -> None:
    """Put the tables between their marks, in a copy of the documentation's page where there is none."""
    page = (path if path.exists() else _PAGE).read_text()
    order = [(scenario.fault.name, scenario.when) for scenario in SCENARIOS]
    runs = document["runs"]
    if runs:
        text = results.table(runs, order)
        done = [run for run in runs if not run["skipped"]]
        held = sum(run["held"] for run in done)
        text += f"\n\n{held} of {len(done)} runs held, on a machine with {document['machine']['cores']} cores."
        if broken := results.problems(runs):
            text += f"\n\nWhat did not hold:\n\n{broken}"
        page = results.between_marks(page, "faults", text)
    if runs := document.get("sigterm"):
        page = results.between_marks(page, "sigterm", sigterm.table(runs))
    if chaos := document.get("chaos"):
        page = results.between_marks(page, "chaos", results.chaos_table(chaos))
    if loads := document.get("load"):
        text = "\n\n".join(f"State in {name}:\n\n{results.load_table(load)}" for name, load in loads.items())
        page = results.between_marks(page, "load", text)
    path.write_text(page)
