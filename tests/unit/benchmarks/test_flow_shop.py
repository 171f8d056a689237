"""Steps of a migration whose transfer, processing and packing overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.flow_shop import finish_times

EXAMPLE = np.array([10.0, 10, 8, 8, 3, 3])
seconds = st.floats(0, 100)


def test_the_worked_example_step_by_step() -> None:
    times = finish_times(EXAMPLE, 6, 2)
    assert list(zip(times.transferred, times.processed, times.packed, strict=True)) == [
        (10, 16, 18),
        (20, 26, 28),
        (28, 34, 36),
        (36, 42, 44),
        (39, 48, 50),
        (42, 54, 56),
    ]
    assert times.makespan == 56


@pytest.mark.parametrize(
    ("transfers", "makespan"),
    [([*EXAMPLE, 11, 11], 72), (EXAMPLE[[4, 5, 2, 3, 0, 1]], 50), ([], 0)],
    ids=["two migrations behind it", "shortest first", "nothing to send"],
)
def test_variants_of_the_example(transfers: list[float], makespan: float) -> None:
    assert finish_times(np.array(transfers), 6, 2).makespan == makespan


@given(st.lists(seconds, min_size=1, max_size=12), seconds, seconds)
def test_the_recurrence_is_the_closed_form(values: list[float], processing: float, packing: float) -> None:
    """The makespan follows from the worst step after which the slower stage never waits again."""
    slower = max(processing, packing)
    left = np.arange(len(values), 0, -1)
    closed = min(processing, packing) + float((np.cumsum(values) + left * slower).max())
    assert finish_times(np.array(values), processing, packing).makespan == pytest.approx(closed)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((np.array([-1.0]), 1, 1), "transfers"), ((EXAMPLE, np.inf, 1), "processing"), ((EXAMPLE, 1, -1), "packing")],
)
def test_invalid_times_are_refused_by_name(arguments: tuple[np.ndarray, float, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: must be finite and not negative"):
        finish_times(*arguments)
