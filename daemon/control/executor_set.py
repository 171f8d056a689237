"""When a change of an application's executors asks for a decision, without waiting for the timeout.

Once the executors have stayed the same for a while (`reschedule.settle`, `reschedule.settle_windows`); and after a
refusal again, at growing intervals, as long as one of them holds nothing: the first figures (of a cold executor, of
batches with loads in them) are not the last word.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rechannel.conf.settings import Settings
from rechannel.daemon.control.guard import AGREEMENTS, figures_last
from rechannel.daemon.control.memory import Memory
from rechannel.wire.messages import Decision, LinkReport

_FIRST_PAUSE = 10.0  # seconds until a refused decision is taken again; doubles with every refusal


@dataclass
class _Watched:
    executors: frozenset[str] = frozenset()
    since: float = 0.0
    decided_for: frozenset[str] | None = None  # at first those it had when it was ready for the first time
    next_try: float = 0.0
    pause: float = _FIRST_PAUSE


@dataclass
class ExecutorSetTrigger:
    """The executors of every application, and what was decided for which of them. ``clock`` in seconds."""

    clock: Callable[[], float]
    settle: float
    longest_pause: float
    agreement_pause: float = _FIRST_PAUSE  # seconds until there are other figures to agree on a costly plan
    memory: Memory = field(default_factory=Memory)

    def __post_init__(self) -> None:
        self._watched: dict[str, _Watched] = self.memory.table()

    def take(self, settings: Settings) -> None:
        """Go on with other settings."""
        rules = settings.reschedule
        self.settle = max(rules.settle, rules.settle_windows * settings.agent.window)
        self.longest_pause = rules.timeout
        self.agreement_pause = figures_last(settings)

    def ready(self, application: str, executors: frozenset[str]) -> None:
        """Take the executors of an application that is ready for the first time as no change."""
        watched = self._watched.setdefault(application, _Watched())
        if watched.decided_for is None:
            watched.decided_for = executors

    def undrained(self, application: str) -> None:
        """Take executors that may hold partitions again as a change, though they were there at the last decision."""
        self._watched.setdefault(application, _Watched()).decided_for = frozenset()

    def see(self, application: str, executors: frozenset[str]) -> None:
        """Take in the executors that may hold partitions now."""
        watched = self._watched.setdefault(application, _Watched())
        if watched.executors != executors:
            watched.executors, watched.since = executors, self.clock()
            watched.next_try, watched.pause = 0.0, _FIRST_PAUSE

    def due(self, application: str) -> bool:
        """Whether a change has lasted long enough and is not decided on."""
        watched, now = self._watched[application], self.clock()
        changed = watched.decided_for is not None and watched.executors != watched.decided_for
        return changed and now - watched.since >= self.settle and now >= watched.next_try

    def decided(self, application: str, decision: Decision, report: LinkReport) -> None:
        """Take in what was decided for a change."""
        watched = self._watched.get(application)
        if watched is None:
            return  # the lead was lost, or the application ended, while the plan was made
        if decision.reason == AGREEMENTS:
            watched.next_try = self.clock() + self.agreement_pause
        elif decision.outcome == "not-ready":
            watched.next_try = self.clock() + _FIRST_PAUSE
        elif decision.outcome == "refused" and watched.executors - holding(report):
            watched.next_try = self.clock() + watched.pause
            watched.pause = min(2 * watched.pause, self.longest_pause)
        else:
            watched.decided_for = watched.executors

    def forget(self) -> None:
        """Forget everything: another controller leads."""
        self._watched.clear()


def holding(report: LinkReport) -> frozenset[str]:
    """Return the executors that hold a partition of an active query."""
    return frozenset(
        executor for query in report.queries if query.active for stage in query.stages for executor in stage.placement
    )
