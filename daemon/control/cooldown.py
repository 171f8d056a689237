"""Cool-down of an application after its migrations. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rechannel.wire.codes import Trigger
from rechannel.wire.messages import Decision

_AFTER_ROLLBACK = 4  # factor for each rollback in a row
_LONGEST_COOLDOWN = 86_400.0  # seconds


@dataclass
class CooldownTimer:
    """Cool-down of one application after its migrations. It survives the loss of the lead.

    It is there for the effect of a migration to show. So it ends once the migration is confirmed, and when executors
    come or go after the decision: their change hides the effect. After a rollback, only a change after the rollback was
    confirmed counts: until then the same figures would lead to the same plan. After an operator's stop it lasts its
    usual length whatever the outcome, so that what was stopped is not begun again at once; only this leader knows that.
    """

    migration_ended: float | None = None  # time of the end of the last migration
    _last_decision: str = ""  # decision of the last migration, drains apart
    _confirmed: bool = False  # whether the outcome of the last migration, drains apart, was confirmed
    _undone: bool = False  # whether the last migration was a rollback, and that is confirmed
    _executors: frozenset[str] | None = None  # at the last observation; None again once a rollback is confirmed
    # At the last applied decision, drains apart, or at the first observation after it by another leader.
    _decided_for: frozenset[str] | None = None
    _noted: str = ""  # that decision
    _drain_decision: str = ""  # last applied decision, if it was a drain's
    _after_rollback: bool = False  # whether the last applied decision, drains apart, was a rollback
    _rollbacks_in_a_row: int = 0
    _is_longer: bool = False  # whether the last migration was an automatic rollback
    _stopped: bool = False  # whether an operator stopped the last migration, or the rest of its plan

    def note_applied(self, decision: Decision) -> None:
        """Note the last applied decision, of any leader, and the length of its cool-down.

        There is none after a drain.
        """
        self._drain_decision = decision.decision if decision.trigger == Trigger.DRAIN else ""
        if self._drain_decision:
            return
        self._after_rollback = bool(decision.rollback_of)
        self._noted, self._decided_for, self._stopped = decision.decision, self._executors, False
        # An operator's rollback is not about what the controller did automatically.
        self._is_longer = self._after_rollback and not decision.user
        self._rollbacks_in_a_row += self._is_longer

    def restore(self, applied: Sequence[Decision], confirmed: Collection[str] = ()) -> None:
        """Learn from the applied decisions of all leaders, the last one first.

        A migration that the next one did not roll back counts as confirmed, so does the last one if it is among those
        with a ``confirmed`` outcome. Its end is not known: unless it is learned later, the cool-down after a rollback
        begins at the time of the decision.
        """
        if not applied:
            return
        self._rollbacks_in_a_row = 0
        noted, decided_for, stopped = self._noted, self._decided_for, self._stopped
        for decision in reversed(applied):
            if not (decision.rollback_of or self._after_rollback or decision.trigger == Trigger.DRAIN):
                self._rollbacks_in_a_row = 0
            self.note_applied(decision)
        self._decided_for = decided_for if self._noted == noted else None  # of another leader's: not observed here
        self._stopped = stopped and self._noted == noted
        if self.migration_ended is None and self._after_rollback:
            self.start(applied[0].decision, applied[0].at)
        last = next((it.decision for it in applied if it.trigger != Trigger.DRAIN), "")
        if last in confirmed:
            if last != self._last_decision:
                self._last_decision, self._confirmed, self._undone = last, False, False
            if not (self._confirmed or self._undone):
                self.confirm(last)

    def start(self, decision: str, at: float) -> None:
        """Begin the cool-down at the end of a decision's migration; there is none after a drain."""
        if decision != self._drain_decision:
            same = decision == self._last_decision  # an earlier lead may have ended it
            self._confirmed, self._undone = self._confirmed and same, self._undone and same
            self.migration_ended, self._last_decision = at, decision

    def clear(self) -> None:
        """End the cool-down."""
        self.migration_ended = None

    def stop(self) -> None:
        """Last its usual length: an operator ended the migration.

        There is still none after a drain.
        """
        self._is_longer, self._stopped = False, not self._drain_decision

    def confirm(self, decision: str) -> None:
        """Note that the outcome of a decision's migration is `confirmed`.

        A rollback that does what it should says nothing about the plans of before.
        """
        if decision != self._last_decision:
            return
        if self._after_rollback:
            self._undone, self._executors = True, None
        else:
            self._confirmed, self._rollbacks_in_a_row = True, 0

    def observe(self, executors: frozenset[str]) -> None:
        """Note the executors that there are."""
        if self._undone and self._executors not in (None, executors):
            self._confirmed = True
        self._executors = executors
        if self._decided_for is None:
            self._decided_for = executors

    def length(self, usual_length: float) -> tuple[float, str]:
        """Return the seconds of the cool-down, and the reason where they are more than usual."""
        if not self._is_longer:
            return usual_length, ""
        seconds = max(usual_length, min(_LONGEST_COOLDOWN, usual_length * _AFTER_ROLLBACK**self._rollbacks_in_a_row))
        row = f", {self._rollbacks_in_a_row} in a row" if self._rollbacks_in_a_row > 1 else ""
        return seconds, f"{seconds / max(usual_length, 1e-9):g} times gate.cooldown, as it was rolled back{row}"

    def time_left(self, now: float, usual_length: float) -> float:
        """Return the seconds that are left; none once it is confirmed, unless it was stopped.

        None either once executors came or went, unless the last migration is a rollback.
        """
        changed = None not in (self._executors, self._decided_for) and self._executors != self._decided_for
        is_over = (self._confirmed and not self._stopped) or (changed and not self._after_rollback)
        return 0.0 if is_over else self.time_left_unconfirmed(now, usual_length)

    def time_left_unconfirmed(self, now: float, usual_length: float) -> float:
        """Return the seconds that are left, whether the last migration was confirmed or not."""
        if self.migration_ended is None:
            return 0.0
        length, _ = self.length(usual_length)
        # Never longer than the cool-down itself: the clock may have been set back.
        return min(length, max(0.0, self.migration_ended + length - now))
