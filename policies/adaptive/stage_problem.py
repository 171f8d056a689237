"""A stage to divide over executors, and one way to do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rechannel.policies.model.arrays import BoolArray, FloatArray, IntArray

UNBOUNDED_MOVES = 1 << 60
"""Stands for any number of moves."""

_SMALL_STAGE = 100_000  # units times executors up to which everything is tried


@dataclass(frozen=True, eq=False)
class Problem:
    """A stage to divide over executors: n units, E executors.

    Of each unit: ``busy`` (n,) seconds per batch on a reference executor; ``state_bytes`` (n,); ``home`` (n,) the
    executor that holds it, -1 where it has to be placed; ``fetched_bytes`` (n,) bytes per batch that it fetches if
    nothing is local.

    Of each executor: ``speed`` (E,) what the other queries leave of it; ``slots`` (E,) its cores; ``available`` (E,);
    ``room_busy`` and ``room_bytes`` (E,) how much of this stage it may hold; ``use`` (E,) its utilization by all other
    stages; ``bandwidth`` (E,) in bytes per second.

    ``local_bytes`` returns for a unit the bytes per batch of its hot streams that would be local on each executor,
    (E,), None where nothing is hot; ``local_received`` only those that the unit receives. ``moves_left``: the most
    units that may leave executors without room for them.
    """

    busy: FloatArray
    state_bytes: FloatArray
    home: IntArray
    speed: FloatArray
    slots: IntArray
    available: BoolArray
    room_busy: FloatArray
    room_bytes: FloatArray
    use: FloatArray
    fetched_bytes: FloatArray
    bandwidth: FloatArray
    local_bytes: Callable[[int], FloatArray] | None
    local_received: Callable[[int], FloatArray] | None = None
    moves_left: int = UNBOUNDED_MOVES

    @property
    def is_small(self) -> bool:
        """True if there is time to try everything."""
        return len(self.busy) * len(self.speed) <= _SMALL_STAGE

    @cached_property
    def bounded(self) -> bool:
        """True if some executor has no room for everything."""
        return bool(np.isfinite(self.room_busy).any() or np.isfinite(self.room_bytes).any())

    @cached_property
    def fetching(self) -> bool:
        """True if fetching costs time."""
        return bool(np.isfinite(self.bandwidth).any() and self.fetched_bytes.any())


@dataclass(frozen=True, eq=False)
class Option:
    """One way to place the units: executors (n,), seconds per batch, and what moves."""

    assignment: IntArray
    seconds: float
    moves: int
    moved_bytes: float
