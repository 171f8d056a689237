"""Edge coloring of a bipartite multigraph with the fewest colors (König 1916). Pure."""

from __future__ import annotations

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray


def color_edges(sources: IntArray, targets: IntArray, sizes: FloatArray) -> IntArray:
    """Return a color for each of M edges, no two of one color at one node, (M,).

    There are as many colors as the largest degree, which is the fewest possible. Edges are colored by decreasing size,
    ties in their order, with the first color free at both ends. Where there is none, the path that alternates between a
    color free at one end and one free at the other is flipped. It never comes back to the source, because the graph is
    bipartite. O(E V) for E edges over V nodes.
    """
    if not len(sizes):
        return np.zeros(0, dtype=np.int64)
    return _Coloring(sources, targets).color(np.argsort(-sizes, kind="stable").tolist())


class _Coloring:
    """Colors of edges, and which edge has a color at a node.

    ``at[side][node][color]`` is the edge of that color there, -1 for none; bit c of ``free[side][node]`` says that
    color c is not used. Side 0 are the sources, side 1 the targets.
    """

    def __init__(self, sources: IntArray, targets: IntArray) -> None:
        self.ends = [sources.tolist(), targets.tolist()]
        degree = int(max(np.bincount(sources).max(), np.bincount(targets).max()))
        self.at = [{node: [-1] * degree for node in set(side)} for side in self.ends]
        self.free = [dict.fromkeys(side, (1 << degree) - 1) for side in self.ends]
        self.colors = [-1] * len(sources)

    def color(self, order: list[int]) -> IntArray:
        """Color the edges in an order."""
        for edge in order:
            at_source, at_target = self.free[0][self.ends[0][edge]], self.free[1][self.ends[1][edge]]
            color = _lowest_bit(at_source & at_target)
            if color < 0:
                color = _lowest_bit(at_source)
                self._flip_path(self.ends[1][edge], color, _lowest_bit(at_target))
            self._set(edge, color)
        return np.array(self.colors, dtype=np.int64)

    def _flip_path(self, target: int, color: int, other: int) -> None:
        """Free ``color`` at a target: exchange it with ``other`` along the path that begins there."""
        path, side, node, following = [], 1, target, color
        while (edge := self.at[side][node][following]) >= 0:
            path.append(edge)
            side, following = 1 - side, color + other - following
            node = self.ends[side][edge]
        flipped = [color + other - self.colors[edge] for edge in path]
        for edge in path:
            self._clear(edge)
        for edge, new in zip(path, flipped, strict=True):
            self._set(edge, new)

    def _set(self, edge: int, color: int) -> None:
        self.colors[edge] = color
        for side in (0, 1):
            self.at[side][self.ends[side][edge]][color] = edge
            self.free[side][self.ends[side][edge]] &= ~(1 << color)

    def _clear(self, edge: int) -> None:
        for side in (0, 1):
            self.at[side][self.ends[side][edge]][self.colors[edge]] = -1
            self.free[side][self.ends[side][edge]] |= 1 << self.colors[edge]


def _lowest_bit(bits: int) -> int:
    """Return the number of the lowest bit that is set, -1 if none is."""
    return (bits & -bits).bit_length() - 1
