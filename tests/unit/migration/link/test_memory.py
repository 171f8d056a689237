"""Memory of what a link keeps by number: finished moves, and sizes of lines of the journal."""

from __future__ import annotations

import secrets
import tracemalloc
from collections.abc import Callable

from rechannel.migration import moves
from rechannel.migration.moves import MoveSet, TrackedMove
from rechannel.wire import keys
from rechannel.wire.codes import MoveReason, MoveState
from rechannel.wire.messages import DesiredMove
from rechannel.wire.redis.capacity import StreamTrimmer

MIB = 2**20
MOVES_LIMIT, SIZES_LIMIT = 1.5 * MIB, 1.0 * MIB


def traced(fill: Callable[[], object]) -> int:
    """Return the bytes that are held by what the function returns."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        held = fill()
        after, _ = tracemalloc.get_traced_memory()
        del held
        return after - before
    finally:
        tracemalloc.stop()


def finished_moves() -> MoveSet:
    """Return twice as many moves as are remembered, in decisions of four, each text as if read from a message."""
    remembered = MoveSet()
    for number in range(2 * moves._MAX_FINAL // 4):
        decision = secrets.token_hex(8)
        for partition in range(4):
            desired = DesiredMove(
                move=f"{decision}.{partition}",
                query=f"6f4f5d0e-1c35-4c43-9f0a-{number:012x}",
                stage=0,
                partition=partition,
                source=f"{number}",
                target=f"{number + 1}",
                step=partition,
                bytes=1e6 + number,
            )
            move = TrackedMove(desired, decision, f"0d6cf3bb-8c7e-4e4b-b0d5-{number:012x}", holder=f"{number}")
            remembered.add(move)
            for state, reason in (
                (MoveState.PREPARED, MoveReason.READY),
                (MoveState.STEERED, MoveReason.LOCATION_SET),
                (MoveState.DRAINED, MoveReason.LANDED),
                (MoveState.KILLED, MoveReason.CLOSED),
            ):
                move.transition(state, reason, at=1.7e9 + number, batch=number)
            move.steered_batch, move.steered_at, move.drained_at = number + 10**6, 1.7e9 + number, 1.8e9 + number
            remembered.set_final(move)
        remembered.forget_final(decision)
    return remembered


def sizes_of_journal() -> StreamTrimmer:
    """Return the trimmer of a journal of twice as many lines as are kept."""
    trimmer = StreamTrimmer(keys.JOURNAL.bound)
    for number in range(2 * keys.JOURNAL.bound):
        trimmer.add(300 + number % 200, keys.JOURNAL.size)
    return trimmer


def test_finished_moves_and_sizes_of_the_journal_take_little_memory_when_full() -> None:
    assert len(finished_moves()._final) == moves._MAX_FINAL + 4
    assert len(sizes_of_journal()._sizes) == keys.JOURNAL.bound
    held = traced(finished_moves), traced(sizes_of_journal)
    assert held[0] <= MOVES_LIMIT and held[1] <= SIZES_LIMIT
