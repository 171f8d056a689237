from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.metrics import (
    critical_path,
    executor_busy,
    inter_executor_volume,
    inter_node_volume,
    placement_cost,
    spread,
    stage_time,
)
from rechannel.policies.model import Cluster, ModelError, Stage, Stream, Workload
from rechannel.policies.search import SearchState
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of

CLUSTER = Cluster(
    ("e0", "e1"), ("n0", "n0"), np.array([1.0, 2.0]), np.full(2, np.inf), np.array([1.0, 2.0]), np.array([True, True])
)


def _query() -> Workload:
    source = Stage("src", "q", False, 0.5, [1.0, 8.0], [1, 1], [0, 0])
    return Workload((source, Stage("a", "q", True, 0.5, [3.0, 2.0, 6.0], [1] * 3, [0] * 3)))


def test_figures_of_one_query_by_hand() -> None:
    placement = placement_of(a=[0, 1, 1])
    assert executor_busy(CLUSTER, _query(), placement).tolist() == [0.5 * 4, 0.5 * 16 / 2]
    # e0: 3 s; e1: 8 s of work on two cores, but one task of 6 s, at double speed
    assert stage_time(CLUSTER, _query().stage("a"), placement["a"]) == 3.0
    assert critical_path(CLUSTER, _query(), placement) == {"q": 3.0 + 2.0}
    assert placement_cost(CLUSTER, _query(), placement) == (2.5, 2.0, 20.0)


def test_an_unplaced_partition_counts_nowhere() -> None:
    assert executor_busy(CLUSTER, _query(), placement_of(a=[-1, -1, -1])).tolist() == [0.5, 2.0]


def test_volume_between_executors_and_nodes() -> None:
    stream = Stream("a", "b", np.array([[1.0, 2.0, 4.0]]))
    workload = workload_of({"a": [1.0], "b": [1.0] * 3}, [stream])
    placement = placement_of(a=[0], b=[0, 1, 2])
    assert inter_executor_volume(cluster_of(4), workload, placement) == 6.0
    assert inter_node_volume(cluster_of(4), workload, placement) == 4.0
    assert inter_executor_volume(cluster_of(4), workload, placement_of(a=[-1], b=[-1, 1, 2])) == 7.0


def test_spread() -> None:
    assert spread(np.array([1.0, 3.0])) == 0.5
    assert spread(np.array([])) == spread(np.zeros(3)) == 0.0


def test_floating_stage_has_no_stage_time_of_an_assignment() -> None:
    with pytest.raises(ModelError, match="floating"):
        stage_time(CLUSTER, _query().stage("src"), np.array([0, 1]))


@settings(max_examples=60)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.integers(1, 3))
def test_stage_time_is_a_lower_bound_of_every_schedule(busy: list[float], cores: int) -> None:
    stage = workload_of({"a": busy}).stage("a")
    bound = stage_time(cluster_of(1, cores=cores), stage, np.zeros(len(busy), dtype=np.int64))
    best = min(
        np.bincount(np.array(slots), weights=busy).max() for slots in itertools.product(range(cores), repeat=len(busy))
    )
    assert bound <= best * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(situations())
def test_the_searchs_running_totals_are_the_metrics(situation: Situation) -> None:
    cluster, workload, placement = situation
    state = SearchState(cluster, workload, placement)
    random = np.random.default_rng(0)
    for unit in range(len(state.assignment)):
        state.set([(unit, int(random.integers(-1, cluster.size)))])
    now = state.placement()
    assert state.value() == pytest.approx(placement_cost(cluster, workload, now)[:2])
    assert state.load / cluster.speed == pytest.approx(executor_busy(cluster, workload, now))


@settings(max_examples=100, deadline=None)
@given(situations(all_available=True), st.data())
def test_a_priced_move_or_swap_costs_what_it_says(situation: Situation, data: st.DataObject) -> None:
    cluster, workload, placement = situation
    state = SearchState(cluster, workload, placement)
    if not len(state.assignment):
        return
    unit = data.draw(st.integers(0, len(state.assignment) - 1))
    source, stage = int(state.assignment[unit]), int(state.stage_of[unit])
    part = state.units(stage)
    partners = np.flatnonzero(state.assignment[part] != source) + part.start
    targets = np.arange(cluster.size)
    found = [(state.moves(np.array([unit]), source), [[(unit, int(e))] for e in targets if e != source])]
    swaps = [[(unit, int(state.assignment[q])), (int(q), source)] for q in partners]
    found.append((state.swaps(np.array([unit]), partners, stage, source), swaps))
    for (candidates, steps), columns in zip(found, (targets[targets != source], range(len(partners))), strict=True):
        for column, changes in zip(columns, steps, strict=True):
            target = int(candidates.target[column])
            undo = state.set(changes)
            assert candidates.source_time[0, column] == pytest.approx(state.time[stage, source], abs=1e-9)
            assert candidates.target_time[0, column] == pytest.approx(state.time[stage, target], abs=1e-9)
            assert candidates.source_use[0, column] == pytest.approx(state.utilization[source], abs=1e-9)
            assert candidates.target_use[0, column] == pytest.approx(state.utilization[target], abs=1e-9)
            state.set(undo)
