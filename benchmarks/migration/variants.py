"""The ways of moving that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["AT_ONCE", "LIVE", "ONE_BY_ONE", "RESTART", "WAYS", "Way", "ways_for"]


@dataclass(frozen=True)
class Way:
    """A way: what Rechannel's settings are other than by default, for the controller and for the link."""

    name: str
    about: str
    controller: Mapping[str, str] = field(default_factory=dict)
    link: Mapping[str, str] = field(default_factory=dict)
    moves: bool = True


LIVE = Way("live", "Rechannel step by step, default settings")
AT_ONCE = Way(
    "at-once",
    "Rechannel, everything in one step: `migration.moves_per_executor = 1000`, `migration.moves_per_batch = 10000`",
    {"RECHANNEL_MIGRATION__MOVES_PER_EXECUTOR": "1000", "RECHANNEL_MIGRATION__MOVES_PER_BATCH": "10000"},
    {"RECHANNEL_MIGRATION__MOVES_PER_EXECUTOR": "1000", "RECHANNEL_MIGRATION__MOVES_PER_BATCH": "10000"},
)
RESTART = Way(
    "restart",
    "the query is stopped at a batch boundary and started again from its checkpoint, in the same Spark application",
    moves=False,
)
ONE_BY_ONE = Way(
    "one-by-one",
    "like live, but no step begins before the one before it is closed: `migration.overlap = false`",
    {"RECHANNEL_MIGRATION__OVERLAP": "false"},
    {"RECHANNEL_MIGRATION__OVERLAP": "false"},
)
WAYS = (LIVE, RESTART, AT_ONCE, ONE_BY_ONE)


def ways_for(moves: int) -> tuple[Way, ...]:
    """Return the ways that differ where so many partitions are moved: one alone makes one step, however it is paced."""
    return (LIVE, RESTART) if moves == 1 else WAYS
