"""Laws of every built-in policy, on random clusters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import SparseShuffle
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.registry import POLICIES, Proposal, is_worse, make_parameters, propose
from unit.policies.laws import check_placement, check_proposal
from unit.policies.random_clusters import Situation, cluster_of, floating, placement_of, situations, workload_of

VARIANTS: tuple[tuple[str, dict[str, object]], ...] = (
    *((name, {}) for name in sorted(POLICIES)),
    ("even", {"slots": 2}),
    ("locality-fairness", {"placement": "sibling", "slots": 3}),
    ("first-fit", {"pad_mode": "source", "utilization": 0.5}),
    ("data-locality", {"cost": "transfer_time", "instances_per_executor": 200, "strict": True}),
)
every_policy = pytest.mark.parametrize("name", sorted(POLICIES))


def check_refusal(name: str, situation: Situation) -> None:
    """Only fair redistribution may ask for executors: where all are full and no partition has to leave."""
    cluster, workload, current = situation
    assert name == "fair-redistribution"
    assert all((array != UNPLACED).all() for array in current.on_available(cluster).values())
    use = executor_busy(cluster, workload, current) / cluster.cores
    assert (use[cluster.available] >= 0.95 * (1 - 1e-9)).all()


def proposal_of(name: str, situation: Situation) -> Proposal | None:
    try:
        return propose(name, *situation)
    except ScaleOutError:
        check_refusal(name, situation)
        return None


@pytest.mark.parametrize(("name", "parameters"), VARIANTS)
@settings(max_examples=40)
@given(situation=situations())
def test_placement_keeps_the_laws(name: str, parameters: dict[str, object], situation: Situation) -> None:
    try:
        check_placement(POLICIES[name], situation, parameters)
    except ScaleOutError:
        check_refusal(name, situation)


@pytest.mark.parametrize("all_available", [False, True], ids=["executors missing", "all executors"])
@every_policy
@settings(max_examples=40)
@given(data=st.data())
def test_proposal_keeps_the_laws(name: str, all_available: bool, data: st.DataObject) -> None:
    situation = data.draw(situations(all_available=all_available))
    if (proposal := proposal_of(name, situation)) is not None:
        check_proposal(*situation, proposal)


@every_policy
@settings(max_examples=25)
@given(situation=situations())
def test_second_proposal_is_no_worse(name: str, situation: Situation) -> None:
    cluster, workload, _ = situation
    if (first := proposal_of(name, situation)) is not None:
        second = proposal_of(name, (cluster, workload, first.placement))
        assert second is None or not is_worse(second.objective_after, first.objective_after)


@every_policy
def test_no_available_executor(name: str) -> None:
    situation = cluster_of(1, unavailable=[0]), workload_of({"a": [1.0, 1.0]}), placement_of(a=[0, -1])
    with pytest.raises(ScaleOutError, match="2 partitions need an executor and none is available: add executors"):
        propose(name, *situation)


@every_policy
def test_nothing_to_place(name: str) -> None:
    proposal = propose(name, cluster_of(1, unavailable=[0]), Workload((floating("src", [0.1]),)), Placement({}))
    assert (proposal.moves, proposal.notes) == ((), ("no stage has partitions to place",))


@pytest.mark.parametrize("name", sorted(POLICIES.keys() - {"adaptive"}))
def test_thousands_of_partitions(name: str) -> None:
    random, size = np.random.default_rng(5), 3_000
    stages = tuple(Stage(f"s{i}", "q", True, 1.0, random.random(size), np.ones(size), np.ones(size)) for i in range(2))
    ends = np.arange(size), random.permutation(size)
    shuffle = SparseShuffle("s0", "s1", (size, size), *ends, random.exponential(size=size))
    current = Placement({stage.key: np.arange(size) % 20 for stage in stages})
    outcome = POLICIES[name].place(cluster_of(20, cores=400.0), Workload(stages, (shuffle,)), current)
    assert all(array.min() >= 0 for array in outcome.placement.assignments.values())


COUNT = "expected None or a whole number from"


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        ("adaptive", {"min_step": -0.1}, "min_step: expected a number from 0"),
        ("adaptive", {"min_step": 1.0}, "min_step: expected a number from 0 to below 1"),
        ("adaptive", {"max_moves": -1}, f"max_moves: {COUNT} 0"),
        ("adaptive", {"max_moves": 1.5}, f"max_moves: {COUNT} 0"),
        ("bottleneck", {"lookback": 0}, f"lookback: {COUNT} 1"),
        ("r-storm", {"network_weight": -1}, "network_weight: expected a number from 0"),
        ("t-storm", {"consolidation": 0.5}, "consolidation: expected a number from 1"),
        ("t-storm", {"capacity": "1"}, "capacity: expected a number above 0"),
        ("aniello-online", {"threshold": 1.5}, "threshold: expected a number from 0 to 1"),
        ("aniello-online", {"alpha": -0.1}, "alpha: expected a number from 0 to 1"),
        ("stream-classification", {"alpha": 0}, "alpha: expected a number above 0"),
        ("stream-classification", {"gamma": float("nan")}, "gamma: expected a number above 0"),
        ("stream-classification", {"beta": True}, "beta: expected a number above 0"),
        ("stream-classification", {"hot_includes_upper_mid": 1}, "hot_includes_upper_mid: Expected `bool`"),
        ("stream-classification", {"max_instances_per_executor": 0}, f"max_instances_per_executor: {COUNT} 1"),
        ("fair-redistribution", {"limit": 0}, "limit: expected a number above 0"),
        ("fair-redistribution", {"weight": "near"}, "weight: expected one of none, inverse-distance, got 'near'"),
        ("fair-redistribution", {"sub_clusters": 1}, "sub_clusters: Expected `bool`"),
        ("fair-redistribution", {"max_moves": -1}, f"max_moves: {COUNT} 0"),
        ("first-fit", {"pad_mode": "all"}, "pad_mode: expected one of capacity_only, source, got 'all'"),
        ("first-fit", {"padding_percent": -1}, "padding_percent: expected a number from 0"),
        ("first-fit", {"padding_percent": float("nan")}, "padding_percent: expected a number from 0"),
        ("first-fit", {"utilization": 0}, "utilization: expected a number above 0 to 1"),
        ("first-fit", {"utilization": True}, "utilization: expected a number above 0 to 1"),
        ("data-locality", {"instances_per_executor": 0}, f"instances_per_executor: {COUNT} 1"),
        ("data-locality", {"worker_bandwidth": 0}, "worker_bandwidth: expected a number above 0"),
        ("data-locality", {"data_bandwidth": float("inf")}, "data_bandwidth: expected a number above 0"),
        ("data-locality", {"data_latency": -0.1}, "data_latency: expected a number from 0"),
        ("data-locality", {"worker_latency": "1"}, "worker_latency: expected a number from 0"),
        ("data-locality", {"cost": "hops"}, "cost: expected one of bandwidth_delay, transfer_time"),
        ("data-locality", {"data_nodes": "n1"}, "data_nodes: expected None or a list of node names"),
        ("data-locality", {"data_nodes": []}, "data_nodes: expected None or a list of node names"),
        ("data-locality", {"strict": 1}, "strict: Expected `bool`"),
        ("locality-fairness", {"placement": "best"}, "placement: expected one of literal, sibling, got 'best'"),
        *(
            (policy, {"slots": value}, f"slots: {COUNT} 1")
            for policy in ("even", "locality-fairness")
            for value in (0, -1, 1.5, True, "2")
        ),
    ],
)
def test_invalid_parameter(policy: str, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        make_parameters(POLICIES[policy], parameters)
