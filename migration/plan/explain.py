"""Why each partition of a plan goes where it goes, in words with numbers. Pure.

What an executor needs for a stage is the time of its tasks on its cores, undisturbed, in seconds per batch; the
executor that needs longest is the critical one of that stage, as the batch waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rechannel.policies.analysis.placement_cost import scheduled
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.wire.messages import QueryState
from rechannel.wire.printable import query_name, stage_name

LONGEST = 240  # characters of one reason
_ROUNDING = 1e-9


def reasons(
    cluster: Cluster,
    workload: Workload,
    current: Placement,
    planned: Placement,
    moves: Sequence[Move],
    stages: Mapping[str, tuple[str, int]],
    queries: Mapping[str, QueryState],
) -> list[str]:
    """Return the reason of each move, given where the whole plan leads.

    ``stages``: key of a stage -> (query, number of the stage), as `rechannel.migration.plan.constraints.PlanInputs`
    has it."""
    times = {
        key: tuple(
            scheduled(cluster, workload.stage(key).busy, placement[key]) / cluster.speed
            for placement in (current, planned)
        )
        for key in {move.stage for move in moves}
    }
    filled = {key: set(planned[key][planned[key] != current[key]].tolist()) for key in times}  # to which any come
    several = {query for query in queries if sum(unit[0] == query for unit in stages.values()) > 1}
    found = []
    for move in moves:
        query, number = stages[move.stage]
        state = queries.get(query)
        name = query_name(query, state.name if state is not None else "")
        what = stage_name(query, number, name) if query in several else name
        before, after = times[move.stage]
        room = move.source in filled[move.stage]
        found.append(_reason(move, cluster, what, before, after, room=room)[:LONGEST])
    return found


def _reason(move: Move, cluster: Cluster, what: str, before: FloatArray, after: FloatArray, *, room: bool) -> str:
    names, source, target = cluster.executors, move.source, move.target
    there = f"executor {names[target]} {before[target]:.2f} s -> {after[target]:.2f} s"
    if source == UNPLACED:
        return f"is on no known executor, and loads its state wherever it goes; {there}"
    if not cluster.available[source]:
        return f"has to leave executor {names[source]} on {cluster.nodes[source]}, which is to hold nothing; {there}"
    change = f"{before[source]:.2f} s -> {after[source]:.2f} s a batch; {there}"
    if after[source] < before[source] * (1 - _ROUNDING):
        if before[source] >= float(np.max(before)) * (1 - _ROUNDING):
            return f"frees executor {names[source]}, the critical one of {what}: {change}"
        return f"relieves executor {names[source]} of {what}: {change}"
    if room:
        return f"makes room on executor {names[source]} for other partitions of {what}: {change}"
    # As where a larger partition, on another of its cores, sets its time.
    return f"leaves executor {names[source]}, which needs as long for the rest of {what}: {change}"
