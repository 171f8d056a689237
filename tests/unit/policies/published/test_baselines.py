"""MT-Scheduler, R-Storm, T-Storm and Aniello's online scheduler."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rechannel.policies.analysis.placement_cost import executor_busy, inter_executor_volume, inter_node_volume
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle, SparseShuffle
from rechannel.policies.model.workload import Workload
from rechannel.policies.published.aniello import (
    ANIELLO_ONLINE,
    AnielloParameters,
    most_in_a_slot,
    overload_and_traffic,
)
from rechannel.policies.published.bottleneck import BOTTLENECK, BottleneckParameters, bottleneck_time
from rechannel.policies.published.r_storm import R_STORM, resource_distance, unfit_and_far
from rechannel.policies.published.stream_classification import traffic
from rechannel.policies.published.t_storm import T_STORM, TStormParameters
from rechannel.policies.published.units import flatten
from unit.policies.random_clusters import (
    Situation,
    cluster_of,
    executors_of,
    floating,
    placement_of,
    singles,
    singly,
    situations,
    stage_of,
    workload_of,
)


def _apart(cores: list[float], **fields: Any) -> Cluster:
    """Executors with so many cores, each on a node of its own."""
    return cluster_of(len(cores), cores=cores, per_node=1, **fields)


def _query(busy: Mapping[str, Sequence[float]], shuffles: Sequence[DenseShuffle | SparseShuffle] = ()) -> Workload:
    """One query of placeable stages, busy for as many seconds per second as given."""
    return workload_of(busy, shuffles, rate=1.0)


def _chain(loads: list[float], volumes: list[float]) -> Workload:
    return singles(loads, [(i, i + 1, volume) for i, volume in enumerate(volumes)])


# MT-Scheduler


def test_bottleneck_time_of_executor_and_link() -> None:
    workload = _chain([1.0, 4.0], [30.0])
    apart, together = singly(0, 1), singly(1, 1)
    cluster = _apart([1.0, 2.0])
    assert bottleneck_time(cluster, workload, apart) == 2.0
    assert bottleneck_time(cluster, workload, together) == 2.5
    slow = _apart([1.0, 2.0], bandwidth=10.0)
    assert bottleneck_time(slow, workload, apart) == 3.0
    assert bottleneck_time(slow, workload, together) == 2.5
    assert executors_of(workload, BOTTLENECK.place(cluster, workload, apart).placement) == [0, 1]
    assert executors_of(workload, BOTTLENECK.place(slow, workload, apart).placement) == [1, 1]


@pytest.mark.parametrize("bandwidth", [np.inf, 4.0, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_bottleneck_follows_the_recurrence_on_a_chain(seed: int, bandwidth: float) -> None:
    random = np.random.default_rng(seed)
    loads, volumes = random.integers(1, 9, 5).astype(float), random.integers(1, 9, 4).astype(float)
    cluster, capacity = _apart([1.0, 2.0, 4.0], bandwidth=bandwidth), np.array([1.0, 2.0, 4.0])
    # B(i, j) over the ways kept for each j, with their loads and what they fetch.
    ways: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for i in range(5):
        best_ways = []
        for j in range(3):
            options = []
            for _, way in ways:
                placed = (*way, j)
                load = np.bincount(placed, weights=loads[: i + 1], minlength=3) / capacity
                fetch = np.zeros(3)
                for at in range(1, i + 1):
                    fetch[placed[at]] += volumes[at - 1] * (placed[at] != placed[at - 1]) / bandwidth
                slowest = max(float(load.max()), float(fetch.max()))
                options.append((round(slowest, 9), round(float(load @ load + fetch @ fetch), 9), placed))
            slowest, _, placed = min(options, key=lambda option: option[:2])
            best_ways.append((slowest, placed))
        ways = best_ways
    workload = _chain(loads.tolist(), volumes.tolist())
    current = singly(*[0] * 5)
    answer = BOTTLENECK.place(cluster, workload, current).placement
    assert bottleneck_time(cluster, workload, answer) == pytest.approx(min(slowest for slowest, _ in ways))
    assert BOTTLENECK.objective(cluster, workload, answer) == (bottleneck_time(cluster, workload, answer),)


def test_bottleneck_is_near_the_best_placement() -> None:
    ratios = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        loads = {"a": random.random(3).tolist(), "b": random.random(3).tolist()}
        workload = _query(loads, [DenseShuffle("a", "b", random.random((3, 3)))])
        cluster = _apart([1.0, 2.0, 2.0], bandwidth=3.0)
        ways = [Placement({"a": way[:3], "b": way[3:]}) for way in itertools.product(range(3), repeat=6)]
        answer = bottleneck_time(cluster, workload, BOTTLENECK.place(cluster, workload, ways[0]).placement)
        ratios.append(answer / min(bottleneck_time(cluster, workload, way) for way in ways))
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.15


def test_bottleneck_with_a_short_lookback() -> None:
    workload = _chain([3.0, 1, 2, 5, 1, 2], [1.0, 2, 3, 4, 5])
    cluster, current = _apart([1.0, 2.0, 4.0], bandwidth=4.0), singly(*[0] * 6)
    outcomes = [BOTTLENECK.place(cluster, workload, current, BottleneckParameters(back)) for back in (1, 2, None)]
    times = [bottleneck_time(cluster, workload, outcome.placement) for outcome in outcomes]
    assert times[0] >= times[-1]
    assert outcomes[-1].notes == (f"the slowest part needs {times[-1]:.3g} s per second",)


def test_bottleneck_counts_streams_of_floating_stages() -> None:
    source = floating("src", [0.0] * 2)
    middle = stage_of("a", [0.1])
    sink = floating("out", [0.0] * 2)
    workload = Workload(
        (source, middle, sink),
        (DenseShuffle("src", "a", np.array([[1.0], [3.0]])), DenseShuffle("a", "out", np.array([[9.0, 2.0]]))),
    )
    cluster = _apart([1.0, 1.0], bandwidth=1.0)
    assert [bottleneck_time(cluster, workload, placement_of(a=[e])) for e in (0, 1)] == [3.0, 9.0]
    outcome = BOTTLENECK.place(cluster, workload, placement_of(a=[1]))
    assert outcome.placement["a"].tolist() == [0]
    assert outcome.notes == ("the slowest part needs 3 s per second",)


@settings(max_examples=60)
@given(situation=situations())
def test_bottleneck_note_is_its_objective(situation: Situation) -> None:
    cluster, workload, current = situation
    limited = replace(cluster, topology=Topology(cluster.subcluster, np.full(cluster.size, 5.0), np.ones((1, 1))))
    outcome = BOTTLENECK.place(limited, workload, current)
    if workload.placeable:
        time = bottleneck_time(limited, workload, outcome.placement)
        assert outcome.notes == (f"the slowest part needs {time:.3g} s per second",)


# R-Storm


def test_r_storm_resource_distance() -> None:
    cpu, memory = np.array([100.0, 400.0]), np.array([3072.0, 1024.0])
    answer = resource_distance((50.0, 128.0), cpu, memory, np.array([0.5, 0.0]))
    first = ((50 - 100) / 101) ** 2 + ((128 - 3072) / 3073) ** 2 + 0.5**2
    second = ((50 - 400) / 401) ** 2 + ((128 - 1024) / 1025) ** 2
    assert answer == pytest.approx(np.sqrt([first, second]))
    unknown = resource_distance((50.0, 128.0), cpu, np.full(2, np.inf), np.zeros(2), (0.0, 1.0, 1.0))
    assert unknown.tolist() == [1.0, 1.0]


def test_r_storm_order_of_stages() -> None:
    # Ranks from the source: b, then its neighbors a (upstream of b) and c; z is a source of its own.
    stages = _query({"a": [1.0] * 2, "z": [1.0], "b": [1.0] * 3, "c": [1.0]}).stages
    shuffles = (DenseShuffle("a", "b", np.ones((2, 3))), DenseShuffle("b", "c", np.ones((3, 1))))
    workload = Workload(stages, shuffles)
    cluster = _apart([3.0, 3.0, 3.0])
    answer = R_STORM.place(cluster, workload, placement_of(a=[0, 0], z=[0], b=[0] * 3, c=[0])).placement
    # Turns: a0 b0 c0 | (z0) then a1 b1, then b2; each executor is filled up before the next is opened.
    assert [answer[key].tolist() for key in "abcz"] == [[0, 1], [0, 1, 2], [0], [1]]


def test_r_storm_first_sub_cluster() -> None:
    cluster = _apart([2.0, 3.0, 2.0, 2.0, 2.0], racks=[0, 0, 1, 1, 1])
    workload = _query({"a": [1.0], "b": [1.0] * 2}, [DenseShuffle("a", "b", np.ones((1, 2)))])
    answer = R_STORM.place(cluster, workload, placement_of(a=[0], b=[0, 0])).placement
    assert executors_of(workload, answer) == [2, 2, 3]


def test_r_storm_partition_that_fits_nowhere() -> None:
    cluster, workload = _apart([1.0, 1.0]), _query({"a": [1.0, 1.0, 1.0]})
    outcome = R_STORM.place(cluster, workload, placement_of(a=[0, 0, 0]))
    assert outcome.notes == ("1 partitions fit on no executor and were put on the least utilized",)
    assert unfit_and_far(cluster, workload, outcome.placement) == (0.0, 1.0, 0.0)
    assert unfit_and_far(cluster_of(2, memory=1.0), workload, placement_of(a=[0, 0, 1])) == (1.0, 1.0, 0.0)


def test_r_storm_objective() -> None:
    cluster = _apart([9.0] * 3, racks=[0, 0, 1])
    workload = _query({"a": [1.0], "b": [1.0] * 4}, [DenseShuffle("a", "b", np.full((1, 4), 7.0))])
    assert unfit_and_far(cluster, workload, placement_of(a=[0], b=[0, 1, 2, -1])) == (0.0, 0.0, 0.5 + 1 + 1)


# T-Storm


def test_t_storm_order_by_traffic() -> None:
    # Traffic: 2 has 110, 1 has 100, 0 and 3 have 10 in all: 2 and 1 share a slot, which is then full.
    workload = _chain([0.1] * 4, [0.0, 100.0, 10.0])
    current = singly(0, 0, 0, 0)
    answer = T_STORM.place(_apart([1.0, 1.0]), workload, current).placement
    assert executors_of(workload, answer) == [1, 0, 0, 1]
    wide = T_STORM.place(_apart([1.0, 1.0]), workload, current, TStormParameters(consolidation=2.0)).placement
    assert executors_of(workload, wide) == [1, 0, 0, 0]


def test_t_storm_one_slot_of_a_node_for_each_query() -> None:
    cluster = cluster_of(4)  # two on a node
    stages = tuple(stage_of(f"{q}{i}", [0.1], query=q) for q in "xy" for i in range(4))
    workload = Workload(stages)
    answer = T_STORM.place(cluster, workload, Placement({stage.key: [0] for stage in stages})).placement
    for query in "xy":
        used = sorted({int(answer[stage.key][0]) for stage in stages if stage.query == query})
        assert len({executor // 2 for executor in used}) == len(used)


def test_t_storm_capacity() -> None:
    workload = _chain([0.6, 0.6], [10.0])
    current = singly(0, 0)
    settings = TStormParameters(consolidation=2.0)
    assert executors_of(workload, T_STORM.place(_apart([1.0, 1.0]), workload, current, settings).placement) == [0, 1]
    assert executors_of(workload, T_STORM.place(_apart([2.0, 1.0]), workload, current, settings).placement) == [0, 0]
    outcome = T_STORM.place(_apart([0.5]), workload, current)
    assert outcome.notes == ("2 partitions fit on no executor and were put on the least utilized",)


# Aniello, Baldoni, Querzoni


@pytest.mark.parametrize(
    "count,slots,alpha,most",
    [(10, 4, 0.0, 3), (10, 4, 1.0, 7), (10, 4, 0.5, 5), (2, 4, 1.0, 1), (4, 1, 0.3, 4), (12, 4, 0.1, 4)],
)
def test_aniello_limit_of_a_slot(count: int, slots: int, alpha: float, most: int) -> None:
    assert most_in_a_slot(count, slots, alpha) == most


def _two_pairs() -> Workload:
    return _query(
        {"a": [1.0, 1.0], "b": [1.0, 1.0]},
        [SparseShuffle("a", "b", (2, 2), np.array([0, 1]), np.array([1, 0]), np.array([10.0, 6.0]))],
    )


def test_aniello_places_pairs_together() -> None:
    cluster, workload, current = _apart([9.0, 9.0]), _two_pairs(), placement_of(a=[0, 1], b=[0, 1])
    outcome = ANIELLO_ONLINE.place(cluster, workload, current)
    assert outcome.placement == placement_of(a=[0, 1], b=[1, 0])
    assert outcome.notes == ("traffic between nodes falls by 100.0%",)


def test_aniello_threshold() -> None:
    # Pairs are kept together but for 1 of 17 bytes: an even split by count cannot help that.
    cluster, workload, current = _apart([9.0, 9.0]), _two_pairs(), placement_of(a=[0, 1], b=[1, 0])
    outcome = ANIELLO_ONLINE.place(cluster, workload, current)
    assert outcome.placement == current
    assert outcome.notes == ("traffic between nodes would not fall by 5.0%",)
    crossed = placement_of(a=[0, 0], b=[1, 0])
    assert ANIELLO_ONLINE.place(cluster, workload, crossed, AnielloParameters(threshold=1.0)).placement != crossed
    loose = _chain([1.0, 1.0, 1.0, 1.0], [10.0, 1.0, 8.0])
    start = singly(0, 0, 0, 1)
    answer = ANIELLO_ONLINE.place(cluster, loose, start).placement
    assert inter_node_volume(cluster, loose, answer) == 1.0
    unchanged = ANIELLO_ONLINE.place(cluster, loose, start, AnielloParameters(threshold=0.9)).placement
    assert unchanged == start


def test_aniello_eases_overload() -> None:
    cluster, workload, current = _apart([1.5, 1.5]), _chain([1.0, 1.0], [10.0]), singly(0, 0)
    outcome = ANIELLO_ONLINE.place(cluster, workload, current)
    assert sorted(executors_of(workload, outcome.placement)) == [0, 1]
    assert outcome.notes == ("an overloaded executor is eased",)
    before, after = (overload_and_traffic(cluster, workload, each) for each in (current, outcome.placement))
    assert (before[0], after) == (0.5, (0.0, 10.0, 10.0))


def test_aniello_places_slots_near_their_source() -> None:
    cluster = cluster_of(4, cores=9.0)  # two on a node
    source = floating("src", [0.0] * 4)
    rest = _query(
        {"a": [1.0] * 2, "b": [1.0] * 2},
        [SparseShuffle("a", "b", (2, 2), np.array([0, 1]), np.array([0, 1]), np.array([10.0, 9.0]))],
    )
    feed = SparseShuffle("src", "a", (4, 2), np.array([3, 0]), np.array([0, 1]), np.array([5.0, 5.0]))
    workload = Workload((source, *rest.stages), (feed, *rest.shuffles))
    answer = ANIELLO_ONLINE.place(cluster, workload, placement_of(a=[0, 2], b=[1, 3])).placement
    assert inter_node_volume(cluster, workload, answer) == 0.0
    assert inter_executor_volume(cluster, workload, answer) == 19.0
    assert (answer["a"][0], answer["a"][1]) == (3, 0)


def test_aniello_empty_slots_take_the_partition_that_loses_least() -> None:
    workload = _chain([1.0] * 3, [10.0, 1.0])
    cluster, current = _apart([9.0, 9.0]), singly(0, 1, 0)
    answer = ANIELLO_ONLINE.place(cluster, workload, current, AnielloParameters(alpha=1.0)).placement
    assert inter_node_volume(cluster, workload, answer) == 1.0


# The shared view


@settings(max_examples=60)
@given(situation=situations())
def test_units_hold_all_streams_and_loads(situation: Situation) -> None:
    cluster, workload, current = situation
    units = flatten(cluster, workload, current)
    assert units.placement(units.current) == current
    assert units.volume.sum() == pytest.approx(sum(shuffle.summary()[1] for shuffle in workload.shuffles))
    where = np.concatenate((units.current, np.arange(cluster.size)))
    apart = (where[units.source] != where[units.target]) | (where[units.source] < 0)
    assert units.volume[apart].sum() == pytest.approx(inter_executor_volume(cluster, workload, current), abs=1e-6)
    assert units.pairs()[2].sum() == pytest.approx(units.volume.sum())
    total = (np.append(units.load, 0.0)[: units.size][units.current >= 0]).sum() + units.fixed.sum()
    assert (executor_busy(cluster, workload, current) * cluster.speed).sum() == pytest.approx(total)
    assert traffic(cluster, workload, current)[1] == inter_executor_volume(cluster, workload, current)
