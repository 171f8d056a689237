"""Task table: folds the event stream into running jobs, finished batches and placements.

Pure bookkeeping on an application's events, in order; no clock and no Spark. It knows when a query is *quiet*: no job
of it runs, so none of its state stores is open and a steer cannot reach a store in use.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec

from rechannel.monitors.spark import events
from rechannel.wire.measurements import BatchReport, StageRun
from rechannel.wire.messages import ExecutorInfo

_MAX_UNFINISHED = 4  # unfinished batches of a query, one is usual; beyond: the oldest is forgotten, its end was lost


@dataclass
class _Batch:
    start: float
    whole: bool  # no job of it ran before the attach
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
    """A micro-batch of ``seconds`` is committed. ``report``: None where its event was lost."""

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
class QueryBusy:
    """A job of the query began."""

    query: str
    run: str


Notice = (
    StatefulStageFinished | BatchDone | PartitionMoved | QueryBusy | events.ExecutorRemoved | events.QueryTerminated
)


class TaskTable:
    """Executors, jobs, batches and placements by the events added so far."""

    def __init__(self) -> None:
        self.executors: dict[str, ExecutorInfo] = {}
        self.placement: dict[tuple[str, int], list[str]] = {}  # (query, stateful stage) -> executor per partition
        self.last_ran: dict[tuple[str, int], list[int]] = {}  # the same -> batch in which the partition last ran there
        self.stages: dict[str, set[int]] = {}  # query -> its stateful stages that have a placement
        self.surveyed: set[str] = set()  # queries seen from their start, or in a whole batch: their state is placed
        self.failed_tasks = 0
        self.last_batch: dict[str, int] = {}
        self.pools: dict[str, str] = {}  # query -> scheduler pool of its last job, "" without one of its own
        self.committed: dict[str, int] = {}  # run -> last batch that is known to be committed
        self.runs: dict[str, str] = {}  # run -> query, of runs that began a batch
        self._current_runs: dict[str, str] = {}  # query -> run, as its start or its progress names it
        self.unconfirmed: set[tuple[str, int, int]] = set()  # (query, stage, partition) that may have run elsewhere
        self.ended = False
        self._jobs: dict[int, _Job] = {}
        self._stage_job: dict[int, int] = {}
        self._running: dict[str, set[int]] = {}
        self._unnamed_jobs: set[int] = set()  # running jobs that open state stores and name no query
        self._unrelated_jobs: set[int] = set()  # running jobs that open no state store and name no query
        self._complete: set[str] = set()  # queries of which a start or a batch's end was seen: so were all jobs since
        self._tasks: dict[int, dict[int, list[events.TaskEnded]]] = {}  # by stage and attempt, while its job runs
        self._batches: dict[str, dict[int, _Batch]] = {}  # by query and number, until they are committed

    def is_quiet(self, query: str) -> bool | None:
        """Whether no job of the query runs; None while one of before the attach may run."""
        if query not in self._complete:
            return None
        return not self._running.get(query) and not self._unnamed_jobs

    def has_state(self, query: str) -> bool:
        """Whether the query has a stateful stage: one that ran, or one of a running job."""
        return query in self.stages or any(self._jobs[job].ordinals for job in self._running.get(query, ()))

    def in_batch(self, query: str) -> bool:
        """Whether the batch begun last is not committed yet; it may be between two of its jobs."""
        return self._batch(query, self.last_batch.get(query, -1)) is not None

    def batch_start(self, query: str) -> float:
        """Return when the uncommitted batch began, 0 if there is none."""
        batch = self._batch(query, self.last_batch.get(query, -1))
        return batch.start if batch else 0.0

    def _batch(self, query: str, number: int) -> _Batch | None:
        return self._batches.get(query, {}).get(number)

    def assume_quiet(self, query: str) -> None:
        """Assume that a query is quiet, as Spark reports its trigger as inactive."""
        if not self._running.get(query):
            self._complete.add(query)

    @property
    def jobs(self) -> set[int]:
        """All running jobs by the events."""
        return self._jobs.keys() | self._unnamed_jobs | self._unrelated_jobs

    @property
    def held_tasks(self) -> int:
        """Ends of tasks held until their stage or their batch is over."""
        stages = (
            run for batches in self._batches.values() for batch in batches.values() for run in batch.stages.values()
        )
        running = (tasks for attempts in self._tasks.values() for tasks in attempts.values())
        return sum(len(run.tasks) for run in stages) + sum(map(len, running))

    def uncommitted(self, active_jobs: Collection[int]) -> dict[str, str]:
        """Return run -> query where the last batch has no active job and no known commit.

        ``active_jobs``: by Spark itself, as a job's end may have been lost together with the commit.
        """
        jobs = {query: running.intersection(active_jobs) for query, running in self._running.items()}
        return {run: query for run, query in self.runs.items() if self.in_batch(query) and not jobs.get(query)}

    def unconfirm_placement(self) -> None:
        """Mark every partition's placement as unconfirmed, as events were lost."""
        self.unconfirmed = {
            (query, stage, partition)
            for (query, stage), executors in self.placement.items()
            for partition in range(len(executors))
        }

    def confirm_placement(self, query: str, stage: int, partition: int, executor: str) -> None:
        """Set the executor of an unconfirmed partition.

        ``stage`` is the number of a stateful stage; ``executor`` is "" if Spark has no location.
        """
        self.unconfirmed.discard((query, stage, partition))
        placement = self.placement.get((query, stage), [])
        if executor and partition < len(placement) and placement[partition] != executor:
            placement[partition] = executor
            self.last_ran[query, stage][partition] = self.last_batch.get(query, -1)

    def add(self, event: events.Event) -> list[Notice]:
        """Fold one event in; return what follows from it."""
        match event:
            case events.TaskEnded():
                return self._task_ended(event)
            case events.JobStarted():
                return self._job_started(event)
            case events.JobEnded():
                return self._job_ended(event)
            case events.StageEnded():
                return self._stage_ended(event)
            case events.QueryStarted():
                self._current_runs[event.query] = event.run
                self.surveyed.add(event.query)
                self._complete.add(event.query)
            case events.QueryProgressed():
                return self._progressed(event)
            case events.ExecutorAdded():
                self.executors[event.executor] = ExecutorInfo(
                    executor=event.executor, host=event.host, cores=event.cores, added=event.at, node=event.node
                )
            case events.ExecutorRemoved() | events.QueryTerminated():
                return self._remove(event)
            case events.ApplicationEnded():
                self.ended = True
        return []

    def _remove(self, event: events.ExecutorRemoved | events.QueryTerminated) -> list[Notice]:
        if isinstance(event, events.ExecutorRemoved):
            self.executors.pop(event.executor, None)
        else:
            self._forget_run(event.query, event.run)
        return [event]

    def correct_runs(self, active: Mapping[str, str]) -> None:
        """Take active runs (run -> query) for those of queries whose last known run is over."""
        for run, query in active.items():
            if self._current_runs.get(query) not in active:
                self._current_runs[query] = run

    def with_run(self, event: events.JobStarted) -> events.JobStarted:
        """Return a job's start with the run of its query, which Spark writes into the job's group.

        A user's function for foreachBatch may have set another group; then it is the run that the query's events name.
        """
        run = self._current_runs.get(event.query, event.run)
        return event if run == event.run else msgspec.structs.replace(event, run=run)

    def _job_started(self, event: events.JobStarted) -> list[Notice]:
        if not event.query:
            # foreachBatch on a thread of the user: the job may open any query's state, so no query is quiet.
            opens_state = any(stage.stateful for stage in event.stages)
            (self._unnamed_jobs if opens_state else self._unrelated_jobs).add(event.job)
            return []
        event = self.with_run(event)
        self.runs[event.run] = event.query
        stateful = sorted(stage.stage for stage in event.stages if stage.stateful)
        self._jobs[event.job] = _Job(event, {stage: ordinal for ordinal, stage in enumerate(stateful)})
        for stage in event.stages:
            self._stage_job[stage.stage] = event.job
        self._running.setdefault(event.query, set()).add(event.job)
        self.last_batch[event.query] = event.batch
        self.pools[event.query] = event.pool
        batches = self._batches.setdefault(event.query, {})
        for number in sorted(batches)[: -_MAX_UNFINISHED + 1]:
            del batches[number]
        batches.setdefault(event.batch, _Batch(start=event.at, whole=event.query in self._complete))
        return [QueryBusy(event.query, event.run)]

    def _job_ended(self, event: events.JobEnded) -> list[Notice]:
        job = self._jobs.get(event.job)
        if event.job not in self.jobs or (job is not None and not job.started.stages):
            self.unconfirm_placement()  # its start was lost, and with it the list of its stages
        self._unnamed_jobs.discard(event.job)
        self._unrelated_jobs.discard(event.job)
        if job is None:
            return []
        started = job.started
        notices: list[Notice] = []
        for stage in started.stages:
            # Tasks remain where the end of their stage was lost.
            for attempt in list(self._tasks.get(stage.stage, ())):
                ended = events.StageEnded(stage.stage, attempt, "", frozenset(), stage.partitions)
                notices += self._stage_ended(ended)
                # A later batch may have run unseen before this end was known.
                self._unconfirm(started.query, job.ordinals.get(stage.stage, -1), stage.partitions)
            self._drop_stage(stage.stage)
        del self._jobs[event.job]
        batch = self._batch(started.query, started.batch)
        if batch is not None:
            batch.end = event.at
        self._running.get(started.query, set()).discard(event.job)
        return notices

    def _task_ended(self, event: events.TaskEnded) -> list[Notice]:
        if event.failure:
            # "TaskKilled" comes from Spark itself (a copy lost a speculation race, the query was stopped): no failure.
            self.failed_tasks += event.failure != "TaskKilled"
            return []
        if event.stage in self._stage_job:
            self._tasks.setdefault(event.stage, {}).setdefault(event.attempt, []).append(event)
        return []

    def _drop_stage(self, stage: int) -> None:
        self._stage_job.pop(stage, None)
        self._tasks.pop(stage, None)

    def _stage_ended(self, event: events.StageEnded) -> list[Notice]:
        number = self._stage_job.get(event.stage)
        job = self._jobs.get(number) if number is not None else None
        ended = self._tasks.get(event.stage, {}).pop(event.attempt, [])
        rows = [task.row for task in ended]
        if job is None:
            return []
        started = job.started
        stage = next(item for item in started.stages if item.stage == event.stage)
        # A stage with state among its ancestors that opened no store has read a cached copy: no partition ran here.
        opened = [task.row for task in ended if task.opened_state]
        ordinal = job.ordinals.get(event.stage, -1) if opened else -1
        batch = self._batch(started.query, started.batch)
        if batch is not None and rows:
            earlier = batch.stages.get(event.stage)
            batch.stages[event.stage] = StageRun(
                spark_stage=event.stage,
                parents=list(stage.parents),
                stateful_stage=ordinal,
                tasks=[*(earlier.tasks if earlier else ()), *rows],
                submitted=earlier.submitted if earlier else event.submitted,
            )
        if not event.failure and len({row.partition for row in rows}) < event.tasks:
            self._unconfirm(started.query, job.ordinals.get(event.stage, -1), event.tasks)
        if ordinal < 0:
            return []
        key = (started.query, ordinal)
        # A job may run a part of the partitions only (df.isEmpty in foreachBatch, say): the others stay as they are.
        size = max(stage.partitions, 1 + max(row.partition for row in opened))
        self.stages.setdefault(started.query, set()).add(ordinal)
        placement = self.placement.setdefault(key, [])
        last_ran = self.last_ran.setdefault(key, [])
        placement += [""] * (size - len(placement))
        last_ran += [-1] * (size - len(last_ran))
        notices: list[Notice] = []
        for row in sorted(opened, key=lambda row: row.finish):
            before = placement[row.partition]
            if before and before != row.executor:
                notices.append(PartitionMoved(started.query, ordinal, row.partition, before, row.executor))
            # One string for each executor, not one for each task.
            placement[row.partition], last_ran[row.partition] = sys.intern(row.executor), started.batch
            self.unconfirmed.discard((*key, row.partition))
        if event.failure:
            return notices
        return [
            *notices,
            StatefulStageFinished(started.query, started.run, ordinal, stage.partitions, event.accumulators),
        ]

    def _unconfirm(self, query: str, ordinal: int, tasks: int) -> None:
        """Doubt a stage's partitions, as ends of tasks were lost; known ends resolve their own."""
        size = max(len(self.placement.get((query, ordinal), [])), tasks if ordinal >= 0 else 0)
        self.unconfirmed |= {(query, ordinal, partition) for partition in range(size)}

    def _progressed(self, event: events.QueryProgressed) -> list[Notice]:
        self._complete.add(event.query)
        self.runs[event.run] = event.query
        self._current_runs[event.query] = event.run
        self.committed[event.run] = event.batch
        notices: list[Notice] = []
        # A committed batch has no running job: this repairs the loss of a job's end.
        for number in sorted(self._running.get(event.query, ())):
            started = self._jobs[number].started
            if started.batch <= event.batch:
                notices += self._job_ended(events.JobEnded(number, started.at))
        batches = self._batches.get(event.query, {})
        batch = batches.pop(event.batch, None)
        # A batch whose progress was lost is committed with the batches after it.
        for older in [number for number in batches if number < event.batch]:
            del batches[older]
        if batch is None:
            return notices
        if batch.whole:
            self.surveyed.add(event.query)
        start = batch.start or event.triggered  # a healed start has no time
        report = BatchReport(
            query=event.query,
            batch=event.batch,
            start=start,
            end=max(batch.end, start),
            input_rows=event.input_rows,
            stages=[batch.stages[stage] for stage in sorted(batch.stages)],
            duration=event.seconds,
        )
        complete = event.input_rows >= 0  # a healing event has no row count
        return [*notices, BatchDone(event.query, event.run, event.batch, event.seconds, report if complete else None)]

    def _forget_run(self, query: str, run: str) -> None:
        self.runs.pop(run, None)
        self.committed.pop(run, None)
        if self._current_runs.get(query) == run:
            del self._current_runs[query]
        for number in list(self._running.get(query, ())):
            started = self._jobs[number].started
            if started.run in (run, ""):
                self._running[query].discard(number)
                del self._jobs[number]
                for stage in started.stages:
                    self._drop_stage(stage.stage)
        if query in self.runs.values():
            return  # restarted already, and the end of the run before comes late
        self._running.pop(query, None)
        self._complete.discard(query)
        self.surveyed.discard(query)
        self.last_batch.pop(query, None)
        self.pools.pop(query, None)
        self.unconfirmed = {item for item in self.unconfirmed if item[0] != query}
        for ordinal in self.stages.pop(query, ()):
            del self.placement[query, ordinal]
            del self.last_ran[query, ordinal]
        self._batches.pop(query, None)
