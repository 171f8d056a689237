"""Evacuation: new executors for the partitions that cannot stay, where batches grow least.

Durations are those of the cycle formula (:mod:`rechannel.policies.prediction.cycle`), each over the present one, so
that a query with short batches counts as much as one with long ones. They are computed for a few targets of each
partition, those that an estimate of all of them puts first. Partitions of a lost executor are placed by count, by the
link (`rechannel.migration.link.initial_placement`).
"""

from __future__ import annotations

import numpy as np

from rechannel.policies.model.arrays import IntArray
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.trial import TrialPlacement

_MOST_TARGETS, _LEAST_TARGETS = 16, 3  # that are tried for a partition: those with the best estimates
_OF_STAGE = 3  # for so many of them, one of those least busy with the same stage
_TRIED = 2_400  # targets of all partitions together, about
_PASSES = 4  # over the partitions that cannot stay


def place_evacuated(model: PredictionModel, current: Placement) -> Placement:
    """Return ``current`` with a new executor for each partition that cannot stay.

    The heaviest comes first, each goes where batches grow least; then each is taken up again, a few times, while one
    finds a better place; of many partitions, those on the busiest executors only. Partitions without a measured load
    come last, and are dealt evenly. Executors without memory for a partition's state are not considered, unless none
    has it. Raises ScaleOutError where no executor is available.
    """
    cluster = model.cluster
    cluster.check_available(model.workload.partitions)
    # Relative to the present placement, of which the executors that are left hold a part.
    trial = TrialPlacement(model, Placement(current.on_available(cluster)), TrialPlacement(model, current))
    counts = np.array([np.bincount(at[at >= 0], minlength=cluster.size) for at in trial.at])
    forced = [(stage, int(i)) for stage, at in enumerate(trial.at) for i in np.flatnonzero(at < 0)]
    forced.sort(key=lambda unit: -trial.stages[unit[0]].busy[unit[1]])
    loaded = [unit for unit in forced if trial.stages[unit[0]].busy[unit[1]] > 0]

    def take(stage: int, partition: int) -> tuple[int, IntArray]:
        """Take a partition off its executor; return that, and those with room for it."""
        before = trial.move(stage, partition, UNPLACED)
        if before >= 0:
            counts[stage, before] -= 1
        return before, np.flatnonzero(trial.has_room(stage, partition))

    def put(stage: int, partition: int, target: int) -> None:
        trial.move(stage, partition, target)
        counts[stage, target] += 1

    count = min(max(_TRIED // max(1, len(loaded)), _LEAST_TARGETS), _MOST_TARGETS)
    for number in range(_PASSES):
        changed = False
        for unit in loaded:
            if number and count < _MOST_TARGETS and not trial.is_binding(unit[0], int(trial.at[unit[0]][unit[1]])):
                continue
            before, candidates = take(*unit)
            target = _best_target(trial, unit, candidates, counts, count)
            put(*unit, target)
            changed |= target != before
        if not changed:
            break
    for stage, partition in forced[len(loaded) :]:
        _, candidates = take(stage, partition)
        order = np.lexsort((counts.sum(axis=0)[candidates], counts[stage][candidates]))
        put(stage, partition, int(candidates[order[0]]))
    return trial.placement()


def _best_target(
    trial: TrialPlacement, unit: tuple[int, int], candidates: IntArray, counts: IntArray, count: int
) -> int:
    """Return the candidate on which a partition costs least, or the emptier of equals.

    ``counts``: partitions of each stage on each executor, (S, E); ``count``: candidates to try.
    """
    stage, partition = unit
    estimate = trial.estimate_additions(stage, float(trial.stages[stage].busy[partition]))[candidates]
    order = np.lexsort((counts.sum(axis=0)[candidates], counts[stage][candidates], estimate.round(9)))
    least_of_stage = np.argsort(trial.stage_loads()[stage, candidates], kind="stable")
    tried = dict.fromkeys([*candidates[order[:count]], *candidates[least_of_stage[: count // _OF_STAGE]]])

    def rank(target: int) -> tuple[float, int, int]:
        trial.move(*unit, target)
        result = round(trial.soft_cost(), 9)
        trial.move(*unit, UNPLACED)
        return result, int(counts[stage][target]), int(counts[:, target].sum())

    return min(map(int, tried), key=rank)
