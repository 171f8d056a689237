from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rechannel.policies.model.arrays import ModelError, ranks
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Stage, Workload
from unit.policies.random_clusters import cluster_of, placement_of, workload_of

STAGE = Stage("a", "q", True, 1.0, [1.0, 2.0], [1, 2], [1, 2])
OTHER = Stage("b", "q", True, 1.0, [1.0], [1], [1])


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"executors": ()}, "executors"),
        ({"executors": ("e0", "e0")}, "executors"),
        ({"nodes": ("n0",)}, "nodes"),
        ({"cores": np.array([1.0, 0.0])}, "cores"),
        ({"cores": np.array([1.0])}, "cores"),
        ({"speed": np.array([1.0, np.nan])}, "speed"),
        ({"memory_bytes": np.array([1.0, -1.0])}, "memory_bytes"),
        ({"available": np.array([1.0, 0.0])}, "available"),
    ],
)
def test_invalid_cluster(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        replace(cluster_of(2), **changes)


@pytest.mark.parametrize(
    "changes,named",
    [
        ({"busy": [-1.0, 1.0]}, "busy"),
        ({"rows": [1.0]}, "rows"),
        ({"state_bytes": [np.inf, 1]}, "state_bytes"),
        ({"batches_per_second": -1.0}, "batches_per_second"),
        ({"key": ""}, "key"),
        ({"busy": [], "rows": [], "state_bytes": []}, "busy"),
    ],
)
def test_invalid_stage(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        replace(STAGE, **changes)


@pytest.mark.parametrize(
    "stages,shuffles,named",
    [
        ([STAGE, STAGE], [], "unique"),
        ([STAGE], [DenseShuffle("a", "x", np.ones((2, 1)))], "downstream"),
        ([OTHER, STAGE], [DenseShuffle("a", "b", np.ones((2, 1)))], "before"),
        ([STAGE, OTHER], [DenseShuffle("a", "b", np.ones((1, 1)))], "volume"),
        ([STAGE, replace(OTHER, query="p")], [DenseShuffle("a", "b", np.ones((2, 1)))], "two queries"),
        ([replace(STAGE, placeable=False), replace(OTHER, placeable=False)], [], "floating"),
    ],
)
def test_invalid_workload(stages: list[Stage], shuffles: list[DenseShuffle], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        Workload(tuple(stages), tuple(shuffles))


@pytest.mark.parametrize(
    "placement,named",
    [(placement_of(), "stages differ"), (placement_of(a=[0]), "a: expected 2"), (placement_of(a=[0, 2]), "outside")],
)
def test_invalid_placement(placement: Placement, named: str) -> None:
    with pytest.raises(ModelError, match=named):
        placement.validate(cluster_of(2), Workload((STAGE,)))


def test_floating_stage_has_one_entry_for_each_executor() -> None:
    with pytest.raises(ModelError, match="floating"):
        placement_of().validate(cluster_of(3), Workload((replace(STAGE, placeable=False),)))


def test_arrays_are_copied_and_read_only() -> None:
    source = np.array([0, 1])
    placement = Placement({"a": source})
    source[0] = 1
    assert placement["a"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        placement["a"][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        STAGE.busy[0] = 3.0


def test_equal_placements_are_equal_and_hash_alike() -> None:
    left, right = placement_of(a=[0, 1], b=[2]), placement_of(b=[2], a=[0, 1])
    assert left == right
    assert hash(left) == hash(right)
    assert left != placement_of(a=[0, 1])
    assert left != "a placement"


def test_moves_between_placements() -> None:
    new, old = placement_of(a=[0, 1, 1], b=[0]), placement_of(a=[0, 0, -1])
    assert new.moves_from(old) == (Move("a", 1, 0, 1), Move("a", 2, UNPLACED, 1), Move("b", 0, UNPLACED, 0))
    with pytest.raises(ModelError, match="expected 3"):
        new.moves_from(placement_of(a=[0, 0]))


def test_lookups() -> None:
    assert cluster_of(2).index_of("e1") == 1
    assert cluster_of(2).index_of("gone") == UNPLACED
    workload = workload_of({"a": [1.0], "b": [1.0]})
    assert workload.stage("b").key == "b"
    assert workload.queries == ("q",)


def test_ranks_count_equal_values_before() -> None:
    assert ranks(np.array([3, 1, 3, 3, 1, 2])).tolist() == [0, 0, 1, 2, 1, 0]
    assert ranks(np.array([], dtype=np.int64)).tolist() == []
