from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.policies.model.block_matrix import Blocks


@given(st.integers(1, 12), st.integers(0, 10), st.integers(0, 2**32))
def test_blocks_are_the_dense_matrix(size: int, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    first = random.integers(0, size, count)
    second = (first + random.integers(1, size, count)) % size if size > 1 else first[:0]
    first = first[: len(second)]
    off = random.normal(0, 1, len(second))
    dense = np.zeros((size, size))
    np.add.at(dense, (first, second), off)
    np.add.at(dense, (second, first), off)
    diagonal = 1.0 + np.abs(dense).sum(axis=1)
    dense[np.arange(size), np.arange(size)] = diagonal

    matrix = Blocks.joined_by(size, first, second).matrix(diagonal, first, second, off)
    right = random.normal(0, 1, size)
    rows, columns = (index.ravel() for index in np.indices((size, size)))
    assert matrix.entries(rows, columns) == pytest.approx(dense.ravel())
    assert matrix.times(right) == pytest.approx(dense @ right)
    assert matrix.solve(right) == pytest.approx(np.linalg.solve(dense, right))
    assert matrix.inverse().entries(rows, columns) == pytest.approx(np.linalg.inv(dense).ravel())


def test_rows_are_joined_through_others() -> None:
    blocks = Blocks.joined_by(6, np.array([5, 1]), np.array([1, 3]))
    assert [rows.tolist() for rows in blocks.rows] == [[[0], [2], [4]], [[1, 3, 5]]]
