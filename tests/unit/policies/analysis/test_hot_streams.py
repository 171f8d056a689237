from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from rechannel.policies.analysis.classification import high_edges
from rechannel.policies.analysis.hot_streams import HotStream, largest_streams
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Stage, Workload
from unit.policies.random_clusters import cluster_of, placement_of, workload_of


def _chain() -> Workload:
    source = Stage("src", "q", False, 1.0, [1.0, 1.0], [1, 1], [0, 0])
    rest = workload_of({"a": [1.0] * 3, "b": [1.0] * 2}).stages
    return Workload(
        (source, *rest),
        (
            DenseShuffle("src", "a", np.array([[50.0, 1, 1], [1, 1, 0]])),
            DenseShuffle("a", "b", np.array([[1.0, 70], [1, 50], [1, 1]])),
        ),
    )


def test_order_of_the_largest_streams() -> None:
    hot = largest_streams(_chain(), placement_of(a=[0, 1, -1], b=[1, 0]), cluster_of(2))
    assert hot == (
        HotStream("a", 0, "b", 1, 70.0, local=True),
        HotStream("src", 0, "a", 0, 50.0, local=True),
        HotStream("a", 1, "b", 1, 50.0, local=False),
    )
    assert largest_streams(_chain(), placement_of(a=[0, 1, -1], b=[1, 0]), cluster_of(2), limit=2) == hot[:2]
    assert largest_streams(_chain(), placement_of(a=[0, 1, -1], b=[1, 0]), cluster_of(2), limit=0) == ()


def test_the_largest_streams_are_the_first_of_all() -> None:
    random = np.random.default_rng(3)
    keys = ("a", "b", "c")
    blocks = [random.integers(1, 9, size=(6, 6)).astype(float) for _ in keys[1:]]  # some are equal
    shuffles = tuple(DenseShuffle(*pair, block) for pair, block in zip(pairwise(keys), blocks, strict=True))
    workload = Workload(workload_of({key: [1.0] * 6 for key in keys}).stages, shuffles)
    placement = placement_of(**{key: [0, 1, 0, 1, 0, 1] for key in keys})
    hot = largest_streams(workload, placement, cluster_of(2))
    assert len(hot) > 8
    for limit in range(len(hot) + 1):
        assert largest_streams(workload, placement, cluster_of(2), limit) == hot[:limit]


def test_high_edges_of_each_shuffle() -> None:
    assert [len(volumes) for _, _, volumes in high_edges(_chain())] == [1, 2]
    assert high_edges(Workload(())) == ()


def test_negative_limit() -> None:
    with pytest.raises(ModelError, match="limit"):
        largest_streams(_chain(), placement_of(a=[0, 1, 1], b=[1, 0]), cluster_of(2), limit=-1)
