"""Cool-down of an application after its migrations. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.wire.codes import Trigger
from rechannel.wire.messages import Decision

_AFTER_ROLLBACK = 4  # factor for each rollback in a row: the same figures would lead to the same mistake
_LONGEST_COOLDOWN = 86_400.0  # seconds


@dataclass
class CooldownTimer:
    """Cool-down of one application after its migrations. It survives the loss of the lead."""

    ended: float | None = None  # time of the end of the last migration
    drain: str = ""  # last applied decision, if it was a drain's
    _seconds: float | None = None  # after the last migration; None: as the settings have it
    _reason: str = ""
    _mistakes: int = 0  # migrations in a row that were rolled back

    def plan(self, decision: Decision, cooldown: float) -> None:
        """Plan the cool-down after the migration that a decision begins."""
        if decision.trigger == Trigger.DRAIN:
            return
        self._seconds, self._reason = cooldown, ""
        if not decision.rollback_of or decision.user:
            return  # an operator's rollback is not about what the controller did automatically
        self._mistakes += 1
        self._seconds = max(cooldown, min(_LONGEST_COOLDOWN, cooldown * _AFTER_ROLLBACK**self._mistakes))
        row = f", {self._mistakes} in a row" if self._mistakes > 1 else ""
        self._reason = f"{self._seconds / max(cooldown, 1e-9):g} times gate.cooldown, as it was rolled back{row}"

    def use_default(self) -> None:
        """Go back to the usual length: an operator ended the migration and watches it."""
        self._seconds, self._reason = None, ""

    def forgive_mistakes(self) -> None:
        """Forget earlier mistakes: a migration brought what was predicted."""
        self._mistakes = 0

    def length(self, cooldown: float) -> tuple[float, str]:
        """Return the seconds of the cool-down, and the reason where they are more than usual."""
        return (cooldown if self._seconds is None else self._seconds), self._reason

    def left(self, now: float, cooldown: float) -> float:
        """Return the seconds that are left."""
        if self.ended is None:
            return 0.0
        length, _ = self.length(cooldown)
        # Never longer than the cool-down itself: the clock may have been set back.
        return min(length, max(0.0, self.ended + length - now))
