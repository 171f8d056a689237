"""Figures of decisions in words, for the command line and the web page."""

from __future__ import annotations

from collections.abc import Iterator

from rechannel.wire.messages import Decision, MigrationPrice
from rechannel.wire.printable import query_name, with_noun

_UNITS = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def format_bytes(number: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit, factor in _UNITS:
        if abs(number) >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number:,.0f} bytes"


def batch_times(decision: Decision) -> Iterator[tuple[str, float, float]]:
    """Yield the name of each query with its batch before and after, in seconds."""
    for query, before in decision.batch_time_before.items():
        yield query_name(query, decision.names.get(query, "")), before, decision.batch_time_after.get(query, before)


def price_basis(price: MigrationPrice) -> str:
    """Return what the predicted cost of a migration is based on."""
    return f"learned from {with_noun(price.moves, 'move')}" if price.moves else "assumed, no move was measured yet"
