"""How good ``adaptive`` is: against the exact optimum, against what it certifies, and against every other policy."""

from __future__ import annotations

import itertools

import highspy
import numpy as np
import pytest
from hypothesis import given, settings

from rechannel.policies.adaptive import AdaptiveParameters, adaptive, certified_bound
from rechannel.policies.generators import GENERATORS, generate
from rechannel.policies.metrics import SATURATED, executor_busy, placement_cost
from rechannel.policies.model import Cluster, Placement, ScaleOutError, Stage, Workload
from rechannel.policies.pairs import divide
from rechannel.policies.registry import POLICIES, is_worse, propose
from unit.policies.random_clusters import Situation, cluster_of, situations, workload_of

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
def test_within_one_percent_of_the_exact_optimum_on_small_instances(seed: int) -> None:
    random = np.random.default_rng(seed)
    size = int(random.integers(2, 6))
    speed = np.ones(size) if seed % 2 else random.choice([0.5, 1.0, 2.0], size)
    base = cluster_of(size)
    cluster = Cluster(base.executors, base.nodes, base.cores, base.memory_bytes, speed, base.available)
    busy = [random.uniform(0.1, 1.1, 13), random.pareto(1.2, 13).clip(max=20) + 0.1, random.choice([1.0, 2, 3], 13)]
    stage = workload_of({"a": busy[seed % 3].tolist()}, rate=0.001).stage("a")
    current = Placement({"a": random.integers(0, size, stage.n)})
    found = adaptive(cluster, Workload((stage,)), current, FREE)
    seconds = placement_cost(cluster, Workload((stage,)), found.placement)[2] / 0.001
    assert seconds <= 1.01 * _optimum(cluster, stage)


@pytest.mark.parametrize("seed", range(6))
def test_executors_of_several_cores_against_every_placement_there_is(seed: int) -> None:
    random = np.random.default_rng(seed)
    cluster, stage = cluster_of(2, cores=2), workload_of({"a": random.uniform(0.2, 3.0, 9).tolist()}).stage("a")
    workload = Workload((stage,))
    every = itertools.product((0, 1), repeat=stage.n)
    best = min(placement_cost(cluster, workload, Placement({"a": np.array(one)}))[2] for one in every)
    found = adaptive(cluster, workload, Placement({"a": np.zeros(stage.n, dtype=np.int64)}), FREE)
    assert placement_cost(cluster, workload, found.placement)[2] <= 1.05 * best


@settings(max_examples=40, deadline=None)
@given(situation=situations())
def test_no_placement_below_saturation_beats_the_certified_bound(situation: Situation) -> None:
    cluster, workload, current = situation
    bound = certified_bound(cluster, workload)
    random = np.random.default_rng(0)
    available = np.flatnonzero(cluster.available)
    tried = [Placement({s.key: random.choice(available, s.n) for s in workload.placeable}) for _ in range(20)]
    tried.append(adaptive(cluster, workload, current, FREE).placement)
    for placement in tried:
        if (executor_busy(cluster, workload, placement) <= SATURATED * cluster.cores).all():
            assert placement_cost(cluster, workload, placement)[2] >= bound * (1 - 1e-9)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_never_worse_than_the_best_of_the_other_policies(name: str, seed: int) -> None:
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


@settings(max_examples=50, deadline=None)
@given(situation=situations())
def test_light_mode_moves_what_must_and_relieves_what_is_too_full(situation: Situation) -> None:
    cluster, workload, current = situation
    found = adaptive(cluster, workload, current, AdaptiveParameters(mode="light")).placement
    before = executor_busy(cluster, workload, current) / cluster.cores
    for key, array in current.assignments.items():
        fits = (array >= 0) & cluster.available[array]
        moved = fits & (found[key] != array)
        held = sum(np.bincount(current[s.key][current[s.key] >= 0], minlength=cluster.size) for s in workload.placeable)
        for executor in set(array[moved].tolist()):
            full = before[executor] > SATURATED or not np.isinf(cluster.memory_bytes[executor])
            assert full, f"{held[executor]} partitions on executor {executor}, and one left it"


def test_moves_that_cost_more_than_they_gain_are_not_made() -> None:
    cluster, workload = cluster_of(2), workload_of({"a": [1.0] * 8})
    current = Placement({"a": np.array([0, 0, 0, 0, 0, 0, 1, 1])})
    few = adaptive(cluster, workload, current, AdaptiveParameters(move_seconds=1.0, horizon=600.0))
    none = adaptive(cluster, workload, current, AdaptiveParameters(move_seconds=100.0, horizon=600.0))
    assert len(few.placement.moves_from(current)) == 2
    assert none.placement == current


@pytest.mark.parametrize("seed", range(20))
def test_two_executors_divide_their_work_as_evenly_as_it_can_be(seed: int) -> None:
    random = np.random.default_rng(seed)
    busy, speed = random.uniform(0.1, 5.0, 10), float(random.choice([1.0, 2.0, 3.5]))
    mine = divide(busy, int(random.integers(0, 11)), 1.0, speed)
    every = (np.array(one) for one in itertools.product((False, True), repeat=10))
    best = min(max(busy[one].sum(), busy[~one].sum() / speed) for one in every)
    assert max(busy[mine].sum(), busy[~mine].sum() / speed) == pytest.approx(best)
