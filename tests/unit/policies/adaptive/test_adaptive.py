"""Placements of ``adaptive``, case by case."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from _pytest.mark import ParameterSet
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.adaptive.parameters import AdaptiveParameters
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.analysis.placement_cost import placement_cost
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Workload
from rechannel.policies.registry import propose
from unit.policies.laws import check_proposal
from unit.policies.random_clusters import cluster_of, placement_of, stage_of, workload_of

RATE = 0.01  # of workload_of: nothing is saturated unless a case says so
HEAVY = [10.0, 1.0, 1.0, 1.0, 4.0, 4.0]
TO_B1 = DenseShuffle("a", "b", np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 90, 1, 1]]))
CROSSED = DenseShuffle("a", "b", np.array([[1, 90], [90, 1]]))


def case(
    sentence: str,
    executors: Cluster | int,
    busy: dict[str, list[float]],
    before: dict[str, list[int]],
    *,
    shuffles: Sequence[DenseShuffle] = (),
    rate: float = RATE,
    after: dict[str, list[int]] | None = None,
    path: float | None = None,
    moves: int | None = None,
    **parameters: object,
) -> ParameterSet:
    """A proposal, and what is asserted of it: placement, seconds per batch, number of moves."""
    cluster = executors if isinstance(executors, Cluster) else cluster_of(executors)
    expected = placement_of(**after) if after else None, path, moves
    workload = workload_of(busy, shuffles, rate)
    return pytest.param(cluster, workload, placement_of(**before), *expected, parameters, id=sentence)


CASES = [
    case("balanced", 3, {"a": [1.0] * 6}, {"a": [0, 1, 2, 0, 1, 2]}, moves=0),
    case("counts differ, but no stage would end sooner", 3, {"a": [1.0] * 4}, {"a": [0, 0, 1, 2]}, moves=0),
    case("idle query", 2, {"a": [0.0] * 6}, {"a": [0] * 6}, moves=0),
    case("every task has a core already", cluster_of(2, cores=4), {"a": [1.0, 1.0]}, {"a": [0, 0]}, rate=0.0, moves=0),
    case(
        "draining executor",
        cluster_of(3, unavailable=[1]),
        {"a": [1.0] * 6},
        {"a": [0, 1, 2, 0, 1, 2]},
        path=3.0,
        moves=2,
    ),
    case(
        "unplaced partitions, the largest first",
        2,
        {"a": [1.0, 3.0, 2.0]},
        {"a": [-1, -1, -1]},
        after={"a": [1, 0, 1]},
        max_moves=0,
    ),
    case(
        "unplaced partitions of unknown work, by count", 2, {"a": [0.0] * 4}, {"a": [-1] * 4}, after={"a": [0, 1, 0, 1]}
    ),
    case(
        "new executor, all others equally slow",
        4,
        {"a": [1.0] * 12},
        {"a": [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]},
        path=3.0,
        moves=3,
    ),
    case("neighbors of a heavy partition", 3, {"a": HEAVY}, {"a": [0, 0, 0, 0, 1, 2]}, path=10.0, moves=3),
    case(
        "only the total is even", 2, {"a": [1.0] * 4, "b": [1.0] * 4}, {"a": [0] * 4, "b": [1] * 4}, path=4.0, moves=4
    ),
    case(
        "two executors of each stage are equally slow",
        4,
        {"a": [1.0] * 8, "b": [1.0] * 8},
        {"a": [0, 1] * 4, "b": [2, 3] * 4},
        path=4.0,
        moves=8,
    ),
    case("swap where no single move helps", 2, {"a": [5.0, 4.0, 3.0, 2.0]}, {"a": [0, 0, 1, 1]}, path=7.0, moves=2),
    case(
        "no moves of a stage that does not get shorter",
        3,
        {"a": [4.0, 4.0, 4.0, 4.0, 1.0], "b": [1.0, 1.0, 1.0]},
        {"a": [0, 0, 1, 1, 2], "b": [0, 0, 0]},
        path=9.0,
        moves=2,
    ),
    case(
        "executor below saturation, no stage can get shorter",
        cluster_of(2, cores=2),
        {"a": [10.0, 3.0]},
        {"a": [0, 0]},
        moves=0,
    ),
    case(
        "saturated executor, no stage gets shorter",
        cluster_of(2, cores=2),
        {"a": [1.0, 0.95]},
        {"a": [0, 0]},
        rate=1.0,
        moves=1,
    ),
    case(
        "saturated executor in light mode", 3, {"a": [0.3] * 5}, {"a": [0, 0, 0, 0, 1]}, rate=1.0, moves=1, mode="light"
    ),
    case(
        "no stage gets longer for a lower utilization",
        2,
        {"a": [10.0], "b": [2.0, 3.0]},
        {"a": [0], "b": [0, 1]},
        moves=0,
    ),
    case("gain below min_step", 2, {"a": [1.0] * 4}, {"a": [0, 0, 0, 1]}, moves=0, min_step=0.5),
    case("max_moves", 2, {"a": [1.0] * 10}, {"a": [0] * 10}, path=8.0, moves=2, max_moves=2),
    case(
        "max_moves does not count forced moves",
        cluster_of(3, unavailable=[2]),
        {"a": [1.0] * 4},
        {"a": [2, 2, 2, 2]},
        path=2.0,
        moves=4,
        max_moves=0,
    ),
    case("limited memory", cluster_of(2, memory=3.0), {"a": [1.0] * 6}, {"a": [0, 0, 0, 0, 1, 1]}, path=3.0, moves=1),
    case(
        "among equal targets the one with a hot stream",
        4,
        {"a": [1.0] * 4, "b": [1.0] * 4},
        {"a": [0, 1, 2, 3], "b": [0, -1, 1, -1]},
        shuffles=[TO_B1],
        after={"a": [0, 1, 2, 3], "b": [0, 3, 1, 2]},
    ),
    case(
        "no moves for locality alone",
        2,
        {"a": [1.0, 1.0], "b": [1.0, 1.0]},
        {"a": [0, 1], "b": [0, 1]},
        shuffles=[CROSSED],
        moves=0,
    ),
]


@pytest.mark.parametrize(("cluster", "workload", "before", "after", "path", "moves", "parameters"), CASES)
def test_case(
    cluster: Cluster,
    workload: Workload,
    before: Placement,
    after: Placement | None,
    path: float | None,
    moves: int | None,
    parameters: dict[str, object],
) -> None:
    proposal = propose("adaptive", cluster, workload, before, parameters)
    assert after is None or proposal.placement == after
    assert path is None or proposal.objective_after[2] / RATE == pytest.approx(path)
    assert moves is None or len(proposal.moves) == moves
    if not parameters:
        check_proposal(cluster, workload, before, proposal)


def test_heavy_partition_stays_where_it_is() -> None:
    proposal = propose("adaptive", cluster_of(3), workload_of({"a": HEAVY}), placement_of(a=[0, 0, 0, 0, 1, 2]))
    assert {move.partition for move in proposal.moves} == {1, 2, 3}


def test_faster_executor_gets_more() -> None:
    fast = cluster_of(2, speed=[1.0, 3.0])
    outcome = ADAPTIVE.place(fast, workload_of({"a": [1.0] * 8}), placement_of(a=[0, 1] * 4))
    assert np.bincount(outcome.placement["a"]).tolist() == [2, 6]


def test_swap_that_does_not_fit_in_memory_is_not_made() -> None:
    stage = stage_of("a", [5.0, 4, 3, 2], rate=RATE, state=[5.0, 1, 1, 2])
    workload, current = Workload((stage,)), placement_of(a=[0, 0, 1, 1])
    for memory, seconds in ((6.0, 8.0), (7.0, 7.0)):  # 7 s need 7 bytes on one executor
        cluster = cluster_of(2, memory=memory)
        answer = placement_cost(cluster, workload, ADAPTIVE.place(cluster, workload, current).placement)
        assert answer == (0.0, 0.0, pytest.approx(seconds * RATE))


def test_state_that_fits_nowhere_has_a_note() -> None:
    proposal = propose("adaptive", cluster_of(2, memory=1.0), workload_of({"a": [5.0]}), placement_of(a=[-1]))
    assert proposal.placement["a"].tolist() == [0]
    assert any("does not fit" in note for note in proposal.notes)


@settings(max_examples=50)
@given(
    st.integers(1, 6),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_makespan_is_within_the_bound_of_local_search(size: int, busy: list[float], seed: int) -> None:
    """No single move helps any more, so the makespan is at most 2 - 2/(m + 1) times the optimum (Finn, Horowitz)."""
    current = Placement({"a": np.random.default_rng(seed).integers(0, size, len(busy))})
    cluster, workload = cluster_of(size), workload_of({"a": busy})
    outcome = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(min_step=0.0))
    floor = max(sum(busy) / size, max(busy))
    assert placement_cost(cluster, workload, outcome.placement)[2] <= floor * (2 - 2 / (size + 1)) * (1 + 1e-6)


def test_large_cluster_is_near_its_lower_bound() -> None:
    random = np.random.default_rng(7)
    busy = {f"s{i}": random.pareto(2.0, 100).clip(max=3.0) + 0.1 for i in range(4)}
    workload = workload_of({key: values.tolist() for key, values in busy.items()})
    current = Placement({key: random.integers(0, 20, 100) for key in busy})
    proposal = propose("adaptive", cluster_of(20), workload, current)
    floor = sum(max(values.sum() / 20, values.max()) for values in busy.values())
    assert proposal.objective_before[2] / RATE > 1.5 * floor
    assert proposal.objective_after[2] / RATE < 1.02 * floor


def test_queries_on_a_large_cluster_are_placed_again_beside_the_new_places_of_the_others() -> None:
    random = np.random.default_rng(2)
    cluster = cluster_of(40)
    stages = [stage_of(f"q{i}", random.pareto(1.5, 80).clip(max=15), query=f"q{i}", rate=0.0125) for i in range(8)]
    current = Placement({stage.key: random.integers(0, 30, stage.n) for stage in stages})
    workload = Workload(tuple(stages))
    answer = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters())
    assert placement_cost(cluster, workload, answer.placement)[2] < 1.1 * certified_bound(cluster, workload)
