"""Batches as they would be without a migration. Pure.

The present load is replayed under the placement before the migration. Partitions that moved, and those whose executor
gained or lost one, take there what they took before, times a drift: what the other partitions of their stage take now
over what they took then, or else the tasks of the query's sources (difference in differences). So rows that take longer
everywhere are no fault of the moves, while partitions that take longer on or beside a new executor are. Rows that come
by time are those that the batches under the earlier placement would have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from rechannel.conf.settings import Settings
from rechannel.daemon.decide.rollback import rollback_placement
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot
from rechannel.daemon.model.usual_batch import measure_usual_batch
from rechannel.policies.model.arrays import BoolArray, FloatArray
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.gain import residuals
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.replay import MAX_REPLAYED
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision, Refusal


def ratios_without_moves(
    decision: Decision, messages: ApplicationMessages, settings: Settings, moving: Sequence[BatchReport], now: float
) -> dict[str, float]:
    """Return each query's batch without a migration over its batch now.

    Queries whose present batches the replay does not explain are left out; all, if partitions are elsewhere by now, or
    nothing tells by itself how the work has changed. ``moving`` are the batches in which partitions landed; without
    them nothing is known.
    """
    if not moving:
        return {}
    start, end = min(batch.start for batch in moving), max(batch.end for batch in moving)

    def snapshot_of(condition: Callable[[BatchReport], bool]) -> Snapshot | None:
        batches = tuple(batch for batch in messages.batches if condition(batch))
        return build_snapshot(dataclasses.replace(messages, batches=batches), settings, now, forecast=False)

    before, after = snapshot_of(lambda batch: batch.end <= start), snapshot_of(lambda batch: batch.start >= end)
    if before is None or after is None:
        return {}
    earlier = rollback_placement(decision, after)
    if isinstance(earlier, Refusal) or after.prediction.tasks > MAX_REPLAYED:
        return {}
    model = _with_earlier_work(after, before, earlier.placement)
    if model is None:
        return {}
    model = _with_growth(model, messages)
    replayed = {
        query: (1 + residual.share) * float(after.measured[query].mean()) for query, residual in after.residuals.items()
    }
    without = residuals(model, earlier.placement, after.measured, present=replayed)
    # Both residuals are relative to the same measured batches, which cancel out.
    return {
        query: (1 + without[query].share) / (1 + present.share)
        for query, present in after.residuals.items()
        if present.within(settings.gate.max_residual)
    }


def _with_earlier_work(after: Snapshot, before: Snapshot, earlier: Placement) -> PredictionModel | None:
    """Return the present model with the work of moved partitions at their earlier place.

    None where it is not known what the work of a stage would be.
    """
    old_stages = {stage.key: stage for stage in before.prediction.workload.stages if stage.placeable}
    touched = _touched_executors(after.placement, earlier, after.cluster.size)
    busy: dict[str, FloatArray] = {}
    for stage in after.prediction.workload.placeable:
        affected = (earlier[stage.key] != after.placement[stage.key]) | touched[after.placement[stage.key]]
        old = old_stages.get(stage.key)
        if not affected.any():
            continue
        if old is None or old.n != stage.n:
            return None
        drift = _drift(old.busy[~affected], stage.busy[~affected]) or _source_drift(before, after, stage.query)
        if drift is None:
            return None
        busy[stage.key] = np.where(affected, old.busy * drift, stage.busy)
    return after.prediction.with_busy(busy)


def _with_growth(model: PredictionModel, messages: ApplicationMessages) -> PredictionModel:
    """Return the model with the growth of rows by all batches.

    Those after a migration alone are too few to tell.
    """
    timing = {
        query: dataclasses.replace(it, growth=measure_usual_batch(query, messages.batches).growth)
        for query, it in model.timing.items()
    }
    return dataclasses.replace(model, timing=timing)


def _touched_executors(after: Placement, earlier: Placement, executors: int) -> BoolArray:
    """Mark executors that gained or lost a partition, (E,)."""
    touched = np.zeros(executors, dtype=np.bool_)
    for key, now in after.assignments.items():
        moved = earlier[key] != now
        touched[now[moved]] = True
        touched[earlier[key][moved]] = True
    return touched


def _drift(then: FloatArray, now: FloatArray) -> float | None:
    """Return the present work over the earlier one, None without either."""
    before, after = float(then.sum()), float(now.sum())
    return after / before if before > 0 and after > 0 else None


def _source_drift(before: Snapshot, after: Snapshot, query: str) -> float | None:
    """Return what a query's source tasks take now over what they took before."""
    keys = [stage.key for stage in after.prediction.stages_of(query)]
    pairs = [
        (before.prediction.floating[key].seconds, after.prediction.floating[key].seconds)
        for key in keys
        if key in before.prediction.floating and key in after.prediction.floating
    ]
    return _drift(*np.array(pairs).T) if pairs else None
