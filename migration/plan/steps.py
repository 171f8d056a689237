"""In which step each move happens, so that one batch is stretched by one state load at most.

The moves are the edges of a bipartite graph, from the executors that give to the executors that take, and a step is a
color: an edge coloring in which every executor gives at most ``per_executor`` partitions and takes at most as many in
one step. Greedy, heaviest move first. With d the largest number of moves that any one executor gives or takes, no
schedule has fewer than ceil(d / per_executor) steps and this one has at most 2 * floor((d - 1) / per_executor) + 1.

It does not look at how long a step lasts, nor at which nodes share a disk or a network card.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rechannel.policies.model import UNPLACED, FloatArray, IntArray, Move


def order_steps(moves: Sequence[Move], weights: FloatArray, per_executor: int = 1) -> IntArray:
    """Return the step of each move, counted from 0 without a gap.

    ``weights`` has one number for each move (bytes of state, say): the heaviest gets the earliest step it can have,
    ties go by the moves' order. A move whose source is unknown loads nobody but its target.

    Raises ValueError where ``per_executor`` is below 1, a target is unknown, or the lengths differ.
    """
    if per_executor < 1:
        raise ValueError(f"per_executor: must be at least 1, got {per_executor}")
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (len(moves),):
        raise ValueError(f"weights: expected {len(moves)} numbers, got shape {weights.shape}")
    if any(move.target == UNPLACED for move in moves):
        raise ValueError("moves: a move needs a target")
    return _color(moves, np.argsort(-weights, kind="stable"), per_executor)


def _color(moves: Sequence[Move], order: IntArray, per_executor: int) -> IntArray:
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
