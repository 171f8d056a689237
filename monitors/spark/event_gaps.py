"""Detection of lost events, by comparing the task table with Spark's own state. Pure.

A bus queue drops events when it is full, and a listener that fails loses one. The task table is then wrong for good: a
job never ends, an executor never leaves. `EventGaps.confirmed_differences` returns the differences, and
`healing_event` the event that brings the table back into line. A difference counts if every comparison has it for some
seconds, as events arrive some moments late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rechannel.monitors.spark import events
from rechannel.monitors.spark.task_table import TaskTable

_CONFIRMED_AFTER = 2.0  # seconds; an event that is later than that counts as lost


class GapKind(StrEnum):
    """Kind of a lost event, by which a difference is named in the log."""

    EXECUTOR_ADDED = "executor added"
    EXECUTOR_REMOVED = "executor removed"
    JOB_STARTED = "job started"
    JOB_ENDED = "job ended"
    QUERY_TERMINATED = "query terminated"
    BATCH_COMMITTED = "batch committed"


Difference = tuple[GapKind, str]


@dataclass(frozen=True)
class SparkState:
    """Spark's own state at one moment."""

    executors: frozenset[str]
    jobs: frozenset[int]
    runs: dict[str, str]  # run -> query, of all active streaming queries
    idle: frozenset[str] = frozenset()  # queries without active trigger, of those that `TaskTable.uncommitted` names


@dataclass
class EventGaps:
    """Repeated comparison of table and Spark; ``healed``: differences that were corrected."""

    table: TaskTable
    healed: int = 0
    _suspects: dict[Difference, float] = field(default_factory=dict)  # with the time of the first comparison

    def confirmed_differences(self, state: SparkState, now: float) -> list[Difference]:
        """Return the differences of this comparison that last for some seconds; they begin anew.

        ``now``: seconds of a steady clock.
        """
        suspects = {difference: self._suspects.get(difference, now) for difference in self._differences(state)}
        confirmed = {difference for difference, since in suspects.items() if now - since >= _CONFIRMED_AFTER}
        self._suspects = {difference: since for difference, since in suspects.items() if difference not in confirmed}
        self.healed += len(confirmed)
        return sorted(confirmed)

    def _differences(self, state: SparkState) -> set[Difference]:
        table = self.table
        executors, jobs, runs = set(table.executors), table.jobs, table.runs
        committed = {
            f"{run} {table.last_batch.get(query, -1)}"
            for run, query in table.uncommitted(state.jobs).items()
            if query in state.idle
        }
        return {
            *((GapKind.EXECUTOR_ADDED, name) for name in state.executors - executors),
            *((GapKind.EXECUTOR_REMOVED, name) for name in executors - state.executors),
            *((GapKind.JOB_STARTED, str(job)) for job in state.jobs - jobs),
            *((GapKind.JOB_ENDED, str(job)) for job in jobs - state.jobs),
            *((GapKind.QUERY_TERMINATED, run) for run in runs.keys() - state.runs.keys()),
            *((GapKind.BATCH_COMMITTED, batch) for batch in committed),
        }


def healing_event(difference: Difference, table: TaskTable, now: float) -> events.Event | None:
    """Return the lost event, or None where Spark has to be queried for it."""
    kind, name = difference
    match kind:
        case GapKind.EXECUTOR_REMOVED:
            return events.ExecutorRemoved(name)
        case GapKind.JOB_ENDED:
            return events.JobEnded(int(name), now)
        case GapKind.QUERY_TERMINATED:
            return events.QueryTerminated(table.runs[name], name)
        case GapKind.BATCH_COMMITTED:
            run, _, batch = name.rpartition(" ")
            return events.QueryProgressed(table.runs[run], run, int(batch), -1, 0.0)
    return None
