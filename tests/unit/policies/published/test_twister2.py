"""Twister2's streaming task schedulers against the examples of their pages and the numbers their code gives."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.policy import FunctionPolicy
from rechannel.policies.published.data_locality import (
    DATA_LOCALITY,
    DataLocalityParameters,
    bandwidth_delay_distance,
    transfer_seconds,
)
from rechannel.policies.published.first_fit import (
    FIRST_FIT,
    FirstFitParameters,
)
from rechannel.policies.published.round_robin import (
    ROUND_ROBIN,
    RoundRobinParameters,
)
from unit.policies.published.test_lf import check_entry, unplaced
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of

INSTANCE = np.array([512.0, 500.0, 2.0])
TWO_BY_FOUR = workload_of({"A": [1.0] * 4, "B": [1.0] * 4})


def stage_of(key: str, state_bytes: list[float], busy: list[float]) -> Stage:
    return Stage(key, "q", True, 1.0, np.array(busy), np.array(busy), np.array(state_bytes))


# Round robin.


def test_twister2_round_robin_page_example() -> None:
    placement = ROUND_ROBIN.place(cluster_of(2), TWO_BY_FOUR, unplaced(TWO_BY_FOUR)).placement
    assert placement == placement_of(A=[0, 1, 0, 1], B=[0, 1, 0, 1])


def test_twister2_round_robin_restarts_at_the_first_container_for_each_task() -> None:
    workload = workload_of({"A": [1.0] * 2, "B": [1.0] * 2, "C": [1.0] * 2})
    placement = ROUND_ROBIN.place(cluster_of(3), workload, unplaced(workload)).placement
    total = np.bincount(np.concatenate(list(placement.assignments.values())), minlength=3)
    assert total.tolist() == [3, 3, 0]


def test_twister2_round_robin_limit_of_graph_constraints() -> None:
    at_limit = ROUND_ROBIN.place(cluster_of(2), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), RoundRobinParameters(2))
    assert at_limit.placement == ROUND_ROBIN.place(cluster_of(2), TWO_BY_FOUR, unplaced(TWO_BY_FOUR)).placement
    with pytest.raises(ScaleOutError, match="stage 'A': 2 executors hold 1 of its 4 partitions each"):
        ROUND_ROBIN.place(cluster_of(2), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), RoundRobinParameters(1))


# First fit.


def test_first_fit_goes_by_state_and_by_work() -> None:
    cluster = cluster_of(4, unavailable=[0], memory=10.0)
    workload = Workload((stage_of("a", [6, 5, 4, 1], [0.4, 0.4, 0.4, 0.4]),))
    outcome = FIRST_FIT.place(cluster, workload, unplaced(workload))
    assert outcome.placement == placement_of(a=[1, 2, 1, 2])
    assert outcome.notes == ()
    # With two more tasks of that length an executor would be above its limit.
    tight = FIRST_FIT.place(cluster, workload, unplaced(workload), FirstFitParameters(utilization=0.5))
    assert tight.placement == placement_of(a=[1, 2, 3, 1])
    assert tight.notes == ("1 partitions fit on no executor and went to the least utilized: add executors",)


def test_first_fit_overflow_prefers_where_the_state_fits() -> None:
    cluster = cluster_of(2, memory=10.0)
    workload = Workload((stage_of("a", [9, 5, 4], [0.1, 0.9, 0.9]),))
    outcome = FIRST_FIT.place(cluster, workload, unplaced(workload))
    assert outcome.placement == placement_of(a=[0, 1, 1])
    assert len(outcome.notes) == 1


def test_first_fit_in_source_mode_leaves_a_core_free_for_each_partition() -> None:
    workload = Workload((stage_of("a", [1, 1], [0.5, 0.5]),))
    source = FirstFitParameters(pad_mode="source", utilization=1.0)
    assert FIRST_FIT.place(cluster_of(2, cores=2), workload, unplaced(workload)).placement == placement_of(a=[0, 0])
    assert FIRST_FIT.place(cluster_of(2, cores=2), workload, unplaced(workload), source).placement == placement_of(
        a=[0, 0]
    )
    workload = Workload((stage_of("a", [1, 1], [0.6, 0.5]),))
    assert FIRST_FIT.place(cluster_of(2, cores=2), workload, unplaced(workload), source).placement == placement_of(
        a=[0, 1]
    )


def test_first_fit_objective_is_overload_then_executors_used() -> None:
    cluster, workload = cluster_of(3), Workload((stage_of("a", [1, 1, 1], [0.5, 0.5, 0.25]),))
    objective = FIRST_FIT.objective
    assert objective(cluster, workload, placement_of(a=[0, 0, 0])) == (pytest.approx(0.3), 1)
    assert objective(cluster, workload, placement_of(a=[0, 1, 0])) == (0, 2)
    assert objective(cluster, workload, placement_of(a=[0, 1, 2])) == (0, 3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pad_mode": "all"}, "pad_mode: expected one of capacity_only, source, got 'all'"),
        ({"padding_percent": -1}, "padding_percent: expected a number from 0"),
        ({"padding_percent": float("nan")}, "padding_percent: expected a number from 0"),
        ({"utilization": 0}, "utilization: expected a number above 0 to 1"),
        ({"utilization": True}, "utilization: expected a number above 0 to 1"),
    ],
)
def test_first_fit_parameters_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        FirstFitParameters(**fields)  # type: ignore[arg-type]


# Data locality.


def test_twister2_distances() -> None:
    for bandwidth, latency, distance in ((100, 0.02, 0.0), (100, 0.002, 3.6), (1000, 0.1, 196.0)):
        parameters = DataLocalityParameters(worker_latency=latency)
        assert bandwidth_delay_distance(np.array([bandwidth]), parameters) == pytest.approx([distance])


def test_transfer_time_is_that_of_the_slower_end() -> None:
    parameters = DataLocalityParameters(worker_latency=0.5, data_latency=0.25)
    assert transfer_seconds(400.0, np.array([100, 1000]), parameters).tolist() == [4.75, 2.75]


def cluster_with(bandwidth: list[float], unavailable: tuple[int, ...] = ()) -> Cluster:
    """Executors that fetch so many megabits per second."""
    size = len(bandwidth)
    topology = Topology(np.zeros(size, dtype=np.int64), np.array(bandwidth) * 1e6 / 8, np.ones((1, 1)))
    flat = cluster_of(size, unavailable)
    return Cluster(flat.executors, flat.nodes, flat.cores, flat.memory_bytes, flat.speed, flat.available, topology)


def test_twister2_data_locality_all_tie_with_the_defaults_of_the_code() -> None:
    placement = DATA_LOCALITY.place(cluster_of(4), TWO_BY_FOUR, unplaced(TWO_BY_FOUR)).placement
    assert placement == placement_of(A=[0, 0, 1, 1], B=[2, 2, 3, 3])


def test_data_locality_goes_by_distance_and_spills() -> None:
    cluster = cluster_with([1000, np.inf, 110, 101], unavailable=(3,))
    parameters = DataLocalityParameters(instances_per_executor=3)
    placement = DATA_LOCALITY.place(cluster, TWO_BY_FOUR, unplaced(TWO_BY_FOUR), parameters).placement
    assert placement == placement_of(A=[1, 1, 1, 2], B=[2, 2, 0, 0])


def test_data_locality_strict_keeps_a_stage_together_or_refuses() -> None:
    workload = workload_of({"A": [1.0] * 2, "B": [1.0] * 2, "C": [1.0] * 1, "D": [1.0] * 1})
    strict = DataLocalityParameters(instances_per_executor=3, strict=True)
    placement = DATA_LOCALITY.place(cluster_of(2), workload, unplaced(workload), strict).placement
    # The limit is looked at before a stage is placed, not while it is.
    assert placement == placement_of(A=[0, 0], B=[0, 0], C=[1], D=[1])
    with pytest.raises(ScaleOutError, match="stage 'A': 4 partitions, an executor may hold 3"):
        DATA_LOCALITY.place(cluster_of(3), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), strict)


def test_data_locality_needs_room_for_all() -> None:
    with pytest.raises(ScaleOutError, match="3 executors hold 2 of 8 partitions each"):
        DATA_LOCALITY.place(cluster_of(3), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), DataLocalityParameters(2))
    exact = DATA_LOCALITY.place(cluster_of(4), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), DataLocalityParameters(2))
    assert exact.placement == placement_of(A=[0, 0, 1, 1], B=[2, 2, 3, 3])


def test_data_locality_by_transfer_time_takes_the_fastest() -> None:
    cluster = cluster_with([50, 100, 150])
    workload = Workload((stage_of("a", [1e6, 1e6, 1e6], [1, 1, 1]),))
    by_time = DataLocalityParameters(cost="transfer_time")
    assert DATA_LOCALITY.place(cluster, workload, unplaced(workload), by_time).placement == placement_of(a=[2, 1, 0])
    assert DATA_LOCALITY.place(cluster, workload, unplaced(workload)).placement == placement_of(a=[1, 0, 2])


def test_data_locality_goes_first_to_where_the_data_is() -> None:
    parameters = DataLocalityParameters(instances_per_executor=4, data_nodes=("n1", "elsewhere"))
    placement = DATA_LOCALITY.place(cluster_of(4), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), parameters).placement
    assert placement == placement_of(A=[2] * 4, B=[3] * 4)


def test_data_locality_objective_is_distance_then_unevenness() -> None:
    cluster, workload = cluster_with([100, 110]), workload_of({"a": [1.0] * 3})
    objective = DATA_LOCALITY.objective
    assert objective(cluster, workload, placement_of(a=[0, 0, 0])) == (0, 3, 9)
    assert objective(cluster, workload, placement_of(a=[0, 1, 1])) == (pytest.approx(0.8), 1, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instances_per_executor": 0}, "instances_per_executor: expected None or a whole number from 1"),
        ({"worker_bandwidth": 0}, "worker_bandwidth: expected a number above 0"),
        ({"data_bandwidth": float("inf")}, "data_bandwidth: expected a number above 0"),
        ({"data_latency": -0.1}, "data_latency: expected a number from 0"),
        ({"worker_latency": "1"}, "worker_latency: expected a number from 0"),
        ({"cost": "hops"}, "cost: expected one of bandwidth_delay, transfer_time"),
        ({"data_nodes": "n1"}, "data_nodes: expected None or a list of node names"),
        ({"data_nodes": []}, "data_nodes: expected None or a list of node names"),
    ],
)
def test_data_locality_parameters_are_checked(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        DataLocalityParameters(**fields)  # type: ignore[arg-type]


# Laws.


@pytest.mark.parametrize("entry", [ROUND_ROBIN, FIRST_FIT, DATA_LOCALITY])
def test_no_available_executor_asks_for_one(entry: FunctionPolicy) -> None:
    with pytest.raises(ScaleOutError, match="none is available"):
        entry.place(cluster_of(1, unavailable=[0]), TWO_BY_FOUR, unplaced(TWO_BY_FOUR), None)


@pytest.mark.parametrize(
    ("entry", "parameters"),
    [
        (ROUND_ROBIN, {}),
        (FIRST_FIT, {}),
        (FIRST_FIT, {"pad_mode": "source", "utilization": 0.5}),
        (DATA_LOCALITY, {}),
        (DATA_LOCALITY, {"cost": "transfer_time", "instances_per_executor": 200, "strict": True}),
    ],
)
@given(situation=situations())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_laws(entry: FunctionPolicy, parameters: Mapping[str, object], situation: Situation) -> None:
    check_entry(entry, situation, parameters)
