"""Steps of a migration: the moves that may share a batch. Pure.

All partitions on no known executor, as after the loss of one, make the first step: they load their state wherever they
go, and stay where they fell until then. In the other steps a batch is stretched by at most one state load.

Their moves are the edges of a bipartite graph, from the executors that give to the executors that take, and a step is a
color: an edge coloring in which every executor gives at most ``per_executor`` partitions and takes at most as many in
one step. Three ways are tried. König's coloring has the fewest steps there can be, ceil(d / per_executor) for d moves
that one executor gives or takes (:mod:`rechannel.migration.plan.edge_coloring`). The greedy one, heaviest move first,
may have up to twice as many but groups moves of like weight. By class, as in block-cyclic redistribution, moves that
are equally far along the ring of executors go together: each executor gives and takes at most once. A step lasts as
long as its heaviest move, so the way with the shortest sum of steps is taken.

Queries take turns: of each the step that relieves it most, then of each the next. Moves that do not fit into a step
make further steps, dealt out over the queries alike. Disks and network cards that nodes share are not considered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.migration.plan.edge_coloring import color_edges
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Move


@dataclass(frozen=True)
class StepLimits:
    """Bounds of one step, all above 0."""

    per_executor: int = 1  # moves that one executor gives, and takes
    moves: int | None = None  # in all, None for any number
    bytes: float = float("inf")  # of state, though one move alone may be larger


NO_LIMITS = StepLimits()


def order_steps(
    moves: Sequence[Move],
    weights: FloatArray,
    limits: StepLimits = NO_LIMITS,
    *,
    sizes: FloatArray | None = None,
    queries: Sequence[str] | None = None,
) -> IntArray:
    """Return the step of each move, counted from 0 without a gap.

    Raises ValueError if a move has no target or the lengths differ.

    ``weights``: what each move relieves, (M,): the heaviest gets an early step, ties go by the moves' order. ``sizes``:
    bytes of state that each move costs, (M,), by default the weights; ``queries``: that of each move, by default one.
    """
    if not moves:
        return np.zeros(0, dtype=np.int64)
    sizes = weights if sizes is None else sizes
    queries = queries or [""] * len(moves)
    placed = [index for index, move in enumerate(moves) if move.source != UNPLACED]
    steps = np.zeros(len(moves), dtype=np.int64)
    if placed:
        own, relief = [moves[index] for index in placed], weights[placed]
        colors = _color(own, relief, sizes[placed], limits.per_executor)
        turns = _take_turns(colors, relief, [queries[index] for index in placed])
        steps[placed] = turns + (len(placed) < len(moves))
    return _split(steps, np.argsort(-weights, kind="stable"), sizes, queries, limits)


def _color(moves: Sequence[Move], weights: FloatArray, sizes: FloatArray, per_executor: int) -> IntArray:
    """Return the step of each move by the way with the shortest sum of steps."""
    order = np.argsort(-weights, kind="stable")
    colorings = [_color_greedily(moves, order, per_executor), _color_fewest(moves, weights, per_executor)]
    if per_executor == 1:
        colorings.append(_color_by_class(moves, order))
    return min(colorings, key=lambda steps: _duration(steps, sizes))


def _duration(steps: IntArray, sizes: FloatArray) -> tuple[float, int]:
    """Return the sum over the steps of their largest size, and the number of steps."""
    largest = np.zeros(int(steps.max()) + 1)
    np.maximum.at(largest, steps, sizes)
    return float(largest.sum()), len(largest)


def _color_greedily(moves: Sequence[Move], order: IntArray, per_executor: int) -> IntArray:
    """Give each move, in an order, the first step with room at both ends."""
    # An executor's full steps are the set bits of one integer, so the first step free at both ends is one operation.
    full: dict[tuple[str, int], int] = defaultdict(int)
    used: dict[tuple[str, int, int], int] = defaultdict(int)
    steps = np.zeros(len(moves), dtype=np.int64)
    for index in order.tolist():
        ends = ("take", moves[index].target), ("give", moves[index].source)
        occupied = 0
        for end in ends:
            occupied |= full[end]
        step = (~occupied & (occupied + 1)).bit_length() - 1
        steps[index] = step
        for end in ends:
            used[*end, step] += 1
            if used[*end, step] == per_executor:
                full[end] |= 1 << step
    return steps


def _color_fewest(moves: Sequence[Move], weights: FloatArray, per_executor: int) -> IntArray:
    """Color the moves; an executor that may give several at once counts as so many nodes."""
    ends: list[list[int]] = [[], []]
    nodes: list[dict[tuple[int, int], int]] = [{}, {}]
    count: list[dict[int, int]] = [defaultdict(int), defaultdict(int)]
    for move in moves:
        for side, executor in enumerate((move.source, move.target)):
            part = (executor, count[side][executor] % per_executor)
            count[side][executor] += 1
            ends[side].append(nodes[side].setdefault(part, len(nodes[side])))
    return color_edges(np.array(ends[0]), np.array(ends[1]), weights)


def _color_by_class(moves: Sequence[Move], order: IntArray) -> IntArray:
    """Group moves by the difference of their executors' ranks, in rounds.

    Within a class and a round every executor gives once and takes once at most.
    """
    ends = sorted({end for move in moves for end in (move.source, move.target)})
    rank = {executor: place for place, executor in enumerate(ends)}
    rounds: dict[tuple[int, int], int] = defaultdict(int)
    number: dict[tuple[int, int], int] = {}
    steps = np.zeros(len(moves), dtype=np.int64)
    for index in order.tolist():
        move = moves[index]
        pair = rank[move.source], rank[move.target]
        step = (pair[1] - pair[0]) % len(rank), rounds[pair]
        rounds[pair] += 1
        steps[index] = number.setdefault(step, len(number))
    return steps


def _take_turns(steps: IntArray, weights: FloatArray, queries: Sequence[str]) -> IntArray:
    """Number the steps anew, without a gap: the queries of their heaviest moves take turns."""
    relief = np.bincount(steps, weights)
    heaviest: dict[int, int] = {}
    for index in np.argsort(-weights, kind="stable").tolist():
        heaviest.setdefault(int(steps[index]), index)
    turns: dict[str, int] = defaultdict(int)
    place: dict[int, tuple[int, float, int]] = {}
    for step in sorted(heaviest, key=lambda step: (-relief[step], step)):
        query = queries[heaviest[step]]
        place[step] = turns[query], -float(relief[step]), step
        turns[query] += 1
    rank = np.zeros(len(relief), dtype=np.int64)
    rank[sorted(place, key=lambda step: place[step])] = np.arange(len(place))
    return rank[steps]


def _split(steps: IntArray, order: IntArray, sizes: FloatArray, queries: Sequence[str], limits: StepLimits) -> IntArray:
    """Split the steps that are too large; within one, the queries take turns."""
    result = np.zeros(len(steps), dtype=np.int64)
    current = -1
    for step in range(int(steps.max()) + 1):
        members = [index for index in order.tolist() if steps[index] == step]
        turns: dict[str, int] = defaultdict(int)
        place: dict[int, int] = {}
        for index in members:
            place[index] = turns[queries[index]]
            turns[queries[index]] += 1
        count, size = 0, float("inf")
        for index in sorted(members, key=lambda index: place[index]):
            if size + sizes[index] > limits.bytes or count == limits.moves or not count:
                current, count, size = current + 1, 0, 0.0
            result[index] = current
            count, size = count + 1, size + float(sizes[index])
    return result
