"""Figures of decisions as text, for the command line and the web page."""

from __future__ import annotations

from collections.abc import Iterator

from rechannel.wire.messages import Decision, MigrationCost
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


def cost_sentence(cost: MigrationCost) -> str:
    """Describe the expected cost of a migration, and what it is based on."""
    basis = f"learned from {with_noun(cost.moves, 'move')}" if cost.moves else "assumed, no move was measured yet"
    return (
        f"{format_bytes(cost.bytes)} of state in {with_noun(cost.steps, 'step')} within {cost.total:,.1f} s; the "
        f"worst batch {cost.pause:,.2f} s longer, all batches together {cost.seconds:,.2f} s; a load takes "
        f"{cost.overhead:.2f} s plus its state at {cost.load_rate / 1e6:,.0f} MB/s ({basis})"
    )
