"""Who leads: the lease in Redis, the epoch that fences deposed leaders, and the paused flag that only a leader writes.

Two guards against two leaders: a lease that was not renewed in time is not acted under (a process that was stopped for
a minute notices by its own clock), and every desired placement carries the epoch, which links never let go down.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from enum import StrEnum

from rechannel.conf.settings import Settings
from rechannel.wire import keys
from rechannel.wire.messages import ControllerState
from rechannel.wire.store import Store


class Turn(StrEnum):
    """What a renewal of the lease brought."""

    TAKEN = "taken"
    KEPT = "kept"
    RAISED = "raised"  # still the leader, under a higher epoch: Redis was emptied, or a link knew a higher one
    WAITING = "waiting"


class Lead:
    """One controller's hold on the lead."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], float], name: str) -> None:
        # Two controllers of one name must not share a lease, so each start is a holder of its own.
        self.name = f"{name}/{secrets.token_hex(3)}"
        self.holder = ""
        self.epoch = 0
        self.since = 0.0
        self.paused = False
        self._settings = settings
        self._store = store
        self._clock = clock
        self._leading = False
        self._until = 0.0
        self._highest = 0

    def holds(self) -> bool:
        """Whether this controller may act at this moment."""
        return self._leading and self._clock() < self._until

    def renew(self, least_epoch: int) -> Turn:
        """Take or keep the lead; ``least_epoch`` is the highest epoch that any link has accepted."""
        asked = self._clock()
        self._highest = max(self._highest, least_epoch)
        seconds = self._settings.controller.lease
        lease = self._store.acquire_lease(self.name, seconds, self._highest)
        self._highest = max(self._highest, lease.epoch)
        self.holder = lease.holder
        if lease.holder != self.name:
            self._leading = False
            self.epoch = lease.epoch
            self.paused = self._store.paused()
            return Turn.WAITING
        self._until = asked + seconds
        raised = lease.epoch != self.epoch
        self.epoch = lease.epoch
        if self._leading:
            if raised and self._last_leader() not in ("", self.name):
                self.paused = self._store.paused()  # somebody led while we could not reach Redis
            self._keep_paused()
            return Turn.RAISED if raised else Turn.KEPT
        # A stand-by that knew of a pause and finds no word of any leader was left with an emptied Redis.
        self.paused = self._store.paused() or (self.paused and not self._last_leader())
        self._keep_paused()
        self._leading = True
        self.since = asked
        return Turn.TAKEN

    def learn(self, epoch: int) -> None:
        """Take note of an epoch that was given out: the next renewal goes above it if it has to."""
        self._highest = max(self._highest, epoch)

    def pause(self, paused: bool) -> None:
        """Pause or resume everything, and remember it across restarts."""
        self._store.set_paused(paused)
        self.paused = paused

    def release(self) -> None:
        """Let a stand-by take over at once."""
        self._leading = False
        self._store.release_lease(self.name)

    def _last_leader(self) -> str:
        found = self._store.get(keys.STATE)
        return found.body.leader if found is not None and isinstance(found.body, ControllerState) else ""

    def _keep_paused(self) -> None:
        if self._store.paused() != self.paused:
            self._store.set_paused(self.paused)
