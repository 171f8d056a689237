from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.analysis.queueing import (
    ShareOverflowError,
    executor_utilization,
    fair_shares,
    unit_rates,
)
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.streams import Stream
from rechannel.policies.model.workload import Stage, Workload
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of


@settings(max_examples=100, deadline=None)
@given(situations())
def test_utilization_is_busy_time_over_cores(situation: Situation) -> None:
    cluster, _, _ = situation
    report = executor_utilization(*situation)
    assert report.utilization == pytest.approx(executor_busy(*situation) / cluster.cores)
    served = (report.arrival_rate > 0) & np.isfinite(report.service_rate)
    assert report.utilization[served] == pytest.approx(report.arrival_rate[served] / report.service_rate[served])
    assert (np.isnan(report.service_rate) == (report.arrival_rate == 0)).all()


@settings(max_examples=100, deadline=None)
@given(situations())
def test_stage_by_stage_equals_the_dense_solution(situation: Situation) -> None:
    _, workload, _ = situation
    starts: dict[str, int] = {}
    size = 0
    for stage in workload.stages:
        starts[stage.key] = size
        size += stage.n
    gamma, sent = np.zeros(size), np.zeros((size, size))
    fed = {stream.downstream for stream in workload.streams}
    for stage in workload.stages:
        if stage.key not in fed:
            gamma[starts[stage.key] :][: stage.n] = stage.rows * stage.batches_per_second
    for stream in workload.streams:
        up, down = starts[stream.upstream], starts[stream.downstream]
        sent[up : up + stream.volume.shape[0], down : down + stream.volume.shape[1]] += stream.volume
    total = sent.sum(axis=1, keepdims=True)
    routing = np.divide(sent, total, out=np.zeros_like(sent), where=total > 0)
    by_stage = np.concatenate([np.zeros(0), *unit_rates(workload).values()])
    # Jackson's traffic equations: what reaches a node is what comes from outside and from the other nodes.
    dense = np.linalg.solve(np.eye(size) - routing.T, gamma)
    assert by_stage == pytest.approx(dense, rel=1e-6, abs=1e-6)


def test_report_of_a_source_and_an_aggregation() -> None:
    source = Stage("src", "q", False, 2.0, [0.1, 0.1], [30, 10], [0, 0])
    counts = Stage("agg", "q", True, 2.0, [0.6, 0.3], [0, 0], [0, 0])
    workload = Workload((source, counts), (Stream("src", "agg", np.array([[3.0, 1.0], [1.0, 1.0]])),))
    report = executor_utilization(cluster_of(2), workload, placement_of(agg=[0, 1]))
    assert report.arrival_rate == pytest.approx([60 + 55, 20 + 25])
    assert report.utilization == pytest.approx([1.4, 0.8])
    assert report.service_rate == pytest.approx([115 / 1.4, 45 / 0.8])


def test_work_that_no_row_explains_still_counts() -> None:
    workload = workload_of({"a": [0.0]})
    idle = executor_utilization(cluster_of(1), workload, placement_of(a=[0]))
    assert np.isnan(idle.service_rate[0])
    silent = Workload((Stage("a", "q", True, 1.0, [0.5], [0.0], [0.0]),))
    assert executor_utilization(cluster_of(1), silent, placement_of(a=[0])).utilization.tolist() == [0.5]


def test_fifty_tasks_over_three_nodes() -> None:
    assert fair_shares(50, np.array([0.6, 0.8, 0.5])).tolist() == [18, 9, 23]


def test_remainders_tie_to_the_lower_index() -> None:
    assert fair_shares(4, np.array([0.5, 0.5, 0.5])).tolist() == [2, 1, 1]


def test_more_than_the_free_capacity_says_what_is_left() -> None:
    with pytest.raises(ShareOverflowError) as caught:
        fair_shares(10, np.array([0.75, 0.65, 1.5]))
    assert caught.value.shares.tolist() == [2, 3, 0]
    assert caught.value.rest == 5


def test_all_saturated_asks_for_executors() -> None:
    with pytest.raises(ScaleOutError, match="add executors"):
        fair_shares(5, np.array([1.0, 1.2]))
    assert fair_shares(0, np.array([1.0])).tolist() == [0]
    with pytest.raises(ModelError, match="count"):
        fair_shares(-1, np.array([0.5]))


@given(st.integers(0, 10_000), st.lists(st.floats(0, 1.2), min_size=2, max_size=12))
def test_shares_lose_nothing_and_are_off_by_less_than_one(count: int, rho: list[float]) -> None:
    free = np.maximum(0.0, 1 - np.array(rho))
    try:
        shares = fair_shares(count, np.array(rho))
    except ShareOverflowError as error:
        assert error.shares.sum() + error.rest == count
        assert (error.shares <= count * free + 1e-6).all()
        return
    except ScaleOutError:
        assert free.sum() == 0
        return
    assert shares.sum() == count
    if count:
        assert (np.abs(shares - count * free / free.sum()) < 1 + 1e-6).all()
