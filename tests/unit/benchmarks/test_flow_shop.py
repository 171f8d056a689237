"""The pipelined migration schedule's cost: its worked example, and the laws of a flow shop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.flow_shop import (
    closed_form,
    finish_times,
    makespan,
    sequential,
    shortest_first,
    transfer_seconds,
    upper_bound,
    with_migrations,
)

EXAMPLE = np.array([10.0, 10, 8, 8, 3, 3])
seconds = st.floats(0, 100)
lists = st.lists(seconds, max_size=12).map(lambda values: np.array(values, dtype=float))


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
    assert (times.makespan, upper_bound(EXAMPLE, 6, 2), sequential(EXAMPLE, 6, 2)) == (56, 68, 90)


def test_the_worked_example_with_two_migrations() -> None:
    assert with_migrations(EXAMPLE, 2, 1).tolist() == [*EXAMPLE, 11, 11]
    assert makespan(EXAMPLE, 6, 2, migrations=2, checkpoint=1) == 72
    assert upper_bound(EXAMPLE, 6, 2, migrations=2, checkpoint=1) == 90


def test_shortest_transfers_first_fills_the_pipeline_sooner() -> None:
    order = shortest_first(EXAMPLE)
    assert order.tolist() == [4, 5, 2, 3, 0, 1]
    assert (makespan(EXAMPLE[order], 6, 2), makespan(EXAMPLE, 6, 2)) == (50, 56)
    every = {makespan(np.array(one), 6, 2) for one in set(itertools.permutations(EXAMPLE.tolist()))}
    assert min(every) == 50


@given(lists, seconds, seconds)
def test_the_closed_form_is_the_recurrence(transfers: np.ndarray, processing: float, packing: float) -> None:
    exact = finish_times(transfers, processing, packing).makespan
    assert closed_form(transfers, processing, packing) == pytest.approx(exact)


@given(lists.filter(len), seconds, seconds, st.integers(0, 4), seconds)
def test_the_estimate_is_an_upper_bound_where_no_stage_is_slower_than_the_longest_transfer(
    transfers: np.ndarray, processing: float, packing: float, migrations: int, checkpoint: float
) -> None:
    longest = float(transfers.max())
    processing, packing = min(processing, longest), min(packing, longest)
    exact = makespan(transfers, processing, packing, migrations=migrations, checkpoint=checkpoint)
    bound = upper_bound(transfers, processing, packing, migrations=migrations, checkpoint=checkpoint)
    assert exact <= bound * (1 + 1e-9)


def test_the_estimate_is_no_bound_where_processing_is_slower() -> None:
    transfers = np.ones(4)
    assert makespan(transfers, 5, 1) > upper_bound(transfers, 5, 1)


@given(st.lists(seconds, min_size=1, max_size=6), seconds, seconds, st.randoms(use_true_random=False))
def test_no_order_is_better_than_shortest_first(
    values: list[float],
    processing: float,
    packing: float,
    random: object,
) -> None:
    transfers = np.array(values)
    best = makespan(transfers[shortest_first(transfers)], processing, packing)
    random.shuffle(values)  # type: ignore[attr-defined]
    assert best <= makespan(np.array(values), processing, packing) * (1 + 1e-9)


@given(lists, seconds, seconds)
def test_overlapping_is_never_slower(transfers: np.ndarray, processing: float, packing: float) -> None:
    assert makespan(transfers, processing, packing) <= sequential(transfers, processing, packing) * (1 + 1e-9)


def test_completion_of_full_steps_follows_the_longest_transfer() -> None:
    """While every transfer takes the longest time, the second step is processed two transfers and one step on."""
    assert finish_times(np.array([10.0, 10, 10]), 6, 2).processed.tolist() == [16, 26, 36]


def test_transfer_times_from_messages() -> None:
    assert transfer_seconds(np.array([4.0, 2]), 1e6, 12.5e6, 0.01) == pytest.approx([0.33, 0.17])


def test_nothing_to_send() -> None:
    nothing = np.zeros(0)
    assert (makespan(nothing, 6, 2), closed_form(nothing, 6, 2)) == (0, 0)
    assert makespan(nothing, 6, 2, migrations=1, checkpoint=1) == 9


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: finish_times(np.array([-1.0]), 1, 1), "transfers: must be finite and not negative"),
        (lambda: finish_times(np.ones((2, 2)), 1, 1), "transfers: expected 1 dimension"),
        (lambda: finish_times(EXAMPLE, np.inf, 1), "processing"),
        (lambda: closed_form(EXAMPLE, 1, -1), "packing"),
        (lambda: makespan(EXAMPLE, 1, 1, migrations=-1), "migrations"),
        (lambda: upper_bound(EXAMPLE, 1, 1, migrations=1, checkpoint=-1), "checkpoint"),
        (lambda: transfer_seconds(EXAMPLE, 1, 0), "bytes_per_second: must be above zero"),
    ],
)
def test_what_cannot_be_timed_is_refused_by_name(call: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()  # type: ignore[operator]
