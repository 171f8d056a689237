"""Fair redistribution of the pipelined migration scheduling work (Souravlas and others)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.analysis.queueing import ShareOverflowError, fair_shares
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.published.fair_redistribution import (
    FAIR_REDISTRIBUTION,
    FairRedistributionParameters,
    overload,
    surplus,
)
from rechannel.policies.registry import is_worse
from unit.policies.random_clusters import Situation, cluster_of, floating, placement_of, situations, stage_of

PAPER = np.array([0.6, 0.8, 0.5])


# The three steps


def test_worked_example_of_fifty_tasks() -> None:
    most = 50 * (1 - PAPER)
    assert most == pytest.approx([20, 10, 25])
    assert 50 / most.sum() == pytest.approx(0.90909, abs=1e-5)
    assert most * 50 / most.sum() == pytest.approx([18.18, 9.09, 22.73], abs=0.005)
    assert fair_shares(50, PAPER).tolist() == [18, 9, 23]


def test_utilizations_that_give_the_worked_example() -> None:
    tenths = np.arange(1, 10) / 10
    matching = []
    for rho in np.stack(np.meshgrid(tenths, tenths, tenths), axis=-1).reshape(-1, 3):
        exact = 50 * (1 - rho) / (1 - rho).sum()
        if (1 - rho).sum() >= 1 and np.round(exact).tolist() == [18, 9, 23]:
            matching.append(rho.tolist())
    assert matching == [PAPER.tolist()]


def test_largest_remainder_against_plain_rounding() -> None:
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


def test_weights() -> None:
    rho = np.array([0.5, 0.5, 0.5])
    assert fair_shares(12, rho, weights=np.array([1.0, 0.5, 0.5])).tolist() == [6, 3, 3]
    # Three quarters of 12 would go to the first, which is free for 6.
    assert fair_shares(12, rho, weights=np.array([6.0, 1.0, 1.0])).tolist() == [6, 3, 3]
    assert fair_shares(50, PAPER, weights=np.full(3, 7.0)).tolist() == [18, 9, 23]


def test_caps() -> None:
    assert fair_shares(50, PAPER, caps=np.array([16, 50, 50])).tolist() == [16, 10, 24]
    assert fair_shares(50, PAPER, caps=np.array([50, 50, 50])).tolist() == [18, 9, 23]
    assert fair_shares(4, np.zeros(3), caps=np.array([0, 1, 3])).tolist() == [0, 1, 3]
    with pytest.raises(ShareOverflowError) as caught:
        fair_shares(50, PAPER, caps=np.array([5, 5, 5]))
    assert (caught.value.shares.tolist(), caught.value.rest) == ([5, 5, 5], 35)


def test_no_tasks() -> None:
    assert fair_shares(0, np.array([1.0])).tolist() == [0]
    with pytest.raises(ModelError, match="count"):
        fair_shares(-1, np.array([0.5]))


def test_too_little_free_capacity() -> None:
    with pytest.raises(ShareOverflowError) as caught:
        fair_shares(10, np.array([0.75, 0.65, 1.5]))
    assert (caught.value.shares.tolist(), caught.value.rest) == ([2, 3, 0], 5)
    with pytest.raises(ScaleOutError, match="add executors"):
        fair_shares(3, np.array([1.0, 1.0]))


def test_ties() -> None:
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
def test_invalid_option(given_: dict[str, np.ndarray], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        fair_shares(3, PAPER, **given_)


@given(
    st.integers(0, 500),
    st.lists(st.tuples(st.floats(0, 1.2), st.floats(0.1, 10), st.integers(0, 300)), min_size=1, max_size=9),
)
def test_shares_add_up_with_any_weights_and_caps(count: int, nodes: list[tuple[float, float, int]]) -> None:
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


def _situation(
    loads: list[float],
    busy: list[float],
    at: list[int],
    *,
    drained: Sequence[int] = (),
    racks: list[int] | None = None,
    memory: float = np.inf,
    state: list[float] | None = None,
) -> Situation:
    """Executors of one core with these loads from a floating stage, each on its node, and one stage on them."""
    number = np.arange(max(racks or [0]) + 1)
    between = 1.0 + 4 * np.abs(np.subtract.outer(number, number))
    cluster = cluster_of(len(loads), drained, memory=memory, per_node=1, racks=racks, distances=between.tolist())
    return cluster, Workload((floating("src", loads), stage_of("a", busy, state=state))), placement_of(a=at)


def _place(situation: Situation, **parameters: Any) -> PolicyAnswer:
    return FAIR_REDISTRIBUTION.place(*situation, FairRedistributionParameters(**parameters))


def _counts(situation: Situation, **parameters: Any) -> list[int]:
    """Return the number of partitions on each executor."""
    return np.bincount(_place(situation, **parameters).placement["a"], minlength=situation[0].size).tolist()


@pytest.mark.parametrize("source", [0, UNPLACED], ids=["drained", "unknown"])
def test_fifty_partitions_of_a_drained_executor(source: int) -> None:
    situation = _situation([0.0, *PAPER], [1e-4] * 50, [source] * 50, drained=[0])
    assert _counts(situation) == [0, 18, 9, 23]
    assert _place(situation).notes == ("50 partitions had to be placed: their executor is unavailable or unknown",)


def test_overflow_to_the_next_sub_cluster() -> None:
    # The source's sub-cluster is free for 10 tasks x (0.1 + 0.2); the other 7 go on to the nearest.
    loads, racks = [0.0, 0.9, 0.8, 0.2, 0.2, 0.1], [0, 0, 0, 1, 1, 2]
    situation = _situation(loads, [1e-4] * 10, [0] * 10, drained=[0], racks=racks)
    assert _counts(situation) == [0, 1, 2, 4, 3, 0]
    assert _counts(situation, sub_clusters=False) == fair_shares(10, np.array([1.0, *loads[1:]])).tolist()


def test_inverse_distance_weight() -> None:
    situation = _situation([0.0, 0.5, 0.5, 0.5], [1e-4] * 12, [0] * 12, drained=[0], racks=[0, 0, 0, 1])
    assert _counts(situation, sub_clusters=False) == [0, 4, 4, 4]
    assert _counts(situation, sub_clusters=False, weight="inverse-distance") == [0, 6, 5, 1]


def test_memory_limits_the_shares() -> None:
    situation = _situation([0.0, 0.1, 0.5], [1e-4] * 6, [0] * 6, drained=[0], memory=3.0, state=[1.0] * 6)
    assert _counts(situation) == [0, 3, 3]


def test_largest_load_is_placed_first() -> None:
    outcome = _place(_situation([0.0, 0.3, 0.0], [0.01, 0.2, 0.3, 0.01], [0] * 4, drained=[0]))
    assert outcome.placement["a"].tolist()[1:3] == [1, 2]


def test_forced_moves_above_the_limit() -> None:
    outcome = _place(_situation([0.0, 1.2, 1.1], [0.1, 0.1], [0, 0], drained=[0]))
    assert outcome.placement == placement_of(a=[2, 1])
    assert outcome.notes[1] == "2 of them are more than the free capacity and were put on the least utilized"


def test_only_the_surplus_leaves() -> None:
    # 1.2 of 0.95: the lightest that is enough alone is 0.3.
    cluster, workload, current = _situation([0.0, 0.3, 0.5], [0.3, 0.6, 0.2, 0.1, 0.05], [0, 0, 0, 0, 1])
    outcome = _place((cluster, workload, current))
    assert outcome.placement["a"].tolist() == [1, 0, 0, 0, 1]
    assert outcome.notes == ("partitions that leave executors above 95% of their capacity: 1, of 1",)
    before, after = (FAIR_REDISTRIBUTION.objective(cluster, workload, each) for each in (current, outcome.placement))
    assert before[0] == pytest.approx(0.25)
    assert after[0] == 0.0
    assert is_worse(before, after)


def test_no_executor_above_the_limit() -> None:
    situation = _situation([0.0, 0.3], [0.4, 0.5], [0, 0])
    assert _place(situation) == PolicyAnswer(situation[2], ("no executor is above the limit",))
    assert _place(situation, limit=0.8).placement == placement_of(a=[1, 0])


def test_max_moves_leaves_out_forced_moves() -> None:
    situation = _situation([0.0, 0.0, 0.1, 0.1], [0.01, 0.5, 0.5, 0.3, 0.3], [0, 1, 1, 1, 1], drained=[0])
    outcomes = [_place(situation, max_moves=most) for most in (0, 1, None)]
    assert [len(outcome.placement.moves_from(situation[2])) for outcome in outcomes] == [1, 2, 3]
    assert outcomes[0].notes[-1] == "overloaded executors are left alone: max_moves is 0"


def test_no_executor_below_the_limit() -> None:
    situation = _situation([0.6, 1.0], [0.6], [0])
    with pytest.raises(ScaleOutError, match=r"95% of its capacity or more: add executors"):
        _place(situation)
    assert _place(situation, max_moves=0).placement == placement_of(a=[0])
    # A partition that nobody can take within the limit stays, since there is room for others.
    assert _place(_situation([0.6, 0.5], [0.6], [0])).placement == placement_of(a=[0])


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
def test_surplus(load: list[float], excess: float, chosen: list[int]) -> None:
    assert surplus(np.array(load), excess) == chosen


@settings(max_examples=100)
@given(situation=situations(all_available=True), most=st.sampled_from([0, 1, 2, None]))
def test_no_executor_is_overloaded_by_a_surplus(situation: Situation, most: int | None) -> None:
    cluster, workload, current = situation
    try:
        outcome = _place(situation, max_moves=most)
    except ScaleOutError:
        return
    moves = outcome.placement.moves_from(current)
    assert most is None or len(moves) <= most
    use = [executor_busy(cluster, workload, each) / cluster.cores for each in (current, outcome.placement)]
    assert all(use[0][move.source] > 0.95 and use[1][move.target] <= 0.95 + 1e-6 for move in moves)
    assert not is_worse(overload(cluster, workload, outcome.placement), overload(cluster, workload, current))
