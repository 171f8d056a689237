"""``docs/migration.md`` from the figures alone: same figures, same page; rows that failed are told as such. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.migration.matrix import FACTORS, PARTITIONS, uncovered
from benchmarks.migration.summary import AFTERMATH, CALM, GOAL, row_figures
from benchmarks.migration.variants import AT_ONCE, LIVE, ONE_BY_ONE, RESTART, WAYS, ways_for
from benchmarks.report.tables import amount, table, wrapped

__all__ = ["render"]

WITHIN = 0.25  # of what is measured: the goal of a prediction
_WHOLE = ("|", "#", "!", "    ")  # lines that may be long
_MOVING = (LIVE, AT_ONCE, ONE_BY_ONE)
_NOISE = "≈"
_STAGES = ("prepare", "load", "close", "sum", "total")

_OPENING = """# Moving partitions: what it costs

What it costs to move stateful partitions of a running query to other executors, beside what is done without
Rechannel: stop the query and start it again from its checkpoint. This page is written by `python -m
benchmarks.migration` from measured figures; do not edit it by hand."""

_MEANING = f"""## What is measured

* **Durations are Spark's own**: `triggerExecution` and `timestamp` of its progress events. Rechannel's figures are
  used only for what it predicted, for the journal's times, and for one load.
* **Steady**: the median batch of the quiet phase right before an order. **Longest batch**: of the batches from the
  order to {AFTERMATH} after the last landing, over steady. For a restart it is the time from the last commit before
  to the first commit after, in which nothing is put out.
* **Extra**: the sum, over the same batches, of duration less steady; for a restart the gap less the usual time
  between two commits, and the next {AFTERMATH} batches likewise.
* **One load**: by how much longer than usual a moved partition's first task ran on its target; the middle one.
* **Settled**: batches from the order to the first of {CALM} in a row that are no longer than {GOAL} times steady,
  or than the longest quiet one.
* **{_NOISE}** marks what lies inside the noise: a longest batch no longer than the longest quiet one of that row,
  an extra within twice what as many quiet batches vary by. From such figures nothing follows.
* **as live**: where one partition is moved, there is one step, and the ways do not differ.
* In brackets: the smallest and the largest of the repeats; before them their median.
* **The restart is the kindest there is**: it happens within milliseconds of a commit, in a Spark application that
  goes on with its executors warm, and Rechannel puts every partition back where it was before the first batch. An
  application that is submitted anew also pays for its start, and Spark alone may place worse."""

_LIMITS = """## Limits

* One machine plays all nodes: its executors share cores, memory and disk, and nothing crosses a network. Loads that
  would run side by side on real nodes take from each other here.
* Batches follow each other without a pause. A query with a trigger interval and time to spare hides a load in it.
* One query with one aggregation and keys that are touched evenly. What several queries take from each other is not
  here.
* A restart loads all state, however few partitions one wants elsewhere: beside a move of one partition it is not
  the like."""


def render(figures: dict[str, Any]) -> str:
    """The page of the figures that ``python -m benchmarks.migration --json FILE`` leaves."""
    rows = [row_figures(record) for record in figures["rows"] if "row" in record]
    measured = [row for row in rows if row["ways"]]
    parts = [_OPENING, _made(figures, rows)]
    if measured:
        parts += [
            _short(measured),
            _MEANING,
            _peaks(measured),
            _extras(measured),
            _landings(measured),
            _predictions(measured),
            _overlaps(measured),
        ]
    parts += [_audits(rows), _LIMITS, _HOW]
    lines = "\n\n".join(part for part in parts if part).splitlines()
    return "\n".join(line if line.startswith(_WHOLE) else wrapped(line) for line in _joined(lines)) + "\n"


def _joined(lines: Sequence[str]) -> list[str]:
    """Make one line of each item and paragraph, so that they are wrapped as wholes."""
    found: list[str] = []
    for line in lines:
        goes_on = (
            found and found[-1] and line and not line.startswith(("* ", *_WHOLE)) and not found[-1].startswith(_WHOLE)
        )
        if goes_on:
            found[-1] += " " + line.strip()
        else:
            found.append(line)
    return found


def _made(figures: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    machine, given = figures["machine"], figures["settings"]
    disk = figures["slow_disk_problem"]
    slow = (
        f"Local disk only: a slowed file system cannot be mounted there ({disk})."
        if disk
        else "Rows named `slow` have their checkpoint on a file system that takes "
        f"{given['latency'] * 1e3:g} ms for each operation and passes {amount(given['rate'])}/s."
    )
    cases = [record["row"] for record in figures["rows"] if "row" in record]
    pairs = "The rows have every two values of two of these together at least once." if _covered(cases, disk) else ""
    quick = "; made with `--quick`" if figures["quick"] else ""
    ways = "\n".join(f"* **{way.name}**: {way.about}." for way in WAYS)
    return f"""## The run

{len(rows)} row{"s" if len(rows) != 1 else ""}, a cluster of its own for each: a standalone master,
{given["executors"]} executors of one core each, Redis, an agent for each node and a controller, on
{machine["cores"]} shared cores ({machine["architecture"]}, load average {machine["load_average"]:g} at the
start), Python {machine["python"]}{quick}. The query counts and sums by key in {given["partitions"]} partitions,
{given["rows"]:,} rows a batch, batches back to back; the state holds all keys before anything is measured, and
every way moves the same partitions, to and fro, {figures["repeats"]} times by turns, after at least
{given["quiet"]} quiet batches. Spark keeps house every {given["maintenance"]} s, not every 60, so that old
copies close soon enough to be waited for; all else is Spark's default, and Rechannel's but that nothing is moved
unasked. A row's name is its number of keys, the state store, how many partitions are moved, and the disk. {pairs}
{slow}

{ways}"""


def _covered(cases: Sequence[dict[str, Any]], no_slow_disk: str) -> bool:
    factors = FACTORS | {"disk": ("local",)} if no_slow_disk else FACTORS
    return not uncovered([{name: case[name] for name in factors} for case in cases], factors)


def _short(rows: Sequence[dict[str, Any]]) -> str:
    """The goals, and whether they were met."""
    peaks = [(row, row["ways"][LIVE.name]["peak_ratio"][0]) for row in rows if LIVE.name in row["ways"]]
    kept = [row for row, peak in peaks if peak <= GOAL]
    missed = [
        f"{_name(row)} ({peak:.2f}, without a move up to {row['quiet_peak_ratio']:.2f}; one load {_load(row)})"
        for row, peak in peaks
        if peak > GOAL
    ]
    lines = ["## In short"]
    lines.append(
        f"* **Longest batch of a live move at most {GOAL} times steady** (wanted wherever one partition's load fits in "
        f"a batch): in {len(kept)} of {len(peaks)} rows{'; not in ' if missed else ''}{'; '.join(missed)}."
    )
    for what, key in (("Longest batch", "peak_error"), ("Time to the last landing", "total_error")):
        errors = {
            (row["row"]["name"], way.name): row["ways"][way.name][key][0]
            for row in rows
            for way in _MOVING
            if key in row["ways"].get(way.name, {})
        }
        if errors:
            good = {pair for pair, error in errors.items() if abs(error) <= WITHIN}
            live = [pair for pair in errors if pair[1] == LIVE.name]
            lines.append(
                f"* **{what} predicted within {WITHIN:.0%}**: of live moves in {len(good.intersection(live))} of "
                f"{len(live)} rows, of all ways in {len(good)} of {len(errors)} pairs of row and way."
            )
    ratios = [ratio for row in rows if (ratio := _restart_over_live(row, "peak")) is not None]
    if ratios:
        lines.append(
            f"* **The longest time without a commit is {min(ratios):.1f} to {max(ratios):.1f} times as long with a "
            f"restart as with a live move**, {statistics.median(ratios):.1f} times in the middle row."
        )
    audited = [row["audit"] for row in rows if row["audit"]]
    wrong = sum(not audit["ok"] for audit in audited)
    failed = sum(row["failed"] or 0 for row in rows)
    lines.append(
        f"* **Rows lost or doubled, task attempts failed**: {'none' if not wrong else f'{wrong} audits failed'} in "
        f"{len(audited)} audited rows; {failed or 'none'} failed."
    )
    return "\n\n".join([lines[0], "\n".join(lines[1:])])


def _peaks(rows: Sequence[dict[str, Any]]) -> str:
    def cell(row: dict[str, Any], way: str) -> str:
        value, noise = row["ways"].get(way, {}).get("peak_ratio"), row["quiet_peak_ratio"]
        return _three(value, "{:.2f}", value[0] <= noise) if value else _absent(row, way)

    head = ["row", "steady", "longest quiet", "one load", *(way.name for way in WAYS), "restart / live"]
    return "\n\n".join(
        [
            "## Longest batch over steady",
            "![longest batch over steady by row and way](images/migration-peak.png)",
            "![batch durations over time](images/migration-batches.png)",
            table(
                head,
                [
                    [
                        _name(row),
                        f"{row['steady']:.2f} s",
                        f"{row['quiet_peak_ratio']:.2f}",
                        _load(row),
                        *(cell(row, way.name) for way in WAYS),
                        _number(_restart_over_live(row, "peak"), "{:.1f}"),
                    ]
                    for row in rows
                ],
            ),
        ]
    )


def _extras(rows: Sequence[dict[str, Any]]) -> str:
    def cell(row: dict[str, Any], way: str) -> str:
        figures = row["ways"].get(way)
        if not figures:
            return _absent(row, way)
        return _three(figures["extra"], "{:.1f} s", abs(figures["extra"][0]) <= 2 * figures["extra_noise"][0])

    lines = [[_name(row), *(cell(row, way.name) for way in WAYS)] for row in rows]
    return "\n\n".join(["## Extra batch time", table(["row", *(way.name for way in WAYS)], lines)])


def _landings(rows: Sequence[dict[str, Any]]) -> str:
    head = [
        "row",
        "way",
        "moves",
        "steps",
        "state moved",
        "files to load",
        "until landed",
        "batches to settle",
        "said again",
    ]
    lines = []
    for row in rows:
        for way in WAYS:
            figures = row["ways"].get(way.name)
            if figures:
                lines.append(
                    [
                        _name(row),
                        way.name,
                        _three(figures.get("moves"), "{:.0f}"),
                        _three(figures.get("steps"), "{:.0f}"),
                        amount(figures["state_bytes"][0]) if "state_bytes" in figures else "all",
                        amount(figures["loaded_bytes"][0]),
                        _three(figures.get("landing"), "{:.1f} s"),
                        _three(figures.get("settled"), "{:.0f}"),
                        _three(figures.get("missed"), "{:.0f}"),
                    ]
                )
    words = (
        "**State moved**: what Rechannel reckons from the sizes that Spark's tasks report; **files to load**: newest "
        "snapshots and later changes in the checkpoint when it was ordered; **said again**: steers that Spark missed "
        "once."
    )
    return "\n\n".join(["## How long it takes", words, table(head, lines)])


def _predictions(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        for way in _MOVING:
            figures = row["ways"].get(way.name, {})
            if "predicted_peak" in figures:
                lines.append(
                    [
                        _name(row),
                        way.name,
                        _three(figures["predicted_peak"], "{:.2f} s"),
                        _three(figures["peak"], "{:.2f} s"),
                        _three(figures["peak_error"], "{:+.0%}"),
                        _three(figures["predicted_total"], "{:.1f} s"),
                        _three(figures.get("landing"), "{:.1f} s"),
                        _three(figures.get("total_error"), "{:+.0%}"),
                    ]
                )
    if not lines:
        return ""
    head = [
        "row",
        "way",
        "longest batch: predicted",
        "measured",
        "error",
        "until landed: predicted",
        "measured",
        "error",
    ]
    return "\n\n".join(["## Predictions", table(head, lines)])


def _overlaps(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        live, single = (row["ways"].get(way.name, {}) for way in (LIVE, ONE_BY_ONE))
        if "overlap.total" in live and "overlap.total" in single:
            lines.append(
                [
                    _name(row),
                    _three(live["steps"], "{:.0f}"),
                    *(
                        _three(live[f"overlap.{name}"], "{:.1f} s")
                        for name in ("prepare", "load", "close", "sum", "total")
                    ),
                    _three(single["overlap.total"], "{:.1f} s"),
                    f"{single['overlap.total'][0] / live['overlap.total'][0]:.2f}" if live["overlap.total"][0] else "-",
                    _three(live["overlap.share"], "{:.0%}"),
                ]
            )
    if not lines:
        return ""
    words = (
        "From the journal's times: a step is prepared (its snapshots are waited for), loaded (from the steer to the "
        "commit of the batch that ran it on its target), closed (its old copies go). **Sum**: of these stages over all "
        "steps of a live move; **total**: how long it took, to the last closing; **one by one**: the total where each "
        "step waits until the one before it is closed; **side by side**: the share of a live move's total in which two "
        "stages of different steps were under way. With one step there is nothing to overlap."
    )
    head = [
        "row",
        "steps",
        "prepare",
        "load",
        "close",
        "sum",
        "total",
        "one by one",
        "one by one / total",
        "side by side",
    ]
    return "\n\n".join(["## What overlaps", words, table(head, lines)])


def _audits(rows: Sequence[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        audit, link = row["audit"], row["link"] or {}
        moving = [row["ways"][way.name] for way in _MOVING if way.name in row["ways"]]
        abandoned = sum(int(figures["abandoned"][2]) for figures in moving)
        cells = ["not made"] * 5
        if audit:
            wrong = audit["different"] + audit["unknown"]
            cells = [
                f"{audit['batches']}",
                *(f"{value:,}" for value in (audit["wanted_rows"], audit["lost"], audit["doubled"], wrong)),
            ]
        failed = "-" if row["failed"] is None else str(row["failed"])
        lines.append(
            [
                _name(row),
                *cells,
                failed,
                str(abandoned),
                str(link.get("drifted", "-")),
                "; ".join(row["problems"]) or "none",
            ]
        )
    words = (
        "After each row the state in the checkpoint is held against the input, key by key: the count of each key, and "
        "the sum of its rows' numbers. Failed task attempts are those that Spark's own status store counts."
    )
    head = [
        "row",
        "batches",
        "rows",
        "lost",
        "doubled",
        "wrong keys",
        "failed attempts",
        "moves abandoned",
        "drifted",
        "problems",
    ]
    return "\n\n".join(["## Audit", words, table(head, lines)])


_HOW = f"""## How to run it

    python -m benchmarks.migration --json out/migration.json --document docs/migration.md   # an hour
    python -m benchmarks.migration --quick --json out/migration.json                        # three rows, each way once
    python -m benchmarks.migration --only 1M-hdfs-{PARTITIONS}of{PARTITIONS}-local --json out/migration.json

`--no-run` measures nothing and writes the page from the file."""


def _name(row: dict[str, Any]) -> str:
    return str(row["row"]["name"])


def _absent(row: dict[str, Any], way: str) -> str:
    """What stands where a way has no figure: it was not asked for, or failed."""
    return "-" if any(way == other.name for other in ways_for(row["row"]["moves"])) else "as live"


def _load(row: dict[str, Any]) -> str:
    return _number(row["load"], "{:.2f} s")


def _restart_over_live(row: dict[str, Any], name: str) -> float | None:
    live, restart = (row["ways"].get(way.name, {}).get(name) for way in (LIVE, RESTART))
    return restart[0] / live[0] if live and restart and live[0] > 0 else None


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _three(values: Sequence[float] | None, form: str, noise: bool = False) -> str:
    """The median, and in brackets the smallest and the largest where they are not shown alike."""
    if not values:
        return "-"
    middle, low, high = map(form.format, values)
    mark = f" {_NOISE}" if noise else ""
    return f"{middle}{mark}" if low == high else f"{middle}{mark} ({low} to {high})"
