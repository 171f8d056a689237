"""MT-Scheduler, R-Storm, T-Storm and Aniello's online scheduler, and the laws that all of these modules keep."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rechannel.policies.analysis.placement_cost import executor_busy, inter_executor_volume, inter_node_volume
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED, Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.streams import SparseStream, Stream
from rechannel.policies.model.workload import Stage, Workload
from rechannel.policies.policy import FunctionPolicy
from rechannel.policies.published.aniello import (
    ANIELLO_ONLINE,
    AnielloParameters,
    most_in_a_slot,
    overload_and_traffic,
)
from rechannel.policies.published.bottleneck import BOTTLENECK, BottleneckParameters, bottleneck_time
from rechannel.policies.published.fair_redistribution import FAIR_REDISTRIBUTION
from rechannel.policies.published.r_storm import R_STORM, RStormParameters, resource_distance, unfit_and_far
from rechannel.policies.published.stream_classification import STREAM_CLASSIFICATION, traffic
from rechannel.policies.published.t_storm import T_STORM, TStormParameters
from rechannel.policies.published.units import flatten
from unit.policies.random_clusters import Situation, cluster_of, placement_of, situations, workload_of

ENTRIES = (STREAM_CLASSIFICATION, BOTTLENECK, R_STORM, T_STORM, ANIELLO_ONLINE, FAIR_REDISTRIBUTION)
every_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


def _unequal(cores: list[float], bandwidth: float = np.inf, subclusters: list[int] | None = None) -> Cluster:
    size = len(cores)
    racks = np.zeros(size, np.int64) if subclusters is None else np.array(subclusters)
    count = int(racks.max()) + 1
    return Cluster(
        tuple(f"e{i}" for i in range(size)),
        tuple(f"n{i}" for i in range(size)),
        np.array(cores),
        np.full(size, np.inf),
        np.ones(size),
        np.ones(size, np.bool_),
        Topology(racks, np.full(size, bandwidth), np.ones((count, count))),
    )


def _query(busy: Mapping[str, Sequence[float]], streams: Sequence[Stream | SparseStream] = ()) -> Workload:
    """One query of placeable stages, busy for as many seconds per second as given."""
    return Workload(workload_of(busy, rate=1.0).stages, tuple(streams))


def _chain(loads: list[float], volumes: list[float]) -> Workload:
    streams = [Stream(f"s{i}", f"s{i + 1}", np.array([[volume]])) for i, volume in enumerate(volumes)]
    return _query({f"s{i}": [load] for i, load in enumerate(loads)}, streams)


def _where(workload: Workload, placement: Placement) -> list[int]:
    return [int(executor) for stage in workload.placeable for executor in placement[stage.key]]


def _ask(entry: FunctionPolicy, situation: Situation) -> Placement | None:
    """The placement of an entry, None where it asks for executors, which only a saturated cluster may."""
    cluster, workload, current = situation
    try:
        return entry.place(cluster, workload, current, entry.parameters()).placement
    except ScaleOutError:
        assert entry is FAIR_REDISTRIBUTION
        homes = [array for array in current.assignments.values() if array.size]
        assert all((array != UNPLACED).all() and cluster.available[array].all() for array in homes)
        use = executor_busy(cluster, workload, current) / cluster.cores
        assert (use[cluster.available] >= 0.95 * (1 - 1e-9)).all()
        return None


@every_entry
@settings(max_examples=60, deadline=None)
@given(situation=situations())
def test_every_partition_is_on_an_available_executor(entry: FunctionPolicy, situation: Situation) -> None:
    cluster, workload, _ = situation
    placement = _ask(entry, situation)
    assert placement == _ask(entry, situation)
    if placement is not None:
        placement.validate(cluster, workload)
        assert all(cluster.available[array].all() and (array >= 0).all() for array in placement.assignments.values())


@every_entry
@settings(max_examples=40, deadline=None)
@given(situation=situations())
def test_names_do_not_matter(entry: FunctionPolicy, situation: Situation) -> None:
    cluster, workload, current = situation
    # The new names sort the other way round.
    name = {key: f"{999 - i}" for i, key in enumerate([*cluster.executors, *dict.fromkeys(cluster.nodes)])}
    renamed = Cluster(
        tuple(name[key] for key in cluster.executors),
        tuple(name[key] for key in cluster.nodes),
        cluster.cores,
        cluster.memory_bytes,
        cluster.speed,
        cluster.available,
    )
    keys = {stage.key: f"{99 - i}" for i, stage in enumerate(workload.stages)}
    stages = [
        Stage(keys[s.key], f"x{s.query}", s.placeable, s.batches_per_second, s.busy, s.rows, s.state_bytes)
        for s in workload.stages
    ]
    streams = []
    for stream in workload.streams:
        assert isinstance(stream, Stream)
        streams.append(Stream(keys[stream.upstream], keys[stream.downstream], stream.volume))
    other = Placement({keys[key]: array for key, array in current.assignments.items()})
    answer, again = _ask(entry, situation), _ask(entry, (renamed, Workload(tuple(stages), tuple(streams)), other))
    assert (answer is None) == (again is None)
    if answer is not None and again is not None:
        assert again == Placement({keys[key]: array for key, array in answer.assignments.items()})


@every_entry
def test_nobody_available_asks_for_executors(entry: FunctionPolicy) -> None:
    with pytest.raises(ScaleOutError, match="add executors"):
        entry.place(cluster_of(1, unavailable=[0]), _query({"a": [1.0]}), placement_of(a=[0]), None)


@every_entry
def test_nothing_to_place_is_no_question(entry: FunctionPolicy) -> None:
    source = Workload((Stage("src", "q", False, 1.0, [0.1], [1], [0]),))
    assert entry.place(cluster_of(1), source, Placement({}), None).placement == Placement({})


@every_entry
def test_thousands_of_partitions_are_no_trouble(entry: FunctionPolicy) -> None:
    random, size = np.random.default_rng(5), 3_000
    stages = tuple(Stage(f"s{i}", "q", True, 1.0, random.random(size), np.ones(size), np.ones(size)) for i in range(2))
    streams = [
        SparseStream("s0", "s1", (size, size), np.arange(size), random.permutation(size), random.exponential(size=size))
    ]
    current = Placement({stage.key: np.arange(size) % 20 for stage in stages})
    outcome = entry.place(cluster_of(20, cores=400.0), Workload(stages, tuple(streams)), current, None)
    assert all(array.min() >= 0 for array in outcome.placement.assignments.values())


@pytest.mark.parametrize(
    "parameters,limits,named",
    [
        (BottleneckParameters, {"memory": 0}, "memory: expected None or a whole number from 1"),
        (RStormParameters, {"network_weight": -1}, "network_weight: expected a number from 0"),
        (TStormParameters, {"consolidation": 0.5}, "consolidation: expected a number from 1"),
        (TStormParameters, {"capacity": "1"}, "capacity: expected a number above 0"),
        (AnielloParameters, {"threshold": 1.5}, "threshold: expected a number from 0 to 1"),
        (AnielloParameters, {"alpha": -0.1}, "alpha: expected a number from 0 to 1"),
    ],
)
def test_impossible_parameters_are_refused(parameters: Any, limits: dict[str, object], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parameters(**limits)


# MT-Scheduler


def test_bottleneck_is_the_slowest_executor_or_link() -> None:
    workload = _chain([1.0, 4.0], [30.0])
    apart, together = Placement({"s0": [0], "s1": [1]}), Placement({"s0": [1], "s1": [1]})
    cluster = _unequal([1.0, 2.0])
    assert bottleneck_time(cluster, workload, apart) == 2.0
    assert bottleneck_time(cluster, workload, together) == 2.5
    slow = _unequal([1.0, 2.0], bandwidth=10.0)
    assert bottleneck_time(slow, workload, apart) == 3.0
    assert bottleneck_time(slow, workload, together) == 2.5
    assert _where(workload, BOTTLENECK.place(cluster, workload, apart).placement) == [0, 1]
    assert _where(workload, BOTTLENECK.place(slow, workload, apart).placement) == [1, 1]


@pytest.mark.parametrize("bandwidth", [np.inf, 4.0, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_chain_follows_the_recurrence(seed: int, bandwidth: float) -> None:
    random = np.random.default_rng(seed)
    loads, volumes = random.integers(1, 9, 5).astype(float), random.integers(1, 9, 4).astype(float)
    cluster, capacity = _unequal([1.0, 2.0, 4.0], bandwidth), np.array([1.0, 2.0, 4.0])
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
    current = Placement({stage.key: [0] for stage in workload.stages})
    answer = BOTTLENECK.place(cluster, workload, current).placement
    assert bottleneck_time(cluster, workload, answer) == pytest.approx(min(slowest for slowest, _ in ways))
    assert BOTTLENECK.objective(cluster, workload, answer) == (bottleneck_time(cluster, workload, answer),)


def test_dynamic_program_is_seldom_far_from_the_best() -> None:
    ratios = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        loads = {"a": random.random(3).tolist(), "b": random.random(3).tolist()}
        workload = _query(loads, [Stream("a", "b", random.random((3, 3)))])
        cluster = _unequal([1.0, 2.0, 2.0], bandwidth=3.0)
        ways = [Placement({"a": way[:3], "b": way[3:]}) for way in itertools.product(range(3), repeat=6)]
        answer = bottleneck_time(cluster, workload, BOTTLENECK.place(cluster, workload, ways[0]).placement)
        ratios.append(answer / min(bottleneck_time(cluster, workload, way) for way in ways))
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(ratios) < 1.15


def test_settled_places_stay_and_a_short_memory_still_works() -> None:
    workload = _chain([3.0, 1, 2, 5, 1, 2], [1.0, 2, 3, 4, 5])
    cluster, current = _unequal([1.0, 2.0, 4.0], 4.0), Placement({f"s{i}": [0] for i in range(6)})
    outcomes = [BOTTLENECK.place(cluster, workload, current, BottleneckParameters(memory)) for memory in (1, 2, None)]
    times = [bottleneck_time(cluster, workload, outcome.placement) for outcome in outcomes]
    assert times[0] >= times[-1]
    assert outcomes[-1].notes == (f"the slowest part needs {times[-1]:.3g} s per second",)


def test_fixed_ends_are_fetched_from_and_sent_to() -> None:
    source = Stage("src", "q", False, 1.0, np.zeros(2), np.zeros(2), np.zeros(2))
    middle = Stage("a", "q", True, 1.0, [0.1], [0], [0])
    sink = Stage("out", "q", False, 1.0, np.zeros(2), np.zeros(2), np.zeros(2))
    workload = Workload(
        (source, middle, sink),
        (Stream("src", "a", np.array([[1.0], [3.0]])), Stream("a", "out", np.array([[9.0, 2.0]]))),
    )
    cluster = _unequal([1.0, 1.0], bandwidth=1.0)
    assert [bottleneck_time(cluster, workload, placement_of(a=[e])) for e in (0, 1)] == [3.0, 9.0]
    outcome = BOTTLENECK.place(cluster, workload, placement_of(a=[1]))
    assert outcome.placement["a"].tolist() == [0]
    assert outcome.notes == ("the slowest part needs 3 s per second",)


@settings(max_examples=60, deadline=None)
@given(situation=situations())
def test_the_note_of_bottleneck_is_its_objective(situation: Situation) -> None:
    cluster, workload, current = situation
    limited = Cluster(
        cluster.executors, cluster.nodes, cluster.cores, cluster.memory_bytes, cluster.speed, cluster.available,
        Topology(cluster.subcluster, np.full(cluster.size, 5.0), np.ones((1, 1))),
    )  # fmt: skip
    outcome = BOTTLENECK.place(limited, workload, current)
    if workload.placeable:
        time = bottleneck_time(limited, workload, outcome.placement)
        assert outcome.notes == (f"the slowest part needs {time:.3g} s per second",)


# R-Storm


def test_resource_distance_by_hand() -> None:
    cpu, memory = np.array([100.0, 400.0]), np.array([3072.0, 1024.0])
    answer = resource_distance((50.0, 128.0), cpu, memory, np.array([0.5, 0.0]))
    first = ((50 - 100) / 101) ** 2 + ((128 - 3072) / 3073) ** 2 + 0.5**2
    second = ((50 - 400) / 401) ** 2 + ((128 - 1024) / 1025) ** 2
    assert answer == pytest.approx(np.sqrt([first, second]))
    unknown = resource_distance((50.0, 128.0), cpu, np.full(2, np.inf), np.zeros(2), (0.0, 1.0, 1.0))
    assert unknown.tolist() == [1.0, 1.0]


def test_r_storm_takes_turns_by_rank() -> None:
    # Ranks from the source: b, then its neighbors a (upstream of b) and c; z is a source of its own.
    stages = _query({"a": [1.0] * 2, "z": [1.0], "b": [1.0] * 3, "c": [1.0]}).stages
    streams = (Stream("a", "b", np.ones((2, 3))), Stream("b", "c", np.ones((3, 1))))
    workload = Workload(stages, streams)
    cluster = _unequal([3.0, 3.0, 3.0])
    answer = R_STORM.place(cluster, workload, placement_of(a=[0, 0], z=[0], b=[0] * 3, c=[0])).placement
    # Turns: a0 b0 c0 | (z0) then a1 b1, then b2; each executor is filled up before the next is opened.
    assert [answer[key].tolist() for key in "abcz"] == [[0, 1], [0, 1, 2], [0], [1]]


def test_r_storm_starts_where_most_is_unused_and_stays_near() -> None:
    cluster = _unequal([2.0, 3.0, 2.0, 2.0, 2.0], subclusters=[0, 0, 1, 1, 1])
    workload = _query({"a": [1.0], "b": [1.0] * 2}, [Stream("a", "b", np.ones((1, 2)))])
    answer = R_STORM.place(cluster, workload, placement_of(a=[0], b=[0, 0])).placement
    assert _where(workload, answer) == [2, 2, 3]


def test_r_storm_counts_what_fits_nowhere_and_measures_it() -> None:
    cluster, workload = _unequal([1.0, 1.0]), _query({"a": [1.0, 1.0, 1.0]})
    outcome = R_STORM.place(cluster, workload, placement_of(a=[0, 0, 0]))
    assert outcome.notes == ("1 partitions fit on no executor and were put on the least utilized",)
    assert unfit_and_far(cluster, workload, outcome.placement) == (0.0, 1.0, 0.0)
    assert unfit_and_far(cluster_of(2, memory=1.0), workload, placement_of(a=[0, 0, 1])) == (1.0, 1.0, 0.0)


def test_r_storm_objective_sums_distances() -> None:
    cluster = _unequal([9.0] * 3, subclusters=[0, 0, 1])
    workload = _query({"a": [1.0], "b": [1.0] * 4}, [Stream("a", "b", np.full((1, 4), 7.0))])
    assert unfit_and_far(cluster, workload, placement_of(a=[0], b=[0, 1, 2, -1])) == (0.0, 0.0, 0.5 + 1 + 1)


# T-Storm


def test_t_storm_takes_most_traffic_first() -> None:
    # Traffic: 2 has 110, 1 has 100, 0 and 3 have 10 in all: 2 and 1 share a slot, which is then full.
    workload = _chain([0.1] * 4, [0.0, 100.0, 10.0])
    current = Placement({f"s{i}": [0] for i in range(4)})
    answer = T_STORM.place(_unequal([1.0, 1.0]), workload, current).placement
    assert _where(workload, answer) == [1, 0, 0, 1]
    wide = T_STORM.place(_unequal([1.0, 1.0]), workload, current, TStormParameters(consolidation=2.0)).placement
    assert _where(workload, wide) == [1, 0, 0, 0]


def test_t_storm_uses_one_slot_of_a_node_for_each_query() -> None:
    cluster = cluster_of(4)  # two on a node
    stages = tuple(Stage(f"{q}{i}", q, True, 1.0, [0.1], [0], [0]) for q in "xy" for i in range(4))
    workload = Workload(stages)
    answer = T_STORM.place(cluster, workload, Placement({stage.key: [0] for stage in stages})).placement
    for query in "xy":
        used = sorted({int(answer[stage.key][0]) for stage in stages if stage.query == query})
        assert len({executor // 2 for executor in used}) == len(used)


def test_t_storm_keeps_to_capacity_until_nothing_fits() -> None:
    workload = _chain([0.6, 0.6], [10.0])
    current = Placement({"s0": [0], "s1": [0]})
    settings = TStormParameters(consolidation=2.0)
    assert _where(workload, T_STORM.place(_unequal([1.0, 1.0]), workload, current, settings).placement) == [0, 1]
    assert _where(workload, T_STORM.place(_unequal([2.0, 1.0]), workload, current, settings).placement) == [0, 0]
    outcome = T_STORM.place(_unequal([0.5]), workload, current)
    assert outcome.notes == ("2 partitions fit on no executor and were put on the least utilized",)


# Aniello, Baldoni, Querzoni


@pytest.mark.parametrize(
    "count,slots,alpha,most",
    [(10, 4, 0.0, 3), (10, 4, 1.0, 7), (10, 4, 0.5, 5), (2, 4, 1.0, 1), (4, 1, 0.3, 4), (12, 4, 0.1, 4)],
)
def test_slots_hold_from_an_even_share_to_all_but_one_each(count: int, slots: int, alpha: float, most: int) -> None:
    assert most_in_a_slot(count, slots, alpha) == most


def _two_pairs() -> Workload:
    return _query(
        {"a": [1.0, 1.0], "b": [1.0, 1.0]},
        [SparseStream("a", "b", (2, 2), np.array([0, 1]), np.array([1, 0]), np.array([10.0, 6.0]))],
    )


def test_aniello_brings_pairs_together() -> None:
    cluster, workload, current = _unequal([9.0, 9.0]), _two_pairs(), placement_of(a=[0, 1], b=[0, 1])
    outcome = ANIELLO_ONLINE.place(cluster, workload, current)
    assert outcome.placement == placement_of(a=[0, 1], b=[1, 0])
    assert outcome.notes == ("traffic between nodes falls by 100.0%",)


def test_aniello_leaves_alone_what_gains_less_than_the_threshold() -> None:
    # Pairs are kept together but for 1 of 17 bytes: an even split by count cannot help that.
    cluster, workload, current = _unequal([9.0, 9.0]), _two_pairs(), placement_of(a=[0, 1], b=[1, 0])
    outcome = ANIELLO_ONLINE.place(cluster, workload, current)
    assert outcome.placement == current
    assert outcome.notes == ("traffic between nodes would not fall by 5.0%",)
    crossed = placement_of(a=[0, 0], b=[1, 0])
    assert ANIELLO_ONLINE.place(cluster, workload, crossed, AnielloParameters(threshold=1.0)).placement != crossed
    loose = _chain([1.0, 1.0, 1.0, 1.0], [10.0, 1.0, 8.0])
    start = Placement({"s0": [0], "s1": [0], "s2": [0], "s3": [1]})
    answer = ANIELLO_ONLINE.place(cluster, loose, start).placement
    assert inter_node_volume(cluster, loose, answer) == 1.0
    unchanged = ANIELLO_ONLINE.place(cluster, loose, start, AnielloParameters(threshold=0.9)).placement
    assert unchanged == start


def test_aniello_eases_overload_though_traffic_rises() -> None:
    cluster, workload, current = _unequal([1.5, 1.5]), _chain([1.0, 1.0], [10.0]), Placement({"s0": [0], "s1": [0]})
    outcome = ANIELLO_ONLINE.place(cluster, workload, current)
    assert sorted(_where(workload, outcome.placement)) == [0, 1]
    assert outcome.notes == ("an overloaded executor is eased",)
    before, after = (overload_and_traffic(cluster, workload, each) for each in (current, outcome.placement))
    assert (before[0], after) == (0.5, (0.0, 10.0, 10.0))


def test_aniello_puts_slots_that_talk_on_one_node_and_next_to_their_source() -> None:
    cluster = cluster_of(4, cores=9.0)  # two on a node
    source = Stage("src", "q", False, 1.0, np.zeros(4), np.zeros(4), np.zeros(4))
    rest = _query(
        {"a": [1.0] * 2, "b": [1.0] * 2},
        [SparseStream("a", "b", (2, 2), np.array([0, 1]), np.array([0, 1]), np.array([10.0, 9.0]))],
    )
    feed = SparseStream("src", "a", (4, 2), np.array([3, 0]), np.array([0, 1]), np.array([5.0, 5.0]))
    workload = Workload((source, *rest.stages), (feed, *rest.streams))
    answer = ANIELLO_ONLINE.place(cluster, workload, placement_of(a=[0, 2], b=[1, 3])).placement
    assert inter_node_volume(cluster, workload, answer) == 0.0
    assert inter_executor_volume(cluster, workload, answer) == 19.0
    assert (answer["a"][0], answer["a"][1]) == (3, 0)


def test_slots_left_empty_take_the_partition_that_loses_least() -> None:
    workload = _chain([1.0] * 3, [10.0, 1.0])
    cluster, current = _unequal([9.0, 9.0]), Placement({f"s{i}": [i % 2] for i in range(3)})
    answer = ANIELLO_ONLINE.place(cluster, workload, current, AnielloParameters(alpha=1.0)).placement
    assert inter_node_volume(cluster, workload, answer) == 1.0


# The shared view


@settings(max_examples=60, deadline=None)
@given(situation=situations())
def test_flat_view_holds_everything(situation: Situation) -> None:
    cluster, workload, current = situation
    units = flatten(cluster, workload, current)
    assert units.placement(units.current) == current
    assert units.volume.sum() == pytest.approx(sum(float(stream.volumes().sum()) for stream in workload.streams))
    where = np.concatenate((units.current, np.arange(cluster.size)))
    apart = (where[units.source] != where[units.target]) | (where[units.source] < 0)
    assert units.volume[apart].sum() == pytest.approx(inter_executor_volume(cluster, workload, current), abs=1e-6)
    assert units.pairs()[2].sum() == pytest.approx(units.volume.sum())
    total = (np.append(units.load, 0.0)[: units.size][units.current >= 0]).sum() + units.fixed.sum()
    assert (executor_busy(cluster, workload, current) * cluster.speed).sum() == pytest.approx(total)
    assert traffic(cluster, workload, current)[1] == inter_executor_volume(cluster, workload, current)
