from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.policies.analysis.classification import StreamClass, classify, count_classes, high_edges
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.shuffles import DenseShuffle
from rechannel.policies.model.workload import Stage, Workload

H, M, N = StreamClass.HIGH, StreamClass.MID, StreamClass.LOW
VOLUMES = st.lists(st.floats(0, 1e9), min_size=1, max_size=40)


def test_acceptance_example_of_eight_streams() -> None:
    result = classify(np.array([100.0, 80, 60, 50, 40, 30, 20, 20]))
    assert result.classes.tolist() == [H, H, M, M, M, M, N, N]
    assert result.classes.dtype == np.int8
    assert (result.mean, result.deviation, result.mean + result.deviation, result.mean - result.deviation) == (
        50.0,
        22.5,
        72.5,
        27.5,
    )


@pytest.mark.parametrize(
    "volumes,classes",
    [([], []), ([5.0], [M]), ([0.1] * 3, [M] * 3), ([0.0, 0.0], [M, M]), ([10.0, 30.0], [M, M])],
    ids=["nothing", "one", "all equal", "all nothing", "both exactly at the deviation"],
)
def test_ties_are_mid(volumes: list[float], classes: list[int]) -> None:
    assert classify(np.array(volumes)).classes.tolist() == classes


@pytest.mark.parametrize("volumes", [[-1.0], [np.nan], [[1.0]]])
def test_invalid_volumes(volumes: list[float]) -> None:
    with pytest.raises(ModelError, match="volumes"):
        classify(np.array(volumes))


@given(VOLUMES, st.sampled_from([0.5, 2.0, 1024.0]))
def test_scale_does_not_change_classes(volumes: list[float], factor: float) -> None:
    array = np.array(volumes)
    assert (classify(array).classes == classify(array * factor).classes).all()


@given(VOLUMES)
def test_high_is_above_its_cut_and_low_below(volumes: list[float]) -> None:
    array, result = np.array(volumes), classify(np.array(volumes))
    assert (array[result.classes == H] > result.mean + result.deviation).all()
    assert (array[result.classes == N] < result.mean - result.deviation).all()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_classes_are_counted_over_all_shuffles(kind: type[np.floating[Any]]) -> None:
    random = np.random.default_rng(7)
    blocks = [(random.lognormal(sigma=2.0, size=(9, 9)) * (random.random((9, 9)) < 0.7)).astype(kind) for _ in range(2)]
    stages = [Stage(f"q/{n}", "q", True, 1.0, np.ones(9), np.ones(9), np.ones(9)) for n in range(3)]
    shuffles = [DenseShuffle(f"q/{n}", f"q/{n + 1}", block) for n, block in enumerate(blocks)]
    streams = np.concatenate([block[block > 0] for block in blocks])
    classes = classify(streams).classes
    assert count_classes(Workload(tuple(stages), tuple(shuffles))) == {
        kind: int((classes == kind).sum()) for kind in (H, M, N)
    }
    assert count_classes(Workload(tuple(stages))) == {}


@given(st.floats(2**-7, 1e6, width=32), st.floats(2**-7, 1e6, width=32))
def test_ties_are_mid_in_single_precision(one: float, other: float) -> None:
    stages = tuple(Stage(f"q/{n}", "q", True, 1.0, np.ones(4), np.ones(4), np.ones(4)) for n in range(2))
    block = np.full((4, 4), one, dtype=np.float32)
    block[:2] = other
    workload = Workload(stages, (DenseShuffle("q/0", "q/1", block),))
    assert count_classes(workload) == {H: 0, M: 16, N: 0}
    assert [len(volumes) for _, _, volumes in high_edges(workload)] == [0]


def test_what_reaches_an_entry_is_summed_beyond_single_precision() -> None:
    block = np.array([[1e-38, 0.0], [2.0, 3.0]], dtype=np.float32)
    result = DenseShuffle("q/0", "q/1", block).forward(np.array([1e44, 1e6]))
    np.testing.assert_allclose(result, [1e44 * float(block[0, 0]) + 2e6, 3e6], rtol=1e-5)
    assert DenseShuffle("q/0", "q/1", block).forward(np.zeros(2)).tolist() == [0.0, 0.0]
