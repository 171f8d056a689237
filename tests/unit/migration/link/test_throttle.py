"""Bound on the partitions that a batch takes over."""

from __future__ import annotations

from rechannel.migration.link.throttle import MoveThrottle
from rechannel.migration.moves import Move
from rechannel.wire.messages import DesiredMove


def _moves(*sizes: float) -> list[Move]:
    return [
        Move(
            DesiredMove(move=str(n), query="q", stage=0, partition=n, source="0", target="1", step=0, bytes=size),
            "d",
            "run",
        )
        for n, size in enumerate(sizes)
    ]


def _calm(throttle: MoveThrottle, batches: int = 5) -> None:
    for _ in range(batches):
        assert not throttle.record_batch("q", 1.0, landed=0)


def test_a_slow_batch_halves_and_good_ones_give_back_slowly() -> None:
    throttle = MoveThrottle(8, 100.0)
    _calm(throttle)
    assert throttle.record_batch("q", 1.6, landed=8)
    assert throttle.bounds("q") == (4, 50.0)
    assert throttle.record_batch("q", 2.0, landed=4)
    assert throttle.bounds("q") == (2, 25.0)
    assert not throttle.record_batch("q", 1.4, landed=2)
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
    assert not throttle.record_batch("q", 50.0, landed=4)
    _calm(throttle, 1)
    assert throttle.record_batch("q", 1.6, landed=4), "the batch of 50 s was none of the quiet ones"


def test_the_bounds_count_what_is_loading_and_let_one_large_partition_through() -> None:
    throttle = MoveThrottle(3, 100.0)
    assert len(throttle.select("q", _moves(1, 1, 1, 1), [])) == 3
    assert len(throttle.select("q", _moves(1, 1, 1, 1), _moves(1, 1))) == 1
    assert throttle.select("q", _moves(1), _moves(1, 1, 1)) == []
    assert len(throttle.select("q", _moves(500, 1), [])) == 1
    assert throttle.select("q", _moves(500), _moves(1)) == []
    assert len(throttle.select("q", _moves(60, 30, 20), [])) == 2


def test_queries_do_not_slow_each_other_and_an_ended_one_is_forgotten() -> None:
    throttle = MoveThrottle(8, 100.0)
    _calm(throttle)
    throttle.record_batch("q", 9.0, landed=8)
    assert throttle.bounds("other") == (8, 100.0)
    throttle.remove_query("q")
    assert throttle.bounds("q") == (8, 100.0)


def test_what_is_said_already_counts_by_its_bytes_too() -> None:
    throttle = MoveThrottle(8, 100.0)
    loading = _moves(90.0)
    assert throttle.select("q", _moves(20.0), loading) == []
    assert len(throttle.select("q", _moves(10.0), loading)) == 1
