"""Bound on the partitions that a batch takes over."""

from __future__ import annotations

import pytest

from rechannel.migration.link.throttle import MoveThrottle
from rechannel.migration.moves import TrackedMove
from unit.migration.samples import accepted_move


def _moves(*sizes: float) -> list[TrackedMove]:
    return [accepted_move(number, size=size) for number, size in enumerate(sizes)]


def _calm(throttle: MoveThrottle, batches: int = 5) -> None:
    for _ in range(batches):
        throttle.record_batch("q", 1.0, landed=0)


def test_a_slow_batch_halves_and_good_ones_give_back_slowly() -> None:
    throttle = MoveThrottle(8, 100.0)
    _calm(throttle)
    throttle.record_batch("q", 1.6, landed=8)
    assert throttle.bounds("q") == (4, 50.0)
    throttle.record_batch("q", 2.0, landed=4)
    assert throttle.bounds("q") == (2, 25.0)
    throttle.record_batch("q", 1.4, landed=2)
    assert throttle.bounds("q") == (3, 35.0)
    for _ in range(10):
        throttle.record_batch("q", 1.0, landed=1)
    assert throttle.bounds("q") == (8, 100.0)


def test_it_never_falls_below_one_partition() -> None:
    throttle = MoveThrottle(3, 100.0)
    _calm(throttle)
    for _ in range(20):
        throttle.record_batch("q", 9.0, landed=1)
    assert throttle.bounds("q")[0] == 1
    assert len(throttle.select("q", _moves(10.0, 10.0), [])) == 1


def test_too_few_quiet_batches_judge_nothing_and_moves_are_not_what_is_usual() -> None:
    throttle = MoveThrottle(4, 100.0)
    _calm(throttle, 2)
    throttle.record_batch("q", 50.0, landed=4)
    assert throttle.bounds("q") == (4, 100.0)
    _calm(throttle, 1)
    throttle.record_batch("q", 1.6, landed=4)
    assert throttle.bounds("q") == (2, 50.0), "the batch of 50 s was none of the quiet ones"


@pytest.mark.parametrize(
    ("due", "loading", "count"),
    [
        ([1, 1, 1, 1], [], 3),
        ([1, 1, 1, 1], [1, 1], 1),
        ([1], [1, 1, 1], 0),
        ([500, 1], [], 1),  # one alone may be larger
        ([500], [1], 0),
        ([60, 30, 20], [], 2),
        ([20], [90], 0),
        ([10], [90], 1),
    ],
)
def test_the_bounds_count_moves_and_bytes_that_are_loading(due: list[float], loading: list[float], count: int) -> None:
    selected = MoveThrottle(3, 100.0).select("q", _moves(*due), _moves(*loading))
    assert [move.name for move in selected] == [f"m{number}" for number in range(count)]


def test_queries_do_not_slow_each_other_and_an_ended_one_is_forgotten() -> None:
    throttle = MoveThrottle(8, 100.0)
    _calm(throttle)
    throttle.record_batch("q", 9.0, landed=8)
    assert throttle.bounds("other") == (8, 100.0)
    throttle.remove_query("q")
    assert throttle.bounds("q") == (8, 100.0)
