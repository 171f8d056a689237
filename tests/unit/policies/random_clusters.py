"""Random clusters, workloads and placements for the laws, and small hand-made ones for the cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rechannel.policies.analysis.placement_cost import stage_seconds
from rechannel.policies.model.cluster import Cluster, Topology
from rechannel.policies.model.placement import Placement
from rechannel.policies.model.shuffles import DenseShuffle, Shuffle
from rechannel.policies.model.workload import Stage, Workload

Situation = tuple[Cluster, Workload, Placement]


@st.composite
def situations(draw: st.DrawFn, all_available: bool = False) -> Situation:
    """A cluster with at least one available executor, up to three queries, and a placement with gaps."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(1, 6))
    available = np.ones(size, dtype=np.bool_)
    if not all_available:
        available = np.array(draw(st.lists(st.booleans(), min_size=size, max_size=size)))
        available[random.integers(size)] = True
    cluster = Cluster(
        tuple(f"e{i}" for i in range(size)),
        tuple(f"n{i // 2}" for i in range(size)),
        random.integers(1, 5, size).astype(float),
        np.full(size, draw(st.sampled_from([np.inf, 4e6, 0.0]))),
        random.choice([0.5, 1.0, 2.0], size),
        available,
    )
    stages: list[Stage] = []
    shuffles: list[DenseShuffle] = []
    for query in range(draw(st.integers(0, 3))):
        previous: Stage | None = None
        rate = draw(st.sampled_from([0.0, 0.1, 1.0]))
        for depth, placeable in enumerate(draw(st.lists(st.booleans(), min_size=1, max_size=4))):
            stage = _stage(random, f"q{query}.{depth}", f"q{query}", placeable, rate, size, draw(st.integers(1, 12)))
            if previous is not None and draw(st.booleans()):
                volume = random.pareto(1.0, (previous.n, stage.n)) * (random.random((previous.n, stage.n)) < 0.7)
                shuffles.append(DenseShuffle(previous.key, stage.key, volume))
            stages.append(stage)
            previous = stage
    workload = Workload(tuple(stages), tuple(shuffles))
    low = 0 if all_available else -1
    placement = Placement({stage.key: random.integers(low, size, stage.n) for stage in workload.placeable})
    return cluster, workload, placement


def _stage(
    random: np.random.Generator, key: str, query: str, placeable: bool, rate: float, size: int, parts: int
) -> Stage:
    n = parts if placeable else size
    busy = random.choice([0.0, 0.5, 1.0, 1.0, 1.0, 7.0], n) * random.choice([1.0, random.random()])
    return Stage(key, query, placeable, rate, busy, random.integers(0, 1000, n), random.random(n) * 1e6)


def cluster_of(
    size: int,
    unavailable: Sequence[int] = (),
    cores: float | Sequence[float] = 1.0,
    memory: float | Sequence[float] = np.inf,
    *,
    speed: float | Sequence[float] = 1.0,
    per_node: int = 2,
    bandwidth: float | Sequence[float] = np.inf,
    racks: Sequence[int] | None = None,
    distances: Sequence[Sequence[float]] | None = None,
) -> Cluster:
    """Executors e0, e1, …; one number stands for all of them, and distances between racks are 1 unless given."""
    numbers = np.zeros(size, np.int64) if racks is None else np.array(racks)
    count = int(numbers.max()) + 1
    each = [np.full(size, value, dtype=np.float64) for value in (cores, memory, speed, bandwidth)]
    return Cluster(
        tuple(f"e{i}" for i in range(size)),
        tuple(f"n{i // per_node}" for i in range(size)),
        *each[:3],
        np.array([i not in unavailable for i in range(size)]),
        Topology(numbers, each[3], np.ones((count, count)) if distances is None else np.array(distances)),
    )


def stage_of(
    key: str,
    busy: Sequence[float],
    *,
    query: str = "q",
    rate: float = 1.0,
    rows: Sequence[float] | None = None,
    state: Sequence[float] | None = None,
    placeable: bool = True,
) -> Stage:
    """A stage without rows and state unless given."""
    none = np.zeros(len(busy))
    return Stage(key, query, placeable, rate, busy, none if rows is None else rows, none if state is None else state)


def floating(key: str, busy: Sequence[float], **fields: Any) -> Stage:
    """A floating stage, busy for so long on each executor."""
    return stage_of(key, busy, placeable=False, **fields)


def workload_of(busy: Mapping[str, Sequence[float]], shuffles: Sequence[Shuffle] = (), rate: float = 0.01) -> Workload:
    """One query of placeable stages, with one row and one state byte for each second of work."""
    return Workload(
        tuple(Stage(key, "q", True, rate, values, values, values) for key, values in busy.items()), tuple(shuffles)
    )


def placement_of(**assignments: Sequence[int]) -> Placement:
    """A placement from plain lists."""
    return Placement({key: np.array(values, dtype=np.int64) for key, values in assignments.items()})


def unplaced(workload: Workload) -> Placement:
    """No partition is on an executor."""
    return Placement({stage.key: np.full(stage.n, -1) for stage in workload.placeable})


def singles(loads: Sequence[float], edges: Sequence[tuple[int, int, float]]) -> Workload:
    """Stages s0, s1, … of one partition each, and streams (upstream, downstream, volume) between them."""
    shuffles = [DenseShuffle(f"s{up}", f"s{down}", np.array([[volume]])) for up, down, volume in edges]
    return workload_of({f"s{i}": [load] for i, load in enumerate(loads)}, shuffles, rate=1.0)


def singly(*executors: int) -> Placement:
    """The placement of :func:`singles` on these executors."""
    return placement_of(**{f"s{i}": [executor] for i, executor in enumerate(executors)})


def executors_of(workload: Workload, placement: Placement) -> list[int]:
    """The executors of all partitions, stage after stage."""
    return [int(executor) for stage in workload.placeable for executor in placement[stage.key]]


def critical_path(cluster: Cluster, workload: Workload, placement: Placement) -> dict[str, float]:
    """Return the seconds per batch of each query, whose stages run one after the other."""
    seconds = dict.fromkeys(workload.queries, 0.0)
    for stage, time in zip(workload.stages, stage_seconds(cluster, workload, placement), strict=True):
        seconds[stage.query] += float(time)
    return seconds
