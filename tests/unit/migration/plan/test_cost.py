"""Cost of a migration, and rates fitted to measured loads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.migration.plan.cost import (
    BatchTimes,
    LoadRates,
    PlanCost,
    SteppedMoves,
    estimate_cost,
    fit_load_rates,
)
from rechannel.policies.analysis.cold_start import FLOATING, STATEFUL, ColdStage
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.cycle import PlacedQueries
from rechannel.policies.prediction.model import PredictionModel, QueryTiming
from unit.policies.random_clusters import cluster_of

Seconds = dict[str, float]

PRIOR = LoadRates(1.0, 50e6)
CLUSTER = cluster_of(3)
ROUNDS = {"q": 4.5}  # seconds from batch to batch
STAGE = Stage("q/0", "q", True, 1 / 4.5, np.array([1.0, 1.0, 1.0, 1.0]), np.zeros(4), np.zeros(4))


def estimate(
    workload: Workload, current: Placement, plan: SteppedMoves, rates: LoadRates, batch: Seconds, period: Seconds
) -> PlanCost:
    return estimate_cost(model_of(workload, current, batch), current, plan, rates, BatchTimes(batch, period))


def model_of(workload: Workload, current: Placement, batch: Seconds) -> PredictionModel:
    """A model whose overhead is what is left of a measured batch."""
    work = PlacedQueries(
        PredictionModel(CLUSTER, workload, {query: QueryTiming(0.0) for query in batch}), current
    ).estimate_batches()
    timing = {query: QueryTiming(max(0.0, seconds - work[query])) for query, seconds in batch.items()}
    return PredictionModel(CLUSTER, workload, timing)


def cost_of(
    moves: list[Move], steps: list[int], loads: list[float], current: list[int], rates: LoadRates = PRIOR
) -> PlanCost:
    filled = np.array(current)
    for move in moves:
        if move.source == UNPLACED:
            filled[move.partition] = move.target
    return estimate(
        Workload((STAGE,)),
        Placement({"q/0": filled}),
        SteppedMoves(moves, np.array(steps, dtype=np.int64), np.array(loads)),
        rates,
        batch={"q": 4.2},
        period=ROUNDS,
    )


@pytest.mark.parametrize(
    ("moves", "loads", "current", "peak", "total"),
    [
        # Three partitions stay on executor 0: 3 s. The moved one takes 1 + 1 + 1 s.
        ([Move("q/0", 0, 0, 1)], [50e6], [0, 0, 0, 0], {"q": pytest.approx(4.2)}, None),
        ([Move("q/0", 0, UNPLACED, 1)], [500e6], [UNPLACED, 0, 0, 0], {"q": pytest.approx(4.2)}, None),
        ([], [], [0, 0, 0, 0], {}, 0.0),
    ],
    ids=["a target with time to spare", "on no known executor, it loads its state anyway", "no moves"],
)
def test_what_costs_nothing(
    moves: list[Move], loads: list[float], current: list[int], peak: Seconds, total: float | None
) -> None:
    cost = cost_of(moves, [0] * len(moves), loads, current)
    assert cost.added.tolist() == [0.0] * len(moves)
    assert (cost.pause, cost.seconds, cost.peak) == (0.0, 0.0, peak)
    assert total is None or cost.total == total


def test_a_target_without_stretches_its_batch_by_hand() -> None:
    moves = [Move("q/0", 0, 0, 1), Move("q/0", 1, 0, 1)]
    cost = cost_of(moves, [0, 1], [150e6, 50e6], [0, 0, 0, 0])
    # Paths: 4 s; after one move 3 s, with its load of 4 s 5 s; after two 2 s, with the second load of 2 s 4 s.
    assert cost.added.tolist() == pytest.approx([2.0, 2.0])
    assert cost.seconds == pytest.approx(4.0)
    assert cost.peak == {"q": pytest.approx(4.2 + 5.0 - 4.0)}
    assert cost.total == pytest.approx(4.5 / 2 + 5.2 + 4.2), "half a period, and each step's batch"


def test_of_many_steps_some_stand_for_all() -> None:
    stage = Stage("q/0", "q", True, 0.1, np.ones(200), np.zeros(200), np.zeros(200))
    moves = [Move("q/0", partition, 0, 1) for partition in range(100)]
    cost = estimate(
        Workload((stage,)),
        Placement({"q/0": np.zeros(200, dtype=np.int64)}),
        SteppedMoves(moves, np.arange(100), np.full(100, 50e6)),
        PRIOR,
        batch={"q": 200.0},
        period={"q": 200.0},
    )
    assert len(cost.added) == 100
    # The last step's load is the one that counts: before, executor 0 has more to do than executor 1 and the load.
    assert cost.added[-1] == pytest.approx(2.0)
    assert cost.added[:90].max() == 0.0
    assert cost.peak["q"] == pytest.approx(200.0), "that of the batch before the first step"


def test_without_a_measured_move_the_settings_hold() -> None:
    assert fit_load_rates([], PRIOR) == PRIOR


def test_many_moves_outweigh_the_settings() -> None:
    truth = LoadRates(0.2, 200e6)
    sizes = np.linspace(1e6, 400e6, 40)
    cost = fit_load_rates([(size, truth.overhead + size / truth.load_rate) for size in sizes], PRIOR)
    assert cost.moves == 40
    assert cost.overhead == pytest.approx(truth.overhead, abs=0.25)
    assert cost.load_rate == pytest.approx(truth.load_rate, rel=0.25)


def test_a_load_that_took_far_longer_than_the_others_does_not_count_for_what_it_took() -> None:
    loads = [(1e6, 0.5 + 0.01 * number) for number in range(20)]
    usual = fit_load_rates(loads, PRIOR)
    odd = fit_load_rates([*loads, (1e6, 600.0)], PRIOR)
    assert odd.overhead < usual.overhead + 0.2
    impossible = [
        (float("nan"), 1.0),
        (1e300, 1.0),
        (1.0, float("inf")),
        (-1.0, 1.0),
    ]
    assert fit_load_rates([*loads, *impossible], PRIOR) == usual


def test_loads_of_two_queries_on_one_executor_are_waited_for_once() -> None:
    slow = Stage("slow/0", "slow", True, 0.1, np.array([1.0, 1.0]), np.zeros(2), np.zeros(2))
    fast = Stage("fast/0", "fast", True, 10.0, np.array([0.01, 0.01]), np.zeros(2), np.zeros(2))
    moves = [Move("slow/0", 0, 0, 1), Move("fast/0", 0, 0, 1)]
    current = Placement({"slow/0": np.array([0, 0]), "fast/0": np.array([0, 0])})
    seconds_of = {"slow": 2.0, "fast": 0.02}
    plan = SteppedMoves(moves, np.array([0, 0]), np.zeros(2))
    together = estimate(Workload((slow, fast)), current, plan, PRIOR, batch=seconds_of, period=seconds_of)
    assert together.peak["slow"] == pytest.approx(3.0, abs=0.1), "a second of its own work, and both loads"
    assert together.peak["fast"] < 1.5, "it loads for a second in a batch of the slow one, which has many of its own"
    assert together.seconds < 3.5


def test_moves_of_one_size_say_nothing_of_the_rate() -> None:
    cost = fit_load_rates([(1000.0, 0.7)] * 20, PRIOR)
    assert cost.load_rate == pytest.approx(PRIOR.load_rate)
    assert cost.overhead == pytest.approx(0.7, abs=0.05)


@given(st.lists(st.tuples(st.floats(0, 1e10), st.floats(-5, 100)), max_size=60))
def test_any_measurements_give_a_sound_cost(measured: list[tuple[float, float]]) -> None:
    cost = fit_load_rates(measured, PRIOR)
    assert cost.overhead >= 0
    assert 0 < cost.load_rate <= 1.1e12
    moves = [Move("q/0", 0, 0, 1), Move("q/0", 1, 0, 1)]
    cost = cost_of(moves, [0, 1], [0.0, 1e9], [0, 0, 0, 0], cost)
    assert np.isfinite(cost.added).all()
    assert 0 <= cost.pause <= cost.seconds
    assert cost.total > 0


ADDED = np.array([3.0, 1.0, 0.5])
WARM = float("inf")


def cold_cost(
    moves: list[Move],
    steps: list[int],
    ran: list[float],
    *,
    current: tuple[int, ...] = (0, 0, 0, 0),
    floating: float | None = None,
) -> PlanCost:
    """The cost of moves of which each loads for a second; ``floating``: tasks run of a source by executor 1."""
    source = Stage("q/f0", "q", False, 1 / 4.5, np.full(3, 0.5), np.zeros(3), np.zeros(3))
    workload = Workload((source, STAGE) if floating is not None else (STAGE,))
    placement = Placement({"q/0": np.array(current)})
    cold = {"q/0": ColdStage(STATEFUL, ADDED, np.array(ran))}
    if floating is not None:
        cold["q/f0"] = ColdStage(FLOATING, ADDED, np.array([WARM, floating, WARM]), np.ones(3))
    batch = {"q": 4.7 if floating is not None else 4.2}
    plan = SteppedMoves(moves, np.array(steps, dtype=np.int64), np.zeros(len(moves)))
    model, times = model_of(workload, placement, batch), BatchTimes(batch, ROUNDS, cold)
    return estimate_cost(model, placement, plan, PRIOR, times)


ONE, BOTH = [Move("q/0", 0, 0, 1)], [Move("q/0", 0, 0, 1), Move("q/0", 1, 0, 1)]


@pytest.mark.parametrize("ran", [[WARM] * 3, [WARM, 3.0, 0.0]], ids=["not known", "three tasks of one core"])
def test_warm_targets_cost_what_they_cost_without_cold_starts(ran: list[float]) -> None:
    warm, before = cold_cost(BOTH, [0, 1], ran), cost_of(BOTH, [0, 1], [0.0, 0.0], [0] * 4)
    assert (warm.peak, warm.seconds, warm.total, warm.added.tolist()) == (
        before.peak,
        before.seconds,
        before.total,
        before.added.tolist(),
    )
    assert warm.cold == {}


def test_a_cold_target_is_slower_in_the_batch_of_its_landing_by_hand() -> None:
    # Executor 0 has 3 s left. The first task on executor 1 takes 1 + 3 s, and loads for 1 s.
    first = cold_cost(ONE, [0], [WARM, 0.0, WARM])
    assert first.peak == {"q": pytest.approx(4.2 + 5.0 - 4.0)}
    assert first.pause == pytest.approx(2.0)
    assert first.cold == {"e1": 3.0}
    # Two tasks at once: 4 + 2 + 2 x 1 s.
    assert cold_cost(BOTH, [0, 0], [WARM, 0.0, WARM]).peak == {"q": pytest.approx(4.2 + 8.0 - 4.0)}
    # Step by step: in the second batch both are older by the first, 2 + 1.5 + 1 s.
    stepped = cold_cost(BOTH, [0, 1], [WARM, 0.0, WARM])
    assert stepped.added.tolist() == pytest.approx([5.0 - 3.0, 4.5 - 2.0])
    assert stepped.peak == {"q": pytest.approx(4.2 + 5.0 - 4.0)}


def test_another_cold_executor_changes_nothing() -> None:
    assert cold_cost(ONE, [0], [WARM, WARM, 0.0]).peak == cold_cost(ONE, [0], [WARM] * 3).peak


def test_what_is_cold_anyway_is_in_the_longest_batch_but_no_cost_of_the_plan() -> None:
    usual = cold_cost(ONE, [0], [WARM] * 3, floating=WARM)
    cold = cold_cost(ONE, [0], [WARM] * 3, floating=0.0)
    # The source takes 3 s more, and executor 0 has 3 s left in place of 4 s.
    assert (usual.peak["q"], cold.peak["q"]) == (pytest.approx(4.7), pytest.approx(4.7 + 3.0 - 1.0))
    assert cold.seconds == usual.seconds
    # Partition 3 is on the cold executor 2 already: 4 s, beside which 1 + 1 s of executor 1 count for nothing.
    held = cold_cost(ONE, [0], [WARM, WARM, 0.0], current=(0, 0, 0, 2))
    assert held.peak["q"] == pytest.approx(4.2 + 4.0 - 3.0)
    assert (held.seconds, held.cold) == (0.0, {})


def test_of_many_steps_every_cold_one_is_worked_out() -> None:
    stage = Stage("q/0", "q", True, 0.1, np.ones(200), np.zeros(200), np.zeros(200))
    moves = [Move("q/0", 0, 0, 2), *(Move("q/0", partition, 0, 1) for partition in range(1, 100))]
    steps = np.array([1, 0, *range(2, 100)])
    current = Placement({"q/0": np.zeros(200, dtype=np.int64)})
    cold = {"q/0": ColdStage(STATEFUL, np.array([299.0, 0.0, 0.0]), np.array([WARM, WARM, 0.0]))}
    batch, workload = {"q": 200.0}, Workload((stage,))
    plan, times = SteppedMoves(moves, steps, np.zeros(100)), BatchTimes(batch, batch, cold)
    cost = estimate_cost(model_of(workload, current, batch), current, plan, PRIOR, times)
    assert cost.peak == {"q": pytest.approx(301.0)}
    assert cost.cold == {"e2": 299.0}
