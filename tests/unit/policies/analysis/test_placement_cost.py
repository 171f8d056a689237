from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import (
    executor_busy,
    finish_time,
    finish_times,
    inter_executor_volume,
    inter_node_volume,
    placement_cost,
    spread,
)
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Stage, Workload
from unit.policies.random_clusters import cluster_of, critical_path, placement_of, workload_of

CLUSTER = Cluster(
    ("e0", "e1"), ("n0", "n0"), np.array([1.0, 2.0]), np.full(2, np.inf), np.array([1.0, 2.0]), np.array([True, True])
)


def _query() -> Workload:
    source = Stage("src", "q", False, 0.5, [1.0, 8.0], [1, 1], [0, 0])
    return Workload((source, Stage("a", "q", True, 0.5, [3.0, 2.0, 6.0], [1] * 3, [0] * 3)))


def test_cost_of_one_query() -> None:
    placement = placement_of(a=[0, 1, 1])
    assert executor_busy(CLUSTER, _query(), placement).tolist() == [0.5 * 4, 0.5 * 16 / 2]
    # e0: 3 s; e1: 2 s and 6 s side by side on two cores, at double speed
    assert finish_times(CLUSTER, _query().stage("a").busy, placement["a"]).tolist() == [3.0, 6.0]
    assert critical_path(CLUSTER, _query(), placement) == {"q": 3.0 + 2.0}
    # 2 of one core and 4 of two cores are asked for
    assert placement_cost(CLUSTER, _query(), placement) == (0.0, pytest.approx(1.05 + 2.1), 2.5)


def test_tasks_run_in_the_order_of_their_partitions() -> None:
    stage = workload_of({"a": [1.0, 1.0, 4.0]}).stage("a")
    together = np.zeros(3, dtype=np.int64)
    # The long one begins last: list scheduling, as Spark does it, is not the best packing.
    assert finish_times(cluster_of(1, cores=2), stage.busy, together).tolist() == [5.0]


def test_load_of_other_queries() -> None:
    mine = Stage("a", "q", True, 0.1, [2.0], [1], [0])
    other = Stage("b", "p", True, 0.5, [1.0], [1], [0])
    workload = Workload((mine, other))
    path = critical_path(cluster_of(2), workload, placement_of(a=[0], b=[0]))
    assert path == {"q": pytest.approx(2.0 / 0.5), "p": pytest.approx(1.0 / 0.8)}
    assert critical_path(cluster_of(2), workload, placement_of(a=[0], b=[1])) == {"q": 2.0, "p": 1.0}


def test_fetching_with_known_bandwidth() -> None:
    shuffle = DenseShuffle("a", "b", np.array([[10.0, 30.0]]))
    workload = workload_of({"a": [1.0], "b": [1.0, 1.0]}, [shuffle], rate=0.1)
    topology = Topology(np.zeros(2, dtype=np.int64), np.full(2, 100.0), np.ones((1, 1)))
    cluster = replace(cluster_of(2), topology=topology)
    # 30 bytes/s at a batch every ten seconds are 300 bytes a batch, fetched at 100 bytes/s
    assert critical_path(cluster, workload, placement_of(a=[0], b=[0, 1])) == {"q": 1.0 + 1.0 + 3.0}
    assert critical_path(cluster, workload, placement_of(a=[0], b=[0, 0])) == {"q": 1.0 + 2.0}


def test_unplaced_partitions() -> None:
    assert executor_busy(CLUSTER, _query(), placement_of(a=[-1, -1, -1])).tolist() == [0.5, 2.0]


def test_volume_between_executors_and_nodes() -> None:
    shuffle = DenseShuffle("a", "b", np.array([[1.0, 2.0, 4.0]]))
    workload = workload_of({"a": [1.0], "b": [1.0] * 3}, [shuffle])
    placement = placement_of(a=[0], b=[0, 1, 2])
    assert inter_executor_volume(cluster_of(4), workload, placement) == 6.0
    assert inter_node_volume(cluster_of(4), workload, placement) == 4.0
    assert inter_executor_volume(cluster_of(4), workload, placement_of(a=[-1], b=[-1, 1, 2])) == 7.0


def test_spread() -> None:
    assert spread(np.array([1.0, 3.0])) == 0.5
    assert spread(np.array([])) == spread(np.zeros(3)) == 0.0


@settings(max_examples=60)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.integers(1, 3))
def test_stage_time_within_the_bound_of_graham(busy: list[float], cores: int) -> None:
    stage = workload_of({"a": busy}).stage("a")
    (time,) = finish_times(cluster_of(1, cores=cores), stage.busy, np.zeros(len(busy), dtype=np.int64))
    best = min(
        np.bincount(np.array(slots), weights=busy).max() for slots in itertools.product(range(cores), repeat=len(busy))
    )
    assert best * (1 - 1e-9) <= time <= best * (2 - 1 / cores) * (1 + 1e-9)
    assert time == pytest.approx(finish_time(busy, cores))
