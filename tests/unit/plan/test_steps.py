from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.migration.plan.steps import order_steps
from rechannel.policies.model import UNPLACED, Move


def moves(*pairs: tuple[int, int]) -> list[Move]:
    return [Move("q/0", number, source, target) for number, (source, target) in enumerate(pairs)]


@pytest.mark.parametrize(
    ("pairs", "weights", "per_executor", "expected"),
    [
        pytest.param([], [], 1, [], id="nothing to order"),
        pytest.param([(0, 1), (2, 3)], [1, 1], 1, [0, 0], id="moves between different executors share a step"),
        pytest.param([(0, 1), (0, 2)], [1, 5], 1, [1, 0], id="the heavier one goes first"),
        pytest.param([(0, 1), (0, 2)], [1, 1], 1, [0, 1], id="equal ones keep their order"),
        pytest.param([(0, 2), (1, 2)], [1, 1], 1, [0, 1], id="a target takes one at a time"),
        pytest.param([(0, 1), (1, 0)], [1, 1], 1, [0, 0], id="a swap is one step: each gives one and takes one"),
        pytest.param([(0, 1), (0, 2), (0, 3)], [1, 1, 1], 2, [0, 0, 1], id="two at a time where allowed"),
        pytest.param([(-1, 1), (-1, 2), (-1, 2)], [1, 1, 1], 1, [0, 0, 1], id="an unknown source holds nobody up"),
    ],
)
def test_small_cases(
    pairs: list[tuple[int, int]], weights: list[float], per_executor: int, expected: list[int]
) -> None:
    assert order_steps(moves(*pairs), np.array(weights, dtype=float), per_executor).tolist() == expected


@pytest.mark.parametrize(
    ("pairs", "weights", "per_executor", "field"),
    [
        ([(0, 1)], [1.0], 0, "per_executor"),
        ([(0, 1)], [1.0, 2.0], 1, "weights"),
        ([(0, UNPLACED)], [1.0], 1, "moves"),
    ],
)
def test_what_cannot_be_ordered_is_refused_by_name(
    pairs: list[tuple[int, int]], weights: list[float], per_executor: int, field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        order_steps(moves(*pairs), np.array(weights), per_executor)


pairs_strategy = st.lists(st.tuples(st.integers(UNPLACED, 5), st.integers(0, 5)), max_size=60)


@settings(deadline=None)
@given(pairs_strategy, st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_schedule_keeps_the_laws(pairs: list[tuple[int, int]], per_executor: int, random: object) -> None:
    weights = np.array([random.random() for _ in pairs])  # type: ignore[attr-defined]
    steps = order_steps(moves(*pairs), weights, per_executor)
    gives = Counter((source, int(step)) for (source, _), step in zip(pairs, steps, strict=True) if source != UNPLACED)
    takes = Counter((target, int(step)) for (_, target), step in zip(pairs, steps, strict=True))
    assert max([*gives.values(), *takes.values()], default=0) <= per_executor
    assert sorted(set(steps.tolist())) == list(range(len(set(steps.tolist())))), "a step is empty"
    degree = max(
        [*Counter(s for s, _ in pairs if s != UNPLACED).values(), *Counter(t for _, t in pairs).values()], default=0
    )
    least, most = -(-degree // per_executor), 2 * ((degree - 1) // per_executor) + 1
    assert (least <= len(set(steps.tolist())) <= most) or not pairs
    if pairs:
        assert steps[int(np.argmax(weights))] == 0
