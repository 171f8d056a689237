"""Writes the tables of ``docs/reliability.md`` from the results of the drills."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from tests.drills import results, sigterm
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
* All parts work together again by themselves: a leader, reports of new batches, figures of every node, readiness for
  decisions. *Recovered* is the time until then, counted from the strike where others step in or the part is started
  again (after two seconds, as the units in `systemd/` do), else from the end of the fault.

What lasts, lasts 30 seconds; a killed Redis is away for 20. The lease is the default's 15 seconds.

## Faults and outcomes

<!-- faults -->
<!-- end of faults -->

## Rows that Spark itself loses

An executor that is ended with SIGTERM (its worker is stopped, its pod deleted, its node preempted) deletes its files
while its tasks go on. A map task that then ends takes a file that is gone for one without rows, and succeeds: the batch
is short of these rows, and nothing fails ([SPARK-37473](https://issues.apache.org/jira/browse/SPARK-37473)). A missing
block is one without rows to whoever reads it, so its reader never asks the dying executor; readers of the other blocks
do, fail, and have the map task repeated, but what has ended is not run again. The longer the deletion lasts (old
shuffle files, a slow disk, a CPU quota), the likelier it is.

This happens with and without Rechannel, and is told apart from what Rechannel answers for: rows lost are a failure of
this drill only where `spark.shuffle.sort.bypassMergeThreshold=0` keeps Spark from that writer. The drill makes likely
what is rare: thousands of old files, and SIGTERM shortly before a map task ends. Twelve partitions, three executors,
24,000 rows a batch, of which each map task has a third. A map task that needs a Python worker is not concerned: the
worker ends first, and the task fails and is repeated. `drain --remove` is not concerned either, as Spark releases no
executor with a running task.

Made by `python -m tests.drills --only sigterm --tries N --json out/drills.json --document docs/reliability.md`.

<!-- sigterm -->
<!-- end of sigterm -->

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
