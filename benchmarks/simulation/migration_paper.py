"""The experiment of the pipelined-migration paper on a fluid model (:mod:`benchmarks.simulation.fluid_engine`).

Lines of one spout and four bolts, 4 to 16 tasks a component, 5 to 100 nodes in sub-clusters of five, up to 600 tasks,
word count, 100 Mbit/s. Other words become frequent, and after a while each variant moves tasks by its policy. Every
five seconds: the standard deviation over the nodes of the tuples each has served (in percent of their mean in quiet),
that of the busy share of their cores, and the mean latency. Then an hour in which 85 nodes become 100 near 45 s, words
change every five minutes, and each variant decides every ten.

The paper prints plots but no numbers, so its ranking is tested. A claim is tested by pairs of one seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.report.results import progress
from benchmarks.simulation.fluid_engine import Fluid, make_jobs, nodes
from benchmarks.simulation.variants import VARIANTS, Variant, migrate, target
from rechannel.policies.model.arrays import IntArray

SIZES = (5, 10, 25, 50, 75, 100)
WINDOW = 5.0
ORDER, END, COMMON = 60.0, 240.0, 100.0  # seconds: of the order, of the run, and how long "during" is at most
_TASKS_PER_NODE = 6
MOST_TASKS = 600
JOIN, BEFORE, AFTER = 45.0, 85, 100
DECIDE, CHANGE = 600.0, 300.0
PAIRS = (("proposed", "DCR-like"), ("DCR-like", "MT-like"), ("proposed", "MT-like"), ("adaptive", "proposed"))
METRICS = ("tuples_std", "load_std", "latency")
CLAIMS = tuple((less, more, metric) for less, more in PAIRS for metric in METRICS)
"""What is claimed to be less, than what, in which metric; the last pair is our own question."""


class _Run:
    """A fluid with its windows."""

    def __init__(self, fluid: Fluid, mean: float) -> None:
        self.fluid, self.mean = fluid, mean  # tuples that a node serves in a quiet window
        self.windows: list[dict[str, float]] = []
        self.present: IntArray = np.arange(fluid.size)
        self.now = 0.0
        self._served, self._busy = np.zeros(fluid.size), np.zeros(fluid.size)
        self._ticks = 0
        self._going: Iterator[float] | None = None
        self._wait = 0.0
        self._began = 0.0
        self.durations: list[float] = []  # of the migrations that are over

    def begin(self, going: Iterator[float]) -> None:
        self._going, self._began, self._wait = going, self.now, 0.0

    @property
    def migrating(self) -> bool:
        return self._going is not None

    def until(self, end: float) -> None:
        fluid = self.fluid
        while self.now < end - 1e-9:
            while self._going is not None and self._wait <= 1e-9:
                try:
                    self._wait += next(self._going)
                except StopIteration:
                    self._going = None
                    self.durations.append(self.now - self._began)
            served, busy = fluid.step()
            self._served += served
            self._busy += busy
            self._ticks += 1
            self.now += fluid.tick
            self._wait -= fluid.tick
            if self._ticks * fluid.tick >= WINDOW - 1e-9:
                self._close()

    def _close(self) -> None:
        here = self.present
        self.windows.append(
            {
                "at": round(self.now, 3),
                "tuples_std": float(self._served[here].std()) / self.mean * 100,
                "load_std": float(self._busy[here].std()) / WINDOW * 100,
                "latency": self.fluid.latency(),
            }
        )
        self._served[:], self._busy[:], self._ticks = 0.0, 0.0, 0

    def mean_of(self, metric: str, since: float, until: float) -> float:
        return float(np.mean([row[metric] for row in self.windows if since < row["at"] <= until]))


def one_migration(size: int, seed: int, variants: Sequence[Variant] = VARIANTS) -> list[dict[str, Any]]:
    """Return the duration and the metrics of each variant for one seed at one size.

    ``during``: means of the hundred seconds after the order, for all variants; ``own``: of the variant's own migration,
    None where nothing moved; ``after``: of the last minute.
    """
    tasks = min(_TASKS_PER_NODE * size, MOST_TASKS)
    cluster, rows = nodes(size), []
    for variant in variants:
        random = np.random.default_rng(1000 + seed)
        jobs = make_jobs(tasks, size, seed)
        fluid = Fluid(jobs, np.arange(jobs.size) % size, size)
        run = _Run(fluid, float(jobs.arrivals.sum()) * WINDOW / size)
        run.until(ORDER / 2)
        jobs.reshuffle(random)
        run.until(ORDER)
        goal = fluid.node if variant.means == "none" else target(variant, cluster, jobs, fluid.node)
        moves = int((goal != fluid.node).sum())
        run.begin(migrate(variant, fluid, goal))
        run.until(END)
        last = ORDER + run.durations[0] if run.durations else END
        row: dict[str, Any] = {"variant": variant.name, "size": size, "seed": seed, "tasks": jobs.size, "moves": moves}
        row |= {"seconds": last - ORDER, "windows": run.windows}
        for metric in METRICS:
            own = run.mean_of(metric, ORDER, max(last, ORDER + WINDOW)) if moves else None
            row[metric] = {
                "before": run.mean_of(metric, ORDER / 2, ORDER),
                "during": run.mean_of(metric, ORDER, ORDER + COMMON),
                "own": own,
                "after": run.mean_of(metric, END - ORDER, END),
            }
        rows.append(row)
    return rows


def one_hour(variant: Variant, seed: int, seconds: float = 3600.0) -> dict[str, Any]:
    """Return the metrics of an hour in which 85 nodes become 100 near 45 s.

    The variant decides then and every ten minutes, unless a migration is under way.
    """
    random = np.random.default_rng(2000 + seed)
    jobs = make_jobs(MOST_TASKS, BEFORE, seed)
    fluid = Fluid(jobs, np.arange(jobs.size) % BEFORE, AFTER)
    run = _Run(fluid, float(jobs.arrivals.sum()) * WINDOW / AFTER)
    run.present = np.arange(BEFORE)
    cluster = nodes(AFTER)
    moves = migrations = 0
    changes = np.arange(CHANGE, seconds, CHANGE).tolist()
    decisions = [JOIN, *np.arange(DECIDE, seconds, DECIDE).tolist()]
    for at in sorted({*changes, *decisions, seconds}):
        run.until(at)
        run.present = np.arange(AFTER)
        if at in changes:
            jobs.reshuffle(random, 0.3)
        if at in decisions and variant.means != "none" and not run.migrating:
            goal = target(variant, cluster, jobs, fluid.node)
            count = int((goal != fluid.node).sum())
            moves, migrations = moves + count, migrations + (count > 0)
            if count:
                run.begin(migrate(variant, fluid, goal))
    durations = run.durations
    figures: dict[str, Any] = {"variant": variant.name, "seed": seed, "moves": moves, "migrations": migrations}
    figures |= {"seconds": median(durations) if durations else 0.0, "windows": run.windows}
    for metric in METRICS:
        figures[metric] = {
            "before": run.mean_of(metric, 0.0, JOIN),
            "joining": run.mean_of(metric, JOIN, min(JOIN + COMMON, seconds)),
            "whole": run.mean_of(metric, JOIN, seconds),
        }
    return figures


def migrations(sizes: Sequence[int], seeds: int) -> dict[str, Any]:
    """Every size and seed; the windows of the first seed of the largest size are kept for the plot."""
    rows: list[dict[str, Any]] = []
    for size in sizes:
        progress(f"paper: {size} nodes, {seeds} repetitions")
        for seed in range(seeds):
            rows += one_migration(size, seed)
    for row in rows:
        if row["seed"] or row["size"] != max(sizes):
            del row["windows"]
    return {"rows": rows, "seeds": seeds, "claims": claims(rows, "during")}


def expansion(seeds: int, seconds: float) -> dict[str, Any]:
    """The hour for every variant and seed; windows are kept as the mean over the seeds."""
    rows, series = [], {}
    for variant in VARIANTS:
        progress(f"paper: an hour of {variant.name}")
        own = [one_hour(variant, seed, seconds) for seed in range(seeds)]
        series[variant.name] = [
            {name: float(np.mean([window[name] for window in same])) for name in same[0]}
            for same in zip(*(row.pop("windows") for row in own), strict=True)
        ]
        rows += own
    return {"rows": rows, "series": series, "seeds": seeds, "seconds": seconds, "claims": claims(rows, "whole")}


def claims(rows: Sequence[dict[str, Any]], span: str) -> list[dict[str, Any]]:
    """Of each claim: medians of both, in how many pairs it holds, and the quartiles of less over more."""
    results = []
    for less, more, metric in CLAIMS:
        values = {(row["variant"], row.get("size"), row["seed"]): row[metric][span] for row in rows}
        pairs = [
            (value, values[more, size, seed])
            for (variant, size, seed), value in values.items()
            if variant == less and (more, size, seed) in values
        ]
        if not pairs:
            continue
        ratios = np.array([a / b if b > 0 else 1.0 for a, b in pairs])
        low, high = np.quantile(ratios, [0.25, 0.75]).tolist()
        holds = sum(a < b for a, b in pairs)
        results.append(
            {
                "less": less,
                "more": more,
                "metric": metric,
                "medians": [median(a for a, _ in pairs), median(b for _, b in pairs)],
                "ratio": [float(np.median(ratios)), low, high],
                "holds": holds,
                "pairs": len(pairs),
            }
        )
    return results
