"""Even by count: shares are kept, little moves, and nothing is put where it must not be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.migration.spread import spread_evenly

NAMES = st.sampled_from(["0", "1", "2", "3", "gone", ""])


@pytest.mark.parametrize(
    ("placement", "cores", "counts"),
    [
        (["0"] * 8, {"0": 1, "1": 1, "2": 1}, {"0": 3, "1": 3, "2": 2}),
        (["0"] * 8, {"0": 1, "1": 3}, {"0": 2, "1": 6}),
        (["gone"] * 4, {"0": 2, "1": 2}, {"0": 2, "1": 2}),
        (["1"], {"0": 1, "1": 1}, {"1": 1}),
    ],
)
def test_shares_by_cores(placement, cores, counts):
    assert Counter(spread_evenly(placement, cores)) == counts


def test_remainder_goes_to_the_executor_with_least():
    assert spread_evenly([""], {"0": 1, "1": 1}, held={"0": 3}) == ["1"]


def test_movable_partitions():
    assert spread_evenly(["0", "0", "0", "gone"], {"0": 1, "1": 1}, movable=[3]) == ["0", "0", "0", "1"]


def test_no_executor():
    assert spread_evenly(["gone", "0"], {}) == ["gone", "0"]


@given(st.lists(NAMES, max_size=30), st.dictionaries(st.sampled_from("0123"), st.integers(1, 8), min_size=1), st.data())
def test_laws(placement, cores, data):
    movable = data.draw(st.none() | st.sets(st.integers(0, max(0, len(placement) - 1))))
    movable = None if movable is None else {p for p in movable if p < len(placement)}
    result = spread_evenly(placement, cores, movable=movable)
    free = set(range(len(placement))) if movable is None else movable
    assert [a for p, a in enumerate(result) if p not in free] == [a for p, a in enumerate(placement) if p not in free]
    assert all(result[p] in cores for p in free)
    total, count = sum(cores.values()), Counter(result)
    if movable is None:
        for name, number in cores.items():
            assert abs(count[name] - len(placement) * number / total) < 1
    assert spread_evenly(result, cores, movable=movable) == result, "what is even stays"
