"""Batches as they would be without a migration. Pure.

The present load is replayed under the placement before the migration. Partitions that moved take there what they took
before, times what the other partitions of their stage take now over what they took then: how the work of a partition
changed by itself is seen on those that stayed (difference in differences). So rows that take longer everywhere are no
fault of the moves, while partitions that take longer on their new executor are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from rechannel.conf.settings import Settings
from rechannel.daemon.decide.requested_placement import rollback_placement
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot, without_forecast
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.replay import replay
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision, Refusal

__all__ = ["ratios_without_moves"]

_BATCHES = 20  # that are replayed of the slowest query


def ratios_without_moves(
    decision: Decision, messages: ApplicationMessages, settings: Settings, moving: Sequence[BatchReport], now: float
) -> dict[str, float]:
    """Return each query's batch without a migration over its batch now.

    Queries whose present batches the replay does not explain are left out, and all if partitions are elsewhere by now.

    Parameters
    ----------
    decision
        The decision that began the migration.
    messages, settings
        Messages about the application, with the batches of before and after, and the settings.
    moving
        Batches in which partitions landed; nothing is known without them.
    now
        Seconds since the epoch.
    """
    if not moving:
        return {}
    start, end = min(batch.start for batch in moving), max(batch.end for batch in moving)

    def snapshot_of(condition: Callable[[BatchReport], bool]) -> Snapshot | None:
        batches = tuple(batch for batch in messages.batches if condition(batch))
        return build_snapshot(dataclasses.replace(messages, batches=batches), without_forecast(settings), now)

    before, after = snapshot_of(lambda batch: batch.end <= start), snapshot_of(lambda batch: batch.start >= end)
    if before is None or after is None:
        return {}
    earlier = rollback_placement(decision, after)
    if isinstance(earlier, Refusal):
        return {}
    model = _with_earlier_work(after, before.prediction.workload, earlier.placement)
    present = replay(after.prediction, after.placement, batches=_BATCHES)
    without = replay(model, earlier.placement, batches=_BATCHES)
    limit = settings.gate.max_residual
    explained = [query for query, residual in after.residuals.items() if residual.within(limit)]
    return {query: float(without[query].mean() / present[query].mean()) for query in explained}


def _with_earlier_work(after: Snapshot, before: Workload, earlier: Placement) -> PredictionModel:
    """Return the present model with the work of moved partitions at their earlier place."""
    old_stages = {stage.key: stage for stage in before.stages if stage.placeable}
    workload = after.prediction.workload

    def at_earlier_place(stage: Stage) -> Stage:
        old = old_stages.get(stage.key)
        if not stage.placeable or old is None or old.n != stage.n:
            return stage
        moved = earlier[stage.key] != after.placement[stage.key]
        then, today = float(old.busy[~moved].sum()), float(stage.busy[~moved].sum())
        busy = stage.busy.copy()
        busy[moved] = old.busy[moved] * (today / then if then > 0 else 1.0)
        return dataclasses.replace(stage, busy=busy)

    stages = tuple(at_earlier_place(stage) for stage in workload.stages)
    return dataclasses.replace(after.prediction, workload=Workload(stages, workload.streams))
