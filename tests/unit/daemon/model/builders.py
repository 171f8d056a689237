"""Builders of an application's messages and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.wire.measurements import AgentWindow, BatchReport, StageRun, TaskRow
from rechannel.wire.messages import LinkReport
from unit.daemon.fake_store import NOW
from unit.daemon.fakes import APP, QUERY

OVERHEAD, SOURCE = 0.4, 0.2


def task(number: int, partition: int, executor: str, span: tuple[float, float], rows: int) -> TaskRow:
    begin, end = span
    return TaskRow(number, partition, executor, begin, end, end - begin, 0.0, 0.0, rows, 0, 0, 0, 0, 1, 1000, 0.0)


def batch(
    number: int, where: str, work: list[float], *, loading: float = 0.0, moved: int = -1, waiting: float = 0.0
) -> BatchReport:
    """A batch: overhead, a source task, then each executor's partitions in turn, after ``waiting`` seconds."""
    longest = max(sum(work[p] for p, e in enumerate(where) if e == one) for one in set(where))
    seconds = OVERHEAD + SOURCE + longest + loading + waiting
    start = NOW - (20 - number) * 10.0
    submitted = start + SOURCE
    rows, free = [], dict.fromkeys(where, submitted + waiting)
    for partition, executor in enumerate(where):
        begin = free[executor]
        free[executor] = begin + work[partition] + (loading if partition == moved else 0.0)
        rows.append(
            task(number * 100 + partition, partition, executor, (begin, free[executor]), round(1000 * work[partition]))
        )
    source = [task(number * 100 + 99, 0, "0", (start, start + SOURCE), 400)]
    stages = [
        StageRun(spark_stage=2 * number, parents=[], stateful_stage=-1, tasks=source, submitted=start),
        StageRun(spark_stage=2 * number + 1, parents=[2 * number], stateful_stage=0, tasks=rows, submitted=submitted),
    ]
    return BatchReport(
        query=QUERY, batch=number, start=start, end=start + seconds, input_rows=400, stages=stages, duration=seconds
    )


def with_tasks(report: BatchReport, change: Callable[[TaskRow], TaskRow]) -> BatchReport:
    """Return a batch with its tasks changed."""
    stages = [msgspec.structs.replace(run, tasks=[change(task) for task in run.tasks]) for run in report.stages]
    return msgspec.structs.replace(report, stages=stages)


def messages(
    link: LinkReport,
    batches: Sequence[BatchReport],
    windows: Mapping[str, Sequence[AgentWindow]] | None = None,
) -> ApplicationMessages:
    by_host = {host: tuple(closed) for host, closed in (windows or {}).items()}
    return ApplicationMessages(APP, link, NOW, tuple(batches), by_host)
