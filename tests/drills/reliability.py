"""Writes the tables of ``docs/reliability.md`` from what the drills found."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from tests.drills import results
from tests.drills.scenarios import SCENARIOS

_PAGE = """\
# Reliability

What happens to the queries, and to Rechannel, when something breaks. Everything here was done to real processes: Redis,
a standalone Spark cluster with three executors, two controllers, an agent on each node, an application with two
stateful queries. Made by `python -m tests.drills --repeat N --json out/drills.json --document docs/reliability.md`;
`make chaos` has faults come at random. The scenarios stand in `tests/drills/scenarios.py`, the faults in
`tests/drills/faults.py`.

## What is promised, and checked every time

* No row is lost, none is counted twice: every batch of every query is compared with the batch computation.
* The queries go on committing, unless it is the driver or an executor that is hit. Then Spark's own recovery decides.
* A running migration completes, or its moves end settled, each with a typed reason. No step of a move is taken twice.
* No two controllers lead under one epoch; every write of a controller is seen through Redis' own `MONITOR`.
* Nothing is decided while figures of a node are missing.
* All parts work together again by themselves: a leader, reports of new batches, figures of every node, readiness for
  decisions. *Recovered* is the time until then, counted from the strike where others step in or the part is started
  again (after two seconds, as the units in `systemd/` do), else from the end of the fault.

What lasts, lasts 30 seconds; a killed Redis is away for 20. The lease is the default's 15 seconds.

## Faults and outcomes

<!-- faults -->
<!-- end of faults -->

## Chaos

Faults of all kinds at random times, several at once, while one migration follows the other.

<!-- chaos -->
<!-- end of chaos -->

## Queries come first

The same queries, batches back to back, while Rechannel is healthy, and while parts of it hang, are killed or misbehave,
in turns. The ratio is that of the median batch to the median of the healthy phases before and after.

<!-- load -->
<!-- end of load -->
"""


def machine() -> dict[str, Any]:
    """Say on what the drills ran."""
    return {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def write(path: Path, document: results.Document) -> None:
    """Put the tables between their marks, in a new page where there is none."""
    page = path.read_text() if path.exists() else _PAGE
    order = [(scenario.fault.name, scenario.when) for scenario in SCENARIOS]
    runs = document["runs"]
    if runs:
        words = results.table(runs, order)
        made = [run for run in runs if not run["skipped"]]
        held = sum(run["held"] for run in made)
        words += f"\n\n{held} of {len(made)} runs held, on a machine with {document['machine']['cores']} cores."
        if broken := results.problems(runs):
            words += f"\n\nWhat did not hold:\n\n{broken}"
        page = results.between_marks(page, "faults", words)
    if chaos := document.get("chaos"):
        page = results.between_marks(page, "chaos", results.chaos_table(chaos))
    if loads := document.get("load"):
        words = "\n\n".join(f"State in {name}:\n\n{results.load_table(load)}" for name, load in loads.items())
        page = results.between_marks(page, "load", words)
    path.write_text(page)
