"""A small model of a driver for the reconciler: one query with one stage."""

from __future__ import annotations

import dataclasses

import msgspec

from rechannel.migration.link.driver_state import DriverState, ReconcilerLimits
from rechannel.migration.link.reconciler import Reconciler
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import DesiredMove, DesiredPlacement, MoveTransition, Unit

LIMITS = ReconcilerLimits(
    deadline_batches=3,
    deadline_seconds=100.0,
    presume=120.0,
    moves_per_batch=32,
    bytes_per_batch=float("inf"),
    max_lag=1_000_000,
    overlap=True,
)
STORES = {(0, "default")}


class Driver:
    """One query, one stage: partitions run where they were steered, unless told to drift."""

    def __init__(self, placement: list[str], executors: set[str] | None = None) -> None:
        self.placement = placement
        self.preferred = list(placement)
        self.executors = executors or {"0", "1", "2"}
        self.batch = 0
        self.ran = [0] * len(placement)
        self.drift: set[int] = set()
        self.lags: list[int] = []

    def observed(self) -> DriverState:
        key = ("q", 0)
        return DriverState(
            self.executors,
            {key: list(self.placement)},
            {key: list(self.ran)},
            {"q": "run"},
            {key},
            {"q": self.batch},
            snapshot_lag={Unit(*key, partition): lag for partition, lag in enumerate(self.lags)},
        )

    def run_batch(self) -> None:
        self.batch += 1
        self.ran = [self.batch] * len(self.placement)
        for partition, executor in enumerate(self.preferred):
            if partition not in self.drift:
                self.placement[partition] = executor
            else:
                self.preferred[partition] = self.placement[partition]

    def boundary(self, reconciler: Reconciler, now: float) -> list[MoveTransition]:
        lines, due = reconciler.advance_at_boundary("q", self.observed(), now)
        for item in due:
            lines += reconciler.record_steer(item, self.observed(), now)
            self.preferred[item.desired.partition] = item.desired.target
        return lines

    def step(self, reconciler: Reconciler, now: float) -> list[MoveTransition]:
        lines = self.boundary(reconciler, now)
        self.run_batch()
        lines += self.boundary(reconciler, now)
        return lines + reconciler.handle_batch("q", self.batch, self.observed(), now)


def desired(*moves: DesiredMove, decision="d1", epoch=1, at=0.0, ttl=1000.0, hold=False, sequence=None):
    body = DesiredPlacement(decision=decision, runs={"q": "run"}, moves=list(moves), hold=hold)
    envelope = EnvelopeFactory("c", "controller", lambda: at).envelope(body, ttl=ttl, application="a", epoch=epoch)
    return msgspec.structs.replace(envelope, sequence=int(at) if sequence is None else sequence)


def accepted(
    placement: list[str], *moves: DesiredMove, limits: ReconcilerLimits = LIMITS, **options
) -> tuple[Driver, Reconciler]:
    """Return a driver, and a reconciler that has accepted these moves at second 1."""
    driver, reconciler = Driver(placement), Reconciler(limits)
    reconciler.accept_desired(desired(*moves, **options), driver.observed(), 1.0)
    return driver, reconciler


def limits(**changes: float) -> ReconcilerLimits:
    return dataclasses.replace(LIMITS, **changes)


def steps(lines: list[MoveTransition], name: str) -> list[str]:
    return [line.after for line in lines if line.move == name]
