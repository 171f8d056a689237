"""What is known of each partition and of the largest streams, as rows for people and programs. Pure.

Busy seconds and rows are means over the last batches; CPU is what the node's agent measured, shared out between the
tasks of its executors (`rechannel.daemon.model.cpu_attribution`).
"""

from __future__ import annotations

from typing import Any

from rechannel.daemon.decide.pipeline import end_name
from rechannel.daemon.model.collector import ApplicationMessages
from rechannel.daemon.model.cpu_attribution import Attribution, attribute, known_span
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.analysis.classification import hot_streams
from rechannel.wire.measurements import TaskRow

_HOT_SHOWN = 10

Row = dict[str, Any]


def hot(snapshot: Snapshot) -> list[Row]:
    """Return the largest streams of class high, largest first."""
    return [
        {
            "query": snapshot.workload.stage(stream.upstream).query,
            "upstream": end_name(snapshot, stream.upstream, stream.upstream_index),
            "downstream": end_name(snapshot, stream.downstream, stream.downstream_partition),
            "bytes_per_second": stream.volume,
            "local": stream.local,
        }
        for stream in hot_streams(snapshot.workload, snapshot.placement, snapshot.cluster, _HOT_SHOWN)
    ]


def rows(facts: ApplicationMessages, snapshot: Snapshot | None) -> list[Row]:
    """Return a row for each partition of each stateful stage of the active queries."""
    queries = [query for query in facts.report.queries if query.active]
    span = known_span(queries, facts.batches, facts.reported)
    charged = _charged(attribute(facts.application, facts.batches, facts.windows, span=span))
    tasks = _last_tasks(facts)
    found = []
    for query in queries:
        for stage in query.stages:
            for partition in range(stage.partitions):
                key = query.query, stage.stage, partition
                row = {
                    "query": query.query,
                    "name": query.name,
                    "stage": stage.stage,
                    "partition": partition,
                    "executor": stage.placement[partition] if partition < len(stage.placement) else "",
                    "snapshot_lag": _known(stage.snapshot_lag, partition),
                    "cpu": None,
                    "python_cpu": None,
                }
                row |= _measured(tasks.get(key)) | _modelled(snapshot, *key)
                found.append(row | charged.get(key, {}))
    return found


def _last_tasks(facts: ApplicationMessages) -> dict[tuple[str, int, int], TaskRow]:
    """The last task of each partition, by query, stage and partition."""
    found: dict[tuple[str, int, int], TaskRow] = {}
    for batch in facts.batches:
        for run in batch.stages:
            for task in run.tasks if run.stateful >= 0 else ():
                key = batch.query, run.stateful, task.partition
                if key not in found or found[key].finish <= task.finish:
                    found[key] = task
    return found


def _measured(task: TaskRow | None) -> Row:
    return {
        "state_rows": task.state_rows if task else None,
        "state_bytes": task.state_bytes if task else None,
        "commit_seconds": task.commit if task else None,
    }


def _modelled(snapshot: Snapshot | None, query: str, stage: int, partition: int) -> Row:
    key = f"{query}/{stage}"
    if snapshot is None or key not in snapshot.stages:
        return {"busy_seconds": None, "rows_per_second": None}
    model = snapshot.workload.stage(key)
    return {
        "busy_seconds": float(model.busy[partition]),
        "rows_per_second": float(model.rows[partition]) * model.batches_per_second,
    }


def _charged(shared: Attribution) -> dict[tuple[str, int, int], Row]:
    """CPU of each partition in cores, over all the time observed: it may have moved to an executor that is new."""
    found: dict[tuple[str, int, int], Row] = {}
    seconds = max((executor.seconds for executor in shared.executors.values()), default=1.0)
    for part, cpu in shared.parts.items():
        row = found.setdefault(part[:3], {"cpu": 0.0, "python_cpu": 0.0})
        row["cpu"] += cpu.total / seconds
        row["python_cpu"] += cpu.python / seconds
    return found


def _known(lags: list[int], partition: int) -> int | None:
    return lags[partition] if partition < len(lags) and lags[partition] >= 0 else None
