"""Symmetric positive definite matrices whose rows fall into independent blocks.

Rows that no entry joins, directly or through others, are solved apart: a thousand blocks of two rows take a thousandth
of the time of one matrix of two thousand rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rechannel.policies.model.arrays import FloatArray, IntArray

__all__ = ["BlockMatrix"]


@dataclass(frozen=True, eq=False)
class BlockMatrix:
    """A matrix of blocks; those of one size are in one array.

    Attributes
    ----------
    rows
        Rows of each block, (K, s) for the blocks of each size s.
    values
        Entries of each block, (K, s, s) for the blocks of each size s.
    """

    rows: tuple[IntArray, ...]
    values: tuple[FloatArray, ...]

    @classmethod
    def from_entries(cls, diagonal: FloatArray, first: IntArray, second: IntArray, entries: FloatArray) -> BlockMatrix:
        """Return the matrix with a diagonal, (n,), and entries off it.

        Parameters
        ----------
        diagonal
            Entries of the diagonal, (n,).
        first, second, entries
            Row, column and value of each entry off the diagonal, each on one side of it. Equal places add up.
        """
        number, size = _components(len(diagonal), first, second)
        order = np.argsort(number, kind="stable")
        begin = np.cumsum(size) - size
        position = np.empty(len(diagonal), dtype=np.int64)
        position[order] = np.arange(len(diagonal)) - np.repeat(begin, size)
        all_rows, all_values = [], []
        for each in np.unique(size):
            blocks = np.flatnonzero(size == each)
            index = np.full(len(size), -1)
            index[blocks] = np.arange(len(blocks))
            rows = order[begin[blocks][:, None] + np.arange(each)]
            values = np.zeros((len(blocks), each, each))
            values[:, np.arange(each), np.arange(each)] = diagonal[rows]
            inside = np.flatnonzero(index[number[first]] >= 0)
            block, one, other = index[number[first[inside]]], position[first[inside]], position[second[inside]]
            np.add.at(values, (block, one, other), entries[inside])
            np.add.at(values, (block, other, one), entries[inside])
            all_rows.append(rows)
            all_values.append(values)
        return cls(tuple(all_rows), tuple(all_values))

    def solve(self, right: FloatArray) -> FloatArray:
        """Return the x with A x = ``right``, (n,)."""
        result = np.empty_like(right)
        for rows, values in zip(self.rows, self.values, strict=True):
            result[rows] = np.linalg.solve(values, right[rows][:, :, None])[:, :, 0]
        return result

    def inverse(self) -> BlockMatrix:
        """Return the inverse, of the same blocks."""
        return BlockMatrix(self.rows, tuple(np.asarray(np.linalg.inv(values), np.float64) for values in self.values))

    def times(self, vector: FloatArray) -> FloatArray:
        """Return the product with a vector, (n,)."""
        result = np.empty_like(vector)
        for rows, values in zip(self.rows, self.values, strict=True):
            result[rows] = np.einsum("kij,kj->ki", values, vector[rows])
        return result

    def entries(self, first: IntArray, second: IntArray) -> FloatArray:
        """Return the entries at some rows and columns; 0 between blocks."""
        result = np.zeros(len(first))
        size = sum(rows.size for rows in self.rows)
        for rows, values in zip(self.rows, self.values, strict=True):
            block, position = np.full(size, -1), np.zeros(size, dtype=np.int64)
            block[rows] = np.arange(len(rows))[:, None]
            position[rows] = np.arange(rows.shape[1])
            same = np.flatnonzero((block[first] >= 0) & (block[first] == block[second]))
            result[same] = values[block[first[same]], position[first[same]], position[second[same]]]
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
