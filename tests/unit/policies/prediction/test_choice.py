"""Plans chosen by the replay: few moves, and no query that loses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rechannel.migration.plan.gate import JUDGED_DRAWS
from rechannel.policies.analysis.placement_cost import state_bytes_held
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.choice import choose_by_replay
from rechannel.policies.prediction.fewest import fewest_moves
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.model import PredictionModel
from rechannel.policies.registry import propose
from unit.policies.prediction.cases import drawn, model_of, rare_visitor, stage
from unit.policies.random_clusters import cluster_of

MAX_LOSS = 0.05


def largest_loss(model: PredictionModel, current: Placement, planned: Placement) -> float:
    return max(change.largest_loss for change in predict_changes(model, current, planned).values())


def mean_ratio(model: PredictionModel, current: Placement, planned: Placement) -> float:
    return float(np.mean([change.ratio for change in predict_changes(model, current, planned).values()]))


def test_a_move_that_costs_another_query_too_much_is_taken_back() -> None:
    model = model_of([stage("slow", [1.0, 1.0, 1.0, 0.2]), stage("fast", [0.4, 0.4])], 4, overhead=0.1)
    current = Placement({"slow/0": np.array([0, 0, 0, 0]), "fast/0": np.array([2, 3])})
    planned = Placement({"slow/0": np.array([0, 1, 2, 3]), "fast/0": np.array([2, 3])})
    part = choose_by_replay(model, current, [planned], MAX_LOSS)
    assert largest_loss(model, current, planned) > MAX_LOSS >= largest_loss(model, current, part)
    assert part["slow/0"][1] == 1  # this executor has nothing else to do
    assert part != current


def test_a_move_that_makes_the_slowest_batches_longer_is_taken_back() -> None:
    model, current, planned = rare_visitor()
    assert largest_loss(model, current, planned) < MAX_LOSS
    part = choose_by_replay(model, current, [planned], MAX_LOSS)
    assert [(move.stage, move.partition) for move in part.moves_from(current)] == [("big/0", 1)]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_left_is_a_part_of_the_plan_without_losses(seed: int) -> None:
    model, current = drawn(seed, noise=0.1)
    planned = Placement({key: (at + (np.arange(len(at)) < 4)) % 4 for key, at in current.assignments.items()})
    part = choose_by_replay(model, current, [planned], MAX_LOSS)
    assert set(part.moves_from(current)) <= set(planned.moves_from(current))
    assert part == planned or largest_loss(model, current, part) <= MAX_LOSS
    if largest_loss(model, current, planned) <= MAX_LOSS:  # moves that brought next to nothing
        ratios = [mean_ratio(model, current, it) for it in (planned, part)]
        assert ratios[1] < 1.0 - 0.85 * (1.0 - ratios[0])


def test_moves_that_bring_next_to_nothing_are_taken_back() -> None:
    model = model_of([stage("one", [1.0, 1.0, 0.001, 0.001])], 2, overhead=0.1)
    current = Placement({"one/0": np.array([0, 0, 1, 0])})
    planned = Placement({"one/0": np.array([1, 0, 0, 1])})
    part = choose_by_replay(model, current, [planned], MAX_LOSS)
    assert [(move.stage, move.partition) for move in part.moves_from(current)] == [("one/0", 0)]


def test_a_part_that_gains_nothing_is_no_answer() -> None:
    """Without the move that costs another query much, the other one only makes the busiest executor busier."""
    model = model_of([stage("slow", [2.0, 1.9, 0.05]), stage("fast", [0.4])], 3, overhead=0.1)
    current = Placement({"slow/0": np.array([0, 1, 1]), "fast/0": np.array([2])})
    planned = Placement({"slow/0": np.array([2, 1, 0]), "fast/0": np.array([2])})
    alone = Placement({"slow/0": np.array([0, 1, 0]), "fast/0": np.array([2])})
    assert largest_loss(model, current, planned) > MAX_LOSS >= largest_loss(model, current, alone)
    assert choose_by_replay(model, current, [planned], MAX_LOSS) == planned


def test_moves_off_unavailable_executors_stay() -> None:
    model = model_of([stage("slow", [1.0, 1.0]), stage("fast", [0.4])], 3, overhead=0.1)
    model = replace(model, cluster=cluster_of(3, unavailable=[0]))
    current = Placement({"slow/0": np.array([0, 0]), "fast/0": np.array([1])})
    planned = Placement({"slow/0": np.array([1, 2]), "fast/0": np.array([1])})
    assert choose_by_replay(model, current, [planned], MAX_LOSS) == planned


@pytest.mark.parametrize("memory", [10.0, 2.0], ids=["enough memory", "more state than memory"])
def test_moves_are_taken_back_only_where_the_state_fits(memory: float) -> None:
    """Partition 4 took the place of partition 3, whose move slows the other query: both go back.

    Where executors hold more than their memory, they take as much again as they hold now.
    """
    states = np.array([0.0, 0.0, 0.0, 5.0, 8.0])
    slow = replace(stage("slow", [1.0, 1.0, 1.0, 0.2, 0.01]), state_bytes=states)
    model = model_of([slow, stage("fast", [0.4, 0.4])], 4, overhead=0.1)
    model = replace(model, cluster=cluster_of(4, memory=memory))
    current = Placement({"slow/0": np.array([0, 0, 0, 0, 1]), "fast/0": np.array([2, 3])})
    planned = Placement({"slow/0": np.array([0, 1, 2, 3, 0]), "fast/0": np.array([2, 3])})
    chosen = choose_by_replay(model, current, [planned], MAX_LOSS)
    most = np.maximum(memory, state_bytes_held(model.cluster, model.workload, current))
    assert (state_bytes_held(model.cluster, model.workload, chosen) <= most).all()
    assert chosen["slow/0"][3:].tolist() == [0, 1]


def test_a_larger_plan_is_chosen_where_the_first_brings_too_little() -> None:
    model = model_of([stage("q", [1.0] * 8)], 4, overhead=0.1)
    current = Placement({"q/0": np.array([0, 0, 0, 0, 1, 1, 2, 3])})
    one, even = (Placement({"q/0": np.array(at)}) for at in ([0, 0, 0, 2, 1, 1, 2, 3], [0, 0, 3, 2, 1, 1, 2, 3]))
    assert choose_by_replay(model, current, [one, even], MAX_LOSS) == even
    more = Placement({"q/0": np.array([1, 0, 3, 2, 0, 1, 2, 3])})
    assert choose_by_replay(model, current, [more, one, even], MAX_LOSS) == even, "with fewer moves"


def test_a_plan_by_which_nobody_loses_is_chosen_over_one_by_which_a_query_does() -> None:
    model = model_of([stage("slow", [2.0, 1.9, 0.05]), stage("fast", [0.4])], 4, overhead=0.1)
    current = Placement({"slow/0": np.array([0, 0, 0]), "fast/0": np.array([2])})
    costly, free = (Placement({"slow/0": np.array(at), "fast/0": np.array([2])}) for at in ([0, 2, 2], [0, 1, 0]))
    assert largest_loss(model, current, costly) > MAX_LOSS >= largest_loss(model, current, free)
    assert choose_by_replay(model, current, [costly, free], MAX_LOSS) == free
    assert choose_by_replay(model, current, [costly, free], float("inf")) in (costly, free)


def test_partitions_that_run_nowhere_now_are_no_loss() -> None:
    model = model_of([stage("q", [1.0] * 6)], 3, overhead=0.1)
    current = Placement({"q/0": np.array([0, 0, 0, 0, 1, -1])})
    first, better = (Placement({"q/0": np.array(at)}) for at in ([0, 0, 0, 0, 1, 1], [0, 0, 2, 2, 1, 1]))
    assert choose_by_replay(model, current, [first, better], MAX_LOSS) == better


@pytest.mark.parametrize("seed", range(8))
def test_what_is_chosen_is_hardly_worse_on_other_draws(seed: int) -> None:
    model, current = drawn(seed, queries=1 + seed % 3, noise=0.1)
    proposed = propose("adaptive", model.cluster, model.workload, current).placement
    chosen = choose_by_replay(model, current, fewest_moves(model, current, proposed), MAX_LOSS)
    changes = predict_changes(model, current, chosen, seed=JUDGED_DRAWS)
    assert np.mean([change.ratio for change in changes.values()]) < 1.0 or chosen == current
    assert max(change.ratio for change in changes.values()) <= 1 + MAX_LOSS


@pytest.mark.parametrize("seed", range(4))
def test_names_of_queries_and_executors_change_nothing(seed: int) -> None:
    model, current = drawn(seed, queries=2)
    proposed = propose("adaptive", model.cluster, model.workload, current).placement
    chosen = choose_by_replay(model, current, fewest_moves(model, current, proposed), MAX_LOSS)
    names = {query: f"x{9 - number}" for number, query in enumerate(model.workload.queries)}  # in another order
    keys = {it.key: f"{names[it.query]}/{it.key}" for it in model.workload.stages}
    stages = tuple(replace(it, key=keys[it.key], query=names[it.query]) for it in model.workload.stages)
    executors = tuple(f"x{name}" for name in model.cluster.executors)
    renamed = replace(
        model,
        cluster=replace(model.cluster, executors=executors),
        workload=Workload(stages),
        timing={names[query]: timing for query, timing in model.timing.items()},
        spread={keys[key]: spread for key, spread in model.spread.items()},
    )
    at, goal = (Placement({keys[key]: it[key] for key in keys}) for it in (current, proposed))
    again = choose_by_replay(renamed, at, fewest_moves(renamed, at, goal), MAX_LOSS)
    assert {key: again[keys[key]].tolist() for key in keys} == {key: chosen[key].tolist() for key in keys}
