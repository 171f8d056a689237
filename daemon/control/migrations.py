"""Migrations: one at a time in each application, renewed while it runs.

A desired placement is renewed under the same decision id as long as one of its moves awaits a batch. A new leader finds
it in Redis and continues it under its own epoch. One that expired while nobody led is not resumed: the links give such
moves up, and the next decision starts from the present state.

A migration is followed by a cool-down of ``gate.cooldown``, longer after one that was rolled back automatically. It
ends once the migration is confirmed, and there is none after a drain. A confirmed plan that was cut to
``migration.max_moves`` continues, for no more moves than there are partitions.

What the desired placement in Redis says of a migration:

    phase           decision                     moves
    under way       its id                       those that were ordered
    being ended     its id with ``-stop``        none, so that the link gives up what is not steered
    settled         either                       none, so that a link that attaches later repeats nothing
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec
import structlog

from rechannel.daemon.control.cooldown import CooldownTimer
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.decide.pipeline import moves_in_flight
from rechannel.daemon.decide.policy_settings import SAVED_PLAN
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.wire import keys
from rechannel.wire.codes import MoveState, Trigger
from rechannel.wire.envelope import Envelope, MessageError, body_of
from rechannel.wire.messages import Decision, DesiredPlacement, LinkReport
from rechannel.wire.printable import with_noun
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.signing import SignatureError

_STOP = "-stop"  # suffix of the decision whose migration is being ended
_LANDED = frozenset({MoveState.DRAINED, MoveState.KILLED})
_SETTLED, _NOT_TAKEN_UP, _LOST = "settled", "not-taken-up", "lost"  # why a migration is over


@dataclass(frozen=True)
class MigrationStatus:
    """Copy of a running migration for display.

    ``moves``: number ordered, of which ``landed`` and ``abandoned`` are over. ``begun``: seconds since the epoch.
    ``steps``: of all moves ordered.
    """

    application: str
    decision: str
    moves: int
    landed: int
    abandoned: int
    sentence: str
    begun: float = 0.0
    steps: int = 0


@dataclass
class RunningMigration:
    """One desired placement of one application, as the leader follows it.

    Pure: times are arguments, and the link owns the moves' states. ``patience``: seconds without a sign of the link;
    ``epoch``: under which it was last published; ``under_way``: since when, its end included, for display; by default
    since ``begun``, from which its link has that patience to take it up.
    """

    application: str
    desired: DesiredPlacement
    begun: float
    patience: float
    epoch: int = 0
    taken_up: bool = False
    last_sign: float = 0.0
    under_way: float = 0.0
    states: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.last_sign = max(self.last_sign, self.begun)
        self.under_way = self.under_way or self.begun

    def stopped(self, now: float) -> RunningMigration:
        """Return the empty migration that replaces this one, so that no further move begins.

        The link gives up the moves that are not steered yet; the others land with the next batch.
        """
        desired = DesiredPlacement(decision=f"{self.decision}{_STOP}", runs=self.desired.runs, moves=[])
        return RunningMigration(self.application, desired, now, self.patience, under_way=self.under_way)

    def update(self, report: LinkReport | None, now: float) -> None:
        """Record the moves' states in a report.

        A settled move stays settled, even if the link forgets it.
        """
        if report is None or report.decision != self.desired.decision:
            return
        self.taken_up = True
        self.last_sign = now
        desired = {move.move for move in self.desired.moves}
        settled = self.settled
        for view in report.moves:
            if view.move in desired and (view.move not in settled or view.state not in AWAITING_BATCH):
                self.states[view.move] = view.state

    @property
    def decision(self) -> str:
        """Id of the decision that is carried out or being ended."""
        return self.desired.decision.removesuffix(_STOP)

    @property
    def ending(self) -> bool:
        """Whether the migration is being ended."""
        return self.desired.decision.endswith(_STOP)

    @property
    def settled(self) -> set[str]:
        """Ids of the moves that need no further batch."""
        return {move for move, state in self.states.items() if state not in AWAITING_BATCH}

    @property
    def landed(self) -> int:
        """Number of moves that are drained or killed."""
        return sum(state in _LANDED for state in self.states.values())

    @property
    def abandoned(self) -> int:
        """Number of moves given up."""
        return sum(state == MoveState.ABANDONED for state in self.states.values())

    def status(self) -> MigrationStatus:
        """Return a copy for display."""
        return MigrationStatus(
            application=self.application,
            decision=self.decision,
            moves=len(self.desired.moves),
            landed=self.landed,
            abandoned=self.abandoned,
            sentence=self.sentence(),
            begun=self.under_way,
            steps=max((move.step + 1 for move in self.desired.moves), default=0),
        )

    def end_reason(self, now: float) -> str:
        """Return why the migration is over; "" while it runs.

        It is over once every move is settled, or once its link never took it up, or is gone.
        """
        if len(self.settled) == len(self.desired.moves) and (self.taken_up or self.desired.moves):
            return _SETTLED
        if not self.taken_up and now - self.begun > self.patience:
            return _NOT_TAKEN_UP  # even if Redis was away in between: its figures are outdated by now
        return _LOST if now - self.last_sign > self.patience else ""

    def sentence(self, why: str = "") -> str:
        """Return its progress in one sentence."""
        total = len(self.desired.moves)
        done = f"{self.landed} of {with_noun(total, 'move')} landed"
        if self.abandoned:
            done += f", {self.abandoned} abandoned"
        name = f"migration {self.decision}"
        if self.ending:
            return f"{name} {'is ended' if why else 'is ending: no further move is begun, steered moves still land'}"
        if why == _SETTLED:
            return f"{name} is over: {done}"
        if why == _NOT_TAKEN_UP:
            return (
                f"{name} is given up: the link of {self.application} did not take it up within {self.patience:g} s "
                "(does it trust this controller's public key? see its rejected_messages)"
            )
        if why == _LOST:
            return f"{name} is given up: the link has not reported for {self.patience:g} s, {done}"
        return f"{name} is {'on hold' if self.desired.hold else 'running'}: {done}"


class MigrationTracker:
    """Migrations of one application: the running one, and the cool-down after it."""

    def __init__(self, application: str, context: LeaderContext) -> None:
        self.running: RunningMigration | None = None
        self.cooldown_timer = CooldownTimer()
        self.examined = False  # whether this leader has read the desired placement in Redis
        self._application = application
        self._context = context
        self._moves_to_follow = 0  # at most, on a plan that was cut
        self._continues = False  # whether the last part of such a plan was confirmed
        self._log = structlog.get_logger("rechannel.controller")

    def begin(self, decision: Decision) -> None:
        """Publish the desired placement of a decision.

        If Redis is away, `follow` publishes it later.
        """
        settings = self._context.settings
        desired = DesiredPlacement(decision=decision.decision, runs=decision.runs, moves=decision.moves)
        self.cooldown_timer.note_applied(decision)
        self._plan_continuation(decision)
        self.running = RunningMigration(
            self._application, desired, self._context.clock.wall(), settings.controller.placement_ttl
        )
        try:
            self._renew(self.running)
        except StoreError as error:
            self._log.warning("desired-not-sent", application=self._application, sentence=str(error))

    def stop(self) -> str:
        """End the running migration; returns its progress."""
        migration = self._require_running()
        sentence = migration.sentence()
        self.stop_continuation()
        if migration.ending:
            return sentence
        self.running = migration.stopped(self._context.clock.wall())
        self._renew(self.running)
        return f"{sentence}, and ends"

    def refresh(self, report: LinkReport, now: float) -> None:
        """Restore an earlier leader's migration if that is due, and finish one that is over."""
        if not self.examined:
            self.restore(report)
        if self.running is not None:
            self.running.update(report, now)
            if self.running.end_reason(now):
                self._finish(self.running, now)

    def busy_sentence(self, report: LinkReport) -> str:
        """Return what is still under way, "" for nothing."""
        if self.running is not None:
            return f"{self.running.sentence()}; one at a time"
        decision, moves = report.decision or "?", moves_in_flight(report)
        return f"the link still works on {with_noun(len(moves), 'move')} of decision {decision}" if moves else ""

    def follow(self, report: LinkReport | None) -> str:
        """Renew the running migration; returns how it ended, "" if it goes on."""
        migration, now = self._require_running(), self._context.clock.wall()
        migration.update(report, now)
        if migration.end_reason(now):
            return self._finish(migration, now)
        self._renew(migration)
        return ""

    def confirm(self, decision: str) -> None:
        """Note that a decision's migration is confirmed: a plan that was cut continues."""
        self.cooldown_timer.confirm(decision)
        self._continues = self._moves_to_follow > 0

    def stop_continuation(self) -> None:
        """Cancel the rest of a plan that was cut, as an operator ordered."""
        self.cooldown_timer.stop()
        self.cancel_continuation()

    def cancel_continuation(self) -> None:
        """Do not continue a plan that was cut."""
        self._moves_to_follow, self._continues = 0, False

    def continuation(self, now: float) -> int:
        """Return how many moves may follow on a plan that was cut; 0 for none.

        None once the time of the cool-down has passed: then the usual triggers decide, with new measurements.
        """
        return self.rest(now) if self._continues and self.running is None else 0

    def rest(self, now: float) -> int:
        """Return how many moves may still follow on a plan that was cut, confirmed by now or not."""
        is_over = self._continues and not self.cooldown_timer.time_left_unconfirmed(now, self._usual_cooldown)
        return 0 if is_over else self._moves_to_follow

    def cooldown_left(self, now: float) -> float:
        """Return the seconds of the cool-down that are left."""
        return self.cooldown_timer.time_left(now, self._usual_cooldown)

    def cooldown_length(self) -> tuple[float, str]:
        """Return the seconds of the cool-down, and the reason where they are more than usual."""
        return self.cooldown_timer.length(self._usual_cooldown)

    def extend_deadline(self, silence: float) -> None:
        """Do not count a time in which Redis was away as silence of the link."""
        if self.running is not None:
            self.running.last_sign = min(self._context.clock.wall(), self.running.last_sign + silence)

    def reset(self) -> None:
        """Drop what another leader has now."""
        self.running, self.examined = None, False
        self.cancel_continuation()

    def restore(self, report: LinkReport, applied: Sequence[Decision] = (), confirmed: Collection[str] = ()) -> None:
        """Continue the migration of an earlier leader, or learn when its last one was.

        ``applied``: decisions of all leaders that moved something, the last one first; ``confirmed``: ids of those
        whose outcome is confirmed.

        Cases: nothing stands in Redis, or nothing that was signed; this leader's own migration, or an older one, is
        kept; one that expired or is over only starts the cool-down; another leader's newer one is continued.
        """
        envelope = self._context.store.get(keys.DESIRED, self._application)
        self.cooldown_timer.restore(applied, confirmed)
        if envelope is not None:
            self._take_over(envelope, report)
        self.examined = True  # only now: as long as this fails, nothing is decided

    def _take_over(self, envelope: Envelope, report: LinkReport) -> None:
        try:
            desired = body_of(envelope, DesiredPlacement)
            if envelope.application != self._application or not self._context.signer.is_trusted(envelope):
                raise SignatureError(f"desired placement of {self._application} was not signed by this cluster's key")
        except MessageError as error:
            self._log.warning("desired-rejected", application=self._application, sentence=str(error))
            return
        own = self.running
        if own is not None and (desired.decision == own.desired.decision or envelope.epoch <= own.epoch):
            return
        self.running = None  # another controller led in the meantime, and decided anew
        now, settings = self._context.clock.wall(), self._context.settings
        migration = RunningMigration(self._application, desired, envelope.time, settings.controller.placement_ttl)
        migration.update(report, now)
        if envelope.expires <= now or migration.end_reason(now):
            ended = max(self.cooldown_timer.migration_ended or 0.0, envelope.time)
            self.cooldown_timer.start(migration.decision, ended)
            return
        self.running = migration
        self._log.info(
            "migration-adopted",
            application=self._application,
            decision=desired.decision,
            epoch=self._context.lead.epoch,
        )

    def _require_running(self) -> RunningMigration:
        if self.running is None:
            raise ValueError(f"no migration of {self._application} is running")
        return self.running

    @property
    def _usual_cooldown(self) -> float:
        return self._context.settings.gate.cooldown

    def _plan_continuation(self, decision: Decision) -> None:
        total = sum(load.partitions_before for load in decision.executors)
        left = self._moves_to_follow if decision.trigger == Trigger.CONTINUATION else total
        remaining = left - len(decision.moves)
        self.cancel_continuation()
        by_policy = decision.trigger != Trigger.DRAIN and not decision.rollback_of and decision.policy != SAVED_PLAN
        if by_policy and len(decision.moves) >= self._context.settings.migration.max_moves and remaining > 0:
            self._moves_to_follow = remaining

    def _renew(self, migration: RunningMigration) -> None:
        """Publish the desired placement, unless it stands in Redis and is fresh."""
        context = self._context
        lead, now, ttl = context.lead, context.clock.wall(), context.settings.controller.placement_ttl
        migration.desired = msgspec.structs.replace(migration.desired, hold=lead.paused)
        present = context.read_signed(keys.DESIRED, self._application)
        if present is not None:
            if present.epoch > lead.epoch:
                self._log.warning("epoch-behind", application=self._application, found=present.epoch)
                lead.note_epoch(present.epoch)
                return  # another leader's, or Redis went back in time: the next renewal of the lease shows which
            same = present.body == migration.desired and present.epoch == lead.epoch
            if same and ttl * 2 / 3 < present.expires - now <= ttl:  # more after the clock was set back
                return
        if not lead.holds():
            return
        context.put_signed(keys.DESIRED, migration.desired, ttl=ttl, application=self._application)
        migration.epoch = lead.epoch

    def _finish(self, migration: RunningMigration, now: float) -> str:
        why = migration.end_reason(now)
        sentence = migration.sentence(why)
        if why == _SETTLED:
            # Published without moves: a link that attaches later finds nothing to repeat.
            desired = migration.desired
            migration.desired = msgspec.structs.replace(desired, moves=[])
            try:
                self._renew(migration)
            except StoreError:
                migration.desired = desired  # it ends when Redis is back
                raise
        self.running = None
        self._log.info("migration-over", application=self._application, why=why, sentence=sentence)
        if why != _SETTLED:
            self.cancel_continuation()
        if why != _NOT_TAKEN_UP:
            self.cooldown_timer.start(migration.decision, now)
        return sentence
