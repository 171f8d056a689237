"""The migrations under way, one an application: begun, said again while they run, taken over from a leader before us.

A desired placement is renewed as long as one of its moves is not settled, under the same decision id; a new leader
finds it in Redis and goes on with it under its own epoch. One that expired while nobody led is not taken up again: the
links let such moves go, and the next decision starts afresh.

A migration is followed by a rest, ``gate.cooldown``. It is longer after one that the controller took back by itself.
There is none after a drain, and none while a plan goes on that was cut to ``migration.max_moves``: as long as each part
brought what it promised, for no more moves than there are partitions.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control.leadership import LeaderElection
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.migration_progress import RunningMigration, in_flight
from rechannel.daemon.decide.policy_settings import DRAIN, SAVED_PLAN
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory, MessageError, body_of
from rechannel.wire.messages import Decision, DesiredPlacement, LinkReport
from rechannel.wire.printable import count
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import SignatureError, Signer

_AFTER_ROLLBACK = 4  # times the usual rest, for each in a row: the same figures would lead to the same mistake
_LONGEST_REST = 86_400.0  # seconds


class MigrationTracker:
    """What is wanted of each application's link and not yet reached. ``clock`` in seconds since the epoch."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        signer: Signer,
        author: EnvelopeFactory,
        lead: LeaderElection,
        clock: Callable[[], float],
        memory: Memory | None = None,
    ) -> None:
        memory = memory or Memory()
        self.running: dict[str, RunningMigration] = memory.table()
        self.ended: dict[str, float] = memory.table()  # application -> end of its last migration
        self.rejected = 0  # desired placements found in Redis that we did not sign
        self._settings = settings
        self._store = store
        self._signer = signer
        self._author = author
        self._lead = lead
        self._clock = clock
        self._rests: dict[str, tuple[float, str]] = memory.table()  # seconds of rest after its last migration, and why
        self._drains: dict[str, str] = memory.table()  # application -> its last decision, if that was a drain's
        self._left: dict[str, int] = memory.table()  # application -> moves that may follow on a plan that was cut
        self._continues: dict[str, None] = memory.table()  # applications whose last part of such a plan was kept
        self._mistakes: dict[str, int] = memory.table()  # application -> migrations in a row that had to go back
        self._examined: dict[str, None] = memory.table()  # whose desired placement this leader has looked at
        self._log = structlog.get_logger("rechannel.controller")

    def take(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._settings = settings

    def begin(self, application: str, decision: Decision) -> None:
        """Publish what a decision wants. When Redis is away just now, `follow` says it later."""
        desired = DesiredPlacement(decision=decision.decision, runs=decision.runs, moves=decision.moves)
        patience = self._settings.controller.placement_ttl
        self.learn(application, decision)
        self._plan_rest(application, decision)
        self._plan_continuation(application, decision)
        self.running[application] = RunningMigration(application, desired, self._clock(), patience)
        try:
            self.renew(application)
        except StoreError as error:
            self._log.warning("desired-not-sent", application=application, sentence=str(error))

    def stop(self, application: str) -> str:
        """Begin no further move; returns how far the migration is, and that it ends."""
        said = self.running[application].sentence()
        self._rests.pop(application, None)  # whoever ends it looks after it: the usual rest
        self.spoiled(application)
        if self.running[application].ending:
            return said
        said += ", and ends"
        self.running[application] = self.running[application].stopped(self._clock())
        self.renew(application)
        return said

    def busy(self, application: str, report: LinkReport, now: float) -> str:
        """Say what is still under way in an application, "" if nothing is."""
        if application not in self._examined:
            self.adopt(application, report)
        migration = self.running.get(application)
        if migration is not None:
            migration.update(report, now)
            if not migration.over(now):
                return f"{migration.sentence()}; one at a time"
            self._finish(application, now)
        flying = len(in_flight(report))
        return f"the link still works on {count(flying, 'move')} of decision {report.decision or '?'}" if flying else ""

    def follow(self, application: str, report: LinkReport | None) -> str:
        """Renew a migration that goes on; returns how it ended, if it did."""
        now = self._clock()
        self.running[application].update(report, now)
        if self.running[application].over(now):
            return self._finish(application, now)
        self.renew(application)
        return ""

    def learn(self, application: str, decision: Decision) -> None:
        """Take in what was applied last, by this leader or the one before: after a drain there is no rest."""
        self._drains.pop(application, None)
        if decision.trigger == DRAIN:
            self._drains[application] = decision.decision

    def kept(self, application: str) -> None:
        """A migration brought what it promised: mistakes before it are forgotten, a plan that was cut goes on."""
        self._mistakes.pop(application, None)
        if application in self._left:
            self._continues[application] = None

    def spoiled(self, application: str) -> None:
        """A plan that was cut does not go on."""
        self._left.pop(application, None)
        self._continues.pop(application, None)

    def continues(self, application: str, now: float) -> int:
        """Return how many moves may follow on a plan that was cut and went well so far; 0 where none does."""
        here = application in self._continues and application not in self.running and self._rest_left(application, now)
        return self._left.get(application, 0) if here else 0

    def _plan_rest(self, application: str, decision: Decision) -> None:
        if decision.trigger == DRAIN:
            return
        cooldown = self._settings.gate.cooldown
        self._rests[application] = cooldown, ""
        if not decision.rollback_of or decision.user:
            return  # an operator's rollback is no word on what the controller does by itself
        self._mistakes[application] = self._mistakes.get(application, 0) + 1
        factor = _AFTER_ROLLBACK ** self._mistakes[application]
        rest = max(cooldown, min(_LONGEST_REST, cooldown * factor))
        row = f", {self._mistakes[application]} in a row" if self._mistakes[application] > 1 else ""
        self._rests[application] = rest, f"{rest / max(cooldown, 1e-9):g} times gate.cooldown, as it went back{row}"

    def _plan_continuation(self, application: str, decision: Decision) -> None:
        most, count = self._settings.migration.max_moves, len(decision.moves)
        total = sum(load.partitions_before for load in decision.executors)
        left = (self._left[application] if application in self._continues else total) - count
        self.spoiled(application)
        by_policy = decision.trigger != DRAIN and not decision.rollback_of and decision.policy != SAVED_PLAN
        if by_policy and count >= most and left > 0:
            self._left[application] = left

    def excuse(self, silence: float) -> None:
        """While Redis was away nobody could be heard: that silence is not the links'."""
        now = self._clock()
        for migration in self.running.values():
            migration.last_sign = min(now, migration.last_sign + silence)

    def resting(self, application: str, now: float) -> float:
        """Seconds of rest after the last migration that are left."""
        return 0.0 if self.continues(application, now) else self._rest_left(application, now)

    def rest(self, application: str) -> tuple[float, str]:
        """Seconds of rest after the last migration, and why they are more than usual."""
        return self._rests.get(application, (self._settings.gate.cooldown, ""))

    def rested(self, application: str) -> None:
        """End the rest: an operator changed what there is to decide on."""
        self.ended.pop(application, None)

    def _rest_left(self, application: str, now: float) -> float:
        if application not in self.ended:
            return 0.0
        rest, _ = self.rest(application)
        # Never longer than the rest itself: the clock may have been set back since.
        return min(rest, max(0.0, self.ended[application] + rest - now))

    def unexamined(self, applications: set[str], *, anew: bool) -> list[str]:
        """Return the applications whose desired placement is still to be looked at; all of them if ``anew``."""
        if anew:
            self._examined.clear()
        return sorted(applications - self._examined.keys())

    @property
    def idle(self) -> bool:
        """Whether nothing was looked at and nothing runs: a stand-by's state."""
        return not self._examined and not self.running

    def forget(self) -> None:
        """Another leader has them now."""
        self.running.clear()
        self._examined.clear()
        self._left.clear()
        self._continues.clear()

    def renew(self, application: str) -> None:
        """Put the desired placement where its link looks, unless what stands there still does."""
        migration = self.running[application]
        now, ttl = self._clock(), self._settings.controller.placement_ttl
        migration.desired = msgspec.structs.replace(migration.desired, hold=self._lead.paused)
        found = self._store.get(keys.DESIRED, application)
        ours = found is not None and self._signer.is_own_signature(found)
        if found is not None and ours and found.epoch > self._lead.epoch:
            self._log.warning("epoch-behind", application=application, found=found.epoch)
            self._lead.learn(found.epoch)
            return  # another leader's, or Redis went back in time; the next renewal of the lease tells
        if (
            found is not None
            and ours
            and found.body == migration.desired
            and found.epoch == self._lead.epoch
            and ttl * 2 / 3 < found.expires - now <= ttl  # more: the clock was set back since
        ):
            return
        if not self._lead.holds():
            return
        envelope = self._author.envelope(migration.desired, ttl=ttl, application=application, epoch=self._lead.epoch)
        self._store.put(keys.DESIRED, application, self._signer.sign(envelope))
        migration.epoch = self._lead.epoch

    def adopt(self, application: str, report: LinkReport) -> None:
        """Go on with the migration that a leader before us began, or learn when the last one was."""
        found = self._store.get(keys.DESIRED, application)
        self._examined[application] = None
        if found is None:
            return
        try:
            desired = body_of(found, DesiredPlacement)
            if found.application != application or not self._signer.is_own_signature(found):
                raise SignatureError(f"desired placement of {application} was not signed by this cluster's key")
        except MessageError as error:
            self.rejected += 1
            self._log.warning("desired-rejected", application=application, sentence=str(error))
            return
        mine = self.running.get(application)
        if mine is not None:
            if desired.decision == mine.desired.decision or found.epoch <= mine.epoch:
                return
            del self.running[application]  # somebody led while we could not, and decided anew
        now = self._clock()
        migration = RunningMigration(application, desired, found.time, self._settings.controller.placement_ttl)
        migration.update(report, now)
        if found.expires <= now or migration.over(now):
            if not self._drained(application, desired):
                self.ended[application] = max(self.ended.get(application, 0.0), found.time)
            return
        self.running[application] = migration
        self._log.info("migration-adopted", application=application, decision=desired.decision, epoch=self._lead.epoch)

    def _finish(self, application: str, now: float) -> str:
        migration = self.running[application]
        why = migration.over(now)
        sentence = migration.sentence(why)
        if why == "settled":
            # Whoever reads it from now on, a link that was attached anew too, finds nothing to be done again.
            wanted = migration.desired
            migration.desired = msgspec.structs.replace(wanted, moves=[])
            try:
                self.renew(application)
            except StoreError:
                migration.desired = wanted  # it ends when Redis is there again
                raise
        del self.running[application]
        self._log.info("migration-over", application=application, why=why, sentence=sentence)
        if why != "settled":
            self.spoiled(application)
        if why != "not-taken-up" and not self._drained(application, migration.desired):
            self.ended[application] = now
        return sentence

    def _drained(self, application: str, desired: DesiredPlacement) -> bool:
        drain = self._drains.get(application)
        return drain is not None and desired.decision.startswith(drain)  # stopped ones too
