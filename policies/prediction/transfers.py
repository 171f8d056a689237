"""Transfers: single moves and swaps of two partitions that a descent may try. Pure.

Thousands of them are compared at once by an estimate, and only the most promising ones are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.trial import TrialPlacement

Unit = tuple[int, int, int]
"""A move: stage, partition, target."""
_Part = tuple[int, IntArray, IntArray, IntArray, IntArray, FloatArray]  # of `Transfers`, with the number of the stage
_TARGETS = 3  # least busy executors, by all their work and by that of the stage
_SOURCES = 2  # busiest executors that partitions come off, likewise
_SWAPPED = 12  # heaviest partitions of two executors that may be swapped
_NO_PARTNER = -1


@dataclass(frozen=True, eq=False)
class Transfers:
    """Moves, and the partitions that go the other way, (N,) each.

    ``partner`` is negative for a single move.
    """

    stage: IntArray
    partition: IntArray
    source: IntArray
    target: IntArray
    partner: IntArray
    busy: FloatArray  # seconds that go from the source to the target

    @classmethod
    def of(cls, parts: Iterable[_Part]) -> Transfers:
        """Return the transfers of several stages, each with its number."""
        columns = [(np.full(len(part[0]), stage), *part) for stage, *part in parts]
        if not columns:
            none = np.zeros(0, dtype=np.int64)
            return cls(none, none, none, none, none, np.zeros(0))
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def promising(self, trial: TrialPlacement) -> Iterator[tuple[Unit, ...]]:
        """Yield the moves of each transfer, most promising first.

        Targets have memory for the state.
        """
        gain = trial.estimate_changes(self.stage, self.source, self.target, self.busy)
        for number in np.argsort(gain, kind="stable").tolist():
            stage, partition, target = (int(it[number]) for it in (self.stage, self.partition, self.target))
            if not trial.fits(stage, partition, target):
                continue
            if (partner := int(self.partner[number])) == _NO_PARTNER:
                yield ((stage, partition, target),)
            elif trial.fits(stage, partner, int(self.source[number])):
                yield (stage, partition, target), (stage, partner, int(self.source[number]))


def moves_to(trial: TrialPlacement, proposed: Placement) -> Transfers:
    """Return the moves that a proposal has and the placement on trial has not."""
    parts = []
    for stage, at in enumerate(trial.at):
        planned = proposed[trial.stages[stage].key]
        moved = np.flatnonzero(at != planned)
        parts.append(_single(trial, stage, moved, planned[moved]))
    return Transfers.of(parts)


def single_moves(trial: TrialPlacement) -> Transfers:
    """Return moves of all partitions on busy executors to idle ones."""
    parts = []
    for stage, sources, targets in _ends(trial):
        at, busy = trial.at[stage], trial.stages[stage].busy
        moved = np.flatnonzero(np.isin(at, sources) & (busy > 0))
        partition, target = np.repeat(moved, len(targets)), np.tile(targets, len(moved))
        other = at[partition] != target
        parts.append(_single(trial, stage, partition[other], target[other]))
    return Transfers.of(parts)


def _single(trial: TrialPlacement, stage: int, partition: IntArray, target: IntArray) -> _Part:
    busy = trial.stages[stage].busy[partition]
    return stage, partition, trial.at[stage][partition], target, np.full(len(partition), _NO_PARTNER), busy


def swaps(trial: TrialPlacement) -> Transfers:
    """Return swaps of heavy partitions on busy executors for lighter ones elsewhere."""
    parts = []
    for stage, sources, targets in _ends(trial):
        at, busy = trial.at[stage], trial.stages[stage].busy
        order = np.argsort(-busy, kind="stable")
        on = {executor: order[at[order] == executor][:_SWAPPED] for executor in {*sources.tolist(), *targets.tolist()}}
        for source in sources.tolist():
            for target in targets.tolist():
                partition = np.repeat(on[source], len(on[target]))
                partner = np.tile(on[target], len(on[source]))
                lighter = busy[partner] < busy[partition]
                partition, partner = partition[lighter], partner[lighter]
                ends = np.full(len(partition), source), np.full(len(partition), target)
                parts.append((stage, partition, *ends, partner, busy[partition] - busy[partner]))
    return Transfers.of(parts)


def _ends(trial: TrialPlacement) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Yield each stage with executors that partitions come off, and that they go to.

    The latter have memory for the state of one of its partitions at least.
    """
    loads, stage_loads, available = trial.loads(), trial.stage_loads(), trial.model.cluster.available
    for stage, item in enumerate(trial.stages):
        if not (item.busy > 0).any():
            continue
        smallest = int(np.where(item.busy > 0, item.state_bytes, np.inf).argmin())
        orders = loads, stage_loads[stage]
        room = trial.has_room(stage, smallest)
        sources = [_ascending(order, available)[-_SOURCES:] for order in orders]
        targets = [_ascending(order, room)[:_TARGETS] for order in orders]
        yield stage, np.union1d(*sources), np.union1d(*targets)


def _ascending(loads: FloatArray, among: BoolArray) -> IntArray:
    executors = np.flatnonzero(among)
    return executors[np.argsort(loads[executors], kind="stable")]
