from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rechannel.policies.model.placement import Placement
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.prediction.cycle import PlacedQueries
from rechannel.policies.prediction.model import FloatingTasks, PredictionModel, QueryTiming, StageSpread
from rechannel.policies.prediction.replay import replay
from unit.policies.prediction.cases import drawn, model_of, stage
from unit.policies.random_clusters import cluster_of


def test_one_query_lasts_its_overhead_and_its_slowest_executor() -> None:
    model = model_of([stage("q", [1.0, 2.0, 4.0])], 2, overhead=0.5)
    durations = replay(model, Placement({"q/0": np.array([0, 0, 1])}), batches=5)
    assert durations["q"].tolist() == pytest.approx([4.5] * 5)


def test_stages_of_a_query_run_one_after_the_other() -> None:
    model = model_of([stage("q", [1.0, 2.0]), stage("q", [3.0, 1.0], 1)], 2, overhead=0.0)
    at = Placement({"q/0": np.array([0, 1]), "q/1": np.array([0, 1])})
    assert replay(model, at)["q"].mean() == pytest.approx(5.0, abs=0.01)


def test_tasks_share_the_cores_of_their_executor() -> None:
    model = model_of([stage("q", [1.0, 1.0, 1.0])], 1, overhead=0.0, cores=2)
    assert replay(model, Placement({"q/0": np.zeros(3, dtype=np.int64)}))["q"].mean() == pytest.approx(2.0, abs=0.01)


def test_the_job_that_was_submitted_first_comes_first() -> None:
    model = model_of([stage("q", [1.0]), stage("r", [1.0])], 1, overhead=0.0)
    here = np.zeros(1, dtype=np.int64)
    durations = replay(model, Placement({"q/0": here, "r/0": here}))
    assert all(taken.mean() == pytest.approx(2.0, abs=0.01) for taken in durations.values())


def test_a_missed_tick_is_made_up_for_at_once() -> None:
    model = model_of([stage("q", [3.0])], 1, overhead=0.0, interval=2.0)
    assert replay(model, Placement({"q/0": np.zeros(1, dtype=np.int64)}))["q"].mean() == pytest.approx(3.0, abs=0.01)


def test_no_overhead_has_no_noise() -> None:
    model = model_of([stage("q", [1.0, 2.0])], 2)
    silent = replace(model, timing={"q": QueryTiming(0.0, noise=0.2)})
    durations = replay(silent, Placement({"q/0": np.array([0, 1])}))
    assert durations["q"].mean() == pytest.approx(2.0, abs=0.01)


def test_noise_of_the_overhead_decides_who_comes_first_at_a_common_tick() -> None:
    model = model_of([stage("q", [1.0]), stage("r", [1.0])], 1)
    here = np.zeros(1, dtype=np.int64)
    timing = dict.fromkeys("qr", QueryTiming(0.2, 10.0, noise=0.2))
    durations = replay(replace(model, timing=timing), Placement({"q/0": here, "r/0": here}), batches=40)
    for seconds in durations.values():
        assert 10 <= np.sum(seconds > 1.7) <= 30, "first about as often as second"


def test_a_query_that_pauses_leaves_the_executor_to_others() -> None:
    model = model_of([stage("q", [1.0]), stage("r", [1.0])], 1)
    here = np.zeros(1, dtype=np.int64)
    timing = {"q": QueryTiming(0.0), "r": QueryTiming(0.0, pause=8.0)}
    durations = replay(replace(model, timing=timing), Placement({"q/0": here, "r/0": here}), batches=20)
    # One batch of "q" in nine waits for one of "r".
    assert durations["q"].mean() == pytest.approx(1 + 1 / 9, abs=0.03)


def test_queries_with_a_trigger_meet_by_their_phases() -> None:
    model = model_of([stage("q", [1.0]), stage("r", [1.0])], 1)
    here = np.zeros(1, dtype=np.int64)
    at = Placement({"q/0": here, "r/0": here})
    for phase, seconds in ((0.0, 1.5), (5.0, 1.0)):
        timing = {"q": QueryTiming(0.0, 10.0), "r": QueryTiming(0.0, 10.0, phase)}
        durations = replay(replace(model, timing=timing), at)
        assert np.mean([taken.mean() for taken in durations.values()]) == pytest.approx(seconds, abs=0.01)


def test_tasks_without_an_executor_take_any_free_core() -> None:
    source = Stage("q/f0", "q", False, 1.0, np.array([2.0, 0.0]), np.zeros(2), np.zeros(2))
    workload = Workload((source, stage("q", [1.0, 1.0])))
    model = PredictionModel(cluster_of(2), workload, {"q": QueryTiming(0.0)}, floating={"q/f0": FloatingTasks(2, 1.0)})
    assert replay(model, Placement({"q/0": np.array([0, 1])}))["q"].mean() == pytest.approx(2.0, abs=0.01)


def test_equal_seeds_give_equal_batches_and_noise_makes_them_longer() -> None:
    model, at = drawn(3, queries=1)
    noisy = replace(model, spread={"q0/0": StageSpread(np.zeros(12), np.full(12, 0.4))})
    one, again = (replay(noisy, at, batches=40, seed=1)["q0"] for _ in range(2))
    assert one.tolist() == again.tolist()
    assert one.mean() > replay(model, at, batches=3)["q0"].mean()


def test_it_agrees_with_the_cycle_formula_back_to_back() -> None:
    for seed in range(12):
        model, at = drawn(seed)
        formula = PlacedQueries(model, at).estimate_batches()
        assert {query: taken.mean() for query, taken in replay(model, at, batches=20).items()} == pytest.approx(
            formula, rel=0.12
        )


@pytest.mark.parametrize("queries", [1, 4])
def test_large_applications_have_about_the_batches_of_the_replay(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    model = model_of([stage(f"q{number}", random.lognormal(-3, 0.6, 200)) for number in range(queries)], 40)
    model = replace(
        model, spread={it.key: StageSpread(np.zeros(200), np.full(200, 0.3)) for it in model.workload.stages}
    )
    at = Placement({it.key: random.permutation(np.arange(200) % 40) for it in model.workload.stages})
    expected = [taken.mean() for taken in replay(model, at, batches=20).values()]
    monkeypatch.setattr("rechannel.policies.prediction.replay.MAX_REPLAYED", 1)
    estimates = [[taken.mean() for taken in replay(model, at, seed=seed).values()] for seed in range(6)]
    assert np.median(np.mean(estimates, axis=0) / expected) == pytest.approx(1.0, abs=0.04)


def test_a_query_too_slow_beside_others_has_the_batch_of_the_cycle_formula() -> None:
    model = model_of([stage("fast", [1e-3]), stage("slow", [500.0])], 2, overhead=0.0)
    at = Placement({"fast/0": np.array([0]), "slow/0": np.array([1])})
    durations = replay(model, at)
    assert durations["slow"].mean() == pytest.approx(500, rel=0.01)
    assert len(durations["fast"]) >= 8


def test_names_of_queries_and_executors_change_nothing() -> None:
    model, at = drawn(5, noise=0.2)
    turned = np.array([2, 0, 3, 1])
    moved = Placement({key: turned[where] for key, where in at.assignments.items()})
    for query, taken in replay(model, at).items():
        assert replay(model, moved)[query].mean() == pytest.approx(taken.mean(), rel=1e-9)
