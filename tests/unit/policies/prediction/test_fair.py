"""The FAIR scheduler, with a pool for each query."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.model import PredictionModel, QueryTiming
from rechannel.policies.prediction.replay import replay
from unit.policies.prediction.cases import model_of, stage


def late_start(pools: dict[str, str]) -> dict[str, float]:
    """The batches of a long query on two one-core executors, and of a short one that comes while it runs."""
    model = model_of([stage("long", [1.0] * 12), stage("short", [1.0] * 2)], 2, overhead=0.0)
    timing = {"long": QueryTiming(0.0, 20.0), "short": QueryTiming(0.0, 20.0, phase=2.5)}
    model = replace(model, timing=timing, pools=pools)
    at = Placement({"long/0": np.arange(12) % 2, "short/0": np.arange(2)})
    return {query: float(seconds.mean()) for query, seconds in replay(model, at).items()}


def test_under_fifo_the_job_that_came_first_ends_first() -> None:
    assert late_start({}) == {"long": pytest.approx(6.0, abs=0.01), "short": pytest.approx(4.5, abs=0.01)}
    same_pool = {"long": "default", "short": "default"}
    assert late_start(same_pool) == late_start({})


def test_under_fair_a_pool_with_fewer_running_tasks_comes_first() -> None:
    seconds = late_start({"long": "a", "short": "b"})
    # At 3 s both cores become free: one goes to each pool, then, at equal numbers, by name.
    assert seconds["short"] < 3.0
    assert seconds["long"] == pytest.approx(7.0, abs=0.01)


def test_every_task_runs_whatever_the_pools() -> None:
    random = np.random.default_rng(1)
    stages = [stage(f"q{number}", random.lognormal(-1, 0.5, 8)) for number in range(3)]
    model: PredictionModel = model_of(stages, 2)
    at = Placement({it.key: np.arange(8) % 2 for it in stages})
    fair = replace(model, pools={f"q{number}": f"pool-{number}" for number in range(3)})
    assert all(len(seconds) >= 8 for seconds in replay(fair, at).values())
