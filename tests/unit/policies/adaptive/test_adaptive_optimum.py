"""Quality of ``adaptive`` against the exact optimum, its certified bound and all other policies."""

from __future__ import annotations

import itertools

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.adaptive.parameters import AdaptiveParameters
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.adaptive.two_executors import divide
from rechannel.policies.analysis.placement_cost import SATURATED, executor_busy, placement_cost
from rechannel.policies.model.arrays import ScaleOutError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.registry import POLICIES, is_worse, propose
from rechannel.policies.scenarios.generators import GENERATORS, generate
from unit.policies.random_clusters import (
    Situation,
    cluster_of,
    floating,
    placement_of,
    situations,
    stage_of,
    workload_of,
)

FREE = AdaptiveParameters(min_step=0.0)  # the best placement, however little it gains
SMALLER = {
    "chains": ",executors=4,chains=2,length=3,partitions=8",
    "random-dag": ",executors=4,stages=4,partitions=8",
    "heterogeneous": ",executors=4,stages=4,partitions=8",
    "drained": ",executors=4,stages=4,partitions=8",
    "spark-blocks": ",executors=6,queries=2,partitions=12",
    "sparse": ",executors=6,tasks=100,edges=300",
}


def _optimum(cluster: Cluster, stage: Stage) -> float:
    """The least makespan on one-core executors, by mixed integer programming."""
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("mip_rel_gap", 1e-4)
    model.setOptionValue("time_limit", 20.0)
    makespan = model.addVariable(lb=0)
    on = [[model.addBinary() for _ in range(cluster.size)] for _ in range(stage.n)]
    for row in on:
        model.addConstr(sum(row) == 1)
    for e in range(cluster.size):
        work = sum(float(stage.busy[p] / cluster.speed[e]) * on[p][e] for p in range(stage.n))
        model.addConstr(work <= makespan)
    model.minimize(makespan)
    return float(model.getInfo().mip_dual_bound)


@pytest.mark.parametrize("seed", range(12))
def test_small_instances_within_one_percent_of_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 6))
    speed = np.ones(size) if seed % 2 else random.choice([0.5, 1.0, 2.0], size)
    cluster = cluster_of(size, speed=speed)
    busy = [random.uniform(0.1, 1.1, 13), random.pareto(1.2, 13).clip(max=20) + 0.1, random.choice([1.0, 2, 3], 13)]
    stage = workload_of({"a": busy[seed % 3].tolist()}, rate=0.001).stage("a")
    current = Placement({"a": random.integers(0, size, stage.n)})
    answer = ADAPTIVE.place(cluster, Workload((stage,)), current, FREE)
    seconds = placement_cost(cluster, Workload((stage,)), answer.placement)[2] / 0.001
    assert seconds <= 1.01 * _optimum(cluster, stage)


@pytest.mark.parametrize("seed", range(6))
def test_executors_of_several_cores_against_all_placements(seed: int) -> None:
    random = np.random.default_rng(seed)
    cluster, stage = cluster_of(2, cores=2), workload_of({"a": random.uniform(0.2, 3.0, 9).tolist()}).stage("a")
    workload = Workload((stage,))
    every = itertools.product((0, 1), repeat=stage.n)
    best = min(placement_cost(cluster, workload, Placement({"a": np.array(one)}))[2] for one in every)
    answer = ADAPTIVE.place(cluster, workload, placement_of(a=[0] * stage.n), FREE)
    assert placement_cost(cluster, workload, answer.placement)[2] <= 1.05 * best


@settings(max_examples=40)
@given(situation=situations())
def test_certified_bound_below_saturation(situation: Situation) -> None:
    cluster, workload, current = situation
    bound = certified_bound(cluster, workload)
    random = np.random.default_rng(0)
    available = np.flatnonzero(cluster.available)
    tried = [Placement({s.key: random.choice(available, s.n) for s in workload.placeable}) for _ in range(20)]
    tried.append(ADAPTIVE.place(cluster, workload, current, FREE).placement)
    for placement in tried:
        if (executor_busy(cluster, workload, placement) <= SATURATED * cluster.cores).all():
            assert placement_cost(cluster, workload, placement)[2] >= bound * (1 - 1e-9)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_no_other_policy_is_better(name: str, seed: int) -> None:
    scenario = generate(f"{name}:seed={seed}{SMALLER.get(name, '')}")
    situation = (scenario.cluster, scenario.workload, scenario.current)
    ours = propose("adaptive", *situation, {"min_step": 0.0}).objective_after
    for other in sorted(POLICIES.keys() - {"adaptive"}):
        try:
            placement = propose(other, *situation).placement
        except ScaleOutError:
            continue
        theirs = placement_cost(scenario.cluster, scenario.workload, placement)
        assert not is_worse(ours, theirs), f"{other} has {theirs}, adaptive {ours}"


@settings(max_examples=50)
@given(situation=situations(all_available=True))
def test_light_mode_moves_only_to_relieve(situation: Situation) -> None:
    cluster, workload, current = situation
    proposal = propose("adaptive", cluster, workload, current, {"mode": "light"})
    assert not proposal.moves or is_worse(proposal.objective_before[:2], proposal.objective_after[:2])


def test_limit_parameter() -> None:
    cluster, workload = cluster_of(3), workload_of({"a": [0.4, 0.4, 0.85]}, rate=1.0)
    current = placement_of(a=[0, 0, 1])
    assert not propose("adaptive", cluster, workload, current, {"mode": "light"}).moves
    assert len(propose("adaptive", cluster, workload, current, {"mode": "light", "limit": 0.7}).moves) == 1


@pytest.mark.parametrize("most", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["full", "light"])
def test_max_moves_of_an_overloaded_executor(mode: str, most: int) -> None:
    cluster, workload = cluster_of(3), workload_of({"a": [0.2] * 8}, rate=1.0)
    current = placement_of(a=[0] * 8)
    answer = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(mode=mode, max_moves=most))
    assert len(answer.placement.moves_from(current)) == most


@settings(max_examples=40)
@given(situation=situations(), most=st.integers(0, 3))
def test_max_moves_limits_voluntary_moves(situation: Situation, most: int) -> None:
    cluster, workload, current = situation
    answer = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(max_moves=most)).placement
    own = [move for move in answer.moves_from(current) if move.source >= 0 and cluster.available[move.source]]
    assert len(own) <= most


def test_forced_placements_are_balanced_without_moves_left() -> None:
    cluster = cluster_of(2)
    workload = workload_of({"a": [10.0, 10.0, 0.1], "b": [3.0, 3.0, 2.0, 2.0, 2.0]}, rate=0.01)
    current = placement_of(a=[0, 0, 1], b=[-1] * 5)
    answer = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(max_moves=1)).placement
    assert len([move for move in answer.moves_from(current) if move.source >= 0]) == 1
    work = np.bincount(answer["b"], workload.stage("b").busy, 2)
    assert work.tolist() == [6.0, 6.0], "largest first alone would leave 7 and 5"


@settings(max_examples=40)
@given(situation=situations())
def test_expensive_moves_only_relieve(situation: Situation) -> None:
    cluster, workload, current = situation
    answer = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(move_seconds=1e9)).placement
    own = [move for move in answer.moves_from(current) if move.source >= 0 and cluster.available[move.source]]
    if own and all((array >= 0).all() and cluster.available[array].all() for array in current.assignments.values()):
        assert is_worse(placement_cost(cluster, workload, current)[:2], placement_cost(cluster, workload, answer)[:2])


def test_forced_moves_go_where_the_state_fits() -> None:
    cluster = cluster_of(3, unavailable=[2], memory=[1e6, np.inf, np.inf])
    stages = stage_of("a", [0.1, 0.96], state=[0.9e6, 0.0]), stage_of("b", [0.3], state=[0.5e6])
    current = placement_of(a=[0, 1], b=[2])
    for parameters in (AdaptiveParameters(), AdaptiveParameters(mode="light"), AdaptiveParameters(max_moves=0)):
        answer = ADAPTIVE.place(cluster, Workload(stages), current, parameters).placement
        assert placement_cost(cluster, Workload(stages), answer)[0] == 0.0


def test_certified_bound_with_a_part_of_a_core() -> None:
    cluster = cluster_of(2, cores=[1.0, 1.9])
    workload = Workload((floating("x", [0.0, 1.8], query="p"), stage_of("a", [0.5, 0.5], rate=0.9)))
    cost = placement_cost(cluster, workload, placement_of(a=[0, 0]))[2]
    assert certified_bound(cluster, workload) <= cost


def test_moves_that_cost_more_than_they_gain_are_not_made() -> None:
    cluster, workload = cluster_of(2), workload_of({"a": [1.0] * 8})
    current = placement_of(a=[0, 0, 0, 0, 0, 0, 1, 1])
    few = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(move_seconds=1.0, horizon=600.0))
    none = ADAPTIVE.place(cluster, workload, current, AdaptiveParameters(move_seconds=100.0, horizon=600.0))
    assert len(few.placement.moves_from(current)) == 2
    assert none.placement == current


@pytest.mark.parametrize("seed", range(20))
def test_division_between_two_executors_is_the_best(seed: int) -> None:
    random = np.random.default_rng(seed)
    busy, speed = random.uniform(0.1, 5.0, 10), float(random.choice([1.0, 2.0, 3.5]))
    mine = divide(busy, int(random.integers(0, 11)), 1.0, speed)
    every = (np.array(one) for one in itertools.product((False, True), repeat=10))
    best = min(max(busy[one].sum(), busy[~one].sum() / speed) for one in every)
    assert max(busy[mine].sum(), busy[~mine].sum() / speed) == pytest.approx(best)
