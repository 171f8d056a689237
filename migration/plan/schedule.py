"""In which step each move happens, so that one batch is stretched by one state load at most.

The moves are the edges of a bipartite graph, from the executors that give to the executors that take, and a step is a
color: an edge coloring in which every executor gives at most ``per_executor`` partitions and takes at most as many in
one step. Three ways are tried. König's coloring has the fewest steps there can be, ceil(d / per_executor) for d moves
that one executor gives or takes. The greedy one, heaviest move first, may have up to twice as many but groups
moves of like weight. By class, as in block-cyclic redistribution, moves that are equally far along the ring of
executors go together: whoever gives takes at most once then (:mod:`rechannel.migration.plan.edge_coloring`). A step
lasts as long as its heaviest move, so the way whose steps last less in all is taken.

Queries take turns: of each the step that relieves it most, then of each the next. Moves that a step has no room for
(``per_step``) make further steps, dealt out over the queries alike.

It does not look at which nodes share a disk or a network card.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np

from rechannel.migration.plan.edge_coloring import color_edges
from rechannel.policies.model.arrays import FloatArray, IntArray
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Move


def order_steps(
    moves: Sequence[Move],
    weights: FloatArray,
    per_executor: int = 1,
    *,
    sizes: FloatArray | None = None,
    queries: Sequence[str] | None = None,
    per_step: int | None = None,
    bytes_per_step: float = float("inf"),
) -> IntArray:
    """Return the step of each move, counted from 0 without a gap.

    ``weights`` has one number for each move, what it relieves: the heaviest gets an early step, ties go by the moves'
    order. ``sizes`` (bytes of state) is what a move costs, the weights unless given. ``queries`` names each move's
    query. At most ``per_step`` moves and ``bytes_per_step`` share a step; one move alone may be larger. A move whose
    source is unknown loads nobody but its target.

    Raises ValueError where a bound is below 1, a target is unknown, or the lengths differ.
    """
    if per_executor < 1:
        raise ValueError(f"per_executor: must be at least 1, got {per_executor}")
    if per_step is not None and per_step < 1:
        raise ValueError(f"per_step: must be at least 1, got {per_step}")
    if not bytes_per_step > 0:
        raise ValueError(f"bytes_per_step: must be greater than 0, got {bytes_per_step}")
    weights = np.asarray(weights, dtype=np.float64)
    sizes = weights if sizes is None else np.asarray(sizes, dtype=np.float64)
    for name, values in (("weights", weights), ("sizes", sizes)):
        if values.shape != (len(moves),):
            raise ValueError(f"{name}: expected {len(moves)} numbers, got shape {values.shape}")
    if any(move.target == UNPLACED for move in moves):
        raise ValueError("moves: a move needs a target")
    if not len(moves):
        return np.zeros(0, dtype=np.int64)
    order = np.argsort(-weights, kind="stable")
    ways = [_greedy(moves, order, per_executor), _koenig(moves, weights, per_executor)]
    if per_executor == 1 and all(move.source != UNPLACED for move in moves):
        ways.append(_by_class(moves, order))
    steps = min(ways, key=_cost(sizes))
    queries = queries or [""] * len(moves)
    return _parted(_in_turn(steps, weights, queries), order, sizes, queries, per_step, bytes_per_step)


def _cost(sizes: FloatArray) -> Callable[[IntArray], tuple[float, int]]:
    def cost(steps: IntArray) -> tuple[float, int]:
        largest = np.zeros(int(steps.max()) + 1)
        np.maximum.at(largest, steps, sizes)
        return float(largest.sum()), len(largest)

    return cost


def _greedy(moves: Sequence[Move], order: IntArray, per_executor: int) -> IntArray:
    # An executor's full steps are the set bits of one integer, so the first step free at both ends is one operation.
    full: dict[tuple[str, int], int] = defaultdict(int)
    used: dict[tuple[str, int, int], int] = defaultdict(int)
    steps = np.zeros(len(moves), dtype=np.int64)
    for index in order.tolist():
        move = moves[index]
        ends = [("take", move.target)]
        if move.source != UNPLACED:
            ends.append(("give", move.source))
        taken = 0
        for end in ends:
            taken |= full[end]
        step = (~taken & (taken + 1)).bit_length() - 1
        steps[index] = step
        for end in ends:
            used[*end, step] += 1
            if used[*end, step] == per_executor:
                full[end] |= 1 << step
    return steps


def _koenig(moves: Sequence[Move], weights: FloatArray, per_executor: int) -> IntArray:
    """Color the moves; an executor that may give several at once counts as so many, its moves dealt out among them."""
    ends: list[list[int]] = [[], []]
    known: list[dict[tuple[int, int], int]] = [{}, {}]
    seen: list[dict[int, int]] = [defaultdict(int), defaultdict(int)]
    for number, move in enumerate(moves):
        for side, executor in enumerate((move.source, move.target)):
            if executor == UNPLACED:
                part = (UNPLACED - number, 0)  # one of its own: it holds nobody up
            else:
                part = (executor, seen[side][executor] % per_executor)
                seen[side][executor] += 1
            ends[side].append(known[side].setdefault(part, len(known[side])))
    return color_edges(np.array(ends[0]), np.array(ends[1]), weights)


def _by_class(moves: Sequence[Move], order: IntArray) -> IntArray:
    """Class by class: the difference of two executors' ranks modulo their number; a pair's second move is a round more.

    Within a class and a round every executor gives once and takes once at most.
    """
    rank = {
        name: place for place, name in enumerate(sorted({end for move in moves for end in (move.source, move.target)}))
    }
    seen: dict[tuple[int, int], int] = defaultdict(int)
    number: dict[tuple[int, int], int] = {}
    steps = np.zeros(len(moves), dtype=np.int64)
    for index in order.tolist():
        move = moves[index]
        pair = rank[move.source], rank[move.target]
        step = (pair[1] - pair[0]) % len(rank), seen[pair]
        seen[pair] += 1
        steps[index] = number.setdefault(step, len(number))
    return steps


def _in_turn(steps: IntArray, weights: FloatArray, queries: Sequence[str]) -> IntArray:
    """Number the steps anew, without a gap: by turns of the queries that their heaviest moves are of."""
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


def _parted(
    steps: IntArray,
    order: IntArray,
    sizes: FloatArray,
    queries: Sequence[str],
    per_step: int | None,
    bytes_per_step: float,
) -> IntArray:
    """Split the steps that are too large; within one, the queries take turns."""
    result = np.zeros(len(steps), dtype=np.int64)
    now = -1
    for step in range(int(steps.max()) + 1):
        inside = [index for index in order.tolist() if steps[index] == step]
        turn: dict[str, int] = defaultdict(int)
        place: dict[int, int] = {}
        for index in inside:
            place[index] = turn[queries[index]]
            turn[queries[index]] += 1
        count, size = 0, float("inf")
        for index in sorted(inside, key=lambda index: place[index]):
            if size + sizes[index] > bytes_per_step or count == per_step or not count:
                now, count, size = now + 1, 0, 0.0
            result[index] = now
            count, size = count + 1, size + float(sizes[index])
    return result
