"""Fair redistribution of the pipelined migration scheduling work (Souravlas and others)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.analysis.queueing import ShareOverflowError, fair_shares
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster, Topology
from rechannel.policies.model.placement import Outcome, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.published.fair_redistribution import (
    FAIR_REDISTRIBUTION,
    FairRedistributionParameters,
    overload,
    surplus,
)
from rechannel.policies.registry import is_worse
from unit.policies.random_clusters import Situation, situations

PAPER = np.array([0.6, 0.8, 0.5])


# The three steps


def test_fifty_tasks_go_as_eighteen_nine_and_twenty_three() -> None:
    most = 50 * (1 - PAPER)
    assert most == pytest.approx([20, 10, 25])
    assert 50 / most.sum() == pytest.approx(0.90909, abs=1e-5)
    assert most * 50 / most.sum() == pytest.approx([18.18, 9.09, 22.73], abs=0.005)
    assert fair_shares(50, PAPER).tolist() == [18, 9, 23]


def test_only_these_utilizations_in_tenths_give_the_example_by_plain_rounding() -> None:
    tenths = np.arange(1, 10) / 10
    matching = []
    for rho in np.stack(np.meshgrid(tenths, tenths, tenths), axis=-1).reshape(-1, 3):
        exact = 50 * (1 - rho) / (1 - rho).sum()
        if (1 - rho).sum() >= 1 and np.round(exact).tolist() == [18, 9, 23]:
            matching.append(rho.tolist())
    assert matching == [PAPER.tolist()]


def test_plain_rounding_loses_tasks_and_largest_remainder_never_does() -> None:
    random, lost, cases = np.random.default_rng(0), 0, 2_000
    for _ in range(cases):
        count, rho = int(random.integers(1, 200)), random.random(int(random.integers(3, 8)))
        if (1 - rho).sum() < 1:
            continue
        exact = count * (1 - rho) / (1 - rho).sum()
        shares = fair_shares(count, rho)
        assert shares.sum() == count
        assert (np.abs(shares - exact) < 1).all()
        lost += int(np.round(exact).sum() != count)
    assert lost / cases == pytest.approx(0.4, abs=0.06)


def test_weights_move_shares_and_free_capacity_bounds_them() -> None:
    rho = np.array([0.5, 0.5, 0.5])
    assert fair_shares(12, rho, weights=np.array([1.0, 0.5, 0.5])).tolist() == [6, 3, 3]
    # Three quarters of 12 would go to the first, which is free for 6.
    assert fair_shares(12, rho, weights=np.array([6.0, 1.0, 1.0])).tolist() == [6, 3, 3]
    assert fair_shares(50, PAPER, weights=np.full(3, 7.0)).tolist() == [18, 9, 23]


def test_caps_push_tasks_to_the_others() -> None:
    assert fair_shares(50, PAPER, caps=np.array([16, 50, 50])).tolist() == [16, 10, 24]
    assert fair_shares(50, PAPER, caps=np.array([50, 50, 50])).tolist() == [18, 9, 23]
    assert fair_shares(4, np.zeros(3), caps=np.array([0, 1, 3])).tolist() == [0, 1, 3]
    with pytest.raises(ShareOverflowError) as caught:
        fair_shares(50, PAPER, caps=np.array([5, 5, 5]))
    assert (caught.value.shares.tolist(), caught.value.rest) == ([5, 5, 5], 35)


def test_too_little_free_capacity_leaves_a_rest() -> None:
    with pytest.raises(ShareOverflowError) as caught:
        fair_shares(10, np.array([0.75, 0.65, 1.5]))
    assert (caught.value.shares.tolist(), caught.value.rest) == ([2, 3, 0], 5)
    with pytest.raises(ScaleOutError, match="add executors"):
        fair_shares(3, np.array([1.0, 1.0]))


def test_ties_go_to_the_nearer_then_to_the_lower_index() -> None:
    rho = np.full(3, 0.5)
    assert fair_shares(4, rho).tolist() == [2, 1, 1]
    assert fair_shares(4, rho, distances=np.array([2.0, 2.0, 1.0])).tolist() == [1, 1, 2]
    assert fair_shares(5, rho, distances=np.array([2.0, 1.0, 2.0])).tolist() == [2, 2, 1]


@pytest.mark.parametrize(
    "given_,named",
    [
        ({"weights": np.array([1.0, 0, 1])}, "weights: must be above zero"),
        ({"weights": np.array([1.0])}, "expected 3 entries"),
        ({"caps": np.array([1, -1, 1])}, "none negative"),
        ({"caps": np.array([1.5, 1, 1])}, "whole numbers"),
        ({"distances": np.array([-1.0, 1, 1])}, "distances"),
    ],
)
def test_impossible_options_are_refused(given_: dict[str, np.ndarray], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        fair_shares(3, PAPER, **given_)


@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.floats(0, 1.2), st.floats(0.1, 10), st.integers(0, 300)), min_size=1, max_size=9),
)
def test_nothing_is_lost_whatever_the_weights_and_caps(count: int, nodes: list[tuple[float, float, int]]) -> None:
    rho, weights = np.array([node[0] for node in nodes]), np.array([node[1] for node in nodes])
    caps = np.array([node[2] for node in nodes])
    try:
        shares = fair_shares(count, rho, weights=weights, caps=caps)
    except ShareOverflowError as error:
        assert error.shares.sum() + error.rest == count
        assert error.rest > 0
        shares = error.shares
    except ScaleOutError:
        assert (rho >= 1).all()
        return
    else:
        assert shares.sum() == count
    assert (shares <= caps).all()
    assert (shares >= 0).all()
    assert (shares < count * np.maximum(0.0, 1 - rho) + 1 + 1e-6).all()


# The policy


def _cluster(
    loads: list[float], unavailable: list[int], racks: list[int] | None = None, memory: float = np.inf
) -> tuple[Cluster, Stage]:
    """Executors of one core with these loads from floating stages, each on its node."""
    size = len(loads)
    numbers = np.zeros(size, np.int64) if racks is None else np.array(racks)
    between = 1.0 + 4 * np.abs(np.subtract.outer(np.arange(numbers.max() + 1), np.arange(numbers.max() + 1)))
    cluster = Cluster(
        tuple(f"e{i}" for i in range(size)),
        tuple(f"n{i}" for i in range(size)),
        np.ones(size),
        np.full(size, memory),
        np.ones(size),
        np.array([i not in unavailable for i in range(size)]),
        Topology(numbers, np.full(size, np.inf), between),
    )
    return cluster, Stage("src", "q", False, 1.0, loads, np.zeros(size), np.zeros(size))


def _tasks(source: Stage, busy: list[float], states: list[float] | None = None) -> Workload:
    count = len(busy)
    return Workload((source, Stage("a", "q", True, 1.0, busy, np.zeros(count), states or np.zeros(count))))


def _at(*executors: int) -> Placement:
    return Placement({"a": np.array(executors)})


def _counts(outcome: Outcome, size: int) -> list[int]:
    return np.bincount(outcome.placement["a"], minlength=size).tolist()


@pytest.mark.parametrize("source", [0, UNPLACED], ids=["drained", "unknown"])
def test_fifty_partitions_of_a_drained_executor(source: int) -> None:
    cluster, floating = _cluster([0.0, *PAPER], [0])
    workload = _tasks(floating, [1e-4] * 50)
    outcome = FAIR_REDISTRIBUTION.place(cluster, workload, _at(*[source] * 50))
    assert _counts(outcome, 4) == [0, 18, 9, 23]
    assert outcome.notes == ("50 partitions had to be placed: their executor is unavailable or unknown",)


def test_the_next_sub_cluster_takes_what_the_first_cannot() -> None:
    # The source's sub-cluster is free for 10 tasks x (0.1 + 0.2); the other 7 go on to the nearest.
    cluster, floating = _cluster([0.0, 0.9, 0.8, 0.2, 0.2, 0.1], [0], racks=[0, 0, 0, 1, 1, 2])
    workload = _tasks(floating, [1e-4] * 10)
    assert _counts(FAIR_REDISTRIBUTION.place(cluster, workload, _at(*[0] * 10)), 6) == [0, 1, 2, 4, 3, 0]
    flat = FAIR_REDISTRIBUTION.place(
        cluster, workload, _at(*[0] * 10), FairRedistributionParameters(sub_clusters=False)
    )
    assert _counts(flat, 6) == fair_shares(10, np.array([1.0, 0.9, 0.8, 0.2, 0.2, 0.1])).tolist()


def test_near_executors_take_more_if_asked() -> None:
    cluster, floating = _cluster([0.0, 0.5, 0.5, 0.5], [0], racks=[0, 0, 0, 1])
    workload, current = _tasks(floating, [1e-4] * 12), _at(*[0] * 12)
    even = FairRedistributionParameters(sub_clusters=False)
    assert _counts(FAIR_REDISTRIBUTION.place(cluster, workload, current, even), 4) == [0, 4, 4, 4]
    near = FairRedistributionParameters(sub_clusters=False, weight="inverse-distance")
    assert _counts(FAIR_REDISTRIBUTION.place(cluster, workload, current, near), 4) == [0, 6, 5, 1]


def test_memory_caps_the_shares() -> None:
    cluster, floating = _cluster([0.0, 0.1, 0.5], [0], memory=3.0)
    workload = _tasks(floating, [1e-4] * 6, [1.0] * 6)
    assert _counts(FAIR_REDISTRIBUTION.place(cluster, workload, _at(*[0] * 6)), 3) == [0, 3, 3]


def test_the_largest_load_is_placed_first_where_least_is_done() -> None:
    cluster, floating = _cluster([0.0, 0.3, 0.0], [0])
    workload = _tasks(floating, [0.01, 0.2, 0.3, 0.01])
    outcome = FAIR_REDISTRIBUTION.place(cluster, workload, _at(0, 0, 0, 0))
    assert outcome.placement["a"].tolist()[1:3] == [1, 2]


def test_what_must_leave_is_placed_though_nobody_has_room() -> None:
    cluster, floating = _cluster([0.0, 1.2, 1.1], [0])
    outcome = FAIR_REDISTRIBUTION.place(cluster, _tasks(floating, [0.1, 0.1]), _at(0, 0))
    assert outcome.placement == _at(2, 1)
    assert outcome.notes[1] == "2 of them are more than the free capacity and were put on the least utilized"


def test_a_surplus_leaves_and_nothing_else() -> None:
    cluster, floating = _cluster([0.0, 0.3, 0.5], [])
    workload, current = _tasks(floating, [0.3, 0.6, 0.2, 0.1, 0.05]), _at(0, 0, 0, 0, 1)
    outcome = FAIR_REDISTRIBUTION.place(cluster, workload, current)
    # 1.2 of 0.95: the lightest that is enough alone is 0.3.
    assert outcome.placement["a"].tolist() == [1, 0, 0, 0, 1]
    assert outcome.notes == ("1 partitions leave 1 executors above 95% of their capacity",)
    before, after = (overload(cluster, workload, each) for each in (current, outcome.placement))
    assert before[0] == pytest.approx(0.25)
    assert after[0] == 0.0
    assert FAIR_REDISTRIBUTION.measure is overload
    assert is_worse(before, after)


def test_nothing_above_the_limit_is_left_alone() -> None:
    cluster, floating = _cluster([0.0, 0.3], [])
    workload, current = _tasks(floating, [0.4, 0.5]), _at(0, 0)
    outcome = FAIR_REDISTRIBUTION.place(cluster, workload, current)
    assert outcome == Outcome(current, ("no executor is above the limit",))
    lower = FAIR_REDISTRIBUTION.place(cluster, workload, current, FairRedistributionParameters(limit=0.8))
    assert lower.placement == _at(1, 0)


def test_max_moves_counts_only_what_could_stay() -> None:
    cluster, floating = _cluster([0.0, 0.0, 0.1, 0.1], [0])
    workload, current = _tasks(floating, [0.01, 0.5, 0.5, 0.3, 0.3]), _at(0, 1, 1, 1, 1)
    moved = [
        len(FAIR_REDISTRIBUTION.place(cluster, workload, current, parameters).placement.moves_from(current))
        for parameters in (FairRedistributionParameters(max_moves=most) for most in (0, 1, None))
    ]
    assert moved == [1, 2, 3]
    alone = FAIR_REDISTRIBUTION.place(cluster, workload, current, FairRedistributionParameters(max_moves=0))
    assert alone.notes[-1] == "overloaded executors are left alone: max_moves is 0"


def test_no_room_anywhere_asks_for_executors_unless_partitions_must_leave() -> None:
    cluster, floating = _cluster([0.6, 1.0], [])
    workload = _tasks(floating, [0.6])
    with pytest.raises(ScaleOutError, match=r"95% of its capacity or more: add executors"):
        FAIR_REDISTRIBUTION.place(cluster, workload, _at(0))
    staying = FAIR_REDISTRIBUTION.place(cluster, workload, _at(0), FairRedistributionParameters(max_moves=0))
    assert staying.placement == _at(0)
    # A partition that nobody can take within the limit stays, since there is room for others.
    roomy, floating = _cluster([0.6, 0.5], [])
    assert FAIR_REDISTRIBUTION.place(roomy, _tasks(floating, [0.6]), _at(0)).placement == _at(0)


@pytest.mark.parametrize(
    "load,excess,chosen",
    [
        ([3.0, 1, 2, 2], 1.5, [2]),
        ([3.0, 1, 2, 2], 4.0, [0, 1]),
        ([3.0, 1, 2, 2], 100.0, [0, 2, 3, 1]),
        ([0.0, 0.0], 1.0, []),
        ([1.0], 0.0, []),
        ([], 1.0, []),
    ],
)
def test_surplus_is_few_partitions_and_little_too_much(load: list[float], excess: float, chosen: list[int]) -> None:
    assert surplus(np.array(load), excess) == chosen


@pytest.mark.parametrize(
    "settings_,named",
    [
        ({"limit": 0}, "limit: expected a number above 0"),
        ({"weight": "near"}, "weight: expected one of none, inverse-distance, got 'near'"),
        ({"max_moves": -1}, "max_moves: expected None or a whole number from 0"),
    ],
)
def test_impossible_parameters_are_refused(settings_: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        FairRedistributionParameters(**settings_)  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(situation=situations(all_available=True), most=st.sampled_from([0, 1, 2, None]))
def test_what_leaves_an_overloaded_executor_overloads_no_other(situation: Situation, most: int | None) -> None:
    cluster, workload, current = situation
    try:
        outcome = FAIR_REDISTRIBUTION.place(cluster, workload, current, FairRedistributionParameters(max_moves=most))
    except ScaleOutError:
        return
    moves = outcome.placement.moves_from(current)
    assert most is None or len(moves) <= most
    use = [executor_busy(cluster, workload, each) / cluster.cores for each in (current, outcome.placement)]
    assert all(use[0][move.source] > 0.95 and use[1][move.target] <= 0.95 + 1e-6 for move in moves)
    assert not is_worse(overload(cluster, workload, outcome.placement), overload(cluster, workload, current))
