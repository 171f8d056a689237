"""Rates and utilization of the queue model; its fair shares are tested with fair redistribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.analysis.queueing import (
    executor_utilization,
    unit_rates,
)
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Workload
from unit.policies.random_clusters import (
    Situation,
    cluster_of,
    floating,
    placement_of,
    situations,
    stage_of,
    workload_of,
)


@settings(max_examples=100)
@given(situations())
def test_utilization_is_busy_time_over_cores(situation: Situation) -> None:
    cluster, _, _ = situation
    report = executor_utilization(*situation)
    assert report.utilization == pytest.approx(executor_busy(*situation) / cluster.cores)
    served = (report.arrival_rate > 0) & np.isfinite(report.service_rate)
    assert report.utilization[served] == pytest.approx(report.arrival_rate[served] / report.service_rate[served])
    assert (np.isnan(report.service_rate) == (report.arrival_rate == 0)).all()


@settings(max_examples=100)
@given(situations())
def test_rates_solve_the_traffic_equations(situation: Situation) -> None:
    _, workload, _ = situation
    starts: dict[str, int] = {}
    size = 0
    for stage in workload.stages:
        starts[stage.key] = size
        size += stage.n
    gamma, sent = np.zeros(size), np.zeros((size, size))
    fed = {shuffle.downstream for shuffle in workload.shuffles}
    for stage in workload.stages:
        if stage.key not in fed:
            gamma[starts[stage.key] :][: stage.n] = stage.rows * stage.batches_per_second
    for shuffle in workload.shuffles:
        up, down = starts[shuffle.upstream], starts[shuffle.downstream]
        sent[up : up + shuffle.volume.shape[0], down : down + shuffle.volume.shape[1]] += shuffle.volume
    total = sent.sum(axis=1, keepdims=True)
    routing = np.divide(sent, total, out=np.zeros_like(sent), where=total > 0)
    by_stage = np.concatenate([np.zeros(0), *unit_rates(workload).values()])
    # Jackson's traffic equations: what reaches a node is what comes from outside and from the other nodes.
    dense = np.linalg.solve(np.eye(size) - routing.T, gamma)
    assert by_stage == pytest.approx(dense, rel=1e-6, abs=1e-6)


def test_report_of_a_source_and_an_aggregation() -> None:
    source = floating("src", [0.1, 0.1], rate=2.0, rows=[30, 10])
    counts = stage_of("agg", [0.6, 0.3], rate=2.0)
    workload = Workload((source, counts), (DenseShuffle("src", "agg", np.array([[3.0, 1.0], [1.0, 1.0]])),))
    report = executor_utilization(cluster_of(2), workload, placement_of(agg=[0, 1]))
    assert report.arrival_rate == pytest.approx([60 + 55, 20 + 25])
    assert report.utilization == pytest.approx([1.4, 0.8])
    assert report.service_rate == pytest.approx([115 / 1.4, 45 / 0.8])


def test_work_without_rows_counts() -> None:
    workload = workload_of({"a": [0.0]})
    idle = executor_utilization(cluster_of(1), workload, placement_of(a=[0]))
    assert np.isnan(idle.service_rate[0])
    silent = Workload((stage_of("a", [0.5]),))
    assert executor_utilization(cluster_of(1), silent, placement_of(a=[0])).utilization.tolist() == [0.5]
