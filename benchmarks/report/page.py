"""The page: each part from its own benchmark, in one order, with how to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import live, nexmark
from benchmarks.simulation import report as simulation

__all__ = ["draw", "put_in", "render"]

_TWICE = 2
BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"

_HEAD = """\
# Benchmarks: what it is worth, and where it is not

This page is written from measured figures by `python -m benchmarks.report`; do not edit it by hand. Every part names
the command that makes its figures. All of it was measured on one machine. Live figures are ratios of what ran in one
session by turns, in an order that chance decided, and what chance makes of them is given beside them.
"""

_LIMITS = """\
## Limits

* One machine: nodes are namespaces with shaped links and CPU quotas of control groups where the system allows it, else
  loopback addresses with quotas that are held by stopping processes (each result says which; `--rootless` asks for the
  second), and they share memory bandwidth, caches and the disk.
* The load comes from a source that is a function of the batch's number, so that outputs can be audited exactly; there
  is no Kafka. Batches follow each other without a pause unless a section says otherwise (`--interval`), so the rate is
  what the query can do at most, and throughput is one over the mean batch.
* Checkpoints are on the machine's own disk, which all nodes see: loading state costs less than over a network. The
  queries' state is small. [Migration](migration.md) has larger states and a slow disk.
* Starting placements are drawn, not Spark's own of that day; they are as uneven as those that were read off Spark.
* The papers' figures come from other engines (Storm, Heron) on clusters of eight or more machines; they stand here to
  be compared in direction, not in size.
"""

_AGAIN = """\
## Run it yourself

```console
$ make bench
```

measures all situations and writes this page anew; `make bench ARGS=--quick` does so in a shorter form. The first takes
a day or more. Live sessions that `out/live.json` has are not run again, so it goes on where it was broken off; delete
that file to measure anew. One part alone:

```console
$ python -m benchmarks.live --quick --json out/live.json --runs out/runs.json
$ python -m benchmarks.simulation --quick --json out/simulation.json --live out/runs.json
$ python -m benchmarks.nexmark --quick --json out/nexmark.json
$ python -m benchmarks.report --live out/live.json --simulation out/simulation.json --nexmark out/nexmark.json
```

Ours are the sessions of the commands that stand in each section, taken together: `--live` of the last command may be
given again, and so may that of the simulation. The figures behind this page are in `docs/figures/`, with what is to be
said of them in `notes.txt`; `make bench-page` writes the page from these and measures nothing. Given as one more
`--live`, your sessions stand beside ours, and are taken together with them where machine and input are equal.

[Policies](policies.md) has what every policy makes of generated situations and how long it thinks,
[migration](migration.md) what moving costs beside a restart, [forecast](forecast.md) how well load is foretold.
"""


def render(found: Mapping[str, Any]) -> str:
    """Return the page of the parts that there are."""
    parts = [_HEAD]
    if missing := [name for name in ("live", "simulation", "nexmark") if name not in found]:
        parts.append(f"Not measured for this page yet: {', '.join(f'`benchmarks.{name}`' for name in missing)}.\n")
    if "live" in found:
        parts += ["## In short\n", _short(found["live"]), live.section(found["live"])]
    if "simulation" in found:
        parts.append(simulation.section(found["simulation"]))
    if "nexmark" in found:
        parts.append(nexmark.section(found["nexmark"]))
    parts += [_LIMITS]
    if found.get("notes"):
        parts += ["### Of the figures on this page\n", found["notes"]]
    parts += [_AGAIN]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def _short(figures: Mapping[str, Any], least: int = 1) -> str:
    quick = " These are figures of the quick form: few batches, few sessions." if figures["quick"] else ""
    said = live.headline(figures, least)
    if not said:
        return "Not measured.\n"
    return (
        f"{said}\n\n"
        "One query a session, whose state is small. These are batches after the moves, in `lost` and `joined` thirty "
        "batches later still: what moving itself costs is on the page with *mean batch since the event* and *longest "
        "batch*, and can take up much of the gain. In `slowed`, `drift` and `lost` each way had been asked before the "
        "event too, and what that was worth is in here. A decision is asked for some batches after the event: how soon "
        f"Rechannel notices by itself is not in these figures.{quick}\n"
    )


def put_in(text: str, figures: Mapping[str, Any]) -> str:
    """Return a page with the headline between its two marks: what was measured twice. ValueError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} with {END} after it")
    return f"{before}{begin}\n\n{_short(figures, _TWICE)}\n{end}{after}"


def draw(found: Mapping[str, Any], directory: Path) -> None:
    """Draw the plots of the parts that there are."""
    from benchmarks.live import plots  # these need matplotlib, which the figures do not
    from benchmarks.simulation import plots as simulation_plots

    if "live" in found:
        plots.draw(found["live"], directory)
    if "simulation" in found:
        simulation_plots.draw(found["simulation"], directory)
