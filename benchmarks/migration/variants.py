"""The compared variants of moving partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """A variant of moving: what Rechannel's settings are other than by default, for the controller and for the link."""

    name: str
    about: str
    controller: Mapping[str, str] = field(default_factory=dict)
    link: Mapping[str, str] = field(default_factory=dict)
    moves: bool = True


LIVE = Variant("live", "Rechannel step by step, default settings")
AT_ONCE = Variant(
    "at-once",
    "Rechannel, everything in one step: `migration.moves_per_executor = 1000`, `migration.moves_per_batch = 10000`",
    {"RECHANNEL_MIGRATION__MOVES_PER_EXECUTOR": "1000", "RECHANNEL_MIGRATION__MOVES_PER_BATCH": "10000"},
    {"RECHANNEL_MIGRATION__MOVES_PER_EXECUTOR": "1000", "RECHANNEL_MIGRATION__MOVES_PER_BATCH": "10000"},
)
RESTART = Variant(
    "restart",
    "the query is stopped at a batch boundary and started again from its checkpoint, in the same Spark application",
    moves=False,
)
ONE_BY_ONE = Variant(
    "one-by-one",
    "like live, but no step begins before the one before it is closed: `migration.overlap = false`",
    {"RECHANNEL_MIGRATION__OVERLAP": "false"},
    {"RECHANNEL_MIGRATION__OVERLAP": "false"},
)
VARIANTS = (LIVE, RESTART, AT_ONCE, ONE_BY_ONE)


def variants_for(moves: int) -> tuple[Variant, ...]:
    """Return the variants that differ for a number of moved partitions: one partition is one step in any variant."""
    return (LIVE, RESTART) if moves == 1 else VARIANTS
