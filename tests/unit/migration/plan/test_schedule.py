from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.migration.plan.schedule import StepLimits, _color_greedily, order_steps
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Move


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
        pytest.param([(-1, 1), (-1, 2), (-1, 2)], [1, 1, 1], 1, [0, 0, 0], id="those on no known executor at once"),
        pytest.param([(0, 1), (-1, 1), (0, 2)], [9, 1, 5], 1, [1, 0, 2], id="and before all others"),
    ],
)
def test_small_cases(
    pairs: list[tuple[int, int]], weights: list[float], per_executor: int, expected: list[int]
) -> None:
    assert order_steps(moves(*pairs), np.array(weights, dtype=float), StepLimits(per_executor)).tolist() == expected


pairs_strategy = st.lists(st.tuples(st.integers(UNPLACED, 5), st.integers(0, 5)), max_size=60)


@given(pairs_strategy, st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_schedule_keeps_the_laws(pairs: list[tuple[int, int]], per_executor: int, random: object) -> None:
    weights = np.array([random.random() for _ in pairs])  # type: ignore[attr-defined]
    steps = order_steps(moves(*pairs), weights, StepLimits(per_executor))
    assert sorted(set(steps.tolist())) == list(range(len(set(steps.tolist())))), "a step is empty"
    placed = np.array([source != UNPLACED for source, _ in pairs], dtype=bool)
    assert not steps[~placed].any(), "those on no known executor go first"
    assert placed.all() or steps[placed].all(), "and no others with them"
    pairs, weights = [pair for pair in pairs if pair[0] != UNPLACED], weights[placed]
    steps = steps[placed] - (not placed.all())
    gives = Counter((source, int(step)) for (source, _), step in zip(pairs, steps, strict=True))
    takes = Counter((target, int(step)) for (_, target), step in zip(pairs, steps, strict=True))
    assert max([*gives.values(), *takes.values()], default=0) <= per_executor
    degree = max([*Counter(s for s, _ in pairs).values(), *Counter(t for _, t in pairs).values()], default=0)
    least, most = -(-degree // per_executor), 2 * ((degree - 1) // per_executor) + 1
    assert (least <= len(set(steps.tolist())) <= most) or not pairs
    relief = np.bincount(steps, weights)
    assert (np.diff(relief) <= 1e-9).all(), "a step that relieves more comes later"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=60), st.integers(1, 3))
def test_the_greedy_way_takes_the_first_step_with_room_at_both_ends(
    pairs: list[tuple[int, int]], per_executor: int
) -> None:
    ordered = moves(*pairs)
    order = np.arange(len(ordered))[::-1]
    used: Counter[tuple[str, int, int]] = Counter()
    expected = [0] * len(ordered)
    for index in order.tolist():
        ends = [("take", ordered[index].target), ("give", ordered[index].source)]
        step = 0
        while any(used[*end, step] >= per_executor for end in ends):
            step += 1
        used.update((*end, step) for end in ends)
        expected[index] = step
    assert _color_greedily(ordered, order, per_executor).tolist() == expected


def test_of_one_query_the_moves_that_relieve_most_go_first_though_a_step_has_room_for_one() -> None:
    apart = moves((0, 1), (2, 3), (4, 5), (6, 7))
    steps = order_steps(apart, np.array([3.0, 1.0, 2.0, 4.0]), StepLimits(moves=1))
    assert steps.tolist() == [1, 3, 2, 0]


def test_no_schedule_has_fewer_steps_where_all_moves_are_alike() -> None:
    # Greedy needs four steps here: the last edge finds a free color at neither end of the first three.
    pairs = [(0, 0), (1, 1), (0, 1), (2, 2), (1, 2), (2, 0), (2, 1), (0, 2), (1, 0)]
    steps = order_steps(moves(*pairs), np.ones(9))
    assert steps.max() + 1 == 3


def test_a_step_holds_so_many_moves_and_bytes_and_queries_take_turns() -> None:
    pairs = [(number, 10 + number) for number in range(6)]
    queries = ["a", "a", "a", "a", "b", "b"]
    weights = np.array([9.0, 8, 7, 6, 2, 1])
    steps = order_steps(moves(*pairs), weights, StepLimits(moves=2), queries=queries)
    assert steps.tolist() == [0, 1, 2, 2, 0, 1]
    by_bytes = order_steps(moves(*pairs), weights, StepLimits(bytes=10), sizes=np.array([50.0, 1, 1, 1, 1, 1]))
    assert by_bytes.tolist() == [0, 1, 1, 1, 1, 1], "one move alone may be larger"


def test_queries_take_turns_over_the_steps_too() -> None:
    needed = [Move(query, number, 0, 1 + number) for query in ("heavy", "light") for number in range(4)]
    weights = np.array([10.0] * 4 + [1.0] * 4)
    steps = order_steps(needed, weights, queries=[move.stage for move in needed])
    by_step = [needed[index].stage for index in np.argsort(steps)]
    assert by_step == ["heavy", "light"] * 4


def test_classes_are_taken_where_they_last_less() -> None:
    """Block-cyclic redistribution over five executors, 4 blocks each to 6 each: the four steps of its classes."""
    block = np.arange(60)
    sizes = Counter(zip((block // 4 % 5).tolist(), (block // 6 % 5).tolist(), strict=True))
    needed = [Move("q", number, *pair) for number, pair in enumerate(sorted(sizes)) if pair[0] != pair[1]]
    weights = np.array([float(sizes[move.source, move.target]) for move in needed])
    steps = order_steps(needed, weights)
    longest = [weights[steps == step].max() for step in range(int(steps.max()) + 1)]
    assert len(longest) <= 4
    assert sum(longest) <= 4 + 4 + 2 + 2
