"""Partitions and largest streams of an application, from messages and snapshot. Pure.

Busy seconds and rows are means over the last batches. CPU is measured by the node's agent and shared out between the
tasks of its executors (`rechannel.daemon.model.cpu_attribution`).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rechannel.daemon.decide.decision_figures import named_streams
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.cpu_attribution import Attribution, attribute_cpu, complete_span
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.daemon.model.task_columns import columnar_tasks
from rechannel.daemon.view.status import HotStream, PartitionStatus
from rechannel.policies.model.arrays import FloatArray

_UNKNOWN = None, None
_LAST = "state_rows", "state_bytes", "commit"  # fields of `TaskRow`

Key = tuple[str, int, int]  # query, stage, partition


def hot_streams(snapshot: Snapshot) -> tuple[HotStream, ...]:
    """Return the largest streams of class high, largest first."""
    return tuple(
        HotStream(
            query=snapshot.workload.stage(stream.upstream).query,
            upstream=upstream,
            downstream=downstream,
            bytes_per_second=stream.volume,
            local=stream.local,
        )
        for stream, upstream, downstream in named_streams(snapshot, snapshot.workload)
    )


def partition_statuses(messages: ApplicationMessages, snapshot: Snapshot | None) -> tuple[PartitionStatus, ...]:
    """Return the status of each partition of each stateful stage of the active queries."""
    queries = [query for query in messages.report.queries if query.active]
    span = complete_span(queries, messages.batches, messages.reported_at)
    cpu = _cpu(attribute_cpu(messages.application, messages.batches, messages.windows, span=span))
    tasks = _last_tasks(messages)
    statuses = []
    for query in queries:
        for stage in query.stages:
            for partition in range(stage.partitions):
                key = query.query, stage.stage, partition
                state_rows, state_bytes, commit = tasks.get(key, (None, None, None))
                total, python = cpu.get(key, _UNKNOWN)
                busy, rows = _modeled(snapshot, key)
                statuses.append(
                    PartitionStatus(
                        query=query.query,
                        name=query.name,
                        stage=stage.stage,
                        partition=partition,
                        executor=stage.placement[partition] if partition < len(stage.placement) else "",
                        snapshot_lag=_lag(stage.snapshot_lag, partition),
                        cpu=total,
                        python_cpu=python,
                        state_rows=state_rows,
                        state_bytes=state_bytes,
                        commit_seconds=commit,
                        busy_seconds=busy,
                        rows_per_second=rows,
                    )
                )
    return tuple(statuses)


def _last_tasks(messages: ApplicationMessages) -> dict[Key, tuple[int, int, float]]:
    """Return rows and bytes of state and seconds of the commit of each last task."""
    tables: dict[tuple[str, int], list[FloatArray]] = defaultdict(list)
    for batch in messages.batches:
        for run in batch.stages:
            if run.stateful_stage >= 0:
                tasks = columnar_tasks(run)
                columns = np.array([tasks.column(name) for name in ("partition", "finish", *_LAST)])
                tables[batch.query, run.stateful_stage].append(columns)
    last_tasks: dict[Key, tuple[int, int, float]] = {}
    for (query, stage), every in tables.items():
        columns = np.concatenate(every, axis=1)
        columns = columns[:, np.argsort(columns[1], kind="stable")]
        _, last = np.unique(columns[0, ::-1], return_index=True)
        for partition, _, rows, size, commit in columns[:, columns.shape[1] - 1 - last].T.tolist():
            last_tasks[query, stage, int(partition)] = int(rows), int(size), commit
    return last_tasks


def _modeled(snapshot: Snapshot | None, key: Key) -> tuple[float, float] | tuple[None, None]:
    """Busy seconds of a batch and rows per second."""
    query, stage, partition = key
    name = f"{query}/{stage}"
    if snapshot is None or name not in snapshot.stage_ids:
        return _UNKNOWN
    model = snapshot.workload.stage(name)
    return float(model.busy[partition]), float(model.rows[partition]) * model.batches_per_second


def _cpu(attribution: Attribution) -> dict[Key, tuple[float, float]]:
    """Cores in use by each partition, and by Python, over all the time observed.

    The whole time counts, as the partition may have moved to an executor that is new.
    """
    cores: dict[Key, tuple[float, float]] = {}
    seconds = max((executor.seconds for executor in attribution.executors.values()), default=1.0)
    for part, cpu in attribution.parts.items():
        total, python = cores.get(part[:3], (0.0, 0.0))
        cores[part[:3]] = total + cpu.total / seconds, python + cpu.python / seconds
    return cores


def _lag(lags: list[int], partition: int) -> int | None:
    return lags[partition] if partition < len(lags) and lags[partition] >= 0 else None
