"""Seconds by which first tasks last longer: learned, shrunk to the prior, bounded; and what they add to a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rechannel.policies.analysis.cold_start import (
    COLD_AGES,
    FLOATING,
    STATEFUL,
    STATEFUL_PYTHON,
    AgedTasks,
    ColdStage,
    fit_cold_starts,
)
from rechannel.policies.model.arrays import FloatArray

PRIOR = [1.5, 0.0, 0.0]
ALL = range(COLD_AGES)
Row = tuple[int, int, int, int, float, float, float]


def fit(rows: list[Row]) -> FloatArray:
    columns = np.array(rows, dtype=np.float64).reshape(len(rows), 7).T
    stage, partition, kind, age = (column.astype(np.int64) for column in columns[:4])
    return fit_cold_starts(AgedTasks(stage, partition, kind, age, *columns[4:]))


def usual(partition: int, rows: float) -> float:
    return (0.1 + 1e-3 * rows) * (1.0 + 0.2 * max(0, partition))


def tasks(added: list[float], cold: int, *, kind: int = STATEFUL, load: float = 0.0, stage: int = 0) -> list[Row]:
    """Warm tasks of five partitions, and ``cold`` tasks of each age; a floating stage has no partitions."""
    partitions = [-1] * 5 if kind == FLOATING else range(5)
    warm = [
        (stage, p, kind, COLD_AGES, usual(p, rows), rows, 0.0)
        for p in partitions
        for rows in np.linspace(100, 1000, 12).tolist()
    ]
    first = [
        (stage, partitions[n % 5], kind, age, usual(partitions[n % 5], 700.0) + added[age] + load, 700.0, load)
        for age in ALL
        for n in range(cold)
    ]
    return [*warm, *first]


def shrunk(added: float, age: int, count: int) -> float:
    return (count * added + PRIOR[age]) / (count + 1)


@pytest.mark.parametrize("kind", [STATEFUL_PYTHON, STATEFUL, FLOATING])
@pytest.mark.parametrize("count", [1, 5, 200])
def test_what_each_age_adds_is_recovered_but_for_the_share_of_the_prior(kind: int, count: int) -> None:
    truth = [5.0, 2.0, 0.0]
    learned = fit(tasks(truth, count, kind=kind))
    assert learned[kind] == pytest.approx([shrunk(truth[age], age, count) for age in ALL], abs=1e-3)
    others = [it for it in (STATEFUL_PYTHON, STATEFUL, FLOATING) if it != kind]
    assert learned[others] == pytest.approx(np.array([PRIOR, PRIOR]))


@pytest.mark.parametrize(
    "rows",
    [[], tasks(PRIOR, 0), [row for row in tasks([9.0] * 3, 20) if row[3] < COLD_AGES]],
    ids=["no tasks", "no first tasks", "no usual tasks"],
)
def test_without_measured_first_tasks_the_prior_holds(rows: list[Row]) -> None:
    assert fit(rows) == pytest.approx(np.array([PRIOR] * 3))


def test_a_load_is_no_cold_start() -> None:
    loading = fit(tasks(PRIOR, 50, load=3.0))
    assert loading[STATEFUL] == pytest.approx(PRIOR, abs=1e-3)
    only_loads = fit(tasks([0.0] * 3, 50, load=3.0))
    assert only_loads[STATEFUL] == pytest.approx([shrunk(0.0, age, 50) for age in ALL], abs=1e-3)


def test_an_expected_load_above_what_the_task_took_leaves_its_usual_seconds() -> None:
    rows = [(*row[:6], 1e6 if row[3] < COLD_AGES else 0.0) for row in tasks([4.0] * 3, 10)]
    assert fit(rows)[STATEFUL] == pytest.approx([shrunk(0.0, age, 10) for age in ALL], abs=1e-3)


def test_single_outliers_change_nothing() -> None:
    rows = tasks([3.0, 2.0, 1.5], 9)
    odd = [(0, 1, STATEFUL, age, seconds, 700.0, 0.0) for age in ALL for seconds in (1e5, 1e-3)]
    assert fit([*rows, *odd])[STATEFUL] == pytest.approx(
        [shrunk(f, a, 11) for a, f in enumerate([3, 2, 1.5])], abs=1e-3
    )


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(-1, 3),
            st.integers(0, 2),
            st.integers(0, COLD_AGES),
            st.one_of(st.floats(-1, 1e6), st.just(float("nan")), st.just(float("inf"))),
            st.one_of(st.floats(-1, 1e9), st.just(float("nan"))),
            st.one_of(st.floats(-1, 1e6), st.just(float("nan"))),
        ),
        max_size=40,
    )
)
def test_any_tasks_stay_within_bounds(rows: list[Row]) -> None:
    learned = fit(rows)
    assert learned.shape == (3, COLD_AGES)
    assert (learned >= 0.0).all()
    assert (learned <= 60.0).all()


STAGE = ColdStage(STATEFUL, np.array([3.0, 1.0, 0.5]), np.array([np.inf, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("ran", "slots", "added"),
    [
        ([np.inf, 0.0, 1.0], [1, 1, 1], [0.0, 3.0, 1.0, 0.5, 0.0, 1.0]),
        ([np.inf, 0.0, 1.0], [1, 2, 2], [0.0, 3.0, 3.0, 1.0, 1.0, 3.0]),
        ([np.inf, 3.0, np.inf], [1, 1, 1], [0.0] * 6),
    ],
    ids=["one core: one task after the other", "two cores: both are cold", "three tasks: warm"],
)
def test_a_task_lasts_longer_by_its_age(ran: list[float], slots: list[int], added: list[float]) -> None:
    where = np.array([0, 1, 1, 1, 1, 2])
    assert STAGE.added_seconds(np.array(ran), where, np.array(slots)).tolist() == added


def test_a_floating_stage_is_as_long_as_on_its_coldest_executor() -> None:
    def longest(tasks: list[float], ran: FloatArray = STAGE.ran, speed: float = 1.0) -> float:
        stage = ColdStage(FLOATING, STAGE.added, ran, np.array(tasks))
        return stage.floating_seconds(ran, np.array([2, 2, 1]), np.full(3, speed))

    assert longest([4, 4, 1]) == pytest.approx(3.0 + 1.0)
    assert longest([4, 4, 1], speed=0.5) == pytest.approx(2 * (3.0 + 1.0))
    assert longest([4, 0, 1]) == pytest.approx(1.0)
    assert longest([4, 0, 0]) == 0.0, "it runs nothing there"
    assert longest([4, 4, 1], np.full(3, 9.0)) == 0.0
