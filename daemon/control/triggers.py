"""Automatic triggers that keep state of their own: a changed executor set, and orders that are tried again."""

from __future__ import annotations

from rechannel.conf.settings import Settings
from rechannel.daemon.control.guard import averaging_time
from rechannel.wire.codes import Law, Outcome
from rechannel.wire.messages import Decision, LinkReport

_FIRST_PAUSE = 10.0  # seconds until a refused decision is taken again; doubles with every refusal
_RETRY_EVERY = 10.0  # seconds


class RetryTimer:
    """Pause between two decisions by the same trigger. ``waited``: seconds of a steady clock."""

    def __init__(self) -> None:
        self._next_try = 0.0

    def start(self, waited: float) -> bool:
        """Return whether a decision is due, and begin the pause if it is."""
        if waited < self._next_try:
            return False
        self._next_try = waited + _RETRY_EVERY
        return True


def settle_time(settings: Settings) -> float:
    """Return the seconds for which an executor set has to stay the same before it is decided on."""
    return max(settings.reschedule.settle, settings.reschedule.settle_windows * settings.agent.window)


class ExecutorSetTrigger:
    """Trigger of one application whose executors joined or left and then stayed the same for a while.

    After a refusal it is due again at growing intervals, as long as an executor holds nothing: the first figures (of a
    cold executor, of batches that loaded state) are not reliable. ``waited``: seconds of a steady clock.
    """

    def __init__(self) -> None:
        self.executors: frozenset[str] = frozenset()
        self.since = 0.0
        self.decided_for: frozenset[str] | None = None  # initially those of the first time it was ready
        self._next_try = 0.0
        self._pause = _FIRST_PAUSE

    def mark_ready(self, executors: frozenset[str]) -> None:
        """Take the executors of an application that is ready for the first time as the initial set."""
        if self.decided_for is None:
            self.decided_for = executors

    def reopen(self) -> None:
        """Take executors that may hold partitions again as a change, although they were there before."""
        self.decided_for = frozenset()

    def observe(self, executors: frozenset[str], waited: float) -> None:
        """Record the executors that may hold partitions now."""
        if self.executors != executors:
            self.executors, self.since = executors, waited
            self._next_try, self._pause = 0.0, _FIRST_PAUSE

    def due(self, waited: float, settings: Settings) -> bool:
        """Return whether a change has lasted long enough and was not decided on."""
        changed = self.decided_for is not None and self.executors != self.decided_for
        return changed and waited - self.since >= settle_time(settings) and waited >= self._next_try

    def record(self, decision: Decision, report: LinkReport, waited: float, settings: Settings) -> None:
        """Record the decision on a change."""
        if decision.reason == Law.AGREEMENTS:
            self._next_try = waited + averaging_time(settings)
        elif decision.outcome == Outcome.NOT_READY:
            self._next_try = waited + _FIRST_PAUSE
        elif decision.outcome == Outcome.REFUSED and self.executors - executors_in_use(report):
            self._next_try = waited + self._pause
            self._pause = min(2 * self._pause, settings.reschedule.timeout)
        else:
            self.decided_for = self.executors


def executors_in_use(report: LinkReport) -> frozenset[str]:
    """Return the executors that hold a partition of an active query."""
    return frozenset(
        executor for query in report.queries if query.active for stage in query.stages for executor in stage.placement
    )
