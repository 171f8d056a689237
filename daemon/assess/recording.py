"""Recording of one application: its event log, folded into batches by period.

A period ends when an executor comes or goes, or a run of a query begins or ends. For each query the newest period with
enough batches stays in memory, with its newest batches; the log itself is never held. Logs are hostile input: numbers
out of bounds make a line unreadable, and what never ends in the log ends the recording.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rechannel.monitors.spark import events
from rechannel.monitors.spark.task_table import BatchDone, TaskTable
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import ExecutorInfo

MIN_BATCHES = 3  # of a period, for it to be chosen
_MAX_PARTITIONS = 100_000  # partitions of a stage in an event log; beyond: its events are ignored, and counted
_MAX_QUERIES = 200  # queries of an event log; beyond: further ones are not assessed
_MAX_TASKS = 250_000  # tasks of a query in an event log; beyond: its oldest batches do not count
_MAX_TASKS_IN_ALL = 1_000_000  # tasks of an event log; beyond: the oldest batches of all queries do not count
_MAX_OPEN = 100_000  # jobs, runs or executors that an event log never ends; beyond: it is not assessed
_MAX_HELD = 1_000_000  # tasks of an event log in batches that never commit; beyond: it is not assessed
_CHECKED_EVERY = 20_000  # lines
_TIMELINE = 400  # newest batches of a query whose durations stay
_LARGEST = 2**53  # of any number
_LONGEST_NAME = 200  # characters


class EndlessLogError(Exception):
    """A log whose jobs, runs or batches never end."""


@dataclass(eq=False)
class Period:
    """Time in which the executors and the runs of queries stayed the same.

    ``reason``: what began it; ``batches``: query -> its newest batches, oldest first; ``straddling``: query -> the
    batch that was under way when the period began, and does not count.
    """

    reason: str
    executors: dict[str, ExecutorInfo]
    straddling: dict[str, int] = field(default_factory=dict)
    batches: dict[str, deque[BatchReport]] = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """Number of tasks of all its batches."""
        return sum(batch.tasks for batches in self.batches.values() for batch in batches)

    @property
    def end(self) -> float:
        """End of its newest batch."""
        return max((batches[-1].end for batches in self.batches.values() if batches), default=0.0)


@dataclass(eq=False)
class QueryRecord:
    """A streaming query.

    ``committed``: batches whose progress is in the log; ``measured``: those of them whose tasks are. ``timeline``:
    start of the trigger, seconds and rows of the newest batches. ``pool``: of the scheduler, "" without one of its own.
    """

    query: str
    name: str = ""
    run: str = ""
    pool: str = ""
    committed: int = 0
    measured: int = 0
    last_batch: int = -1
    opens_state: bool = False  # by the RDDs of its jobs
    operators: tuple[events.StateOperator, ...] = ()
    timeline: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=_TIMELINE))


class Recording:
    """An application's event log so far; `add` lines in order, then `finish`."""

    def __init__(self, most_batches: int) -> None:
        self.application, self.name, self.version = "", "", ""
        self.properties: dict[str, str] = {}
        self.queries: dict[str, QueryRecord] = {}
        self.chosen: dict[str, Period] = {}  # query -> the period that it is assessed by
        self.counts: Counter[type] = Counter()  # events by type
        self.unreadable = 0
        self.other_queries = 0  # batches of queries beyond the bound
        self.dropped: list[str] = []  # queries whose batches had no room
        self._most_batches = max(most_batches, MIN_BATCHES)
        self._table = TaskTable()
        self._period = Period("the log begins", {})
        self._lines = 0

    def add(self, line: bytes) -> None:
        """Fold one line in; EndlessLogError where too much never ends."""
        self._lines += 1
        if not self._lines % _CHECKED_EVERY:
            self._check_bounds()
        try:
            event = events.parse(line)
        except (events.EventError, ArithmeticError, RecursionError):
            self.unreadable += 1
            return
        if event is None:
            return
        if not _is_plausible(event):
            self.unreadable += 1
            return
        self.counts[type(event)] += 1
        self._add_event(event)

    def finish(self) -> None:
        """End the last period."""
        self._end_period("")

    def _add_event(self, event: events.Event) -> None:
        match event:
            case events.LogStarted():
                self.version = event.version
            case events.ApplicationStarted():
                self.name = event.name[:_LONGEST_NAME]
                attempt = f"_{event.attempt}" if event.attempt else ""
                self.application = f"{event.application or ''}{attempt}"[:_LONGEST_NAME]
            case events.EnvironmentUpdated():
                self.properties = event.properties
            case events.QueryProgressed():
                self._progressed(event)
                return
            case events.JobStarted() if event.query:
                self._job_started(event)
                return
        notices = self._table.add(event)
        match event:
            case events.ExecutorAdded():
                self._end_period(f"executor {event.executor} came")
            case events.ExecutorRemoved():
                self._end_period(f"executor {event.executor} went")
            case events.QueryTerminated():
                self._end_period(f"query {self._name(event.query)} ended")
        self._add_batches(notices)

    def _job_started(self, event: events.JobStarted) -> None:
        event = self._table.with_run(event)
        begins = event.run not in self._table.runs
        if begins:
            self._end_period(f"query {self._name(event.query)} began")
        self._table.add(event)
        record = self._record(event.query)
        if record is not None:
            record.run, record.pool = event.run, event.pool
            record.opens_state |= any(stage.stateful for stage in event.stages)

    def _progressed(self, event: events.QueryProgressed) -> None:
        record = self._record(event.query)
        if record is not None:
            record.name = event.name[:_LONGEST_NAME] or record.name
            record.operators = event.operators or record.operators
            if event.batch != record.last_batch or event.run != record.run:
                record.committed += 1
                record.timeline.append((event.triggered, event.seconds, event.input_rows))
            record.last_batch, record.run = event.batch, event.run
        self._add_batches(self._table.add(event))

    def _add_batches(self, notices: Iterable[object]) -> None:
        for notice in notices:
            if not isinstance(notice, BatchDone) or notice.report is None or not notice.report.stages:
                continue
            report, record = notice.report, self._record(notice.query)
            if record is None:
                self.other_queries += 1
                continue
            record.measured += 1
            if report.batch == self._period.straddling.get(report.query, -1):
                continue
            batches = self._period.batches.setdefault(report.query, deque(maxlen=self._most_batches))
            batches.append(report)
            tasks = sum(batch.tasks for batch in batches)
            while tasks > _MAX_TASKS and len(batches) > MIN_BATCHES:
                tasks -= batches.popleft().tasks

    def _record(self, query: str) -> QueryRecord | None:
        if query not in self.queries and len(self.queries) < _MAX_QUERIES:
            self.queries[query] = QueryRecord(query)
        return self.queries.get(query)

    def _name(self, query: str) -> str:
        record = self.queries.get(query)
        return (record.name if record else "") or query[:8]

    def _end_period(self, reason: str) -> None:
        """Choose the period that ends for its queries, and begin the next one."""
        period, table = self._period, self._table
        for query, batches in period.batches.items():
            before = self.chosen.get(query)
            if before is None or len(batches) >= min(MIN_BATCHES, len(before.batches[query])):
                self.chosen[query] = period
        self._period = Period(
            reason, dict(table.executors), {it: table.last_batch[it] for it in table.last_batch if table.in_batch(it)}
        )
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        periods = sorted(set(self.chosen.values()), key=lambda period: period.end)
        tasks = sum(period.tasks for period in periods)
        for period in periods[:-1]:
            if tasks <= _MAX_TASKS_IN_ALL:
                return
            tasks -= period.tasks
            for query in [query for query, chosen in self.chosen.items() if chosen is period]:
                del self.chosen[query]
                self.dropped.append(query)

    def _check_bounds(self) -> None:
        table = self._table
        if max(len(table.jobs), len(table.runs), len(table.executors)) > _MAX_OPEN:
            raise EndlessLogError(f"the log has more than {_MAX_OPEN:,} jobs, runs or executors at a time")
        if table.held_tasks > _MAX_HELD or len(table.unconfirmed) > _MAX_HELD:
            raise EndlessLogError(f"the log has more than {_MAX_HELD:,} tasks of batches that are not committed")


def _is_plausible(event: events.Event) -> bool:
    """Whether the numbers of an event are possible, so that nothing grows by them."""
    match event:
        case events.TaskEnded():
            row = event.row
            numbers = (row.task, row.rows_in, row.rows_out, row.state_rows, row.state_bytes, row.state_size)
            times = (row.launch, row.finish, row.run, row.fetch_wait)
            return 0 <= row.partition < _MAX_PARTITIONS and all(abs(it) < _LARGEST for it in (*numbers, *times))
        case events.JobStarted():
            return abs(event.at) < _LARGEST and all(0 <= stage.partitions < _MAX_PARTITIONS for stage in event.stages)
        case events.JobEnded():
            return abs(event.at) < _LARGEST
        case events.StageEnded():
            return 0 <= event.tasks < _MAX_PARTITIONS and abs(event.submitted) < _LARGEST
        case events.QueryProgressed():
            return all(0 <= it < _LARGEST for it in (event.seconds, event.triggered)) and (
                -1 <= event.batch < _LARGEST and 0 <= event.input_rows < _LARGEST
            )
        case events.ExecutorAdded():
            return 0 <= event.cores < _MAX_PARTITIONS and abs(event.at) < _LARGEST
    return True
