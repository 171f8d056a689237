from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.cycle import PlacedQueries, QueryTimings, QueryWork, batch_seconds
from rechannel.policies.prediction.model import FloatingTasks
from rechannel.policies.prediction.replay import replay
from unit.policies.prediction.cases import drawn, model_of, stage


def _one_stage(work: FloatArray) -> QueryWork:
    """Queries of one stage each, on one executor."""
    return QueryWork(work[:, 0], work, work > 0)


def test_one_query_lasts_its_overhead_and_its_slowest_executor() -> None:
    model = model_of([stage("q", [1.0, 2.0, 4.0])], 2, overhead=0.5)
    assert PlacedQueries(model, Placement({"q/0": np.array([0, 0, 1])})).estimate_batches() == {"q": pytest.approx(4.5)}


def test_queries_back_to_back_share_the_cycle_of_the_busiest_executor() -> None:
    model = model_of([stage("q", [2.0, 1.0]), stage("r", [2.0, 1.0])], 2, overhead=0.1)
    both = Placement({"q/0": np.array([0, 1]), "r/0": np.array([0, 1])})
    apart = Placement({"q/0": np.array([0, 1]), "r/0": np.array([1, 0])})
    assert list(PlacedQueries(model, both).estimate_batches().values()) == pytest.approx([4.0, 4.0])
    assert list(PlacedQueries(model, apart).estimate_batches().values()) == pytest.approx([3.0, 3.0])


def test_a_light_query_waits_for_a_heavy_one_in_each_of_its_batches() -> None:
    model = model_of([stage("heavy", [9.0]), stage("light", [0.1]), stage("other", [0.5])], 2, overhead=0.0)
    at = Placement({"heavy/0": np.array([0]), "light/0": np.array([0]), "other/0": np.array([1])})
    assert list(PlacedQueries(model, at).estimate_batches().values()) == pytest.approx([9.1, 9.1, 0.5])
    assert float(replay(model, at)["light"].mean()) == pytest.approx(9.1, rel=0.01)


@pytest.mark.parametrize(("pause", "usual", "most"), [(0.0, 1e-3, 0.03), (0.1, 0.03, 0.1)])
def test_batches_are_those_that_many_iterations_end_at(pause: float, usual: float, most: float) -> None:
    off = []
    for seed in range(24):
        random = np.random.default_rng(seed)
        count = 2 + seed % 12
        busy = random.lognormal(-3, 0.6, (count, 40)) * np.exp(random.normal(0, 0.6, (count, 1)))
        at = np.array([random.permutation(np.arange(40) % 10) for _ in range(count)])
        work = np.array([np.bincount(at[query], busy[query], 10) for query in range(count)])
        overhead, zero = random.uniform(0.2, 0.5, count), np.zeros(count)
        timings = QueryTimings(overhead, zero, random.uniform(0, pause, count), zero)
        expected = overhead + work.max(axis=1)
        for _ in range(3000):
            share = np.minimum(1.0, expected[:, None] / timings.period(expected)[None, :])
            np.fill_diagonal(share, 1.0)
            expected = np.maximum(overhead + work.max(axis=1), (share @ work).max(axis=1))
        off += np.abs(batch_seconds(QueryWork(work.max(axis=1), work, work > 0), timings) / expected - 1).tolist()
    assert np.quantile(off, 0.9) < usual
    assert max(off) < most


def test_a_query_does_not_wait_for_executors_that_only_its_floating_tasks_would_use() -> None:
    model = model_of([stage("q", [5.0]), stage("r", [1.0, 11.0]), stage("q", [0.1, 0.1], 1)], 2, overhead=0.1)
    source = model.workload.stage("q/1")
    stages = tuple(replace(it, placeable=False) if it is source else it for it in model.workload.stages)
    model = replace(model, workload=Workload(stages), floating={"q/1": FloatingTasks(2, 0.1)})
    at = Placement({"q/0": np.array([0]), "r/0": np.array([0, 1])})
    seconds = PlacedQueries(model, at).estimate_batches()
    assert seconds["r"] == pytest.approx(11.2, abs=0.1)
    assert seconds["q"] < 6.5, "it meets r on executor 0 alone"
    assert float(replay(model, at)["q"].mean()) == pytest.approx(seconds["q"], rel=0.1)


def test_floating_tasks_take_the_seconds_that_were_measured_on_slow_executors_too() -> None:
    model = model_of([stage("q", [1.0, 1.0]), stage("q", [0.5, 0.5], 1)], 2, overhead=0.1)
    stages = tuple(replace(it, placeable=it.key == "q/0") for it in model.workload.stages)
    cluster = replace(model.cluster, speed=np.full(2, 0.5))
    model = replace(model, cluster=cluster, workload=Workload(stages), floating={"q/1": FloatingTasks(2, 3.0)})
    at = Placement({"q/0": np.array([0, 1])})
    expected = 0.1 + 2.0 + 3.0
    assert PlacedQueries(model, at).estimate_batches()["q"] == pytest.approx(expected)
    assert PlacedQueries(model, at).work().work.tolist() == [[5.0, 5.0]]
    assert float(replay(model, at)["q"].mean()) == pytest.approx(expected, rel=0.01)


def test_a_query_with_a_trigger_is_met_now_and_then() -> None:
    work = np.array([[1.0], [1.0]])
    seconds = batch_seconds(
        _one_stage(work), QueryTimings(np.zeros(2), np.full(2, 10.0), np.zeros(2), np.array([0.0, 4.0]))
    )
    assert np.all((seconds > 1.0) & (seconds < 1.15))


def test_queries_that_begin_at_the_same_tick_wait_for_half_of_each_other() -> None:
    work, zero = np.array([[1.0], [1.0]]), np.zeros(2)
    assert batch_seconds(_one_stage(work), QueryTimings(zero, np.full(2, 10.0), zero, zero)) == pytest.approx(
        [1.5, 1.5]
    )
    # Every tick of the slower one is one of the faster one, but not the other way around.
    timings = QueryTimings(zero, np.array([5.0, 10.0]), zero, zero)
    assert timings.coincidence[0, 1] == pytest.approx(0.5)
    assert timings.coincidence[1, 0] == pytest.approx(1.0)


def test_a_query_that_pauses_takes_less_of_the_executors() -> None:
    work = np.array([[2.0], [1.0]])
    busy = QueryTimings(np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(2))
    assert batch_seconds(_one_stage(work), busy) == pytest.approx([3.0, 3.0], rel=0.01)
    paused = batch_seconds(_one_stage(work), replace(busy, pause=np.array([0.0, 8.0])))
    assert 2.0 < paused[0] < 2.5


def test_no_query_is_faster_than_its_own_path() -> None:
    for seed in range(20):
        model, at = drawn(seed, queries=3)
        alone = {
            query: PlacedQueries(
                model_of(list(model.stages_of(query)), 4), Placement({f"{query}/0": at[f"{query}/0"]})
            ).estimate_batches()
            for query in model.workload.queries
        }
        together = PlacedQueries(model, at).estimate_batches()
        assert all(together[query] >= alone[query][query] - 1e-9 for query in together)
