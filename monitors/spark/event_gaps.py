"""Detection of lost events, by comparing the task table with Spark's own state. Pure.

A bus queue drops events when it is full, and a listener that fails loses one. The task table is then wrong for good: a
job that never ends, an executor that never leaves. `EventGaps.confirmed_differences` returns the differences, and
`healing_event` the event that brings the table back into line. A difference counts if two comparisons in a row have
it, as events arrive some moments late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rechannel.monitors.spark import events
from rechannel.monitors.spark.task_table import TaskTable

Kind = Literal["executor added", "executor removed", "job started", "job ended", "query terminated", "batch committed"]
Difference = tuple[Kind, str]


@dataclass(frozen=True)
class SparkState:
    """Spark's own state at one moment. ``runs``: run -> query of all active streaming queries.

    ``idle``: queries whose trigger is not active, of those that `TaskTable.uncommitted` names.
    """

    executors: frozenset[str]
    jobs: frozenset[int]
    runs: dict[str, str]
    idle: frozenset[str] = frozenset()


@dataclass
class EventGaps:
    """Repeated comparison of table and Spark; ``healed``: differences that were made good."""

    table: TaskTable
    healed: int = 0
    _suspects: set[Difference] = field(default_factory=set)

    def confirmed_differences(self, state: SparkState) -> list[Difference]:
        """Return the differences in this comparison that were in the one before too."""
        differences = self._differences(state)
        confirmed = differences & self._suspects
        self._suspects = differences - confirmed
        self.healed += len(confirmed)
        return sorted(confirmed)

    def _differences(self, state: SparkState) -> set[Difference]:
        table = self.table
        executors, jobs, runs = set(table.executors), table.jobs, table.runs
        differences: set[Difference] = set()
        differences |= {("executor added", name) for name in state.executors - executors}
        differences |= {("executor removed", name) for name in executors - state.executors}
        differences |= {("job started", str(job)) for job in state.jobs - jobs}
        differences |= {("job ended", str(job)) for job in jobs - state.jobs}
        differences |= {("query terminated", run) for run in runs.keys() - state.runs.keys()}
        uncommitted = table.uncommitted(state.jobs)
        differences |= {("batch committed", run) for run, query in uncommitted.items() if query in state.idle}
        return differences


def healing_event(difference: Difference, table: TaskTable, now: float) -> events.Event | None:
    """Return the lost event, or None where Spark has to be asked for it."""
    kind, name = difference
    match kind:
        case "executor removed":
            return events.ExecutorRemoved(name, "its event was lost", now)
        case "job ended":
            return events.JobEnded(int(name), now)
        case "query terminated":
            return events.QueryTerminated(table.runs[name], name)
        case "batch committed":
            query = table.runs[name]
            return events.QueryProgressed(query, name, table.last_batch.get(query, -1), -1, 0.0)
    return None
