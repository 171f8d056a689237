"""Reason of each move of a plan, in a sentence with numbers. Pure.

The load of an executor for a stage is the time of its tasks on its cores, undisturbed, in seconds per batch. The
executor with the longest time is the critical one of that stage, as the batch waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from rechannel.migration.plan.inputs import PlanInputs
from rechannel.policies.analysis.placement_cost import finish_times
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.wire.printable import query_name, stage_name

MAX_CHARACTERS = 240  # characters of the reason of a move; beyond: it is cut
_ROUNDING = 1e-9


def explain_moves(inputs: PlanInputs, planned: Placement, moves: Sequence[Move]) -> list[str]:
    """Return the reason of each move, given where the whole plan leads."""
    cluster, current = inputs.cluster, inputs.current
    times = {
        key: tuple(
            finish_times(cluster, inputs.workload.stage(key).busy, placement[key]) / cluster.speed
            for placement in (current, planned)
        )
        for key in {move.stage for move in moves}
    }
    receivers = {key: set(planned[key][planned[key] != current[key]].tolist()) for key in times}
    stages = Counter(query for query, _ in inputs.stage_ids.values())
    with_several = {query for query in inputs.queries if stages[query] > 1}
    reasons = []
    for move in moves:
        query, number = inputs.stage_ids[move.stage]
        state = inputs.queries.get(query)
        name = query_name(query, state.name if state is not None else "")
        label = stage_name(query, number, name) if query in with_several else name
        before, after = times[move.stage]
        makes_room = move.source in receivers[move.stage]
        reason = _reason(move, cluster, label, before, after, makes_room=makes_room)
        reasons.append(reason[:MAX_CHARACTERS])
    return reasons


def _reason(
    move: Move, cluster: Cluster, label: str, before: FloatArray, after: FloatArray, *, makes_room: bool
) -> str:
    names, source, target = cluster.executors, move.source, move.target
    there = f"executor {names[target]} {before[target]:.2f} s -> {after[target]:.2f} s"
    if source == UNPLACED:
        return f"is on no known executor, and loads its state wherever it goes; {there}"
    if not cluster.available[source]:
        return f"has to leave executor {names[source]} on {cluster.nodes[source]}, which is to hold nothing; {there}"
    change = f"{before[source]:.2f} s -> {after[source]:.2f} s a batch; {there}"
    if after[source] < before[source] * (1 - _ROUNDING):
        if before[source] >= float(np.max(before)) * (1 - _ROUNDING):
            return f"frees executor {names[source]}, the critical one of {label}: {change}"
        return f"relieves executor {names[source]} of {label}: {change}"
    if makes_room:
        return f"makes room on executor {names[source]} for other partitions of {label}: {change}"
    # A larger partition on another of its cores sets its time.
    return f"leaves executor {names[source]}, which needs as long for the rest of {label}: {change}"
