"""Builders of moves and of the evidence that ends them."""

from __future__ import annotations

from rechannel.migration.moves import TrackedMove
from rechannel.wire.measurements import ClosedStore
from rechannel.wire.messages import DesiredMove

Place = tuple[str, int, int]  # query, stage, partition, as `rechannel.wire.messages.Unit`


def a_move(
    unit: Place | int, source: str, target: str, step: int = 0, *, name: str = "", size: float = 0.0
) -> DesiredMove:
    """Return a move of a partition, of stage 0 of query q if it is a number; ``size`` in bytes."""
    query, stage, partition = ("q", 0, unit) if isinstance(unit, int) else unit
    return DesiredMove(
        move=name or (f"m{unit}" if isinstance(unit, int) else f"{query}.{stage}.{partition}"),
        query=query,
        stage=stage,
        partition=partition,
        source=source,
        target=target,
        step=step,
        bytes=size,
    )


def accepted_move(unit: Place | int = 0, source: str = "0", target: str = "1", *, size: float = 0.0) -> TrackedMove:
    """Return a move of decision d that a link has accepted."""
    return TrackedMove(a_move(unit, source, target, size=size), "d", "run")


def closed_store(
    executor: str = "0", run: str = "run", operator: int = 0, partition: int = 0, store: str = "default"
) -> ClosedStore:
    """Return the evidence that an executor closed a store of a partition."""
    return ClosedStore(
        application="app-1",
        executor=executor,
        run=run,
        operator=operator,
        partition=partition,
        store=store,
        evidence="closed",
    )
