"""Fewest moves: the smallest part of a change of placement that brings most of its gain.

Three ways lead from the present placement, each by one move after the other:

1. a steepest descent along the moves of a proposed placement: the move first that shortens the batches most;
2. a steepest descent along all moves off the executors that hold a query up; where none helps, along swaps of two
   partitions, which are two moves;
3. leveling: a descent takes small steps where several executors are about as busy, so this way goes straight below a
   bound. It takes the smallest partition off the busiest executor that brings it below, or else the largest that fits
   elsewhere.

The first two give points of gain against moves, and so does the third below a few bounds near equally busy executors.
Among those with at least 90 % of the largest gain, whose busiest executor is within 5 % of the best-balanced one's, the
one with fewest moves is taken; or leveling to that one, where that needs fewer moves for 90 % of the gain. Executors
are as busy as by queries that run back to back together, and by each query with a trigger. Moves that are not needed
for that gain and balance are dropped. No move goes to an executor without memory for the partition's state, unless none
has it.

Durations are those of the cycle formula (:mod:`rechannel.policies.prediction.cycle`), each over the present one, so
that a query with short batches counts as much as one with long ones. Rows are those of the present batches, also of a
query whose rows grow with its period: less work makes its batches shorter either way, and the first moves more so than
the last, so the points of one query stay in order and 90 % of the gain is reached no later. Between several queries the
order may differ: the replay that judges the answer has the rows grow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

import numpy as np

from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.prediction.transfers import Transfers, Unit, moves_to, single_moves, swaps
from rechannel.policies.prediction.trial import TrialPlacement

_SHARE = 0.9  # of the largest gain
_BALANCED = 1.05  # times the imbalance of the best-balanced point
_EVEN = (1.1, _BALANCED, 1.02)  # times the least load of the busiest executor, to which all are leveled at first
_BOUNDS = (_BALANCED, 1.02, 1.0)  # times that point's, to which executors are leveled: the first that brings the gain
_SAME = 1e-12  # smaller differences of cost are none
_MIN_STEP_GAIN = 1e-4  # of the batch time: what a step of a descent has to bring
_MIN_MOVE_GAIN = 0.002  # of the batch time: what a move has to bring
_TRIED = 24  # transfers of each step, the most promising ones
_GROWTH = 1.5  # times the moves of a point that the next one returned has, at least


@dataclass(frozen=True)
class _Point:
    """A point of a curve of gain against moves.

    ``imbalance``: the busiest executor over its least load.
    """

    moves: tuple[Unit, ...]
    cost: float
    imbalance: float


class _Curve:
    """Moves of a trial placement one after the other, with a point before them and after each."""

    def __init__(self, trial: TrialPlacement, least: FloatArray) -> None:
        self.trial, self.least = trial, least
        self.points = [_Point((), trial.cost(), self.imbalance())]

    def move(self, *moves: Unit) -> None:
        """Make moves that belong together."""
        for move in moves:
            self.trial.move(*move)
        self.points.append(_Point((*self.points[-1].moves, *moves), self.trial.cost(), self.imbalance()))

    def imbalance(self) -> float:
        """Return the busiest executor over its least load, of the worst group."""
        return float((self.trial.group_loads().max(axis=1) / self.least).max(initial=0.0))

    @property
    def count(self) -> int:
        """Number of moves."""
        return len(self.points[-1].moves)


def fewest_moves(
    model: PredictionModel,
    current: Placement,
    proposed: Placement,
    *,
    max_moves: int = 200,
    beyond_proposal: bool = True,
) -> list[Placement]:
    """Return placements that bring much of the gain by few moves.

    The first one brings most of the gain by the cycle formula. The others are points of a descent, for the replay to
    choose from (:mod:`rechannel.policies.prediction.choice`): those with about as many moves first. Partitions of
    ``current`` that cannot stay (on no executor, or on an unavailable one) are where ``proposed`` puts them.

    ``max_moves``: of one curve; ``beyond_proposal``: whether to try moves that are not part of the proposal.
    """
    start = current.evacuated_to(proposed, model.cluster)
    least = TrialPlacement(model, start).least_loads()

    def curve() -> _Curve:
        return _Curve(TrialPlacement(model, start), least)

    points = descent = _descend(curve(), max_moves, proposed)
    if beyond_proposal:
        descent = _descend(curve(), max_moves, None)
        leveled = [point for bound in _EVEN if (point := _level(curve(), bound, max_moves)) is not None]
        points = [*points, *descent, *leveled]
    max_cost = most_of(min(point.cost for point in points)) + _SAME
    enough = [point for point in points if point.cost <= max_cost]
    imbalance = min(point.imbalance for point in enough)
    balanced = [point for point in enough if point.imbalance <= _BALANCED * imbalance]
    chosen = min(balanced, key=lambda point: (len(point.moves), point.cost)).moves
    for bound in _BOUNDS if beyond_proposal else ():
        further = _level(curve(), bound * imbalance, len(chosen) - 1)
        if further is not None and further.cost <= max_cost:
            chosen = further.moves
            break
    plan, count = _reduced(curve(), chosen, max_cost, _BALANCED * imbalance), 0
    usual, stages = max(1, len(plan.moves_from(start))), model.workload.placeable
    others: list[tuple[float, Placement]] = []
    for point in descent[1:]:
        if len(point.moves) >= _GROWTH * count or point is descent[-1]:
            count = len(point.moves)
            moves = (Move(stages[stage].key, partition, UNPLACED, target) for stage, partition, target in point.moves)
            if (other := start.with_moves(moves)) != plan:
                others.append((abs(math.log(count / usual)), other))
    return [plan, *(other for _, other in sorted(others, key=itemgetter(0)))]


def most_of(best: float) -> float:
    """Return the ratio of batches that brings most of the gain of the ``best`` one."""
    return 1.0 - _SHARE * (1.0 - best)


def _descend(curve: _Curve, max_moves: int, proposed: Placement | None) -> list[_Point]:
    """Return the points of steepest descent, along the moves of a proposal or along all."""
    trial = curve.trial
    soft = trial.soft_cost()
    while curve.count < max_moves:
        best = _best(trial, single_moves(trial) if proposed is None else moves_to(trial, proposed))
        if proposed is None and (best is None or best[0] >= soft - _MIN_STEP_GAIN) and curve.count + 2 <= max_moves:
            best = _best(trial, swaps(trial))
        if best is None or best[0] >= soft - _MIN_STEP_GAIN:
            break
        soft = best[0]
        curve.move(*best[1])
    return curve.points


def _best(trial: TrialPlacement, transfers: Transfers) -> tuple[float, tuple[Unit, ...]] | None:
    """Return the transfer with the lowest soft cost, and that cost; None without any."""
    best: tuple[float, tuple[Unit, ...]] | None = None
    for moves in islice(transfers.promising(trial), _TRIED):
        sources = [trial.move(*move) for move in moves]
        after = trial.soft_cost()
        for (stage, partition, _), source in zip(moves, sources, strict=True):
            trial.move(stage, partition, source)
        if best is None or after < best[0] - _SAME:
            best = after, moves
    return best


def _level(curve: _Curve, imbalance: float, max_moves: int) -> _Point | None:
    """Return the point after moves that bring all executors below an imbalance.

    None if none are needed, or more than ``max_moves``.
    """
    bound = imbalance * curve.least
    while ((loads := curve.trial.group_loads()).max(axis=1) > bound).any():
        group = int((loads.max(axis=1) / bound).argmax())
        move = _leveling_move(curve.trial, group, loads[group], bound[group]) if curve.count < max_moves else None
        if move is None:
            return None
        curve.move(move)
    return curve.points[-1] if curve.count else None


def _leveling_move(trial: TrialPlacement, group: int, loads: FloatArray, max_load: float) -> Unit | None:
    """Return the next move off a group's busiest executor towards that load; None without any."""
    source, capacity = int(loads.argmax()), trial.capacity
    best: tuple[tuple[bool, float, float], Unit] | None = None
    for stage in trial.stages_of(group):
        partitions = np.flatnonzero((trial.at[stage] == source) & (trial.stages[stage].busy > 0))
        busy = trial.stages[stage].busy[partitions]
        short = loads[source] - busy / capacity[source] > max_load  # these do not bring it below
        preference = np.where(short, -busy, busy)
        for number in np.lexsort((preference, short)).tolist():
            fits = loads + busy[number] / capacity <= max_load
            if fits.any():
                fits &= trial.has_room(stage, int(partitions[number]))
            if fits.any():
                target = int(np.where(fits, loads, -1.0).argmax())  # the fullest one: room elsewhere stays in one piece
                rank = bool(short[number]), float(preference[number]), -float(loads[target])
                if best is None or rank < best[0]:
                    best = rank, (stage, int(partitions[number]), target)
                break
    return best[1] if best is not None else None


def _reduced(curve: _Curve, moves: Iterable[Unit], max_cost: float, max_imbalance: float) -> Placement:
    """Return the placement without the moves that a cost and an imbalance do not need.

    The lightest ones are dropped first.
    """
    trial = curve.trial
    origin: dict[tuple[int, int], int] = {}
    for stage, partition, target in moves:
        origin.setdefault((stage, partition), int(trial.at[stage][partition]))
        trial.move(stage, partition, target)
    for stage, partition in sorted(origin, key=lambda it: float(trial.stages[it[0]].busy[it[1]])):
        if not trial.fits(stage, partition, origin[stage, partition]):
            continue
        allowed = max(max_cost, trial.cost() + _MIN_MOVE_GAIN)
        target = trial.move(stage, partition, origin[stage, partition])
        if trial.cost() > allowed or curve.imbalance() > max_imbalance:
            trial.move(stage, partition, target)
    return trial.placement()
