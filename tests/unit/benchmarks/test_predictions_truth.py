from __future__ import annotations

import numpy as np
import pytest

from benchmarks.predictions.__main__ import upper_limit
from benchmarks.predictions.cases import REGIMES, draw_case, observe, true_seconds
from benchmarks.predictions.truth import LAUNCH, TrueQuery, run_batches
from benchmarks.simulation.engine import Batch
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.model import FloatingTasks, QueryTiming
from rechannel.policies.prediction.replay import replay
from unit.policies.prediction.cases import stage
from unit.policies.random_clusters import cluster_of, stage_of

FOREVER = 1000.0  # pause after a batch


def batches_of(
    queries: list[TrueQuery], placed: dict[str, list[int]], executors: int = 1, cores: int = 1, least: int = 1
) -> dict[str, list[Batch]]:
    placement = Placement({key: np.array(at) for key, at in placed.items()})
    return run_batches(cluster_of(executors, cores=cores), queries, placement, 0.0, 0, least)


def query(name: str, *works: list[float], timing: QueryTiming | None = None, **more: object) -> TrueQuery:
    stages = [stage(name, work, ordinal) for ordinal, work in enumerate(works)]
    return TrueQuery(name, stages, timing or QueryTiming(0.0), **more)  # type: ignore[arg-type]


def test_a_batch_lasts_its_overhead_and_the_slowest_executor_of_each_stage() -> None:
    one = query("q", [1.0, 2.0, 4.0], [3.0, 1.0], timing=QueryTiming(0.5))
    batch, *_ = batches_of([one], {"q/0": [0, 0, 1], "q/1": [0, 1]}, executors=2)["q"]
    assert batch.seconds == pytest.approx(0.5 + 4.0 + 3.0 + 2 * LAUNCH)


def test_cores_of_an_executor_share_its_tasks() -> None:
    batch, *_ = batches_of([query("q", [1.0, 1.0, 1.0])], {"q/0": [0, 0, 0]}, cores=2)["q"]
    assert batch.seconds == pytest.approx(2.0 + 2 * LAUNCH)


def test_later_stages_of_an_older_job_come_first() -> None:
    older = query("older", [1.0], [1.0], timing=QueryTiming(0.0, pause=FOREVER))
    newer = query("newer", [1.0, 1.0], timing=QueryTiming(0.0, phase=0.5, pause=FOREVER))
    batches = batches_of([older, newer], {"older/0": [0], "older/1": [0], "newer/0": [0, 0]})
    # The freed core goes to the newer job before the older one submits its second stage, and then back to it.
    assert batches["older"][0].end == pytest.approx(3.0, abs=0.02)
    assert batches["newer"][0].end == pytest.approx(4.0, abs=0.02)


def test_with_two_cores_each_pool_has_one() -> None:
    queries = [
        query("a", [1.0] * 4, timing=QueryTiming(0.0, pause=FOREVER), pool="a"),
        query("b", [1.0] * 4, timing=QueryTiming(0.0, phase=0.5, pause=FOREVER), pool="b"),
    ]
    batches = batches_of(queries, {"a/0": [0] * 4, "b/0": [0] * 4}, cores=2)
    # Two of "a" run at first, then one of each.
    assert (batches["a"][0].end, batches["b"][0].end) == pytest.approx((3.0, 4.0), abs=0.05)


def test_floating_tasks_take_any_free_core() -> None:
    source = stage_of("q/source", [1.5, 1.5], query="q", placeable=False)
    one = TrueQuery("q", [source], QueryTiming(0.0), floating={"q/source": FloatingTasks(3, 1.0)})
    assert batches_of([one], {}, executors=2)["q"][0].seconds == pytest.approx(2.0, abs=0.01)


def test_a_missed_tick_is_made_up_for_at_once() -> None:
    for work, period in ((3.0, 3.0), (1.0, 2.0)):
        one = query("q", [work], timing=QueryTiming(0.0, interval=2.0))
        starts = [batch.start for batch in batches_of([one], {"q/0": [0]}, least=4)["q"]]
        assert np.diff(starts).tolist() == pytest.approx([period] * 3, abs=0.01)


def test_rows_that_come_by_time_settle() -> None:
    late = query("q", [1.0], timing=QueryTiming(0.5), arrival=2.0)
    # Half of the seconds of the last batch, and its overhead.
    assert batches_of([late], {"q/0": [0]}, least=30)["q"][-1].seconds == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("regime", REGIMES)
def test_replay_and_truth_agree(regime: str) -> None:
    """Two programs, written apart. A little noise, for without any the turns of pools repeat themselves."""
    errors = []
    for seed in range(3):
        case = draw_case(regime, seed)
        true = true_seconds(case, case.placement, 0.05, seed, batches=30)
        replayed = replay(observe(case, 0.05, 40, seed), case.placement, batches=30)
        errors += [replayed[name].mean() / true[name] - 1 for name in true]
    assert np.median(np.abs(errors)) < 0.02, errors
    assert np.max(np.abs(errors)) < 0.12, errors


def test_the_upper_limit_of_a_share() -> None:
    assert upper_limit(0, 300) == pytest.approx(1 - 0.05 ** (1 / 300), abs=1e-6)
    assert upper_limit(3, 100) == pytest.approx(0.0757, abs=1e-4)  # table of Clopper and Pearson
