"""Cool-down of an application after its migrations. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rechannel.wire.codes import Trigger
from rechannel.wire.messages import Decision

_AFTER_ROLLBACK = 4  # factor for each rollback in a row
_LONGEST_COOLDOWN = 86_400.0  # seconds


@dataclass
class CooldownTimer:
    """Cool-down of one application after its migrations. It survives the loss of the lead.

    It is there for the effect of a migration to show. So it ends once the migration is confirmed. After a confirmed
    rollback it ends when the executors change: until then the same figures would lead to the same plan.
    """

    ended: float | None = None  # time of the end of the last migration
    _last_decision: str = ""  # decision of the last migration, drains apart
    _confirmed: bool = False  # whether the outcome of the last migration, drains apart, was confirmed
    _undone: bool = False  # whether the last migration was a rollback, and that is confirmed
    _executors: frozenset[str] | None = None  # since then; None: not observed yet
    _drain_decision: str = ""  # last applied decision, if it was a drain's
    _after_rollback: bool = False  # whether the last applied decision, drains apart, was a rollback
    _seconds: float | None = None  # after the last migration; None: as the settings have it
    _reason: str = ""
    _rollbacks_in_a_row: int = 0

    def note_applied(self, decision: Decision) -> None:
        """Note the last applied decision, of any leader: there is no cool-down after a drain."""
        self._drain_decision = decision.decision if decision.trigger == Trigger.DRAIN else ""
        if not self._drain_decision:
            self._after_rollback = bool(decision.rollback_of)

    def restore(self, applied: Sequence[Decision], cooldown: float) -> None:
        """Learn from the applied decisions of all leaders, the last one first.

        A migration that the next one did not roll back counts as confirmed. Its end is not known: if nothing else tells
        of it, the cool-down after a rollback begins when that was decided.
        """
        if not applied:
            return
        self._rollbacks_in_a_row = 0
        for decision in reversed(applied):
            if not (decision.rollback_of or self._after_rollback or decision.trigger == Trigger.DRAIN):
                self._rollbacks_in_a_row = 0
            self.note_applied(decision)
            self.schedule(decision, cooldown)
        if self.ended is None and self._after_rollback:
            self.start(applied[0].decision, applied[0].at)

    def schedule(self, decision: Decision, cooldown: float) -> None:
        """Set the length of the cool-down after the migration that a decision begins."""
        if decision.trigger == Trigger.DRAIN:
            return
        self._seconds, self._reason = cooldown, ""
        if not decision.rollback_of or decision.user:
            return  # an operator's rollback is not about what the controller did automatically
        self._rollbacks_in_a_row += 1
        self._seconds = max(cooldown, min(_LONGEST_COOLDOWN, cooldown * _AFTER_ROLLBACK**self._rollbacks_in_a_row))
        row = f", {self._rollbacks_in_a_row} in a row" if self._rollbacks_in_a_row > 1 else ""
        self._reason = f"{self._seconds / max(cooldown, 1e-9):g} times gate.cooldown, as it was rolled back{row}"

    def start(self, decision: str, at: float) -> None:
        """Begin the cool-down at the end of a decision's migration; there is none after a drain."""
        if decision != self._drain_decision:
            same = decision == self._last_decision  # an earlier lead may have ended it
            self._confirmed, self._undone = self._confirmed and same, self._undone and same
            self.ended, self._last_decision = at, decision

    def clear(self) -> None:
        """End the cool-down."""
        self.ended = None

    def use_default(self) -> None:
        """Go back to the usual length: an operator ended the migration and watches it."""
        self._seconds, self._reason = None, ""

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
        """Note the executors that may hold partitions now."""
        if self._undone and self._executors not in (None, executors):
            self._confirmed = True
        self._executors = executors

    def length(self, cooldown: float) -> tuple[float, str]:
        """Return the seconds of the cool-down, and the reason where they are more than usual."""
        return (cooldown if self._seconds is None else self._seconds), self._reason

    def left(self, now: float, cooldown: float) -> float:
        """Return the seconds that are left; none after a migration that was confirmed."""
        return 0.0 if self._confirmed else self.time_left(now, cooldown)

    def time_left(self, now: float, cooldown: float) -> float:
        """Return the seconds that are left, whether the last migration was confirmed or not."""
        if self.ended is None:
            return 0.0
        length, _ = self.length(cooldown)
        # Never longer than the cool-down itself: the clock may have been set back.
        return min(length, max(0.0, self.ended + length - now))
