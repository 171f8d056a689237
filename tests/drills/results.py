"""Results of the drills: a JSON file that grows run by run, and the tables of `docs/reliability.md`."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import templates
from benchmarks.report.results import Result as StoredResult
from benchmarks.report.results import read_results, write_json
from benchmarks.report.templates import BEGIN, between_marks

__all__ = [
    "BEGIN",
    "Document",
    "Result",
    "between_marks",
    "chaos_table",
    "is_done",
    "load",
    "load_table",
    "merge",
    "problems",
    "save",
    "table",
]

Document = dict[str, Any]
_PARTS = {
    "runs": "Recovery from one fault, by scenario and repetition",
    "sigterm": "Rows that Spark loses when an executor is ended by SIGTERM",
    "chaos": "Random faults, by seed",
    "load": "Batches of the queries while parts of Rechannel hang",
}
_UNITS = {"min": "minutes", "s": "median"}


@dataclass(frozen=True)
class Result:
    """One run of one scenario. Seconds, rows, counts; ``skipped``: why it could not be run on this machine.

    ``recovered``: until all parts worked together again, counted from ``counted_from``; ``settled``: until no move was
    left under way; ``gap``: the longest time without a commit while it lasted, beside the ``usual_gap`` before.
    """

    scenario: str
    fault: str
    when: str
    provider: str
    held: bool = False
    repetition: int = 1
    problems: Sequence[str] = ()
    lost: int = 0
    doubled: int = 0
    batches: int = 0
    failed_attempts: int = 0
    recovered: float | None = None
    counted_from: str = ""
    settled: float | None = None
    gap: float | None = None
    usual_gap: float | None = None
    migration: str = ""
    landed: int = 0
    abandoned: Mapping[str, int] = field(default_factory=dict)
    late_writes: int = 0
    skipped: str = ""
    at: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """Fields that two results of the same run share."""
        return self.scenario, self.provider, self.repetition


def load(path: Path) -> Document:
    """Read the results so far; an empty document where there are none."""
    document: Document = {"runs": []}
    for name, stored in read_results(path).items():
        document |= {"machine": stored.machine, name: stored.values if name == "load" else stored.rows}
    return document


def save(path: Path, document: Document) -> None:
    """Write the file whole: a run that is broken off leaves the one before."""
    results = {}
    for name, measures in _PARTS.items():
        if part := document.get(name):
            figures = {"machine": document.get("machine")} | (part if name == "load" else {"rows": part})
            results[name] = StoredResult.of(measures, figures, units=_UNITS)
    write_json(path, results)


def merge(document: Document, result: Result) -> Document:
    """Return the document with a run added, in place of an older one of the same scenario, provider and repetition."""
    row = dataclasses.asdict(result)
    others = [item for item in document["runs"] if _key(item) != result.key]
    return document | {"runs": [*others, row]}


def is_done(document: Document, scenario: str, provider: str, repetition: int) -> bool:
    """Whether a run is in the document and held; what was skipped is tried again, on a machine that may have more."""
    return any(_key(item) == (scenario, provider, repetition) and item["held"] for item in document["runs"])


def _key(item: Mapping[str, Any]) -> tuple[str, str, int]:
    return item["scenario"], item["provider"], item["repetition"]


def table(runs: Iterable[Mapping[str, Any]], order: Sequence[tuple[str, str]]) -> str:
    """Return faults x outcome in Markdown. ``order``: (fault, when) of each row; those without a run are left out."""
    actual: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        actual.setdefault((run["fault"], run["when"]), []).append(run)
    head = (
        "fault | when | runs that held | rows lost | rows doubled | failed attempts | recovered, median / worst | "
        "counted from | longest gap between commits / usual | migration"
    )
    rows = [_row(fault, when, actual[fault, when]) for fault, when in order if (fault, when) in actual]
    return templates.table(head, rows)


def _row(fault: str, when: str, runs: list[Mapping[str, Any]]) -> list[str]:
    done = [run for run in runs if not run["skipped"]]
    if not done:
        return [fault, when, f"skipped: {runs[0]['skipped']}", *[""] * 7]
    providers = sorted({run["provider"] for run in done})
    held = ", ".join(
        f"{name} {sum(run['held'] for run in own)} of {len(own)}"
        for name in providers
        if (own := [run for run in done if run["provider"] == name])
    )
    if any(not run["held"] for run in done):
        held = f"**{held}**"
    return [
        fault,
        when,
        held,
        str(sum(run["lost"] for run in done)),
        str(sum(run["doubled"] for run in done)),
        _spread([run["failed_attempts"] for run in done]),
        _median_worst([run["recovered"] for run in done]),
        next((run["counted_from"] for run in done if run["counted_from"]), ""),
        f"{_worst([run['gap'] for run in done])} / {_worst([run['usual_gap'] for run in done])}",
        _migrations(done),
    ]


def _spread(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _median_worst(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{statistics.median(numbers):.0f} / {max(numbers):.0f} s" if numbers else "not recovered"


def _worst(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return f"{max(numbers):.1f} s" if numbers else "-"


def _migrations(runs: Sequence[Mapping[str, Any]]) -> str:
    moving = [run for run in runs if run["migration"]]
    if not moving:
        return ""
    reasons: dict[str, int] = {}
    for run in moving:
        for reason, count in run["abandoned"].items():
            reasons[reason] = reasons.get(reason, 0) + count
    summary = f"{sum(run['landed'] for run in moving)} moves landed"
    if reasons:
        summary += ", abandoned: " + ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return summary


def problems(runs: Iterable[Mapping[str, Any]]) -> str:
    """Name what did not hold, one line each; "" if all did."""
    return "\n".join(
        f"* {run['scenario']} ({run['provider']}, run {run['repetition']}): {problem}"
        for run in runs
        if not run["skipped"]
        for problem in (run["problems"] or ([] if run["held"] else ["did not hold"]))
    )


def load_table(load: Mapping[str, Any]) -> str:
    """Return the load test in Markdown: what was done to Rechannel and what the batches of the queries made of it."""
    rows = [
        [row["phase"], row["batches"], *(f"{row[name]:.2f} s" for name in ("median", "healthy")), f"{row['ratio']:.2f}"]
        for row in load["phases"]
    ]
    text = templates.table(
        "what was done to Rechannel | batches | median batch | healthy before and after | ratio", rows
    )
    low, high = load["noise"]
    return f"{text}\n\nHealthy phases against the healthy phases beside them, the noise: {low:.2f} to {high:.2f}."


def chaos_table(runs: Iterable[Mapping[str, Any]]) -> str:
    """Return the chaos runs in Markdown."""
    head = (
        "seed | minutes | provider | faults | batches audited | rows lost | rows doubled | moves landed / abandoned | "
        "recovered after the last mending"
    )
    rows = [
        [
            *(run["seed"], f"{run['minutes']:g}", run["provider"], len(run["strikes"])),
            *(run["batches"], run["lost"], run["doubled"], f"{run['landed']} / {run['abandoned']}"),
            f"{run['recovered']:.0f} s",
        ]
        for run in runs
    ]
    return templates.table(head, rows)
