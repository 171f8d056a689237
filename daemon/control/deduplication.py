"""Which decisions are told: what is tried again within seconds is told once, until something else comes of it."""

from __future__ import annotations

from rechannel.daemon.control.guard import CONTINUATION, EXECUTORS, HELD_BACK, OVERLOAD
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.scheduled_plans import PENDING
from rechannel.daemon.decide.policy_settings import DRAIN, ROLLBACK
from rechannel.wire.messages import Decision

_ORDERED = frozenset({DRAIN, ROLLBACK, PENDING})
_RETRIED = _ORDERED | {CONTINUATION, EXECUTORS, OVERLOAD}  # the triggers that try again within seconds


class DecisionDeduplicator:
    """What was told last of each application and trigger. Without it one query that stands still fills the history."""

    def __init__(self, memory: Memory) -> None:
        self._told: dict[tuple[str, str], str] = memory.table()

    def repeated(self, application: str, decision: Decision) -> bool:
        """Whether a decision says only what was told already; the numbers of what is not ready may be others."""
        once = decision.trigger in _ORDERED or decision.outcome == "not-ready"
        if not once or decision.outcome == "applied" or decision.reason in HELD_BACK:
            return False
        return self._told.get((application, decision.trigger)) == _words(decision)

    def told(self, application: str, decision: Decision) -> None:
        """Take in a decision that was kept."""
        if decision.trigger in _RETRIED and decision.reason not in HELD_BACK:
            self._told[application, decision.trigger] = _words(decision)

    def forget(self) -> None:
        """Forget everything: another controller leads."""
        self._told.clear()


def _words(decision: Decision) -> str:
    words = decision.reason if decision.outcome == "not-ready" else decision.sentence
    return f"{decision.pending_plan}: {words}"  # each plan that waited has its own last word
