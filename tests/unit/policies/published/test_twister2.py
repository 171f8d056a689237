"""Twister2's streaming task schedulers against the examples of their pages and the numbers their code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rechannel.policies.model.arrays import ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload
from rechannel.policies.policy import FunctionPolicy
from rechannel.policies.published.data_locality import (
    DATA_LOCALITY,
    DataLocalityParameters,
    bandwidth_delay_distance,
    transfer_seconds,
)
from rechannel.policies.published.first_fit import FIRST_FIT
from rechannel.policies.published.round_robin import ROUND_ROBIN
from unit.policies.random_clusters import cluster_of, placement_of, stage_of, unplaced, workload_of

TWO_BY_FOUR = workload_of({"A": [1.0] * 4, "B": [1.0] * 4})
SMALL = workload_of({"A": [1.0] * 2, "B": [1.0] * 2, "C": [1.0] * 1, "D": [1.0] * 1})
BY_DISTANCE = placement_of(A=[0, 0, 1, 1], B=[2, 2, 3, 3])
SOURCE = {"pad_mode": "source", "utilization": 1.0}


def place(policy: FunctionPolicy, cluster: Cluster, workload: Workload, **parameters: Any) -> PolicyAnswer:
    return policy.place(cluster, workload, unplaced(workload), policy.parameters(**parameters))


def tasks(state: list[float], busy: list[float]) -> Workload:
    return Workload((stage_of("a", busy, state=state),))


def fetching(bandwidth: list[float], unavailable: tuple[int, ...] = ()) -> Cluster:
    """Executors that fetch so many megabits per second."""
    return cluster_of(len(bandwidth), unavailable, bandwidth=[1e6 / 8 * value for value in bandwidth])


@pytest.mark.parametrize(
    ("policy", "cluster", "workload", "parameters", "expected"),
    [
        # Round robin: the example of the page, and three tasks that all start at the first container.
        (ROUND_ROBIN, cluster_of(2), TWO_BY_FOUR, {}, placement_of(A=[0, 1, 0, 1], B=[0, 1, 0, 1])),
        (
            ROUND_ROBIN,
            cluster_of(3),
            workload_of({"A": [1.0] * 2, "B": [1.0] * 2, "C": [1.0] * 2}),
            {},
            placement_of(A=[0, 1], B=[0, 1], C=[0, 1]),
        ),
        (
            ROUND_ROBIN,
            cluster_of(2),
            TWO_BY_FOUR,
            {"instances_per_executor": 2},
            placement_of(A=[0, 1, 0, 1], B=[0, 1, 0, 1]),
        ),
        # First fit: by state and by work; in source mode a core is left free for each partition.
        (
            FIRST_FIT,
            cluster_of(4, unavailable=[0], memory=10.0),
            tasks([6, 5, 4, 1], [0.4] * 4),
            {},
            placement_of(a=[1, 2, 1, 2]),
        ),
        (FIRST_FIT, cluster_of(2, cores=2), tasks([1, 1], [0.5, 0.5]), {}, placement_of(a=[0, 0])),
        (FIRST_FIT, cluster_of(2, cores=2), tasks([1, 1], [0.5, 0.5]), SOURCE, placement_of(a=[0, 0])),
        (FIRST_FIT, cluster_of(2, cores=2), tasks([1, 1], [0.6, 0.5]), SOURCE, placement_of(a=[0, 1])),
        # Data locality: all tie with the defaults of the code; by distance, with spill; data nodes first.
        (DATA_LOCALITY, cluster_of(4), TWO_BY_FOUR, {}, BY_DISTANCE),
        (DATA_LOCALITY, cluster_of(4), TWO_BY_FOUR, {"instances_per_executor": 2}, BY_DISTANCE),
        (
            DATA_LOCALITY,
            fetching([1000, np.inf, 110, 101], unavailable=(3,)),
            TWO_BY_FOUR,
            {"instances_per_executor": 3},
            placement_of(A=[1, 1, 1, 2], B=[2, 2, 0, 0]),
        ),
        (
            DATA_LOCALITY,
            cluster_of(4),
            TWO_BY_FOUR,
            {"instances_per_executor": 4, "data_nodes": ("n1", "elsewhere")},
            placement_of(A=[2] * 4, B=[3] * 4),
        ),
        (DATA_LOCALITY, fetching([50, 100, 150]), tasks([1e6] * 3, [1.0] * 3), {}, placement_of(a=[1, 0, 2])),
        (
            DATA_LOCALITY,
            fetching([50, 100, 150]),
            tasks([1e6] * 3, [1.0] * 3),
            {"cost": "transfer_time"},
            placement_of(a=[2, 1, 0]),
        ),
        # The limit is looked at before a stage is placed, not while it is.
        (
            DATA_LOCALITY,
            cluster_of(2),
            SMALL,
            {"instances_per_executor": 3, "strict": True},
            placement_of(A=[0, 0], B=[0, 0], C=[1], D=[1]),
        ),
    ],
)
def test_placement(
    policy: FunctionPolicy, cluster: Cluster, workload: Workload, parameters: dict[str, Any], expected: Placement
) -> None:
    outcome = place(policy, cluster, workload, **parameters)
    assert outcome.placement == expected
    assert outcome.notes == ()


@pytest.mark.parametrize(
    ("policy", "size", "parameters", "message"),
    [
        (ROUND_ROBIN, 2, {"instances_per_executor": 1}, "stage 'A': 2 executors hold 1 of its 4 partitions each"),
        (DATA_LOCALITY, 3, {"instances_per_executor": 2}, "3 executors hold 2 of 8 partitions each"),
        (
            DATA_LOCALITY,
            3,
            {"instances_per_executor": 3, "strict": True},
            "stage 'A': 4 partitions, an executor may hold 3",
        ),
    ],
)
def test_limit_of_an_executor(policy: FunctionPolicy, size: int, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ScaleOutError, match=message):
        place(policy, cluster_of(size), TWO_BY_FOUR, **parameters)


@pytest.mark.parametrize(
    ("size", "state", "busy", "utilization", "expected", "count"),
    [
        (3, [6, 5, 4, 1], [0.4] * 4, 0.5, [0, 1, 2, 0], 1),
        (2, [9, 5, 4], [0.1, 0.9, 0.9], 0.95, [0, 1, 1], 1),
        (3, [9, 5, 4], [0.6, 0.9, 0.9], 0.5, [0, 1, 2], 3),
    ],
    ids=["least utilized", "memory first", "nothing fits"],
)
def test_first_fit_overflow(
    size: int, state: list[float], busy: list[float], utilization: float, expected: list[int], count: int
) -> None:
    outcome = place(FIRST_FIT, cluster_of(size, memory=10.0), tasks(state, busy), utilization=utilization)
    assert outcome.placement["a"].tolist() == expected
    assert outcome.notes == (f"{count} partitions fit on no executor and went to the least utilized: add executors",)


def test_first_fit_objective() -> None:
    cluster, workload = cluster_of(3), tasks([1, 1, 1], [0.5, 0.5, 0.25])
    objective = FIRST_FIT.objective
    assert objective(cluster, workload, placement_of(a=[0, 0, 0])) == (pytest.approx(0.3), 1)
    assert objective(cluster, workload, placement_of(a=[0, 1, 0])) == (0, 2)
    assert objective(cluster, workload, placement_of(a=[0, 1, 2])) == (0, 3)


@pytest.mark.parametrize(
    ("bandwidth", "latency", "distance"), [(100, 0.02, 0.0), (100, 0.002, 3.6), (1000, 0.1, 196.0)]
)
def test_bandwidth_delay_distance(bandwidth: float, latency: float, distance: float) -> None:
    parameters = DataLocalityParameters(worker_latency=latency)
    assert bandwidth_delay_distance(np.array([bandwidth]), parameters) == pytest.approx([distance])


def test_transfer_seconds_of_the_slower_end() -> None:
    parameters = DataLocalityParameters(worker_latency=0.5, data_latency=0.25)
    assert transfer_seconds(400.0, np.array([100, 1000]), parameters).tolist() == [4.75, 2.75]


def test_data_locality_objective() -> None:
    cluster, workload = fetching([100, 110]), workload_of({"a": [1.0] * 3})
    objective = DATA_LOCALITY.objective
    assert objective(cluster, workload, placement_of(a=[0, 0, 0])) == (0, 3, 9)
    assert objective(cluster, workload, placement_of(a=[0, 1, 1])) == (pytest.approx(0.8), 1, 5)
