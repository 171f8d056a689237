from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.analysis.queueing import (
    ShareOverflowError,
    arrival_rates,
    executor_utilization,
    fair_shares,
    maximum_rate,
    state_probability,
    unit_rates,
    utilization,
)
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.streams import Stream
from rechannel.policies.model.workload import Stage, Workload
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of


def test_one_source_that_feeds_three_nodes() -> None:
    routing = np.zeros((4, 4))
    routing[0, 1:] = [0.3, 0.4, 0.3]
    rates = arrival_rates(np.array([10.0, 0, 0, 0]), routing)
    assert rates == pytest.approx([10, 3, 4, 3])
    assert utilization(rates[1:], np.array([0.2, 0.2, 1 / 6])) == pytest.approx([0.6, 0.8, 0.5])


def test_a_loop_that_leaks_is_solved() -> None:
    assert arrival_rates(np.array([1.0]), np.array([[0.5]])) == pytest.approx([2.0])


@pytest.mark.parametrize(
    "gamma,routing,named",
    [
        ([1.0], [[1.0]], "singular"),
        ([1.0, 0], [[0, 1], [1, 0]], "singular"),
        ([1.0, 0], [[0, 1.1], [0, 0]], "more than 1"),
        ([1.0, 0], [[0, -0.1], [0, 0]], "routing"),
        ([-1.0], [[0.0]], "gamma"),
        ([1.0], [[0.0, 0.0]], "routing"),
    ],
)
def test_impossible_networks_are_refused(gamma: list[float], routing: list[list[float]], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        arrival_rates(np.array(gamma), np.array(routing))


def test_maximum_rate_is_one_over_service_time() -> None:
    assert maximum_rate(np.array([0.25, 0.0])).tolist() == [4.0, np.inf]


def test_state_probabilities() -> None:
    assert state_probability(np.array([0.5, 0.2]), np.array([1, 0])) == pytest.approx(0.5 * 0.5 * 0.8)
    total = sum(state_probability(np.array([0.6]), np.array([n])) for n in range(100))
    assert total == pytest.approx(1.0)
    with pytest.raises(ModelError, match="utilization"):
        state_probability(np.array([1.0]), np.array([0]))


@settings(max_examples=100, deadline=None)
@given(situations())
def test_utilization_is_busy_time_over_cores(situation: Situation) -> None:
    cluster, _, _ = situation
    report = executor_utilization(*situation)
    assert report.utilization == pytest.approx(executor_busy(*situation) / cluster.cores)
    known = (report.arrival_rate > 0) & np.isfinite(report.service_rate)
    assert report.utilization[known] == pytest.approx(report.arrival_rate[known] / report.service_rate[known])
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
    found = np.concatenate([np.zeros(0), *unit_rates(workload).values()])
    assert found == pytest.approx(arrival_rates(gamma, routing), rel=1e-6, abs=1e-6)


def test_report_of_a_source_and_an_aggregation() -> None:
    source = Stage("src", "q", False, 2.0, [0.1, 0.1], [30, 10], [0, 0])
    counts = Stage("agg", "q", True, 2.0, [0.6, 0.3], [0, 0], [0, 0])
    workload = Workload((source, counts), (Stream("src", "agg", np.array([[3.0, 1.0], [1.0, 1.0]])),))
    report = executor_utilization(cluster_of(2), workload, placement_of(agg=[0, 1]))
    assert report.arrival_rate == pytest.approx([60 + 55, 20 + 25])
    assert report.utilization == pytest.approx([1.4, 0.8])
    assert report.service_rate == pytest.approx([115 / 1.4, 45 / 0.8])
    assert report.saturated.tolist() == [True, False]


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
