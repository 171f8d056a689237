"""Sums by index."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rechannel.policies.model.arrays import median_of_numbers, sum_by_index, sum_rows_by_index


@given(st.lists(st.integers(-1, 6), max_size=30), st.integers(0, 2**32))
def test_sums_are_those_of_a_loop(numbers: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).random((len(numbers), 3))
    index = np.array(numbers, dtype=np.int64)
    expected = np.zeros((7, 3))
    for number, row in zip(numbers, values, strict=True):
        expected[number] += row if number >= 0 else 0.0
    placed = index >= 0
    np.testing.assert_allclose(sum_rows_by_index(index[placed], values[placed], 7), expected)
    np.testing.assert_allclose(sum_by_index(index, values[:, 0], 7), expected[:, 0])


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=6), st.integers(0, 2**24))
def test_medians_leave_out_what_is_no_number(rows: list[list[float]], hidden: int) -> None:
    values = np.array(rows)
    values.ravel()[[bool(hidden >> place & 1) for place in range(values.size)]] = np.nan
    for axis in (0, 1):
        numbers = [row[~np.isnan(row)] for row in (values if axis else values.T)]
        expected = [np.median(row) if len(row) else np.nan for row in numbers]
        np.testing.assert_allclose(median_of_numbers(values, axis), expected)
