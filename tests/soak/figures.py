"""Figures of a soak's samples: the audit, the table at milestones, slopes beside their bounds. Pure."""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.report.results import rounded
from tests.soak import queries
from tests.soak.slopes import Slope, slope

MIB = float(1 << 20)
MILESTONES = (1, 1_000, 25_000)  # batches, and those that both drivers have had at the end
WARM_UP = 0.2  # of the run, left out of slopes: classes are loaded, caches filled
JUDGED = 5_000  # batches; a shorter run says nothing of slopes
STARTS_BOUNDS = {  # of the slope's difference, per 1,000 starts: unit and bound
    "python threads": ("", 0.5),
    "python descriptors": ("", 0.5),
    "python memory": ("MiB", 0.25),
    "jvm threads": ("", 1.0),
    "jvm descriptors": ("", 1.0),
    "jvm heap": ("MiB", 2.0),
}
_AROUND = 400  # batches whose durations make the figures at a milestone
_STARTS_AROUND = 10
_WINDOW = 10  # samples, five minutes of a run: some 1,000 batches, of which ten are above the 99th percentile

Run = Mapping[str, Any]
Series = list[float]


@dataclass(frozen=True)
class Resource:
    """Something that is measured of both drivers.

    ``bound``: of the slope's difference, per 1,000 batches. ``window``: samples in the mean at a milestone.
    """

    name: str
    unit: str
    bound: float
    series: Callable[[Run, str], Series]  # (run, side) -> a value for each sample, NaN where there is none
    window: int = 1


def _of(process: str, what: str, scale: float = 1.0) -> Callable[[Run, str], Series]:
    return lambda run, side: [sample[side][process][what] / scale for sample in run["samples"]]


def _disk(run: Run, side: str) -> Series:
    return [sample[side]["disk"] / MIB for sample in run["samples"]]


def _cpu(run: Run, side: str) -> Series:
    """Milliseconds of CPU of Python and the JVM for each batch since the sample before."""
    table_lines, before = [], None
    for sample in run["samples"]:
        now = sample[side]
        cpu, batches = now["python"]["cpu"] + now["jvm"]["cpu"], now["batches"]
        done = batches - before[1] if before is not None else 0
        table_lines.append((cpu - before[0]) / done * 1000 if before is not None and done else float("nan"))
        before = (cpu, batches)
    return table_lines


def _medians(run: Run, points: Sequence[tuple[float, float]]) -> Series:
    """Return the median of the values (time, value) between each sample and the one before."""
    times = [sample["at"] for sample in run["samples"]]
    parts: list[Series] = [[] for _ in times]
    for at, value in points:
        index = int(np.searchsorted(times, at))
        if index < len(parts):
            parts[index].append(value)
    return [statistics.median(part) if part else float("nan") for part in parts]


def _batch(run: Run, side: str) -> Series:
    return _medians(run, [(line["at"], line["seconds"] * 1000) for line in run[side]["batches"]])


def _slowest(run: Run, side: str) -> Series:
    """Return the 99th percentile of the batches of every ten samples, NaN for the samples between."""
    times = [sample["at"] for sample in run["samples"]]
    ended = sorted((line["at"], line["seconds"] * 1000) for line in run[side]["batches"])
    made = [float("nan")] * len(times)
    for index in range(_WINDOW, len(times), _WINDOW):
        durations = [seconds for at, seconds in ended if times[index - _WINDOW] < at <= times[index]]
        if durations:
            made[index] = float(np.percentile(durations, 99))
    return made


def _start(run: Run, side: str) -> Series:
    return _medians(run, [(line["at"], line["start"] * 1000) for line in run[side]["starts"]])


def _live_objects(name: str) -> Callable[[Run, str], Series]:
    def series(run: Run, side: str) -> Series:
        sizes = [sample[side][name] for sample in run["samples"]]
        return [float("nan") if size is None else size / MIB for size in sizes]

    return series


RESOURCES = (
    Resource("`start()` of a query", "ms", 5.0, _start),
    Resource("batch, median", "ms", 5.0, _batch),
    Resource("batch, p99", "ms", 50.0, _slowest),
    Resource("driver: CPU of a batch", "ms", 1.0, _cpu, window=_WINDOW),
    Resource("driver, Python: memory", "MiB", 0.25, _of("python", "memory", MIB)),
    Resource("driver, Python: threads", "", 0.1, _of("python", "threads")),
    Resource("driver, Python: descriptors", "", 0.1, _of("python", "descriptors")),
    Resource("driver, JVM: memory", "MiB", 2.0, _of("jvm", "memory", MIB)),
    Resource("driver, JVM: live objects", "MiB", 0.5, _live_objects("jvm_heap")),
    Resource("driver, JVM: threads", "", 0.25, _of("jvm", "threads")),
    Resource("driver, JVM: descriptors", "", 0.25, _of("jvm", "descriptors")),
    Resource("executors: memory", "MiB", 4.0, _of("executors", "memory", MIB)),
    Resource("executors: live objects", "MiB", 2.0, _live_objects("executors_heap")),
    Resource("executors: threads", "", 0.5, _of("executors", "threads")),
    Resource("executors: descriptors", "", 0.5, _of("executors", "descriptors")),
    Resource("temporary files and logs", "MiB", 0.5, _disk),
)
# Processes that only we have: their own slope, since there is none to take away.
OURS = tuple(
    Resource(f"{name}: {what}", unit, bound, _of(name, what, scale))
    for name, memory in (("controller", 0.5), ("agents", 0.25), ("redis", 0.5))
    for what, unit, bound, scale in (
        ("memory", "MiB", memory, MIB),
        ("threads", "", 0.1, 1.0),
        ("descriptors", "", 0.1, 1.0),
    )
)


@dataclass(frozen=True)
class Judged:
    """A resource's slope beside its bound; no slope where there are too few samples."""

    name: str
    unit: str
    bound: float
    slope: Slope | None

    @property
    def held(self) -> bool:
        """Whether the upper limit is below the bound."""
        return self.slope is not None and self.slope.upper < self.bound


def series(run: Run) -> list[dict[str, Any]]:
    """Return the values of every resource, one for each sample, None where there is none."""
    table_lines = []
    for resource in (*RESOURCES, *OURS):
        sides = ("ours",) if resource in OURS else ("with", "without")
        line = {"name": resource.name, "unit": resource.unit, "bound": resource.bound}
        table_lines.append(line | {side: rounded(list(map(float, resource.series(run, side)))) for side in sides})
    return table_lines


def judge_starts(samples: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Judged]:
    """Return the slope of each resource's difference per 1,000 starts; ``samples``: by side."""
    table_lines = []
    first = int(len(samples["with"]) * WARM_UP)
    for name, (unit, bound) in STARTS_BOUNDS.items():
        scale = MIB if unit == "MiB" else 1.0
        pairs = list(zip(samples["with"], samples["without"], strict=True))[first:]
        differences = [(ours[name] - theirs[name]) / scale for ours, theirs in pairs]
        table_lines.append(Judged(name, unit, bound, slope([ours["starts"] / 1000 for ours, _ in pairs], differences)))
    return table_lines


def judge(done: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Return the slope of each resource's difference, with Rechannel less without it, per 1,000 batches.

    ``done``: batches with Rechannel at each sample; ``rows``: those of `series`.
    """
    table_lines = []
    batches = np.asarray(done, float) / 1000
    for row in rows:
        values = np.asarray(row.get("ours") or row["with"], float)
        if "without" in row:
            values = values - np.asarray(row["without"], float)
        used = np.isfinite(values)
        used[: int(len(values) * WARM_UP)] = False
        result = slope(batches[used].tolist(), values[used].tolist())
        table_lines.append(Judged(row["name"], row["unit"], row["bound"], result))
    return table_lines


def audit(run: Run) -> list[str]:
    """Return what is wrong with the output of the drivers: nothing if every batch is exact."""
    wrong = []
    out = {
        side: {(line["query"], line["batch"]): line["out"] for line in run[side]["batches"]}
        for side in ("with", "without")
    }
    for name in queries.NAMES:
        both = sorted(batch for query, batch in out["with"] if query == name and (name, batch) in out["without"])
        differing = [batch for batch in both if out["with"][name, batch] != out["without"][name, batch]]
        if not both:
            wrong.append(f"{name}: no batch can be compared")
        if name != queries.FOREACH and any(not out["with"][name, batch] for batch in both):
            wrong.append(f"{name}: batches without a digest")
        if differing:
            wrong.append(
                f"{name}: {len(differing)} of {len(both)} batches differ between the drivers, first {differing[0]}"
            )
    for side in ("with", "without"):
        foreach = run[side]["foreach"]
        if foreach["counts"] != queries.counted(foreach["batches"]):
            wrong.append(f"{side}: the counts of foreachBatch are not those of its {foreach['batches']} batches")
        for name, text in run[side]["exceptions"].items():
            wrong.append(f"{side}: {name}: {text.splitlines()[0]}")
        if run[side]["problem"]:
            wrong.append(f"{side}: {run[side]['problem']}")
    return wrong


def compared(run: Run) -> int:
    """Return how many batches both drivers have had."""
    sides = [{(line["query"], line["batch"]) for line in run[side]["batches"]} for side in ("with", "without")]
    return len(sides[0] & sides[1])


def milestones(run: Run) -> list[dict[str, Any]]:
    """Return for each milestone that was reached, the end, and each side, what the drivers cost by then."""
    table_lines = []
    end = min(run["samples"][-1][side]["batches"] for side in ("with", "without"))
    for milestone in (*(milestone for milestone in MILESTONES if milestone < end), end):
        for side in ("with", "without"):
            index = next((i for i, item in enumerate(run["samples"]) if item[side]["batches"] >= milestone), None)
            if index is None:
                continue
            row: dict[str, Any] = {"batches": milestone, "side": side}
            durations = _around([line["seconds"] * 1000 for line in run[side]["batches"]], milestone, _AROUND)
            reached = run["samples"][index]["at"]
            before = sum(line["at"] <= reached for line in run[side]["starts"])
            starts = _around([line["start"] * 1000 for line in run[side]["starts"]], before, _STARTS_AROUND)
            row["`start()` of a query"] = statistics.median(starts)
            row["batch, median"] = statistics.median(durations)
            row["batch, p99"] = float(np.percentile(durations, 99))
            for resource in RESOURCES[3:]:
                values = resource.series(run, side)
                recent = values[max(0, index + 1 - resource.window) : index + 1]
                # Not every sample has a value: that of the next one, at the end that of the last one.
                nearest = (*values[index:], *reversed(values[:index]))
                usable = [value for value in recent if np.isfinite(value)] or [
                    next((value for value in nearest if np.isfinite(value)), math.nan)
                ]
                row[resource.name] = statistics.fmean(usable)
            table_lines.append(row)
    return table_lines


def _around(values: Sequence[float], position: int, count: int) -> Sequence[float]:
    """Return ``count`` values that end at a position, or the first ones where it is too early for that."""
    end = min(len(values), max(position, count))
    return values[max(0, end - count) : end]


def epoch(text: str) -> float:
    """Return the seconds since the epoch of Spark's own time in a progress event."""
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
