"""Who leads: the lease in Redis, the epoch that fences deposed leaders, and the paused flag that only a leader writes.

Three guards against two leaders. A lease that was not renewed in time is not acted under: a leader counts it from
before it asked, by a clock that nobody sets, and stops so long before the lease's end that what it began is over then
(`rechannel.conf.lease_timing`). What a leader writes is written only while the lease in Redis is its own
(`Store.fenced`):
that holds however long the process was held up between looking and writing. And every desired placement carries the
epoch, which links never let go down.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from enum import StrEnum

from rechannel.conf import lease_timing
from rechannel.conf.redis_url import SENTINEL_SCHEME
from rechannel.conf.settings import Settings
from rechannel.wire import keys
from rechannel.wire.messages import ControllerState
from rechannel.wire.redis.lua_scripts import EPOCH_LEAP
from rechannel.wire.redis.store import Lease, Store


class Role(StrEnum):
    """What a controller is doing in the cluster."""

    STARTING = "starting"  # it has not yet read from Redis who leads
    LEADING = "leading"
    STANDING_BY = "standing-by"


class LeaseResult(StrEnum):
    """What a renewal of the lease brought."""

    TAKEN = "taken"
    KEPT = "kept"
    RAISED = "raised"  # still the leader, under a higher epoch: Redis was emptied, or a link knew a higher one
    WAITING = "waiting"


def steady_clock() -> float:
    """Seconds that nobody sets and that go on while the machine sleeps, unlike those of `time.monotonic`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaderElection:
    """One controller's hold on the lead.

    ``clock``: seconds since the epoch, for people to read. ``steady``: seconds that only ever pass, for the lease.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        clock: Callable[[], float],
        name: str,
        *,
        steady: Callable[[], float] = steady_clock,
    ) -> None:
        # Two controllers of one name must not share a lease, so each start is a holder of its own.
        self.name = f"{name}/{secrets.token_hex(3)}"
        self.holder = ""
        self.epoch = 0
        self.since = 0.0
        self.paused = False
        #: what a leader writes through
        self.store = store.fenced(self.lease)
        self._settings = settings
        self._clock = clock
        self._steady = steady
        call = lease_timing.longest_call(
            settings.redis.timeout, sentinels=settings.redis.url.startswith(SENTINEL_SCHEME)
        )
        self._acting = lease_timing.acting_time(settings.controller.lease, call)
        self._leading = False
        self._until = 0.0
        self._highest = 0
        self._untold = False  # a higher epoch that no caller of `renew` was told of
        self._raised_from: int | None = None  # what was asked for when it came, until it is known who led meanwhile

    @property
    def role(self) -> Role:
        """The role of this controller at this moment; reads no lock and no Redis."""
        if self.holds():
            return Role.LEADING
        return Role.STANDING_BY if self.holder not in ("", self.name) else Role.STARTING

    def holds(self) -> bool:
        """Whether this controller may begin to act at this moment."""
        return self._leading and self._steady() < self._until

    def still_holds(self) -> bool:
        """The same after long work: the lease is renewed if it has to be; False if somebody may have led meanwhile."""
        if self.holds() or not self._leading:
            return self.holds()
        turn = self.renew(0)
        self._untold = turn is LeaseResult.RAISED
        return turn is LeaseResult.KEPT and self.holds()

    def lease(self) -> Lease:
        """What has to stand in Redis for this controller to write."""
        return Lease(self.name, self.epoch)

    def renew(self, least_epoch: int) -> LeaseResult:
        """Take or keep the lead; ``least_epoch`` is the highest epoch that any link has accepted."""
        asked, now = self._steady(), self._clock()
        self._highest = max(self._highest, least_epoch)
        sent, mine = self._highest, self.epoch
        lease = self.store.acquire_lease(self.name, self._settings.controller.lease, sent)
        self._highest = max(self._highest, lease.epoch)
        self.holder = lease.holder
        if lease.holder != self.name:
            self.epoch = lease.epoch
            self._leading = self._untold = False
            self._raised_from = None
            self.paused = self.store.is_paused()
            return LeaseResult.WAITING
        if self._leading:
            if lease.epoch != mine:
                # Nothing is done under the new epoch before it is known what was ordered under others meanwhile: should
                # Redis go away while that is read, it is read the next time.
                self._until = 0.0
                self._raised_from = sent if self._raised_from is None else self._raised_from
                self.paused = self._paused_meanwhile(mine, self._raised_from, lease.epoch)
                self.epoch, self._raised_from, self._untold = lease.epoch, None, True
            else:
                self._until = asked + self._acting
            self._keep_paused()
            self._until = asked + self._acting
            raised, self._untold = self._untold, False
            return LeaseResult.RAISED if raised else LeaseResult.KEPT
        self.epoch = lease.epoch
        self._until = asked + self._acting
        # A stand-by that knew of a pause and finds no word of any leader was left with an emptied Redis.
        self.paused = self.store.is_paused() or (self.paused and not self._last_leader())
        self._keep_paused()
        self._leading = True
        self.since = now
        return LeaseResult.TAKEN

    def learn(self, epoch: int) -> None:
        """Take note of an epoch that was given out: the next renewal goes above it if it has to."""
        self._highest = max(self._highest, epoch)

    def pause(self, paused: bool) -> None:
        """Pause or resume everything, and remember it across restarts."""
        self.store.set_paused(paused)
        self.paused = paused

    def release(self) -> None:
        """Let a stand-by take over at once."""
        self._leading = False
        self.store.release_lease(self.name)

    def _paused_meanwhile(self, mine: int, sent: int, epoch: int) -> bool:
        """Whether all is paused, after a time in which this leader did not hold the lease.

        ``mine``: its epoch before; ``sent``: the highest it knew of when it asked for the lease; ``epoch``: new.
        """
        led = self._last_leader() not in ("", self.name) or epoch > sent + 1
        if epoch < sent + EPOCH_LEAP and led:
            return self.store.is_paused()  # somebody led, and Redis remembers it
        if led or sent > mine:
            return self.paused or self.store.is_paused()  # the same, but Redis may have forgotten: rather pause
        return self.paused

    def _last_leader(self) -> str:
        found = self.store.get(keys.STATE)
        return found.body.leader if found is not None and isinstance(found.body, ControllerState) else ""

    def _keep_paused(self) -> None:
        if self.store.is_paused() != self.paused:
            self.store.set_paused(self.paused)
