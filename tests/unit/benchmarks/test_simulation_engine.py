"""Laws of the simulated batches: queues, cores, migrations."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation.control import Controller, Observation, decide
from benchmarks.simulation.drift import Drift
from benchmarks.simulation.engine import Costs, Simulation
from rechannel.conf.settings import Settings
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.wire.codes import PlanResult
from unit.policies.random_clusters import critical_path


def cluster(executors: int, cores: float = 1.0) -> Cluster:
    ones = np.ones(executors)
    names = tuple(f"e{i}" for i in range(executors))
    return Cluster(names, names, ones * cores, ones * np.inf, ones, ones > 0)


def stage(key: str, busy: list[float], rate: float = 0.01, state: float = 0.0) -> Stage:
    return Stage(key, key.partition("/")[0], True, rate, np.array(busy), np.ones(len(busy)), np.full(len(busy), state))


def one_batch(simulation: Simulation) -> float:
    simulation.run(99.0, stagger=False)
    assert len(simulation.batches) == 1
    return simulation.batches[0].seconds


def by_hand(busy: list[float], at: list[int], executors: int, cores: int) -> float:
    free = [[0.0] * cores for _ in range(executors)]
    for work, executor in zip(busy, at, strict=True):
        heapq.heappush(free[executor], heapq.heappop(free[executor]) + work)
    return max(max(one) for one in free)


@st.composite
def layouts(draw: Any) -> tuple[int, int, list[list[float]], list[list[int]]]:
    executors, cores, count = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    stages = draw(st.integers(1, 3))
    work = st.lists(st.floats(0.01, 2.0), min_size=count, max_size=count)
    places = st.lists(st.integers(0, executors - 1), min_size=count, max_size=count)
    return executors, cores, [draw(work) for _ in range(stages)], [draw(places) for _ in range(stages)]


@settings(deadline=None, max_examples=60)
@given(layouts())
def test_with_equal_executors_a_batch_equals_list_scheduling(layout: Any) -> None:
    executors, cores, busy, at = layout
    stages = tuple(stage(f"q/{i}", one) for i, one in enumerate(busy))
    placement = Placement({one.key: np.array(where) for one, where in zip(stages, at, strict=True)})
    simulation = Simulation(cluster(executors, cores), Workload(stages), placement, Costs(planning=0.5, commit=0.25))
    expected = sum(by_hand(one, where, executors, cores) for one, where in zip(busy, at, strict=True))
    assert one_batch(simulation) == pytest.approx(0.75 + expected)
    assert simulation.worked.sum() == pytest.approx(sum(map(sum, busy)))


@settings(deadline=None, max_examples=40)
@given(layouts(), st.floats(0.0, 0.5), st.integers(0, 5))
def test_no_batch_is_shorter_than_its_critical_path_and_no_work_is_lost(layout: Any, noise: float, seed: int) -> None:
    executors, cores, busy, at = layout
    stages = tuple(stage(f"q{i}/0", one, 0.5) for i, one in enumerate(busy))  # queries that disturb each other
    placement = Placement({one.key: np.array(where) for one, where in zip(stages, at, strict=True)})
    there, workload = cluster(executors, cores), Workload(stages)
    simulation = Simulation(there, workload, placement, Costs(task=0.01), seed=seed)
    simulation.run(30.0)
    for batch in simulation.batches:
        own = Workload(tuple(one for one in stages if one.query == batch.query))
        alone = Placement({one.key: placement[one.key] for one in own.stages})
        assert batch.seconds >= critical_path(there, own, alone)[batch.query] - 1e-9
    done = {one.query: 0 for one in stages}
    for batch in simulation.batches:
        done[batch.query] += 1
    least = sum(done[one.query] * (one.busy.sum() + 0.01 * one.n) for one in stages)
    most = sum((done[one.query] + 1) * (one.busy.sum() + 0.01 * one.n) for one in stages)
    assert least - 1e-6 <= simulation.worked.sum() <= most + 1e-6


def test_one_batch_applies_a_step_and_the_next_step_waits_for_it() -> None:
    one = stage("q/0", [1.0, 1.0], rate=0.1, state=2e6)
    placement = Placement({"q/0": np.array([0, 0])})
    costs = Costs(load_overhead=0.5, load_rate=1e6, checkpoint=0.25)
    simulation = Simulation(cluster(3), Workload((one,)), placement, costs)
    simulation.run(5.0, stagger=False)
    simulation.steer([(Move("q/0", 0, 0, 1),), (Move("q/0", 1, 0, 2),)])
    simulation.run(39.0)
    # Two tasks one after the other; then a load of 2.75 s beside the other task; then another one; then none.
    assert [batch.seconds for batch in simulation.batches] == pytest.approx([2.0, 3.75, 3.75, 1.0])
    assert [batch.landed for batch in simulation.batches] == [0, 1, 1, 0]
    assert not simulation.migrating
    assert simulation.placement == Placement({"q/0": np.array([1, 2])})


def test_the_same_seed_makes_the_same_batches() -> None:
    def run(seed: int) -> list[float]:
        stages = tuple(stage(f"q{i}/0", [0.5, 1.0, 0.2, 0.4], 0.2) for i in range(3))
        placement = Placement({one.key: np.array([0, 0, 1, 1]) for one in stages})
        simulation = Simulation(cluster(2), Workload(stages), placement, Costs(noise=0.3, backlog=2.0), seed=seed)
        Drift(every=20.0, hot=0.1, seed=seed).begin(simulation)
        Controller(simulation, "adaptive", Settings(), every=60.0, seed=seed).begin()
        simulation.run(200.0)
        return [batch.end for batch in simulation.batches]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_a_source_by_time_gives_a_batch_what_came_since_the_one_before() -> None:
    """``T = 1 + 2 x T / 4``: a batch lasts 2 s with half of the input that comes in 4 s."""
    simulation = Simulation(
        cluster(1), Workload((stage("q/0", [2.0], rate=1e3),)), Placement({"q/0": np.zeros(1, int)}), Costs(planning=1)
    )
    simulation.arrivals = {"q": 4.0}
    simulation.run(100.0)
    assert (simulation.batches[-1].seconds, simulation.batches[-1].input) == pytest.approx((2.0, 0.5))


def test_a_decision_moves_what_relieves_and_gives_and_takes_one_partition_a_step() -> None:
    one = stage("q/0", [4.0] * 6, rate=0.03, state=1e6)
    placement = Placement({"q/0": np.zeros(6, dtype=np.int64)})
    made, steps = decide("adaptive", Settings(), Observation(cluster(3), Workload((one,)), placement))
    assert made.code == PlanResult.OK
    assert made.moves == 4
    for step in steps:
        assert len({move.source for move in step}) == len({move.target for move in step}) == len(step)
    assert decide("even", Settings(), Observation(cluster(1), Workload((one,)), placement))[1] == []


def test_a_drifting_load_stays_the_same_in_all() -> None:
    one = stage("q/0", [1.0, 2.0, 3.0, 4.0] * 50)
    simulation = Simulation(cluster(1), Workload((one,)), Placement({"q/0": np.zeros(200, np.int64)}), Costs())
    Drift(every=1.0, hot=0.05).begin(simulation)
    simulation.run(20.0)
    factors = simulation.factors["q/0"]
    assert one.busy @ factors == pytest.approx(one.busy.sum())
    assert factors.std() > 0.05


def test_a_partition_on_no_executor_is_refused() -> None:
    one = stage("q/0", [1.0])
    with pytest.raises(ValueError, match="every partition"):
        Simulation(cluster(1), Workload((one,)), Placement({"q/0": np.array([-1])}), Costs())
