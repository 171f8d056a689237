from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.shuffles import DenseShuffle, Shuffle, SparseShuffle

SENDERS, ROWS, RECEIVERS = 7, 4, 5


def representations(seed: int) -> list[Shuffle]:
    """Return one shuffle as a block, as a block with shared rows, and as its pairs."""
    random = np.random.default_rng(seed)
    block = np.round(random.lognormal(sigma=2.0, size=(ROWS, RECEIVERS)) * (random.random((ROWS, RECEIVERS)) < 0.6), 3)
    row = random.integers(ROWS, size=SENDERS)  # some rows stand for several entries, some for none
    whole = block[row]
    up, down = np.nonzero(whole)
    return [
        DenseShuffle("a", "b", whole),
        DenseShuffle("a", "b", block, row),
        SparseShuffle("a", "b", whole.shape, up, down, whole[up, down]),
    ]


@given(st.integers(0, 10_000), st.floats(0.001, 10.0))
@example(1691, 1.0)  # some entries send nothing
def test_every_representation_answers_alike(seed: int, level: float) -> None:
    first, *others = representations(seed)
    random = np.random.default_rng(seed)
    per_byte, groups = random.random(SENDERS), random.integers(-1, 3, size=SENDERS + RECEIVERS)
    for other in others:
        assert other.shape == first.shape
        assert other.summary() == pytest.approx(first.summary())
        assert other.count(level) == first.count(level)
        assert other.beyond(level) == pytest.approx(first.beyond(level))
        for one, same in zip(first.above(level), other.above(level), strict=True):
            np.testing.assert_array_equal(one, same)
        for received, entries in ((False, SENDERS), (True, RECEIVERS)):
            for entry in range(entries):
                pairs = zip(
                    first.above_at(entry, level, received=received),
                    other.above_at(entry, level, received=received),
                    strict=True,
                )
                for one, same in pairs:
                    np.testing.assert_array_equal(one, same)
        largest, same = (np.sort(it.largest()[it.largest() > 0]) for it in (first, other))
        np.testing.assert_array_equal(largest, same)
        for name, arguments in (
            ("sent", ()),
            ("received", ()),
            ("forward", (per_byte,)),
            ("local_received", (groups[:SENDERS], groups[SENDERS:])),
        ):
            np.testing.assert_allclose(getattr(other, name)(*arguments), getattr(first, name)(*arguments), atol=1e-9)


def test_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match=r"shuffle 'a' to 'b': row: outside 0\.\.1"):
        DenseShuffle("a", "b", np.ones((2, 3)), np.array([0, 2]))
