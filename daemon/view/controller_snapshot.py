"""What a controller knows at one moment, copied out from under its lock for those who show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rechannel.daemon.control.leadership import LeaderElection
from rechannel.daemon.control.migrations import RunningMigration
from rechannel.daemon.model.collector import ApplicationMessages, Collector
from rechannel.daemon.view.model import MigrationView, Role


@dataclass(frozen=True)
class ControllerSnapshot:
    """The messages about every application that reports, who leads, and what runs. ``holder``: of the lease.

    ``rejected``: unreadable or impossible messages that were passed over.
    """

    facts: tuple[ApplicationMessages, ...]
    migrations: tuple[MigrationView, ...]
    role: Role
    name: str
    holder: str
    epoch: int
    paused: bool
    rejected: int


def role_of(lead: LeaderElection) -> Role:
    """Return what a controller does at this moment; takes no lock and asks nobody."""
    if lead.holds():
        return Role.LEADING
    return Role.STANDING_BY if lead.holder not in ("", lead.name) else Role.STARTING


def look(
    collector: Collector, lead: LeaderElection, migrations: Sequence[RunningMigration], rejected: int
) -> ControllerSnapshot:
    """Read what is new from Redis and copy the rest; may raise StoreError. The controller's lock has to be held."""
    facts = [collector.gather(name) for name in collector.refresh()]
    running = [
        MigrationView(
            application=migration.application,
            decision=migration.decision,
            begun=migration.begun,
            moves=len(migration.desired.moves),
            landed=migration.landed,
            abandoned=migration.abandoned,
            sentence=migration.sentence(),
        )
        for migration in migrations
    ]
    found = tuple(item for item in facts if item is not None)
    return ControllerSnapshot(
        found, tuple(running), role_of(lead), lead.name, lead.holder, lead.epoch, lead.paused, rejected
    )
