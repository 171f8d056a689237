"""The demo's output: progress, tables and the verdict; plain lines when standard output is not a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo import feed
from examples.demo.eventlog import EventLog
from examples.demo.rechannel_view import Decision

__all__ = ["Screen", "Timeline", "batch_figures", "placement_rows", "quantile"]


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value below which this share of the values lies (nearest rank), or None if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass
class Timeline:
    """The moments that divide a run into before, during and after, by the wall clock."""

    measured_from: float = 0.0
    changed_at: float | None = None
    settled: float | None = None
    ended: float = float("inf")

    def phase(self, batch: feed.Progress) -> str | None:
        """Return the phase that a batch counts for; None for warm-up, the end, and batches without input."""
        if batch.rows <= 1 or batch.started < self.measured_from or batch.wall > self.ended:
            return None
        if self.changed_at is None or batch.wall <= self.changed_at:
            return "before"
        return "during" if self.settled is None or batch.started < self.settled else "after"


def batch_figures(timeline: Timeline, batches: Sequence[feed.Progress]) -> dict[str, dict[str, float | int | None]]:
    """Return p50 and p95 of a query's batch durations in each phase, with the number of batches."""
    phases: dict[str, list[float]] = {"before": [], "during": [], "after": []}
    for batch in batches:
        phase = timeline.phase(batch)
        if phase is not None:
            phases[phase].append(batch.trigger_ms)
    return {
        phase: {"p50": quantile(times, 0.5), "p95": quantile(times, 0.95), "batches": len(times)}
        for phase, times in phases.items()
    }


def placement_rows(log: EventLog, query: str, last_batches: int = 10) -> list[tuple[str, str, int, float]]:
    """Return (host, executor, partitions, share of busy time) for every live executor, from Spark's own event log."""
    latest = log.latest(query)
    if latest is None:
        return []
    counts = Counter(latest.placement.values())
    shares = log.busy_share(query, last_batches)
    return sorted(
        (host, executor, counts.get(executor, 0), shares.get(executor, 0.0)) for executor, host in log.executors.items()
    )


class Screen:
    """Writes to the terminal through rich, or plain lines with the seconds since the start."""

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self._console = Console(highlight=False, soft_wrap=not self.terminal, width=None if self.terminal else 200)
        self._started = time.monotonic()
        columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True, disable=not self.terminal)
        self._task = self._bar.add_task("", total=None)
        self._bar.start()

    def close(self) -> None:
        """Take the progress bar off the terminal."""
        self._bar.stop()

    def say(self, text: str, style: str = "") -> None:
        """Write one line."""
        self._console.print(f"{time.monotonic() - self._started:6.1f} s  {text}", style=style or None, markup=False)

    def progress(self, finished: dict[str, int], last: dict[str, float], note: str, total: int) -> None:
        """Show how far the queries are, of about ``total`` batches: a bar on a terminal, else a line."""
        text = "  ".join(f"{query}: batch {count}, {last.get(query, 0):.0f} ms" for query, count in finished.items())
        if self.terminal:
            done = min(min(finished.values()), total)
            self._bar.update(self._task, completed=done, total=total, description=f"{note}  {text}")
        else:
            self.say(f"{note:24} {text}")

    def placement(self, title: str, log: EventLog, queries: Sequence[str]) -> None:
        """Show who holds what, and how the busy time is divided."""
        table = Table(title=title, title_justify="left")
        table.add_column("node")
        table.add_column("executor")
        for query in queries:
            table.add_column(f"{query}: partitions", justify="right")
            table.add_column("busy share", justify="right")
        by_query = {query: placement_rows(log, query) for query in queries}
        for position, (host, executor, _, _) in enumerate(next(iter(by_query.values()), [])):
            cells = [host, executor]
            for query in queries:
                rows = by_query[query]
                cells += [str(rows[position][2]), f"{rows[position][3]:.0%}"] if position < len(rows) else ["-", "-"]
            table.add_row(*cells)
        self._console.print(table)

    def decision(self, decision: Decision) -> None:
        """Show what was decided and why, with each executor's utilization before and after."""
        for sentence in decision.sentences:
            self.say(f"decision: {sentence}", "bold")
        table = Table(title="Decided", title_justify="left")
        for column in ("node", "executor", "partitions before", "after", "utilization before", "predicted"):
            table.add_column(column, justify="left" if column in ("node", "executor") else "right")
        for load in decision.loads:
            shares = [f"{share:.0%}" for share in load.utilization]
            table.add_row(load.node, load.executor, *map(str, load.partitions), *shares)
        if decision.loads:
            self._console.print(table)

    def durations(self, figures: dict[str, dict[str, dict[str, float | int | None]]]) -> None:
        """Show batch durations before, during and after."""
        table = Table(title="Batch duration, ms (p50 / p95, number of batches)", title_justify="left")
        for column in ("query", "before", "during", "after"):
            table.add_column(column, justify="left" if column == "query" else "right")
        for query, phases in figures.items():
            cells = [
                "-" if phase["p50"] is None else f"{phase['p50']:.0f} / {phase['p95']:.0f} ({phase['batches']})"
                for phase in phases.values()
            ]
            table.add_row(query, *cells)
        self._console.print(table)
