"""DSC-Heron: task scheduling by stream classification (Zhang and others)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rechannel.policies.analysis.classification import StreamClass, classify
from rechannel.policies.analysis.placement_cost import executor_busy, inter_executor_volume, inter_node_volume, spread
from rechannel.policies.model.arrays import FloatArray, ModelError, ScaleOutError
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.streams import SparseStream, Stream
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.published.stream_classification import (
    STREAM_CLASSIFICATION,
    StreamClassificationParameters,
    traffic,
)
from unit.policies.random_clusters import cluster_of, placement_of, workload_of

SPREAD_FALLS = pytest.approx(-0.43, abs=0.13)  # of processor use; the paper: 41 %
AS_BEFORE = pytest.approx(0.0, abs=0.025)  # traffic between nodes of shuffles from all to all


def nodes(size: int, cores: float = 1e6, **fields: object) -> Cluster:
    """One executor on each node."""
    bandwidth = np.asarray(fields.get("bandwidth", np.full(size, np.inf)), dtype=np.float64)
    return Cluster(
        tuple(f"e{i}" for i in range(size)),
        tuple(f"n{i}" for i in range(size)),
        np.full(size, cores),
        np.asarray(fields.get("memory", np.full(size, np.inf)), dtype=np.float64),
        np.ones(size),
        np.asarray(fields.get("available", np.ones(size, np.bool_))),
        Topology(np.zeros(size, np.int64), bandwidth, np.ones((1, 1))),
    )


def single(edges: Sequence[tuple[int, int, float]], units: int) -> Workload:
    """Stages of one partition each, and the streams between them."""
    return workload_of(
        {f"s{i}": [1.0] for i in range(units)},
        [Stream(f"s{a}", f"s{b}", np.array([[volume]])) for a, b, volume in edges],
        rate=1.0,
    )


def singly(*executors: int) -> Placement:
    return Placement({f"s{i}": np.array([executor]) for i, executor in enumerate(executors)})


def where(workload: Workload, placement: Placement) -> list[int]:
    return [int(executor) for stage in workload.placeable for executor in placement[stage.key]]


def ask(cluster: Cluster, workload: Workload, current: Placement, **settings: object) -> list[int]:
    parameters = StreamClassificationParameters(**settings)  # type: ignore[arg-type]
    return where(workload, STREAM_CLASSIFICATION.place(cluster, workload, current, parameters).placement)


EIGHT = [(0, 2, 100.0), (2, 4, 80), (4, 6, 60), (1, 3, 50), (3, 5, 40), (5, 7, 30), (0, 3, 20), (1, 2, 20)]


def test_eight_streams_leave_forty_of_four_hundred_between_nodes() -> None:
    cluster, workload, current = nodes(2), single(EIGHT, 8), singly(0, 1, 1, 0, 0, 1, 1, 0)
    outcome = STREAM_CLASSIFICATION.place(
        cluster, workload, current, StreamClassificationParameters(max_instances_per_executor=4)
    )
    assert where(workload, outcome.placement) == [0, 1, 0, 1, 0, 1, 0, 1]
    assert inter_node_volume(cluster, workload, current) == pytest.approx(360)
    assert inter_node_volume(cluster, workload, outcome.placement) == pytest.approx(40)
    assert sum(volume for _, _, volume in EIGHT) == 400
    assert outcome.notes == ("streams: 2 high, 4 mid, 2 low",)


def test_what_lies_above_the_mean_weighs_as_much_as_what_lies_below() -> None:
    random = np.random.default_rng(3)
    for volumes in (random.exponential(size=101), random.pareto(1.5, 64), np.arange(10.0)):
        answer = classify(volumes)
        above = (volumes - answer.mean)[volumes > answer.mean].sum()
        below = (answer.mean - volumes)[volumes < answer.mean].sum()
        assert above == pytest.approx(below)
        assert answer.deviation == pytest.approx(2 * above / len(volumes))


def test_shares_of_uniform_and_exponential_volumes() -> None:
    random = np.random.default_rng(1)
    uniform = classify(random.random(200_000)).classes
    assert np.bincount(uniform, minlength=3) / 200_000 == pytest.approx([0.25, 0.5, 0.25], abs=0.005)
    volumes = random.exponential(size=200_000)
    high = classify(volumes).classes == StreamClass.HIGH
    assert high.mean() == pytest.approx(0.176, abs=0.005)
    assert volumes[high].sum() / volumes.sum() == pytest.approx(0.48, abs=0.01)


@pytest.mark.parametrize(
    "upper_mid,expected",
    [(False, [0, 0, 1, 1]), (True, [0, 0, 0, 1])],
    ids=["only high streams pull", "upper mid streams pull too"],
)
def test_clusters_follow_high_streams(upper_mid: bool, expected: list[int]) -> None:
    edges = [(0, 1, 100.0), (2, 3, 60), (1, 2, 57), (0, 3, 5)]
    workload, current = single(edges, 4), singly(0, 0, 1, 1)
    settings = {"hot_includes_upper_mid": upper_mid, "max_instances_per_executor": 3}
    assert classify(np.array([100.0, 60, 57, 5])).classes.tolist() == [2, 1, 1, 0]
    # With the option all follow the first stream until the executor is full.
    assert ask(nodes(2), workload, current, **settings) == expected


def test_a_cluster_follows_its_largest_stream_first() -> None:
    # The executor takes three: 0 and 1 by the largest stream, then the end of the larger of the two that leave 1.
    edges = [(0, 1, 100.0), (1, 2, 60), (1, 3, 80), *((i, i + 1, 1) for i in range(4, 20))]
    workload, current = single(edges, 21), singly(*[0] * 4, *[1] * 17)
    assert ask(nodes(7), workload, current, max_instances_per_executor=3)[:4] == [0, 0, 1, 0]


def test_one_placed_end_takes_the_other_along() -> None:
    # 1-2 is MID: 1 is placed by the HIGH stream before.
    workload = single([(0, 1, 100.0), (1, 2, 30), (3, 4, 25), (0, 4, 1)], 5)
    assert ask(nodes(3), workload, singly(1, 1, 2, 2, 2)) == [1, 1, 1, 2, 2]


def test_two_old_executors_give_way_to_the_less_loaded() -> None:
    source = Stage("src", "q", False, 1.0, [5.0, 1.0], [0, 0], [0, 0])
    pair = single([(0, 1, 10.0)], 2)
    workload = Workload((source, *pair.stages), pair.streams)
    assert ask(nodes(2), workload, singly(0, 1)) == [1, 1]
    assert ask(nodes(2), pair, singly(1, 0)) == [0, 0]


def test_no_old_executor_has_no_say() -> None:
    cluster = nodes(3, available=[False, True, True])
    assert ask(cluster, single([(0, 1, 10.0)], 2), singly(0, 2)) == [2, 2]
    assert ask(cluster, single([(0, 1, 10.0)], 2), singly(0, -1)) == [1, 1]
    with pytest.raises(ScaleOutError):
        ask(nodes(1, available=[False]), single([], 1), singly(0))


def test_a_source_pulls_to_where_it_runs_unless_that_is_gone() -> None:
    source = Stage("src", "q", False, 1.0, np.zeros(3), np.zeros(3), np.zeros(3))
    sink = Stage("a", "q", True, 1.0, np.ones(3), np.ones(3), np.zeros(3))
    stream = SparseStream("src", "a", (3, 3), np.arange(3), np.array([1, 2, 0]), np.array([9.0, 9, 9]))
    workload, current = Workload((source, sink), (stream,)), placement_of(a=[0, 0, 0])
    assert ask(nodes(3), workload, current) == [2, 0, 1]
    # Nobody is pulled to executor 1: partition 2 goes to the emptiest.
    assert ask(nodes(3, available=[True, False, True]), workload, current) == [2, 0, 0]


def test_constraints_send_units_to_the_least_loaded() -> None:
    pair, current = single([(0, 1, 10.0)], 2), singly(0, 0)
    assert ask(nodes(2, cores=2.0), pair, current) == [0, 1]  # 2 of 2 cores is more than 0.7
    assert ask(nodes(2, cores=2.0), pair, current, alpha=1.0) == [0, 0]
    assert ask(nodes(2, memory=[1.5, 1.5]), pair, current) == [0, 1]
    assert ask(nodes(2, memory=[1.5, 1.5]), pair, current, beta=2.0) == [0, 0]
    assert ask(nodes(2), pair, current, max_instances_per_executor=1) == [0, 1]


def test_bandwidth_counts_streams_with_one_end_here() -> None:
    source = Stage("src", "q", False, 1.0, np.zeros(2), np.zeros(2), np.zeros(2))
    first = Stage("a", "q", True, 1.0, [1.0], [0], [0])
    workload = Workload((source, first), (Stream("src", "a", np.array([[8.0], [6.0]])),))
    current = placement_of(a=[0])
    assert ask(nodes(2), workload, current) == [0]
    assert ask(nodes(2, bandwidth=[5.0, 10.0]), workload, current) == [1]
    assert ask(nodes(2, bandwidth=[5.0, 10.0]), workload, current, gamma=1.2) == [0]


def test_what_fits_nowhere_is_placed_and_counted() -> None:
    workload = single([(0, 1, 10.0)], 3)
    outcome = STREAM_CLASSIFICATION.place(nodes(2, cores=1.0), workload, singly(0, 0, 0))
    assert where(workload, outcome.placement) == [0, 1, 0]
    assert outcome.notes[1] == "3 partitions fit on no executor and were put on the least utilized"


def test_objective_is_traffic_between_nodes_then_executors() -> None:
    cluster, workload = cluster_of(4), single(EIGHT, 8)
    current = singly(0, 1, 1, 2, 2, 3, 3, 0)
    assert STREAM_CLASSIFICATION.measure is traffic
    expected = inter_node_volume(cluster, workload, current), inter_executor_volume(cluster, workload, current)
    assert traffic(cluster, workload, current) == expected
    assert expected[0] < expected[1]


@pytest.mark.parametrize(
    "settings,named",
    [
        ({"alpha": 0}, "alpha: expected a number above 0"),
        ({"gamma": float("nan")}, "gamma"),
        ({"beta": True}, "beta"),
        ({"max_instances_per_executor": 0}, "None or a whole number from 1"),
    ],
)
def test_impossible_parameters_are_refused(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        StreamClassificationParameters(**settings)  # type: ignore[arg-type]


def test_deep_clusters_need_no_deep_stack() -> None:
    size = 5_000
    ring = np.arange(size)
    stages = tuple(Stage(f"s{i}", "q", True, 1.0, np.ones(size), np.ones(size), np.zeros(size)) for i in range(2))
    stream = SparseStream(
        "s0", "s1", (size, size), np.tile(ring, 2), np.concatenate((ring, np.roll(ring, 1))), np.ones(2 * size)
    )
    workload = Workload(stages, (stream,))
    cluster, current = nodes(10, cores=1e4), Placement({"s0": ring % 10, "s1": ring % 10})
    answer = STREAM_CLASSIFICATION.place(cluster, workload, current).placement
    assert inter_node_volume(cluster, workload, answer) <= inter_node_volume(cluster, workload, current)


def _word_count(sizes: Sequence[int], rows: Sequence[float], random: np.random.Generator) -> Workload:
    """Components in a row, shuffled evenly, the last one by the hash of 200 words of Zipf frequencies."""
    frequency = 1 / np.arange(1, 201)
    keys = np.bincount(random.integers(0, sizes[-1], 200), weights=frequency / frequency.sum(), minlength=sizes[-1])
    shares = [np.full(size, 1 / size) for size in sizes[:-1]] + [keys]
    loads = [share * amount for share, amount in zip(shares, rows, strict=True)]
    stages = tuple(
        Stage(f"c{i}", "q", True, 1.0, load, load, np.zeros(len(load))) for i, load in enumerate(loads)
    )  # work: one unit per tuple received
    streams = tuple(
        Stream(f"c{i}", f"c{i + 1}", rows[i + 1] * np.outer(shares[i], shares[i + 1])) for i in range(len(sizes) - 1)
    )
    return Workload(stages, streams)


def _round_robin(workload: Workload, executors: int) -> Placement:
    """One after the other, counting on across components."""
    counted = np.cumsum([0] + [stage.n for stage in workload.stages])
    pieces = zip(workload.stages, counted, strict=False)
    return Placement({stage.key: (np.arange(stage.n) + start) % executors for stage, start in pieces})


def _changes(workload: Workload) -> FloatArray:
    """Relative change of the spread of processor use and of the traffic between six nodes."""
    total = sum(float(stage.busy.sum()) for stage in workload.stages)
    cluster, current = nodes(6, cores=total / 6 / 0.53), _round_robin(workload, 6)
    answer = STREAM_CLASSIFICATION.place(
        cluster, workload, current, StreamClassificationParameters(max_instances_per_executor=4)
    )
    both = (current, answer.placement)
    used = [spread(executor_busy(cluster, workload, each)) for each in both]
    sent = [inter_node_volume(cluster, workload, each) for each in both]
    return np.array([*used, sent[1] / sent[0]])


@pytest.mark.parametrize(
    "sizes,rows", [((4, 10, 10), (1.0, 1.0, 5.0)), ((8, 16), (1.0, 1.0))], ids=["sentences", "words"]
)
def test_word_count_gains_balance_and_hardly_any_traffic(sizes: tuple[int, ...], rows: tuple[float, ...]) -> None:
    runs = [_changes(_word_count(sizes, rows, np.random.default_rng(seed))) for seed in range(20)]
    before, after, sent = np.mean(runs, axis=0)
    assert after / before - 1 == SPREAD_FALLS
    assert sent - 1 == AS_BEFORE


def _chains(random: np.random.Generator) -> Workload:
    """Four components of six, each partition with about two streams to the next component."""
    stages = tuple(Stage(f"c{i}", "q", True, 1.0, np.ones(6), np.ones(6), np.zeros(6)) for i in range(4))
    streams = []
    for i in range(3):
        volume = np.zeros((6, 6))
        for _ in range(2):
            volume[np.arange(6), random.permutation(6)] = random.exponential(size=6)
        streams.append(Stream(f"c{i}", f"c{i + 1}", volume))
    return Workload(stages, tuple(streams))


def test_sparse_chains_lose_more_than_half_of_their_traffic() -> None:
    changes = [_changes(_chains(np.random.default_rng(seed)))[2] - 1 for seed in range(20)]
    assert np.mean(changes) == pytest.approx(-0.58, abs=0.06)
    assert min(changes) > -0.8
    assert max(changes) < -0.35
