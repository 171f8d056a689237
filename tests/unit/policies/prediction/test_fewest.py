from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.live.service.truth import fewest_moves as exact_moves
from benchmarks.live.service.truth import goals
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.choice import choose_by_replay
from rechannel.policies.prediction.cycle import PlacedQueries
from rechannel.policies.prediction.fewest import fewest_moves
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.model import QueryTiming
from rechannel.policies.prediction.transfers import single_moves
from rechannel.policies.prediction.trial import TrialPlacement
from rechannel.policies.registry import propose
from unit.policies.prediction.cases import drawn, model_of, stage
from unit.policies.random_clusters import cluster_of


def fewest(*arguments: Any, **options: Any) -> Placement:
    """The plan by the cycle formula."""
    return fewest_moves(*arguments, **options)[0]


def test_one_move_is_enough_where_one_move_brings_it() -> None:
    model = model_of([stage("q", [1.0] * 8)], 4)
    current = Placement({"q/0": np.array([0, 0, 0, 1, 2, 2, 3, 1])})
    dealt_anew = Placement({"q/0": np.array([3, 3, 2, 2, 1, 1, 0, 0])})
    assert len(fewest(model, current, dealt_anew).moves_from(current)) == 1


def test_a_query_that_ran_beside_the_load_of_the_others_does_not_lose() -> None:
    """Executor 0 holds up all but s, which a single move that evens the load would make 15 % slower."""
    stages = [
        stage("q", [3.0, 1.4, 1.4, 1.3]),
        stage("r", [1.2, 1.06, 2.13, 1.32, 0.42]),
        stage("p", [1.2, 1.29, 3.11, 1.62]),
        stage("s", [2.16, 1.7, 1.48]),
    ]
    placed = {"q": [0, 0, 0, 0], "r": [0, 0, 1, 1, 2], "p": [0, 0, 2, 2], "s": [1, 1, 1]}
    model = model_of(stages, 3, overhead=0.1)
    at = Placement({f"{query}/0": np.array(executors) for query, executors in placed.items()})
    planned = fewest(model, at, at)
    before, after = PlacedQueries(model, at).estimate_batches(), PlacedQueries(model, planned).estimate_batches()
    assert all(after[query] < 0.85 * before[query] for query in "qrp")
    assert after["s"] <= 1.03 * before["s"]
    assert len(planned.moves_from(at)) <= 4


def test_a_balanced_placement_stays() -> None:
    model = model_of([stage("q", [1.0] * 8)], 4)
    current = Placement({"q/0": np.arange(8) % 4})
    assert fewest(model, current, Placement({"q/0": np.arange(8)[::-1] % 4})) == current


@pytest.mark.parametrize("beyond_proposal", [False, True])
def test_no_move_goes_where_memory_is_full(beyond_proposal: bool) -> None:
    """Executor 1 is idle, and full of the state of idle partitions."""
    full = replace(stage("q", [1.0] * 6 + [0.0] * 4), state_bytes=np.ones(10))
    model = replace(model_of([full], 3), cluster=cluster_of(3, memory=[100.0, 4.0, 100.0]))
    current = Placement({"q/0": np.array([0] * 6 + [1] * 4)})
    proposed = Placement({"q/0": np.array([0, 0, 1, 1, 2, 2] + [1] * 4)})
    planned = fewest(model, current, proposed, beyond_proposal=beyond_proposal)
    assert planned.moves_from(current)
    assert {move.target for move in planned.moves_from(current)} == {2}


def test_where_every_executor_is_full_memory_decides_nothing() -> None:
    """State outside the measured memory, such as RocksDB's, may be more than all of it."""
    model = model_of([replace(stage("q", [1.0] * 6), state_bytes=np.full(6, 9.0))], 3)
    model = replace(model, cluster=cluster_of(3, memory=4.0))
    current = Placement({"q/0": np.zeros(6, dtype=np.int64)})
    assert fewest(model, current, current).moves_from(current)


def test_partitions_that_cannot_stay_go_where_they_are_proposed() -> None:
    model = model_of([stage("q", [1.0] * 4)], 4)
    current = Placement({"q/0": np.array([-1, 1, 2, 3])})
    assert fewest(model, current, Placement({"q/0": np.array([0, 1, 2, 3])}))["q/0"].tolist() == [0, 1, 2, 3]


def test_only_the_proposed_moves_are_made_where_asked_for() -> None:
    model = model_of([stage("q", [1.0] * 4)], 2)
    current = Placement({"q/0": np.zeros(4, dtype=np.int64)})
    assert fewest(model, current, current, beyond_proposal=False) == current


@pytest.mark.parametrize("seed", range(12))
def test_few_moves_bring_most_of_the_gain_of_many(seed: int) -> None:
    model, current = drawn(seed)
    proposed = propose("adaptive", model.cluster, model.workload, current).placement
    chosen = fewest(model, current, proposed)
    now, few, many = (sum(PlacedQueries(model, at).estimate_batches().values()) for at in (current, chosen, proposed))
    assert few <= now
    assert now - few >= 0.85 * (now - many)
    assert len(chosen.moves_from(current)) <= max(1, len(proposed.moves_from(current)))
    # The replay, which judges the plan, agrees that no batch becomes longer.
    assert all(change.ratio <= 1.05 for change in predict_changes(model, current, chosen).values())


def test_moves_are_nearly_the_fewest_for_the_same_load() -> None:
    made = least = 0
    for seed in range(24):
        model, current = drawn(seed, queries=1 + seed % 2)
        proposed = propose("adaptive", model.cluster, model.workload, current).placement
        chosen = choose_by_replay(model, current, fewest_moves(model, current, proposed), 0.05)
        stages = model.workload.stages
        busy, cluster = [it.busy for it in stages], (model.cluster.size, 1)
        (now,), (then,) = (
            goals(model.workload.queries, busy, [at[it.key] for it in stages], cluster, together=True)
            for at in (current, chosen)
        )
        made += len(chosen.moves_from(current))
        least += exact_moves(now, 1.02 * then.busiest(), 1.0).bound
    assert made <= 1.3 * least


def test_two_partitions_change_places_where_no_single_move_helps() -> None:
    model = model_of([stage("q", [6.0, 4.0, 5.0, 3.0])], 2)
    current = Placement({"q/0": np.array([0, 0, 1, 1])})
    chosen = fewest(model, current, current)
    assert len(chosen.moves_from(current)) == 2
    assert np.bincount(chosen["q/0"], [6.0, 4.0, 5.0, 3.0]).tolist() == [9.0, 9.0]


def test_several_cores_take_tasks_in_the_order_of_partitions() -> None:
    """On two cores, tasks of 1, 1 and 2 s last 3 s, though there are but 4 s of work."""
    model = model_of([stage("q", [1.0, 1.0, 2.0, 0.5])], 2, overhead=0.0, cores=2)
    current = Placement({"q/0": np.array([0, 0, 0, 1])})
    assert PlacedQueries(model, current).estimate_batches()["q"] == pytest.approx(3.0)
    chosen = fewest(model, current, current)
    assert PlacedQueries(model, chosen).estimate_batches()["q"] == pytest.approx(2.0)
    assert len(chosen.moves_from(current)) == 1


def test_each_query_with_a_trigger_is_evened_out_by_itself() -> None:
    """Together their executors are even; each query is held up by one of its own."""
    stages = [stage("q", [1.0] * 6), stage("r", [1.0] * 6)]
    model = model_of(stages, 2, interval=30.0)
    model = replace(model, timing={"q": QueryTiming(0.2, 30.0), "r": QueryTiming(0.2, 30.0, 15.0)})
    current = Placement({"q/0": np.array([0] * 5 + [1]), "r/0": np.array([1] * 5 + [0])})
    chosen = fewest(model, current, current)
    assert [np.bincount(chosen[key]).tolist() for key in ("q/0", "r/0")] == [[3, 3], [3, 3]]
    assert len(chosen.moves_from(current)) == 4


def test_the_other_plans_have_about_as_many_moves_first() -> None:
    model, current = drawn(3)
    first, *others = fewest_moves(model, current, propose("adaptive", model.cluster, model.workload, current).placement)
    counts = [len(plan.moves_from(current)) for plan in others]
    count = len(first.moves_from(current))
    far = [max(it / count, count / it) for it in counts]
    assert len(set(counts)) == len(counts) > 2
    assert far == sorted(far)


@pytest.mark.parametrize("seed", range(6))
def test_a_change_of_the_cost_is_estimated_as_it_comes_where_executors_hold_queries_up(seed: int) -> None:
    """With one query on one-core executors the estimate is exact: nothing else holds it up."""
    model, current = drawn(seed, queries=1)
    trial = TrialPlacement(model, current)
    transfers = single_moves(trial)
    estimated = trial.estimate_changes(transfers.stage, transfers.source, transfers.target, transfers.busy)
    before = trial.soft_cost()
    for number, estimate in enumerate(estimated.tolist()):
        stage, partition, target = (int(it[number]) for it in (transfers.stage, transfers.partition, transfers.target))
        source = trial.move(stage, partition, target)
        assert trial.soft_cost() - before == pytest.approx(estimate, abs=1e-9)
        trial.move(stage, partition, source)
    assert len(estimated)


def test_executors_that_are_full_do_not_hide_one_with_room() -> None:
    """Five are idle, and all but one of them full of the state of idle partitions."""
    full = replace(stage("q", [1.0] * 8 + [0.0] * 4), state_bytes=np.array([1.0] * 8 + [4.0] * 4))
    model = replace(model_of([full], 6), cluster=cluster_of(6, memory=[100.0, 4.0, 4.0, 4.0, 4.0, 100.0]))
    current = Placement({"q/0": np.array([0] * 8 + [1, 2, 3, 4])})
    planned = fewest(model, current, current)
    assert np.bincount(planned["q/0"][:8], minlength=6).tolist() == [4, 0, 0, 0, 0, 4]
