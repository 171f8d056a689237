"""What the parts that decide by themselves need of the controller they belong to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rechannel.conf.settings import Settings
from rechannel.daemon.control.migrations import MigrationTracker
from rechannel.daemon.control.standing_orders import StandingOrderStore
from rechannel.daemon.decide.requested_placement import RequestedPlacement
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.wire.messages import Decision, Refusal


class Leader(Protocol):
    """The controller, as its occasions and rollbacks see it."""

    migrations: MigrationTracker
    orders: StandingOrderStore

    @property
    def settings(self) -> Settings:
        """Its settings."""

    @property
    def epoch(self) -> int:
        """The epoch it leads in."""

    @property
    def paused(self) -> bool:
        """Whether everything is paused."""

    def decide(
        self,
        trigger: str,
        *,
        application: str,
        user: str = "",
        reason: str = "",
        apply: bool = False,
        force: bool = False,
        policy: str = "",
        asked: Callable[[Snapshot], RequestedPlacement | Refusal] | None = None,
        pending: str = "",
    ) -> Decision:
        """Decide on one application and keep the decision."""

    def refuse(
        self,
        trigger: str,
        application: str,
        refusal: Refusal,
        *,
        user: str = "",
        reason: str = "",
        pending: str = "",
    ) -> Decision:
        """Keep a decision not to act that needed no plan."""
