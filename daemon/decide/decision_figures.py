"""Figures and notes that a decision records of its plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rechannel.daemon.model.snapshot import Snapshot
from rechannel.migration.plan.inputs import ReviewedPlan
from rechannel.policies.analysis.classification import count_classes
from rechannel.policies.analysis.hot_streams import HotStream, largest_streams
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.wire.messages import ExecutorLoad, MigrationCost
from rechannel.wire.printable import query_name, with_noun

_HOT_STREAMS = 10  # shown
_COLD_NAMED = 3  # executors, in a note
_LISTED_QUERIES = 5  # of a note


def migration_cost(plan: ReviewedPlan, snapshot: Snapshot) -> MigrationCost | None:
    """Return the expected cost of a plan; None where it moves nothing."""
    cost, rates = plan.cost, plan.rates
    if cost is None:
        return None
    before = {query: plan.batch_time_before[query] for query in cost.peak}
    usual = {name: query.usual_batch for name, query in snapshot.measured_queries.queries.items() if name in before}
    return MigrationCost(
        steps=len(cost.added),
        bytes=cost.bytes,
        pause=cost.pause,
        seconds=cost.seconds,
        total=cost.total,
        batch_before=before,
        peak=cost.peak,
        batch_after={query: plan.batch_time_after[query] for query in before},
        batch_error={query: plan.batch_error[query] for query in before},
        overhead=rates.overhead,
        load_rate=rates.load_rate,
        moves=rates.moves,
        recent_batches={query: snapshot.median_batch[query] for query in before if query in snapshot.median_batch},
        cold=cost.cold,
        recent_periods={query: (it.period, it.growth) for query, it in usual.items() if it.period > 0},
    )


def cold_notes(plan: ReviewedPlan) -> list[str]:
    """Return the note on cold starts in the predicted longest batch."""
    slowest = sorted(plan.cost.cold.items(), key=lambda item: -item[1]) if plan.cost else []
    if not slowest:
        return []
    texts = [f"{added:.1f} s longer on executor {name}" for name, added in slowest[:_COLD_NAMED]]
    more = f" and {with_noun(len(slowest) - _COLD_NAMED, 'more executor')}" if len(slowest) > _COLD_NAMED else ""
    return [f"the predicted longest batch has a cold start in it: first tasks take about {', '.join(texts)}{more}"]


def correction_notes(snapshot: Snapshot, plan: ReviewedPlan) -> list[str]:
    """Return the note on corrected predictions, those corrected most first."""
    corrected = sorted(plan.corrections.items(), key=lambda item: (-abs(item[1].share - 1), item[0]))
    if not corrected:
        return []
    texts = [
        f"{query_name(query, snapshot.queries[query].name)} {item.share:.0%} "
        f"(of {with_noun(item.migrations, 'migration')})"
        for query, item in corrected[:_LISTED_QUERIES]
    ]
    rest = f", and {len(corrected) - len(texts)} more" if len(corrected) > len(texts) else ""
    return [f"predicted gains are scaled by the results of earlier migrations: {', '.join(texts)}{rest}"]


def executor_loads(snapshot: Snapshot, plan: ReviewedPlan) -> list[ExecutorLoad]:
    """Return the load of each executor before and after a plan."""
    cluster, before, after = snapshot.cluster, plan.queue_before, plan.queue_after
    counts = [_count_partitions(placement, cluster.size) for placement in (snapshot.placement, plan.placement)]
    return [
        ExecutorLoad(
            executor=cluster.executors[index],
            node=cluster.nodes[index],
            partitions_before=int(counts[0][index]),
            partitions_after=int(counts[1][index]),
            arrival_before=float(before.arrival_rate[index]),
            arrival_after=float(after.arrival_rate[index]),
            service_before=_finite(before.service_rate[index]),
            utilization_before=float(before.utilization[index]),
            utilization_after=float(after.utilization[index]),
            service_after=_finite(after.service_rate[index]),
        )
        for index in range(cluster.size)
    ]


def _count_partitions(placement: Placement, executors: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Count the partitions on each executor."""
    counts = np.zeros(executors, dtype=np.int64)
    for array in placement.assignments.values():
        counts += np.bincount(array[array >= 0], minlength=executors)
    return counts


def _finite(value: float) -> float:
    """Return a number that JSON can carry; 0 stands for unknown or unbounded."""
    return float(value) if math.isfinite(value) else 0.0


def stream_classes(workload: Workload) -> dict[str, int]:
    """Count the streams of each class, the largest class first; empty if no stream is known."""
    return {kind.name.lower(): number for kind, number in count_classes(workload).items()}


def name_hot_streams(snapshot: Snapshot, workload: Workload) -> list[str]:
    """Return a line for each of the largest streams; ``workload`` as in `named_streams`."""
    return [
        f"{upstream} → {downstream}: {stream.volume / 1e3:,.1f} kB/s, {'local' if stream.local else 'remote'}"
        for stream, upstream, downstream in named_streams(snapshot, workload)
    ]


def named_streams(snapshot: Snapshot, workload: Workload) -> Iterator[tuple[HotStream, str, str]]:
    """Yield the largest streams of class high, largest first, with the names of their ends.

    ``workload``: the snapshot's or that of its prediction, which have the same streams; each adds them up once.
    """
    for stream in largest_streams(workload, snapshot.placement, snapshot.cluster, _HOT_STREAMS):
        upstream = _end_name(snapshot, stream.upstream, stream.upstream_index)
        yield stream, upstream, _end_name(snapshot, stream.downstream, stream.downstream_partition)


def _end_name(snapshot: Snapshot, stage: str, entry: int) -> str:
    """Return the name of one end of a stream: stage, and partition or executor."""
    query, _, number = stage.rpartition("/")
    state = snapshot.queries.get(query)
    name = f"{query_name(query, state.name if state else '')}/{number}"
    where = f"partition {entry}" if stage in snapshot.stage_ids else f"on executor {snapshot.cluster.executors[entry]}"
    return f"{name} {where}"
