"""The task table: folds the event stream into running jobs, finished batches and where each partition last ran.

Pure bookkeeping on an application's events, in order; no clock and no Spark. Knows when a query is *quiet*: no job of
it runs, so none of its state stores is open and a steer cannot reach a store in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rechannel.monitors.spark import events
from rechannel.wire.measurements import BatchReport, StageRun
from rechannel.wire.messages import ExecutorInfo

_KEPT_BATCHES = 4  # unfinished batches kept per query; one is usual, more means their progress was never told


@dataclass
class _Batch:
    start: float
    end: float = 0.0
    stages: dict[int, StageRun] = field(default_factory=dict)


@dataclass
class _Job:
    started: events.JobStarted
    ordinals: dict[int, int]  # spark stage -> ordinal of the stateful stage in its query


@dataclass(frozen=True)
class StatefulStageFinished:
    """A stateful stage that just finished, with the ids of its SQL metrics."""

    query: str
    run: str
    stage: int
    partitions: int
    accumulators: frozenset[int]


@dataclass(frozen=True)
class BatchDone:
    """A micro-batch of ``seconds`` is committed. ``report``: None where the event that told of it was lost."""

    query: str
    run: str
    batch: int
    seconds: float
    report: BatchReport | None


@dataclass(frozen=True)
class PartitionMoved:
    """A partition ran on another executor than the last time."""

    query: str
    stage: int
    partition: int
    before: str
    after: str


@dataclass(frozen=True)
class QueryIdle:
    """The last running job of a query ended."""

    query: str
    run: str
    batch: int


@dataclass(frozen=True)
class QueryBusy:
    """A job of the query began."""

    query: str
    run: str
    batch: int


Notice = (
    StatefulStageFinished
    | BatchDone
    | PartitionMoved
    | QueryIdle
    | QueryBusy
    | events.ExecutorRemoved
    | events.QueryTerminated
)


class TaskTable:
    """Fold events with `add`; read executors, placement and quiet queries at any time."""

    def __init__(self) -> None:
        self.executors: dict[str, ExecutorInfo] = {}
        self.placement: dict[tuple[str, int], list[str]] = {}  # (query, stateful stage) -> executor per partition
        self.ran: dict[tuple[str, int], list[int]] = {}  # the same -> batch in which the partition last ran there
        self.stages: dict[str, set[int]] = {}  # query -> its stateful stages that have a placement
        self.failed_tasks = 0
        self.last_batch: dict[str, int] = {}
        self.committed: dict[str, int] = {}  # run -> last batch that is known to be committed
        self.runs: dict[str, str] = {}  # run -> query, of runs that began a batch
        self.doubts: set[tuple[str, int, int]] = set()  # (query, stage, partition) that may have run elsewhere
        self.ended = False
        self._jobs: dict[int, _Job] = {}
        self._stage_job: dict[int, int] = {}
        self._running: dict[str, set[int]] = {}
        self._strangers: set[int] = set()  # running jobs that open state stores and name no query
        self._others: set[int] = set()  # running jobs that are of no concern
        self._trusted: set[str] = set()  # queries seen from one batch's end on: no job of theirs is unseen
        self._tasks: dict[tuple[int, int], list[events.TaskEnded]] = {}
        self._batches: dict[tuple[str, int], _Batch] = {}

    def quiet(self, query: str) -> bool | None:
        """Say whether no job of the query runs; None as long as a job of before the attach may still run."""
        if query not in self._trusted:
            return None
        return not self._running.get(query) and not self._strangers

    def in_batch(self, query: str) -> bool:
        """Say whether the batch begun last is not committed yet; it may be between two of its jobs."""
        return (query, self.last_batch.get(query, -1)) in self._batches

    def began(self, query: str) -> float:
        """When the batch began that is not committed yet, 0 when there is none."""
        batch = self._batches.get((query, self.last_batch.get(query, -1)))
        return batch.start if batch else 0.0

    def assume_quiet(self, query: str) -> None:
        """Take a query for quiet whose jobs were never seen (the driver says its trigger is not active)."""
        if not self._running.get(query):
            self._trusted.add(query)

    @property
    def jobs(self) -> set[int]:
        """All jobs that run, as far as the events tell."""
        return self._jobs.keys() | self._strangers | self._others

    def uncommitted(self) -> dict[str, str]:
        """Return run -> query where the last batch's jobs have ended and its commit was not told of yet."""
        return {run: query for run, query in self.runs.items() if self.in_batch(query) and not self._running.get(query)}

    def doubt_placement(self) -> None:
        """Events were lost: every partition may have run elsewhere than the table says."""
        self.doubts = {
            (query, stage, partition)
            for (query, stage), where in self.placement.items()
            for partition in range(len(where))
        }

    def place(self, query: str, stage: int, partition: int, executor: str) -> None:
        """Take over from Spark itself where a doubtful partition is; "": Spark does not know, and the table stands."""
        self.doubts.discard((query, stage, partition))
        where = self.placement.get((query, stage), [])
        if executor and partition < len(where) and where[partition] != executor:
            where[partition] = executor
            self.ran[query, stage][partition] = self.last_batch.get(query, -1)

    def add(self, event: events.Event) -> list[Notice]:
        """Fold one event in; returns what follows from it."""
        match event:
            case events.TaskEnded():
                return self._task_ended(event)
            case events.JobStarted():
                return self._job_started(event)
            case events.JobEnded():
                return self._job_ended(event)
            case events.StageEnded():
                return self._stage_ended(event)
            case events.QueryProgressed():
                return self._progressed(event)
            case events.ExecutorAdded():
                self.executors[event.executor] = ExecutorInfo(
                    executor=event.executor, host=event.host, cores=event.cores, added=event.at
                )
            case events.ExecutorRemoved():
                self.executors.pop(event.executor, None)
                return [event]
            case events.QueryTerminated():
                self._forget(event.query, event.run)
                return [event]
            case events.ApplicationEnded():
                self.ended = True
        return []

    def _job_started(self, event: events.JobStarted) -> list[Notice]:
        if not event.query:
            # foreachBatch from a thread of the user's own: whose state it opens is not said, so nobody is quiet.
            opens_state = any(shape.stateful for shape in event.stages)
            (self._strangers if opens_state else self._others).add(event.job)
            return []
        self.runs[event.run] = event.query
        stateful = sorted(shape.stage for shape in event.stages if shape.stateful)
        self._jobs[event.job] = _Job(event, {stage: ordinal for ordinal, stage in enumerate(stateful)})
        for shape in event.stages:
            self._stage_job[shape.stage] = event.job
        self._running.setdefault(event.query, set()).add(event.job)
        self.last_batch[event.query] = event.batch
        mine = sorted(batch for query, batch in self._batches if query == event.query)
        for batch in mine[: -_KEPT_BATCHES + 1]:
            del self._batches[event.query, batch]
        self._batches.setdefault((event.query, event.batch), _Batch(start=event.at))
        return [QueryBusy(event.query, event.run, event.batch)]

    def _job_ended(self, event: events.JobEnded) -> list[Notice]:
        job = self._jobs.get(event.job)
        if event.job not in self.jobs or (job is not None and not job.started.stages):
            self.doubt_placement()  # its start was lost, so nobody knows which stages were its own
        self._strangers.discard(event.job)
        self._others.discard(event.job)
        if job is None:
            return []
        started = job.started
        notices: list[Notice] = []
        for shape in started.stages:
            # Tasks are left where the end of their stage was lost.
            for stage, attempt in [key for key in self._tasks if key[0] == shape.stage]:
                notices += self._stage_ended(events.StageEnded(stage, attempt, "", frozenset(), shape.partitions))
            self._stage_job.pop(shape.stage, None)
        del self._jobs[event.job]
        batch = self._batches.get((started.query, started.batch))
        if batch is not None:
            batch.end = event.at
        running = self._running.get(started.query, set())
        running.discard(event.job)
        if not running and self.quiet(started.query):
            notices.append(QueryIdle(started.query, started.run, started.batch))
        return notices

    def _task_ended(self, event: events.TaskEnded) -> list[Notice]:
        if event.failure:
            # "TaskKilled" is Spark's own doing (a copy lost a speculation race, the query was stopped): no failure.
            self.failed_tasks += event.failure != "TaskKilled"
            return []
        if event.stage in self._stage_job:
            self._tasks.setdefault((event.stage, event.attempt), []).append(event)
        return []

    def _stage_ended(self, event: events.StageEnded) -> list[Notice]:
        number = self._stage_job.get(event.stage)
        job = self._jobs.get(number) if number is not None else None
        ended = self._tasks.pop((event.stage, event.attempt), [])
        rows = [task.row for task in ended]
        if job is None:
            return []
        started = job.started
        shape = next(item for item in started.stages if item.stage == event.stage)
        # A stage that lists state among its ancestors but opened no store read a cached copy: no partition ran here.
        opened = [task.row for task in ended if task.opened_state]
        ordinal = job.ordinals.get(event.stage, -1) if opened else -1
        batch = self._batches.get((started.query, started.batch))
        if batch is not None and rows:
            earlier = batch.stages.get(event.stage)
            batch.stages[event.stage] = StageRun(
                spark_stage=event.stage,
                parents=list(shape.parents),
                stateful=ordinal,
                tasks=(earlier.tasks if earlier else []) + rows,
            )
        if not event.failure and len({row.partition for row in rows}) < event.tasks:
            self._doubt(started.query, job.ordinals.get(event.stage, -1), event.tasks)
        if ordinal < 0:
            return []
        key = (started.query, ordinal)
        # A job may run a part of the partitions only (df.isEmpty in foreachBatch, say): the others stay as known.
        size = max(shape.partitions, 1 + max(row.partition for row in opened))
        self.stages.setdefault(started.query, set()).add(ordinal)
        where = self.placement.setdefault(key, [])
        ran = self.ran.setdefault(key, [])
        where += [""] * (size - len(where))
        ran += [-1] * (size - len(ran))
        notices: list[Notice] = []
        for row in sorted(opened, key=lambda row: row.finish):
            before = where[row.partition]
            if before and before != row.executor:
                notices.append(PartitionMoved(started.query, ordinal, row.partition, before, row.executor))
            where[row.partition], ran[row.partition] = row.executor, started.batch
            self.doubts.discard((*key, row.partition))
        if event.failure:
            return notices
        return [
            *notices,
            StatefulStageFinished(started.query, started.run, ordinal, shape.partitions, event.accumulators),
        ]

    def _doubt(self, query: str, ordinal: int, tasks: int) -> None:
        """Ends of tasks were lost: where the partitions ran of which no other tells is not known."""
        size = max(len(self.placement.get((query, ordinal), [])), tasks if ordinal >= 0 else 0)
        self.doubts |= {(query, ordinal, partition) for partition in range(size)}

    def _progressed(self, event: events.QueryProgressed) -> list[Notice]:
        self._trusted.add(event.query)
        self.runs[event.run] = event.query
        self.committed[event.run] = event.batch
        notices: list[Notice] = []
        # A committed batch has no running job. Should the end of one have been lost, this heals it.
        for number, job in list(self._jobs.items()):
            if job.started.query == event.query and job.started.batch <= event.batch:
                notices += self._job_ended(events.JobEnded(number, True, job.started.at))
        batch = self._batches.pop((event.query, event.batch), None)
        # What was never told to be committed is so with the batches after it.
        for older in [key for key in self._batches if key[0] == event.query and key[1] < event.batch]:
            del self._batches[older]
        if batch is None:
            return notices
        report = BatchReport(
            query=event.query,
            batch=event.batch,
            start=batch.start,
            end=max(batch.end, batch.start),
            input_rows=event.input_rows,
            stages=[batch.stages[stage] for stage in sorted(batch.stages)],
            duration=event.seconds,
        )
        told = event.input_rows >= 0
        return [*notices, BatchDone(event.query, event.run, event.batch, event.seconds, report if told else None)]

    def _forget(self, query: str, run: str) -> None:
        self.runs.pop(run, None)
        self.committed.pop(run, None)
        for number, job in list(self._jobs.items()):
            if job.started.query == query and job.started.run in (run, ""):
                self._running.get(query, set()).discard(number)
                del self._jobs[number]
                for shape in job.started.stages:
                    self._stage_job.pop(shape.stage, None)
                    for attempt in [key for key in self._tasks if key[0] == shape.stage]:
                        del self._tasks[attempt]
        if query in self.runs.values():
            return  # restarted already, and the end of the run before is told late
        self._running.pop(query, None)
        self._trusted.discard(query)
        self.last_batch.pop(query, None)
        self.doubts = {doubt for doubt in self.doubts if doubt[0] != query}
        for stage in self.stages.pop(query, ()):
            del self.placement[query, stage]
            del self.ran[query, stage]
        for batch in [key for key in self._batches if key[0] == query]:
            del self._batches[batch]
