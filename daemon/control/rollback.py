"""Rollbacks: decisions whose moves are to go back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rechannel.wire.codes import MoveState
from rechannel.wire.messages import Decision, LinkReport

REGRESSED_REASON = "its batches are longer than predicted and than before"
_RETRY_EVERY = 10.0  # seconds between two tries of a rollback
_NAME_WITHIN = 300.0  # seconds after a rollback in which the next one has to name its decision
_PATIENCE = 600.0  # seconds in which a rollback has to become possible


@dataclass
class PendingRollback:
    """A decision whose moves are to go back, and who asked for that ("": nobody).

    ``until``: seconds of a steady clock until which it is tried.
    """

    decision: Decision
    user: str
    reason: str
    until: float
    next_try: float = 0.0

    @classmethod
    def begin(cls, decision: Decision, user: str, reason: str, waited: float) -> PendingRollback:
        """Return a rollback that begins to wait now."""
        return cls(decision, user, reason, waited + _PATIENCE)

    def extend(self, waited: float, quiet: float) -> None:
        """Wait for the end of a quiet period of so many seconds, and the usual time after it."""
        self.until = max(self.until, waited + quiet + _PATIENCE)

    def start_try(self, report: LinkReport, waited: float) -> bool:
        """Return whether a try is due, and begin the pause until the next one if it is.

        Spark still directs the moves that were released while idle, and only their next batch shows where they are.
        """
        own = f"{self.decision.decision}."
        if any(view.state == MoveState.RELEASED_IDLE and view.move.startswith(own) for view in report.moves):
            return False
        if waited < self.next_try:
            return False
        self.next_try = waited + _RETRY_EVERY
        return True


def find_undoable(applied: Sequence[Decision], decision: str = "") -> Decision | None:
    """Return the decision of this id, or the last applied one not undone ("").

    ``applied``: decisions that moved something in one application, the last one first.
    """
    undone = {entry.rollback_of for entry in applied}
    for entry in applied:
        if entry.decision == decision or not (decision or entry.rollback_of or entry.decision in undone):
            return entry
    return None


def choose_undoable(applied: Sequence[Decision], decision: str, application: str, now: float) -> Decision:
    """Return the decision that an operator's rollback means; ValueError if there is none.

    Also ValueError if one was undone a moment ago and none is named: nobody goes back two decisions by accident.
    """
    target = find_undoable(applied, decision)
    last = applied[0] if applied and applied[0].rollback_of and not decision else None
    if last is not None and 0 <= now - last.at < _NAME_WITHIN:
        ago = f"{last.rollback_of} was rolled back {now - last.at:.0f} s ago, by {last.decision}"
        if target is None:
            raise ValueError(f"{ago}; nothing before it is left to undo")
        raise ValueError(f"{ago}; to undo {target.decision} too, name it with --decision")
    if target is None:
        left = "" if decision else " that was not undone"
        which = decision or "of the last days"
        raise ValueError(f"no decision {which} moved anything in {application}{left}")
    return target
