"""Symmetric positive definite matrices whose rows fall into independent blocks.

Rows that no entry joins, directly or through others, are solved apart: a thousand blocks of two rows take a thousandth
of the time of one matrix of two thousand rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray, ranks, sum_by_index


@dataclass(frozen=True, eq=False)
class Blocks:
    """Division of the rows of symmetric matrices into blocks, grouped by size.

    Attributes
    ----------
    rows
        Rows of each block, (K, s) for the blocks of each size s.
    size, block, position
        Of each row, (n,): the index of its block's size, the block among those of that size, and the place in it.
    """

    rows: tuple[IntArray, ...]
    size: IntArray
    block: IntArray
    position: IntArray

    @classmethod
    def joined_by(cls, count: int, first: IntArray, second: IntArray) -> Blocks:
        """Return the smallest blocks of so many rows that have the rows of each pair together."""
        number, members = _components(count, first, second)
        order = np.argsort(number, kind="stable")
        begin = np.cumsum(members) - members
        sizes, size_of = np.unique(members, return_inverse=True)
        rows = tuple(order[begin[members == size][:, None] + np.arange(size)] for size in sizes)
        return cls(rows, size_of[number], ranks(size_of)[number], ranks(number))

    def matrix(self, diagonal: FloatArray, first: IntArray, second: IntArray, entries: FloatArray) -> BlockMatrix:
        """Return the matrix with a diagonal, (n,), and entries off it.

        ``first``, ``second`` and ``entries``: row, column and value of each entry, on one side of the diagonal. Equal
        places add up.
        """
        all_values = []
        for index, rows in enumerate(self.rows):
            count, size = rows.shape
            inside = self.size[first] == index
            block, one, other = self.block[first[inside]], self.position[first[inside]], self.position[second[inside]]
            places = (block * size + one) * size + other
            half = sum_by_index(places, entries[inside], count * size * size).reshape(count, size, size)
            values = half + half.transpose(0, 2, 1)
            values[:, np.arange(size), np.arange(size)] += diagonal[rows]
            all_values.append(values)
        return BlockMatrix(self, tuple(all_values))


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """A matrix of blocks.

    ``values``: entries of each block, (K, s, s) for the blocks of each size s.
    """

    blocks: Blocks
    values: tuple[FloatArray, ...]

    def solve(self, right: FloatArray) -> FloatArray:
        """Return the x with A x = ``right``, (n,)."""
        result = np.empty_like(right)
        for rows, values in zip(self.blocks.rows, self.values, strict=True):
            result[rows] = np.linalg.solve(values, right[rows][:, :, None])[:, :, 0]
        return result

    def inverse(self) -> BlockMatrix:
        """Return the inverse, of the same blocks."""
        return BlockMatrix(self.blocks, tuple(np.asarray(np.linalg.inv(values), np.float64) for values in self.values))

    def times(self, vector: FloatArray) -> FloatArray:
        """Return the product with a vector, (n,)."""
        result = np.empty_like(vector)
        for rows, values in zip(self.blocks.rows, self.values, strict=True):
            result[rows] = np.einsum("kij,kj->ki", values, vector[rows])
        return result

    def entries(self, first: IntArray, second: IntArray) -> FloatArray:
        """Return the entries at some rows and columns; 0 between blocks."""
        blocks, result = self.blocks, np.zeros(len(first))
        together = (blocks.size[first] == blocks.size[second]) & (blocks.block[first] == blocks.block[second])
        for index, values in enumerate(self.values):
            same = np.flatnonzero(together & (blocks.size[first] == index))
            one, other = first[same], second[same]
            result[same] = values[blocks.block[one], blocks.position[one], blocks.position[other]]
        return result


def _components(count: int, first: IntArray, second: IntArray) -> tuple[IntArray, IntArray]:
    """Return the number of each row's component, (n,), and the size of each component."""
    label = np.arange(count)
    while True:
        least = np.minimum(label[first], label[second])
        joined = label.copy()
        for end in (first, second):
            np.minimum.at(joined, label[end], least)
            np.minimum.at(joined, end, least)
        joined = joined[joined]
        if (joined == label).all():
            break
        label = joined
    _, number, size = np.unique(label, return_inverse=True, return_counts=True)
    return number.astype(np.int64), size.astype(np.int64)
