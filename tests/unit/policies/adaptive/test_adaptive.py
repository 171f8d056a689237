"""Placements of ``adaptive``, case by case."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.adaptive.parameters import AdaptiveParameters
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.analysis.placement_cost import placement_cost
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.streams import Stream
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.registry import propose
from unit.policies.laws import check_proposal
from unit.policies.random_clusters import cluster_of, placement_of, workload_of


@dataclass(frozen=True)
class Case:
    sentence: str
    cluster: Cluster
    workload: Workload
    before: Placement
    after: Placement | None = None  # None: only the figures below are asserted
    path: float | None = None
    moves: int | None = None
    parameters: dict[str, object] = field(default_factory=dict)


RATE = 0.01  # of workload_of: nothing is saturated unless a case says so
HEAVY = [10.0, 1.0, 1.0, 1.0, 4.0, 4.0]

CASES = [
    Case(
        "does not move when balanced",
        cluster_of(3),
        workload_of({"a": [1.0] * 6}),
        placement_of(a=[0, 1, 2, 0, 1, 2]),
        after=placement_of(a=[0, 1, 2, 0, 1, 2]),
    ),
    Case(
        "does not move where counts differ but no stage would end sooner",
        cluster_of(3),
        workload_of({"a": [1.0] * 4}),
        placement_of(a=[0, 0, 1, 2]),
        after=placement_of(a=[0, 0, 1, 2]),
    ),
    Case(
        "does not move an idle query",
        cluster_of(2),
        workload_of({"a": [0.0] * 6}),
        placement_of(a=[0] * 6),
        after=placement_of(a=[0] * 6),
    ),
    Case(
        "does not move where free cores already take every task",
        cluster_of(2, cores=4),
        workload_of({"a": [1.0, 1.0]}, rate=0.0),
        placement_of(a=[0, 0]),
        after=placement_of(a=[0, 0]),
    ),
    Case(
        "empties a draining executor",
        cluster_of(3, unavailable=[1]),
        workload_of({"a": [1.0] * 6}),
        placement_of(a=[0, 1, 2, 0, 1, 2]),
        path=3.0,
        moves=2,
    ),
    Case(
        "places what is on no executor, the largest first",
        cluster_of(2),
        workload_of({"a": [1.0, 3.0, 2.0]}),
        placement_of(a=[-1, -1, -1]),
        after=placement_of(a=[1, 0, 1]),
        parameters={"max_moves": 0},
    ),
    Case(
        "spreads partitions whose work is not known yet by count",
        cluster_of(2),
        workload_of({"a": [0.0] * 4}),
        placement_of(a=[-1] * 4),
        after=placement_of(a=[0, 1, 0, 1]),
    ),
    Case(
        "fills an executor that joined, over a plateau of equally slow ones",
        cluster_of(4),
        workload_of({"a": [1.0] * 12}),
        placement_of(a=[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        path=3.0,
        moves=3,
    ),
    Case(
        "moves the heavy partition's neighbors, not the heavy partition alone",
        cluster_of(3),
        workload_of({"a": HEAVY}),
        placement_of(a=[0, 0, 0, 0, 1, 2]),
        path=10.0,
        moves=3,
    ),
    Case(
        "evens out each stage where only the total is even",
        cluster_of(2),
        workload_of({"a": [1.0] * 4, "b": [1.0] * 4}),
        placement_of(a=[0] * 4, b=[1] * 4),
        path=4.0,
        moves=4,
    ),
    Case(
        "evens out each stage where two executors each are equally slow",
        cluster_of(4),
        workload_of({"a": [1.0] * 8, "b": [1.0] * 8}),
        placement_of(a=[0, 1] * 4, b=[2, 3] * 4),
        path=4.0,
        moves=8,
    ),
    Case(
        "swaps two partitions where no single move helps",
        cluster_of(2),
        workload_of({"a": [5.0, 4.0, 3.0, 2.0]}),
        placement_of(a=[0, 0, 1, 1]),
        path=7.0,
        moves=2,
    ),
    Case(
        "takes back the moves of a stage that did not get shorter",
        cluster_of(3),
        workload_of({"a": [4.0, 4.0, 4.0, 4.0, 1.0], "b": [1.0, 1.0, 1.0]}),
        placement_of(a=[0, 0, 1, 1, 2], b=[0, 0, 0]),
        path=9.0,
        moves=2,
    ),
    Case(
        "leaves an executor below saturation as it is where no stage can get shorter",
        cluster_of(2, cores=2),
        workload_of({"a": [10.0, 3.0]}),
        placement_of(a=[0, 0]),
        after=placement_of(a=[0, 0]),
    ),
    Case(
        "relieves a saturated executor though no stage gets shorter",
        cluster_of(2, cores=2),
        workload_of({"a": [1.0, 0.95]}, rate=1.0),
        placement_of(a=[0, 0]),
        moves=1,
    ),
    Case(
        "relieves it in light mode too, and does no more",
        cluster_of(3),
        workload_of({"a": [0.3] * 5}, rate=1.0),
        placement_of(a=[0, 0, 0, 0, 1]),
        moves=1,
        parameters={"mode": "light"},
    ),
    Case(
        "makes no stage longer for a lower utilization",
        cluster_of(2),
        workload_of({"a": [10.0], "b": [2.0, 3.0]}),
        placement_of(a=[0], b=[0, 1]),
        after=placement_of(a=[0], b=[0, 1]),
    ),
    Case(
        "moves nothing for less than min_step",
        cluster_of(2),
        workload_of({"a": [1.0] * 4}),
        placement_of(a=[0, 0, 0, 1]),
        after=placement_of(a=[0, 0, 0, 1]),
        parameters={"min_step": 0.5},
    ),
    Case(
        "keeps within max_moves",
        cluster_of(2),
        workload_of({"a": [1.0] * 10}),
        placement_of(a=[0] * 10),
        path=8.0,
        moves=2,
        parameters={"max_moves": 2},
    ),
    Case(
        "does not count what has to move against max_moves",
        cluster_of(3, unavailable=[2]),
        workload_of({"a": [1.0] * 4}),
        placement_of(a=[2, 2, 2, 2]),
        path=2.0,
        moves=4,
        parameters={"max_moves": 0},
    ),
    Case(
        "does not fill an executor beyond its memory",
        cluster_of(2, memory=3.0),
        workload_of({"a": [1.0] * 6}),
        placement_of(a=[0, 0, 0, 0, 1, 1]),
        path=3.0,
        moves=1,
    ),
    Case(
        "prefers, among equal targets, the one that makes a hot stream local",
        cluster_of(4),
        workload_of(
            {"a": [1.0] * 4, "b": [1.0] * 4},
            [Stream("a", "b", np.array([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 90, 1, 1]]))],
        ),
        placement_of(a=[0, 1, 2, 3], b=[0, -1, 1, -1]),
        after=placement_of(a=[0, 1, 2, 3], b=[0, 3, 1, 2]),
    ),
    Case(
        "does not move for locality alone",
        cluster_of(2),
        workload_of({"a": [1.0, 1.0], "b": [1.0, 1.0]}, [Stream("a", "b", np.array([[1, 90], [90, 1]]))]),
        placement_of(a=[0, 1], b=[0, 1]),
        after=placement_of(a=[0, 1], b=[0, 1]),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.sentence)
def test_case(case: Case) -> None:
    proposal = propose("adaptive", case.cluster, case.workload, case.before, case.parameters)
    if case.after is not None:
        assert proposal.placement == case.after
    if case.path is not None:
        assert proposal.objective_after[2] / RATE == pytest.approx(case.path)
    if case.moves is not None:
        assert len(proposal.moves) == case.moves
    if not case.parameters:
        check_proposal(case.cluster, case.workload, case.before, proposal)


def test_heavy_partition_stays_where_it_is() -> None:
    proposal = propose("adaptive", cluster_of(3), workload_of({"a": HEAVY}), placement_of(a=[0, 0, 0, 0, 1, 2]))
    assert {move.partition for move in proposal.moves} == {1, 2, 3}


def test_faster_executor_gets_more() -> None:
    cluster = cluster_of(2)
    fast = Cluster(
        cluster.executors, cluster.nodes, cluster.cores, cluster.memory_bytes, np.array([1.0, 3.0]), cluster.available
    )
    outcome = ADAPTIVE.place(fast, workload_of({"a": [1.0] * 8}), placement_of(a=[0, 1] * 4))
    assert np.bincount(outcome.placement["a"]).tolist() == [2, 6]


def test_swap_that_does_not_fit_in_memory_is_not_made() -> None:
    stage = Stage("a", "q", True, RATE, np.array([5.0, 4, 3, 2]), np.ones(4), np.array([5.0, 1, 1, 2]))
    current = placement_of(a=[0, 0, 1, 1])
    workload = Workload((stage,))
    tight, roomy = cluster_of(2, memory=6.0), cluster_of(2, memory=7.0)
    answer = placement_cost(tight, workload, ADAPTIVE.place(tight, workload, current).placement)
    assert answer == (0.0, 0.0, pytest.approx(8.0 * RATE))  # 7 s would not fit
    assert placement_cost(roomy, workload, ADAPTIVE.place(roomy, workload, current).placement)[2] == pytest.approx(
        7.0 * RATE
    )


def test_no_available_executor_asks_for_more() -> None:
    with pytest.raises(ScaleOutError, match="2 partitions need an executor"):
        ADAPTIVE.place(cluster_of(1, unavailable=[0]), workload_of({"a": [1.0, 1.0]}), placement_of(a=[0, 0]))


def test_state_that_fits_nowhere_is_placed_and_said() -> None:
    proposal = propose("adaptive", cluster_of(2, memory=1.0), workload_of({"a": [5.0]}), placement_of(a=[-1]))
    assert proposal.placement["a"].tolist() == [0]
    assert any("does not fit" in note for note in proposal.notes)


@pytest.mark.parametrize("field,value", [("min_step", -0.1), ("min_step", 1.0), ("max_moves", -1), ("max_moves", 1.5)])
def test_bad_parameter_is_named(field: str, value: object) -> None:
    with pytest.raises(ModelError, match=field):
        AdaptiveParameters(**{field: value})  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=30),
    st.integers(0, 2**32 - 1),
)
def test_one_stage_ends_within_the_bound_of_local_search(size: int, busy: list[float], seed: int) -> None:
    """No single move helps any more, so the makespan is at most 2 - 2/(m + 1) times the optimum (Finn, Horowitz)."""
    current = Placement({"a": np.random.default_rng(seed).integers(0, size, len(busy))})
    cluster, workload = cluster_of(size), workload_of({"a": busy})
    outcome = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(min_step=0.0))
    floor = max(sum(busy) / size, max(busy))
    assert placement_cost(cluster, workload, outcome.placement)[2] <= floor * (2 - 2 / (size + 1)) * (1 + 1e-6)


def test_a_large_cluster_comes_close_to_its_floor() -> None:
    random = np.random.default_rng(7)
    busy = {f"s{i}": random.pareto(2.0, 100).clip(max=3.0) + 0.1 for i in range(4)}
    workload = workload_of({key: values.tolist() for key, values in busy.items()})
    current = Placement({key: random.integers(0, 20, 100) for key in busy})
    proposal = propose("adaptive", cluster_of(20), workload, current)
    floor = sum(max(values.sum() / 20, values.max()) for values in busy.values())
    assert proposal.objective_before[2] / RATE > 1.5 * floor
    assert proposal.objective_after[2] / RATE < 1.02 * floor
