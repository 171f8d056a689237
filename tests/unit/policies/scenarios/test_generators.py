"""Every generator: the same seed makes the same, and what it makes could be a cluster."""

from __future__ import annotations

import numpy as np
import pytest

from rechannel.policies.analysis.placement_cost import spread
from rechannel.policies.model.shuffles import SparseShuffle
from rechannel.policies.scenarios.generators import (
    GENERATORS,
    LARGEST_STATE,
    MOST_OF_A_CORE,
    STATE_SHARE,
    GeneratorError,
    generate,
)
from rechannel.policies.scenarios.scenario import Scenario, from_document, to_document

SMALL = [
    *GENERATORS,
    "star:scale=10",
    "random-dag:streams=uniform,stages=5,partitions=3",
    "random-dag:streams=correlated,executors=1,stages=1",
    "chains:partitions=1",
    "chains:partitions=2,length=1",
    "spark-blocks:partitions=200,queries=3",
    "sparse:tasks=20,edges=16",
]


def utilization(scenario: Scenario) -> float:
    cluster = scenario.cluster
    busy = sum(stage.batches_per_second * stage.busy.sum() for stage in scenario.workload.stages)
    return float(busy / (cluster.cores * cluster.speed)[cluster.available].sum())


@pytest.mark.parametrize("spec", SMALL)
def test_same_seed_same_scenario(spec: str) -> None:
    first = to_document(generate(spec))
    assert to_document(generate(spec)) == first
    assert to_document(from_document(first)) == first
    joint = "," if ":" in spec else ":"
    other = to_document(generate(f"{spec}{joint}seed=1"))
    assert other["name"] != first["name"]
    assert {**other, "name": ""} != {**first, "name": ""}


@pytest.mark.parametrize("spec", SMALL)
def test_scenarios_are_feasible(spec: str) -> None:
    for seed in range(5):
        scenario = generate(f"{spec}{',' if ':' in spec else ':'}seed={seed}")
        cluster, workload = scenario.cluster, scenario.workload
        slowest = cluster.speed[cluster.available].min()
        largest = max(stage.batches_per_second * stage.busy.max() for stage in workload.stages)
        assert largest <= MOST_OF_A_CORE * slowest * 1.0001
        busy = utilization(scenario)
        assert busy <= 0.5001
        assert busy > 0.3 or largest > 0.99 * MOST_OF_A_CORE * slowest
        state = sum(stage.state_bytes.sum() for stage in workload.stages)
        memory = cluster.memory_bytes[cluster.available]
        largest_state = max(stage.state_bytes.max() for stage in workload.stages)
        assert state <= STATE_SHARE * memory.sum()
        assert largest_state <= LARGEST_STATE * memory.min()
        assert state > 0.99 * STATE_SHARE * memory.sum() or largest_state > 0.99 * LARGEST_STATE * memory.min()
        for stage in workload.stages:
            used = stage.rows > 0
            assert spread(stage.busy[used] / stage.rows[used]) < 1e-9, "one cost per row"
        for key, array in scenario.current.assignments.items():
            assert (array >= 0).all(), key


@pytest.mark.parametrize("spec", SMALL)
def test_rows_downstream_match_the_streams(spec: str) -> None:
    workload = generate(spec).workload
    received: dict[str, np.ndarray] = {}
    for shuffle in workload.shuffles:
        received[shuffle.downstream] = received.get(shuffle.downstream, 0.0) + shuffle.received()
    for key, arrived in received.items():
        stage = workload.stage(key)
        per_line = {"sentence-word-count": 10, "file-word-count": 12}.get(spec, 1) if key == "count" else 1
        assert arrived * per_line == pytest.approx(stage.rows * stage.batches_per_second * 1024), "a KiB is a line"


@pytest.mark.parametrize("name", list(GENERATORS))
def test_default_utilization(name: str) -> None:
    assert 0.3 <= utilization(generate(name)) <= 0.8


@pytest.mark.parametrize(
    ("name", "instances"),
    [
        ("linear", [1] * 8),
        ("ascent", list(range(1, 9))),
        ("descent", list(range(8, 0, -1))),
        ("diamond", [2, 4, 6, 8, 8, 6, 4, 2]),
        ("star", [8, 6, 4, 2, 2, 4, 6, 8]),
    ],
)
def test_operator_graphs_of_son_and_moon(name: str, instances: list[int]) -> None:
    for scale in (1, 10):
        scenario = generate(f"{name}:scale={scale}")
        assert [stage.n for stage in scenario.workload.placeable] == [scale * count for count in instances]
        assert (scenario.cluster.size, len(set(scenario.cluster.nodes))) == (8 * scale, 8)
        assert len(scenario.workload.shuffles) == 7
        assert all(shuffle.summary()[0] for shuffle in scenario.workload.shuffles)
        for shuffle in scenario.workload.shuffles:
            assert shuffle.sent().sum() == pytest.approx(1024_000 * instances[0] * scale)
            assert shuffle.summary()[0] == shuffle.shape[0] * shuffle.shape[1], "all to all"


def test_page_views_by_page() -> None:
    shares = set()
    for seed in range(20):
        workload = generate(f"page-view:seed={seed}").workload
        assert [stage.n for stage in workload.stages] == [4] * 4
        rows = workload.stage("count").rows
        assert rows.sum() == pytest.approx(4000)
        shares |= set(np.round(rows / 4000, 9).tolist())
    assert shares <= {0.0, 0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 1.0}
    assert {0.7, 0.0} <= shares


def test_unique_count_every_three_seconds() -> None:
    workload = generate("unique-page-view").workload
    assert workload.shuffles[-1].sent().sum() == pytest.approx(1024.0)  # three pages every three seconds
    assert workload.stage("sink").rows.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "instances"),
    [("word-count", [8, 16]), ("sentence-word-count", [4, 10, 10]), ("file-word-count", [4, 10, 10])],
)
def test_word_counts_of_heron(name: str, instances: list[int]) -> None:
    scenario = generate(f"{name}:start=round-robin")
    assert [stage.n for stage in scenario.workload.stages] == instances
    assert scenario.cluster.size == 6
    in_turn = np.concatenate([scenario.current[stage.key] for stage in scenario.workload.stages])
    assert in_turn.tolist() == [i % 6 for i in range(24)]
    skews = [spread(generate(f"{name}:zipf={zipf}").workload.stages[-1].rows) for zipf in (0, 1, 1.3)]
    assert skews == sorted(skews), "the more uneven the words, the more uneven the counters"
    assert skews[0] < 0.1


def test_size_of_sparse() -> None:
    for tasks, edges in ((20, 16), (2000, 20_000), (1234, 5678)):
        workload = generate(f"sparse:tasks={tasks},edges={edges}").workload
        assert sum(stage.n for stage in workload.placeable) == tasks
        assert sum(shuffle.summary()[0] for shuffle in workload.shuffles) == edges
        assert all(isinstance(shuffle, SparseShuffle) for shuffle in workload.shuffles)


def test_largest_sparse() -> None:
    workload = generate("sparse:tasks=100000,edges=1000000").workload
    assert sum(stage.n for stage in workload.placeable) == 100_000
    assert sum(shuffle.summary()[0] for shuffle in workload.shuffles) == 1_000_000


def test_chains() -> None:
    scenario = generate("chains")
    assert np.isfinite(scenario.cluster.bandwidth).all()
    assert set(scenario.cluster.subcluster.tolist()) == {0, 1}
    for shuffle in scenario.workload.shuffles:
        sources, _, volumes = shuffle.above(0.0)
        largest = np.zeros(shuffle.shape[0])
        np.maximum.at(largest, sources, volumes)
        assert largest / shuffle.sent() == pytest.approx(np.full(shuffle.shape[0], 0.9))


def test_kinds_of_streams() -> None:
    for kind, low, high in (("uniform", 0.06, 0.07), ("zipf", 0.29, 0.31), ("correlated", 0.8, 0.9)):
        workload = generate(f"random-dag:streams={kind},stages=8").workload
        floating = {stage.key for stage in workload.stages if not stage.placeable}
        for shuffle in (one for one in workload.shuffles if one.upstream not in floating):
            largest = np.asarray(shuffle.volume.max(axis=1) / shuffle.sent())  # type: ignore[attr-defined]
            assert low <= largest.min() <= high, kind


def test_heterogeneous_and_drained() -> None:
    unequal = generate("heterogeneous").cluster
    assert all(len(set(values.tolist())) > 1 for values in (unequal.cores, unequal.speed, unequal.memory_bytes))
    drained = generate("drained")
    leaving = np.flatnonzero(~drained.cluster.available)
    assert {drained.cluster.nodes[i] for i in leaving} == {"n0"}
    assert any(np.isin(array, leaving).any() for array in drained.current.assignments.values())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("magic", "no generator is called 'magic', there are: linear, ascent"),
        ("linear:scale=3", "linear: scale=3: expected one of 1, 10"),
        ("linear:foo=3", "linear: 'foo=3' sets no parameter, write one of: seed, scale, utilization as NAME=VALUE"),
        ("linear:seed", "linear: 'seed' sets no parameter"),
        ("random-dag:stages=0", "random-dag: stages=0: expected a whole number from 1 to 1,000 (placeable stages"),
        ("random-dag:stages=many", "random-dag: stages=many: expected a whole number"),
        ("random-dag:stages=1.5", "random-dag: stages=1.5: expected a whole number"),
        ("random-dag:utilization=nan", "random-dag: utilization=nan: expected a number from 0.01 to 1"),
        ("random-dag:utilization=2", "for example utilization=0.5"),
        ("drained:executors=3", "drained: executors=3: expected a whole number from 4"),
        ("sparse:tasks=20,edges=17", "sparse: edges=17: 20 tasks get at most 16; lower it or raise tasks"),
    ],
)
def test_invalid_specification(spec: str, sentence: str) -> None:
    with pytest.raises(GeneratorError) as error:
        generate(spec)
    assert sentence in str(error.value)
