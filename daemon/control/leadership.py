"""Leadership: lease in Redis, epoch that fences deposed leaders, and paused flag.

Three guards keep two leaders from acting at once:

* A leader acts only under a lease that it renewed in time. It counts the lease from before the request, by a clock that
  cannot be set, and stops early enough for what it began to be over at the lease's end (`rechannel.conf.lease_timing`).
* A leader writes only while the lease in Redis is its own (`Store.fenced`), however long the process was held up
  between the check and the write.
* Every desired placement carries the epoch, which a link never lets go down.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import StrEnum

from rechannel.conf import lease_timing
from rechannel.conf.settings import Settings
from rechannel.daemon.jobs.clock import Clock
from rechannel.wire import keys
from rechannel.wire.codes import Mode
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import AnyBody, ControllerState
from rechannel.wire.redis.answers import Lease
from rechannel.wire.redis.lua_scripts import EPOCH_LEAP
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer


class Role(StrEnum):
    """Role of a controller in its cluster."""

    STARTING = "starting"  # it has not yet read from Redis who leads
    LEADING = "leading"
    STANDING_BY = "standing-by"


class LeaseResult(StrEnum):
    """Result of a renewal of the lease."""

    TAKEN = "taken"
    RENEWED = "renewed"
    RAISED = "raised"  # still the leader, under a higher epoch: Redis was emptied, or a link knew a higher one
    WAITING = "waiting"


class LeaderElection:
    """One controller's part in the election of a leader.

    The length of the lease and the time-out of Redis follow no reload. The clock's steady time counts the lease, its
    wall time is that of the start of the lead. ``name``: first part of the name as holder of the lease.
    """

    def __init__(self, settings: Settings, store: Store, clock: Clock, name: str) -> None:
        # Two controllers of one name must not share a lease, so each start is a holder of its own.
        self.name = f"{name}/{secrets.token_hex(3)}"
        self.holder = ""
        self.epoch = 0
        self.since = 0.0
        self.paused = False
        #: store that writes only under this controller's lease
        self.store = store.fenced(self.lease)
        self._settings = settings
        self._clock = clock
        call = lease_timing.longest_call(settings.redis)
        self._acting = lease_timing.acting_time(settings.controller.lease, call)
        self._leading = False
        self._until = 0.0
        self._highest = 0
        self._unreported_raise = False  # a higher epoch that no caller of `renew` has seen yet
        self._raised_from: int | None = None  # least epoch requested at a raise, until the pause flag is resolved

    @property
    def role(self) -> Role:
        """The role of this controller at this moment; reads no lock and no Redis."""
        if self.holds():
            return Role.LEADING
        return Role.STANDING_BY if self.holder not in ("", self.name) else Role.STARTING

    def holds(self) -> bool:
        """Return whether this controller may begin to act at this moment."""
        return self._leading and self._clock.steady() < self._until

    def revalidate(self) -> bool:
        """Return whether this controller led without a break, after long work.

        Renews the lease if necessary.
        """
        if self.holds() or not self._leading:
            return self.holds()
        result = self.renew(0)
        self._unreported_raise = result is LeaseResult.RAISED
        return result is LeaseResult.RENEWED and self.holds()

    def lease(self) -> Lease:
        """Return the lease that Redis must hold for this controller to write."""
        return Lease(self.name, self.epoch)

    def renew(self, least_epoch: int) -> LeaseResult:
        """Take or keep the lead; ``least_epoch`` is the highest epoch that any link has accepted.

        Cases: another controller holds the lease (WAITING); this one led before and still has its epoch (RENEWED), or
        was given a higher one (RAISED); it did not lead before (TAKEN).
        """
        requested, now = self._clock.steady(), self._clock.wall()
        self._highest = max(self._highest, least_epoch)
        sent, mine = self._highest, self.epoch
        lease = self.store.acquire_lease(self.name, self._settings.controller.lease, sent)
        self._highest = max(self._highest, lease.epoch)
        self.holder = lease.holder
        if lease.holder != self.name:
            self.epoch = lease.epoch
            self._leading = self._unreported_raise = False
            self._raised_from = None
            self.paused = self.store.is_paused()
            return LeaseResult.WAITING
        until = requested + self._acting
        if not self._leading:
            self._take_lead(lease.epoch)
            self._until, self.since = until, now
            return LeaseResult.TAKEN
        # With the same epoch the lead goes on even if Redis goes away before the pause flag is persisted. With a higher
        # one it goes on only once the flag is persisted; if Redis goes away before, the next renewal does it.
        self._until = until if lease.epoch == mine else 0.0
        if lease.epoch != mine:
            self._raised_from = sent if self._raised_from is None else self._raised_from
            self.paused = self._resolve_pause_flag(mine, self._raised_from, lease.epoch)
            self.epoch, self._raised_from, self._unreported_raise = lease.epoch, None, True
        self._persist_pause_flag()
        self._until = until
        raised, self._unreported_raise = self._unreported_raise, False
        return LeaseResult.RAISED if raised else LeaseResult.RENEWED

    def _take_lead(self, epoch: int) -> None:
        """Begin to lead, under the pause flag in Redis."""
        self.epoch = epoch
        # A stand-by that knew of a pause and finds no leader's state was left with an emptied Redis.
        self.paused = self.store.is_paused() or (self.paused and not self._last_leader())
        self._persist_pause_flag()
        self._leading = True

    def note_epoch(self, epoch: int) -> None:
        """Note an epoch that was given out, so that the next renewal goes above it."""
        self._highest = max(self._highest, epoch)

    def pause(self, paused: bool) -> None:
        """Pause or resume everything; the flag outlives restarts."""
        self.store.set_paused(paused)
        self.paused = paused

    def release(self) -> None:
        """Let a stand-by take over at once."""
        self._leading = False
        self.store.release_lease(self.name)

    def _resolve_pause_flag(self, mine: int, sent: int, epoch: int) -> bool:
        """Return whether everything is paused after a time without the lease.

        ``mine``: own epoch before; ``sent``: highest known epoch when the lease was requested; ``epoch``: new one.
        """
        led = self._last_leader() not in ("", self.name) or epoch > sent + 1
        if epoch < sent + EPOCH_LEAP and led:
            return self.store.is_paused()  # somebody led, and Redis has its flag
        if led or sent > mine:
            return self.paused or self.store.is_paused()  # as above, but Redis may have lost the flag: pause
        return self.paused

    def _last_leader(self) -> str:
        state = self.store.get(keys.STATE)
        return state.body.leader if state is not None and isinstance(state.body, ControllerState) else ""

    def _persist_pause_flag(self) -> None:
        if self.store.is_paused() != self.paused:
            self.store.set_paused(self.paused)


@dataclass
class LeaderContext:
    """Shared equipment of all parts of one controller.

    ``settings``: the current ones; a reload replaces them here. ``restored``: whether the orders given before this lead
    are known; nothing is done until then.
    """

    settings: Settings
    lead: LeaderElection
    signer: Signer
    envelopes: EnvelopeFactory
    clock: Clock
    restored: bool = False

    @property
    def store(self) -> Store:
        """Store that writes only while this controller leads."""
        return self.lead.store

    @property
    def acts_automatically(self) -> bool:
        """Whether decisions that nobody ordered are carried out."""
        return self.settings.reschedule.mode == Mode.APPLY and not self.lead.paused

    @property
    def rolls_back(self) -> bool:
        """Whether migrations that regressed are rolled back."""
        return self.settings.reschedule.mode == Mode.APPLY and self.settings.migration.rollback

    @property
    def can_act(self) -> bool:
        """Whether this controller leads and knows what was ordered before."""
        return self.restored and self.lead.holds()

    def envelope(self, body: AnyBody, *, ttl: float, application: str = "") -> Envelope:
        """Return a message of this leader, in its epoch; ``ttl``: seconds until it expires."""
        return self.envelopes.envelope(body, ttl=ttl, application=application, epoch=self.lead.epoch)

    def read_signed(self, rule: KeyRule, name: str = "") -> Envelope | None:
        """Return the message in Redis if this cluster's key signed it, else None."""
        envelope = self.store.get(rule, name)
        return envelope if envelope is not None and self.signer.is_trusted(envelope) else None

    def put_signed(self, rule: KeyRule, body: AnyBody, *, ttl: float, application: str = "") -> Envelope:
        """Put a signed message into Redis for ``ttl`` seconds."""
        envelope = self.envelope(body, ttl=ttl, application=application)
        self.store.put(rule, application, self.signer.sign(envelope))
        return envelope
