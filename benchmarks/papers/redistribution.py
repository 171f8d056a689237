"""Redistribution of blocks of tasks over nodes: messages that may share a step.

A step is one-to-one: a node sends to at most one node and receives from at most one. There are two ways to find the
steps:

* by class, where tasks dealt cyclically in blocks of r over P nodes go to blocks of s over Q nodes. The pairs of nodes
  fall into classes whose messages all have the same size (Desprez and others, IEEE TPDS 9(2), 1998; Souravlas and
  Roumeliotis, J. Supercomputing, 2008, who send class by class);
* by coloring the edges of any bipartite message graph, which needs exactly as many steps as the busiest node has
  messages; no schedule has fewer (:mod:`rechannel.migration.plan.edge_coloring`).

The closed forms below were derived anew and hold in every case tried; the order of the steps inside a class is ours.
No message is split, and neither way is sure to find the shortest sum of steps, which is a hard problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm
from typing import Literal

import numpy as np

from rechannel.migration.plan.edge_coloring import check_edges, color_edges
from rechannel.policies.model.arrays import FloatArray, IntArray

__all__ = ["LOCAL", "BlockCyclic", "PairClass", "Schedule", "schedule"]

LOCAL = -1
"""Stands for the step of a message that is left out because it stays on its node."""

Method = Literal["class", "koenig", "best"]


@dataclass(frozen=True)
class PairClass:
    """The pairs of nodes that exchange the same: ``cost`` blocks a period each.

    ``pairs`` are (source, target), by source; ``steps`` the step of each, counted from 0 within the class.
    """

    key: int
    cost: int
    pairs: tuple[tuple[int, int], ...]
    steps: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of steps."""
        return max(self.steps) + 1


@dataclass(frozen=True)
class BlockCyclic:
    """Tasks dealt in blocks to ``sources`` nodes in turn, to be dealt anew to ``targets``.

    A block has ``before`` tasks, then ``after``.

    Task e goes from node ``e // before % sources`` to node ``e // after % targets``. Raises ValueError unless all four
    are whole numbers from 1.
    """

    sources: int
    targets: int
    before: int
    after: int

    def __post_init__(self) -> None:
        for name in ("sources", "targets", "before", "after"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number from 1, got {value!r}")

    @property
    def period(self) -> int:
        """Tasks after which the pattern repeats."""
        return lcm(self.sources * self.before, self.targets * self.after)

    @property
    def g(self) -> int:
        """Two pairs of the same remainder modulo this are of one class."""
        return gcd(self.sources * self.before, self.targets * self.after)

    @property
    def h(self) -> int:
        """Common divisor of the two block sizes."""
        return gcd(self.before, self.after)

    @property
    def class_count(self) -> int:
        """Number of classes that exchange something."""
        return min(self.g // self.h, (self.before + self.after) // self.h - 1)

    @property
    def source_degree(self) -> int:
        """Targets of one source within a class."""
        return self.targets * gcd(self.after, self.g) // self.g

    @property
    def target_degree(self) -> int:
        """Sources of one target within a class."""
        return self.sources * gcd(self.before, self.g) // self.g

    @property
    def is_perfect(self) -> bool:
        """Whether as many nodes receive as send, each exactly once in every class.

        Then the classes are the steps, and no schedule has fewer.
        """
        return self.sources == self.targets and self.source_degree == self.target_degree == 1

    def key(self, source: int, target: int) -> int:
        """Class of a pair of nodes."""
        return (source * self.before - target * self.after) % self.g

    def cost(self, key: int) -> int:
        """Tasks a period that each pair of the class exchanges, 0 where it exchanges none."""
        first = (key + np.arange(self.before)) % self.g
        return int(np.maximum(0, (self.after - 1 - first) // self.g + 1).sum())

    def classes(self) -> tuple[PairClass, ...]:
        """The classes that exchange something, by key.

        Each falls into blocks in which every source sends to every target. Source i and target j of a block, both in
        order, meet in step ``j - i`` modulo the longer side, so that no node is in a step twice.
        """
        members: dict[int, dict[int, list[tuple[int, int]]]] = {}
        for source in range(self.sources):
            block = source * self.before % self.g
            for target in range(self.targets):
                members.setdefault(self.key(source, target), {}).setdefault(block, []).append((source, target))
        costs = {key: self.cost(key) for key in sorted(members)}
        return tuple(self._class(key, cost, members[key]) for key, cost in costs.items() if cost)

    def _class(self, key: int, cost: int, blocks: dict[int, list[tuple[int, int]]]) -> PairClass:
        longer = max(self.source_degree, self.target_degree)
        steps: dict[tuple[int, int], int] = {}
        for pairs in blocks.values():
            row = {source: i for i, source in enumerate(sorted({source for source, _ in pairs}))}
            column = {target: j for j, target in enumerate(sorted({target for _, target in pairs}))}
            steps.update({pair: (column[pair[1]] - row[pair[0]]) % longer for pair in pairs})
        ordered = sorted(steps)
        return PairClass(key, cost, tuple(ordered), tuple(steps[pair] for pair in ordered))

    def messages(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Source, target and tasks a period of every message, class by class, shape (M,) each."""
        rows = [(source, target, found.cost) for found in self.classes() for source, target in found.pairs]
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(np.float64)


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each message is sent.

    ``steps`` is the step of each message, shape (M,), counted from 0 without a gap, :data:`LOCAL` where it is left
    out; ``largest`` the size of the largest message that travels in each step, shape (S,), which is how long the step
    lasts: a message that stays on its node costs nothing. ``method`` is the way that found it.
    """

    steps: IntArray
    largest: FloatArray
    method: str

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.largest)

    @property
    def cost(self) -> float:
        """Sum over the steps of their largest message, in the unit of the sizes."""
        return float(self.largest.sum())


def schedule(
    sources: IntArray,
    targets: IntArray,
    sizes: FloatArray,
    *,
    method: Method = "best",
    layout: BlockCyclic | None = None,
    exclude_local: bool = False,
) -> Schedule:
    """Arrange M messages in one-to-one steps.

    ``sources`` and ``targets`` (M,) are node indices from 0, the same node having the same index in both; ``sizes``
    (M,) in any one unit. ``class`` needs the ``layout`` that the messages come from, each pair at most once; ``koenig``
    takes any messages, several of one pair too, and has the fewest steps there can be; ``best`` takes whichever of the
    two costs less, then has fewer steps, and without a layout is ``koenig``. A message whose source is its target
    costs nothing; it keeps its place in a step unless ``exclude_local``.

    Raises ValueError for arrays that do not fit, an unknown method, and messages that the layout does not have.
    """
    sources, targets, sizes = check_edges(sources, targets, sizes)
    if method not in ("class", "koenig", "best"):
        raise ValueError(f"method: expected class, koenig or best, got {method!r}")
    if method == "class" and layout is None:
        raise ValueError("layout: the method 'class' needs the layout that the messages come from")
    local = sources == targets
    kept = np.flatnonzero(~local) if exclude_local else np.arange(len(sizes))
    weights = np.where(local, 0.0, sizes)
    found = []
    if layout is not None and method != "koenig":
        found.append(_schedule("class", _class_steps(layout, sources, targets), weights, kept))
    if method != "class":
        steps = np.full(len(sizes), LOCAL, dtype=np.int64)
        steps[kept] = color_edges(sources[kept], targets[kept], weights[kept])
        found.append(_schedule("koenig", steps, weights, kept))
    return min(found, key=lambda one: (one.cost, one.length))


def _class_steps(layout: BlockCyclic, sources: IntArray, targets: IntArray) -> IntArray:
    steps: dict[tuple[int, int], int] = {}
    first = 0
    for found in layout.classes():
        steps.update({pair: first + step for pair, step in zip(found.pairs, found.steps, strict=True)})
        first += found.length
    result = np.zeros(len(sources), dtype=np.int64)
    for index, pair in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        step = steps.pop(pair, None)
        if step is None:
            raise ValueError(f"messages: {pair[0]} to {pair[1]} stands twice or is none of the layout's")
        result[index] = step
    return result


def _schedule(method: str, raw: IntArray, weights: FloatArray, kept: IntArray) -> Schedule:
    """Number the steps that are left without a gap, in their order."""
    steps = np.full(len(weights), LOCAL, dtype=np.int64)
    names, steps[kept] = np.unique(raw[kept], return_inverse=True)
    largest = np.zeros(len(names))
    np.maximum.at(largest, steps[kept], weights[kept])
    return Schedule(steps, largest, method)
