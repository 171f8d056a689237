"""Migrations that go back: those that made things worse, by themselves, and those that an operator wants undone.

What goes back by itself waits for the end of an excluded period; what an operator wants undone does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from rechannel.daemon.control.guard import SelfActionGuard
from rechannel.daemon.control.leader import Leader
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.migration_progress import in_flight
from rechannel.daemon.control.outcomes import OutcomeTracker, PendingRollback
from rechannel.daemon.decide.outcome import KEPT
from rechannel.daemon.decide.policy_settings import ROLLBACK
from rechannel.daemon.decide.requested_placement import back
from rechannel.daemon.model.collector import Collector
from rechannel.wire.codes import MoveState
from rechannel.wire.messages import Decision

_RETRY_EVERY = 10.0  # seconds between two tries of a rollback
_AGAIN = 300.0  # seconds in which a second rollback has to name what it means
_PATIENCE = 600.0  # seconds in which a rollback has to become possible


class RollbackManager:
    """What is to go back in each application. ``waiting``: by application.

    ``clock``: seconds since the epoch; ``steady``: seconds that nobody sets, for waits.
    """

    def __init__(
        self,
        leader: Leader,
        collector: Collector,
        aftermath: OutcomeTracker,
        guard: SelfActionGuard,
        clock: Callable[[], float],
        steady: Callable[[], float],
        memory: Memory,
    ) -> None:
        self.waiting: dict[str, PendingRollback] = memory.table()
        self._leader = leader
        self._collector = collector
        self._aftermath = aftermath
        self._guard = guard
        self._clock = clock
        self._steady = steady
        self._log = structlog.get_logger("rechannel.controller")

    def order(self, application: str, decision: str, *, user: str, reason: str) -> tuple[str, Decision | None]:
        """Undo a decision ("": the last one that was not undone); ValueError where there is none.

        ValueError too where one was undone a moment ago and none is named: nobody goes back two decisions by accident.

        Returns a sentence, and the decision to go back where there is one already.
        """
        found = self._aftermath.undoable(application, decision)
        before = self._aftermath.undone_last(application) if not decision else None
        if before is not None and 0 <= self._clock() - before.at < _AGAIN:
            ago = f"{before.rollback_of} was rolled back {self._clock() - before.at:.0f} s ago, by {before.decision}"
            if found is None:
                raise ValueError(f"{ago}; nothing before it is left to undo")
            raise ValueError(f"{ago}; to undo {found.decision} too, name it with --decision")
        if found is None:
            left = "" if decision else " that was not undone"
            which = decision or "of the last days"
            raise ValueError(f"no decision {which} moved anything in {application}{left}")
        self.waiting[application] = PendingRollback(found, user, reason, self._steady() + _PATIENCE)
        migrations, paused = self._leader.migrations, self._leader.paused
        said = f"{migrations.stop(application)}; then " if application in migrations.running else ""
        self._log.info("rollback", application=application, decision=found.decision, user=user, reason=reason)
        made = None if said or paused else self.attempt(application)
        if made is not None:
            return "", made
        later = "" if said or paused else ", once the moves that wait for a batch have landed"
        held = "; paused: `rechannel resume` first" if paused else ""
        return f"{said}what {found.decision} moved goes back{later}{held}{self._guard.warning(self._clock())}", None

    def look(self, application: str) -> None:
        """Measure what a migration that is over has brought; what made things worse goes back."""
        report = self._collector.reports[application]
        if application in self._leader.migrations.running or in_flight(report):
            return
        facts = self._collector.gather(application)
        found = self._aftermath.look(application, facts, self._leader.epoch) if facts is not None else None
        if found is None:
            return
        outcome, undo = found
        if outcome.verdict == KEPT:
            self._leader.migrations.kept(application)
        else:
            self._leader.migrations.spoiled(application)
        self._regressed(application, undo)

    def adopt(self, application: str, kept: Sequence[tuple[str, Decision]]) -> None:
        """Go on where the leader before us was."""
        self._regressed(application, self._aftermath.adopt(application, kept))

    def attempt(self, application: str) -> Decision | None:
        """Move back what a decision moved, once nothing else is under way; returns the decision once there is one."""
        report, now, undo = self._collector.reports.get(application), self._steady(), self.waiting[application]
        period = None if undo.user else self._guard.excluded(self._clock())
        if period is not None:
            undo.until = max(undo.until, now + period.until - self._clock() + _PATIENCE)
            if self._guard.tell(ROLLBACK, application, period):
                self._leader.refuse(ROLLBACK, application, period, reason=undo.reason)
            return None
        if now >= undo.until:
            self._log.warning("rollback-given-up", application=application, decision=undo.decision.decision)
            del self.waiting[application]
            return None
        if application in self._leader.migrations.running or report is None or in_flight(report):
            return None
        moved = f"{undo.decision.decision}."
        if any(view.state == MoveState.RELEASED_IDLE and view.move.startswith(moved) for view in report.moves):
            return None  # Spark stays told of these, and only a batch of theirs shows where they are
        if now < undo.next_try:
            return None
        undo.next_try = now + _RETRY_EVERY
        decision = self._leader.decide(
            ROLLBACK,
            application=application,
            user=undo.user,
            reason=undo.reason,
            apply=True,
            asked=lambda snapshot: back(undo.decision, snapshot),
        )
        if decision.outcome != "not-ready" and self.waiting.get(application) is undo:
            del self.waiting[application]
        return decision

    def _regressed(self, application: str, undo: Decision | None) -> None:
        if undo is not None:
            why = "its batches are longer than predicted and than before"
            self.waiting[application] = PendingRollback(undo, "", why, self._steady() + _PATIENCE)
