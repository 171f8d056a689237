"""Block-cyclic redistribution: tasks dealt in blocks of one size over nodes go to blocks of another size over others.

The pairs of nodes fall into classes whose messages all have the same size (Desprez and others, IEEE TPDS 9(2), 1998;
Souravlas and Roumeliotis, J. Supercomputing, 2008, who send class by class). A step is one-to-one: a node sends to at
most one node and receives from at most one. The closed forms below were derived anew and hold in every case tried; the
order of the steps inside a class is ours. The product finds its steps by coloring the edges of the message graph
(:func:`rechannel.migration.plan.edge_coloring.color_edges`), which needs no layout.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import gcd

import numpy as np

from rechannel.migration.plan.edge_coloring import color_edges
from rechannel.policies.model.arrays import FloatArray, IntArray


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
    """Tasks dealt ``before`` at a time to ``sources`` nodes in turn, to be dealt ``after`` at a time to ``targets``.

    Task e goes from node ``e // before % sources`` to node ``e // after % targets``. Raises ValueError unless all four
    are whole numbers from 1.
    """

    sources: int
    targets: int
    before: int
    after: int

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number from 1, got {value!r}")

    @property
    def g(self) -> int:
        """Two pairs of the same remainder modulo this are of one class."""
        return gcd(self.sources * self.before, self.targets * self.after)

    @property
    def source_degree(self) -> int:
        """Targets of one source within a class."""
        return self.targets * gcd(self.after, self.g) // self.g

    @property
    def target_degree(self) -> int:
        """Sources of one target within a class."""
        return self.sources * gcd(self.before, self.g) // self.g

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
        rows = [(source, target, own.cost) for own in self.classes() for source, target in own.pairs]
        table = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2].astype(np.float64)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Step of each message (M,), from 0 without a gap, and the largest message of each step (S,), its duration."""

    steps: IntArray
    largest: FloatArray

    @property
    def length(self) -> int:
        """Number of steps."""
        return len(self.largest)

    @property
    def cost(self) -> float:
        """Sum over the steps of their largest message, in the unit of the sizes."""
        return float(self.largest.sum())


def class_schedule(layout: BlockCyclic) -> Schedule:
    """Send the messages of a layout class by class."""
    sources, targets, sizes = layout.messages()
    steps, first = [], 0
    for own in layout.classes():
        steps += [first + step for step in own.steps]
        first += own.length
    return _schedule(np.array(steps, dtype=np.int64), np.where(sources == targets, 0.0, sizes))


def edge_schedule(sources: IntArray, targets: IntArray, sizes: FloatArray) -> Schedule:
    """Send any messages in the fewest steps; one that stays on its node costs nothing and keeps its step."""
    weights = np.where(sources == targets, 0.0, sizes)
    return _schedule(color_edges(sources, targets, weights), weights)


def _schedule(colors: IntArray, weights: FloatArray) -> Schedule:
    names, steps = np.unique(colors, return_inverse=True)
    largest = np.zeros(len(names))
    np.maximum.at(largest, steps, weights)
    return Schedule(steps.astype(np.int64), largest)
