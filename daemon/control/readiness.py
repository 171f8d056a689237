"""What the leader says of each application: whether it could be decided on, and why not, or how its migration gets on.

It looks at each once an agent window. What takes long is the model, seconds for tens of thousands of partitions: that
is made anew only so often that it takes a fifth of a core, though every half a minute at least. What is read off it
tells of overloads too (`TriggerEngine.look`). That an application is not ready is seen without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from rechannel.daemon.control.leader import Leader
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.triggers import TriggerEngine
from rechannel.daemon.jobs.duty_cycle import DutyCycle
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.readiness import NotReady
from rechannel.daemon.model.snapshot import Snapshot, take_snapshot
from rechannel.wire.printable import count

_SHARE = 0.2  # of a core, for each application
_LONGEST_REST = 30.0  # seconds from one look to the next: an overload is to be seen several times in a row

Each = Callable[[Iterable[str], Callable[[str], object]], None]


class Readiness:
    """Looks at what one leader knows, and keeps the ``words`` by application.

    ``clock``: seconds since the epoch; ``steady``: that nobody sets; ``busy``: for which the asking thread had a core;
    ``released``: others may act while a model is made.
    """

    def __init__(
        self,
        leader: Leader,
        collector: Collector,
        occasions: TriggerEngine,
        clock: Callable[[], float],
        steady: Callable[[], float],
        busy: Callable[[], float],
        *,
        released: Callable[[], AbstractContextManager[None]],
        memory: Memory,
    ) -> None:
        self.words: dict[str, str] = memory.table()
        self._leader = leader
        self._collector = collector
        self._occasions = occasions
        self._clock = clock
        self._steady = steady
        self._busy = busy
        self._released = released
        self._window = 0.0  # when the present one began
        self._looked: dict[str, None] = memory.table()  # applications, in this window
        self._not_before: dict[str, float] = memory.table()  # application -> when its model may be made again

    def look(self, applications: Iterable[str], each: Each) -> None:
        """Look at those that were not looked at in this window. ``each`` acts on several; may raise StoreError."""
        now = self._steady()
        if now >= self._window + self._leader.settings.agent.window:
            self._window = now
            self._looked.clear()
        each(sorted(set(applications) - self._looked.keys()), self._look)

    def again(self, application: str) -> None:
        """What is said of it is no longer so: look at it next time, whatever that takes."""
        self.words.pop(application, None)
        self._looked.pop(application, None)
        self._not_before.pop(application, None)

    def forget(self) -> None:
        """Another controller leads."""
        self.words.clear()
        self._looked.clear()
        self._not_before.clear()
        self._window = 0.0

    def _look(self, application: str) -> None:
        try:
            self._say(application)
        except Exception:
            self.words.pop(application, None)  # nobody knows whether they are true still
            raise

    def _say(self, application: str) -> None:
        migration = self._leader.migrations.running.get(application)
        if migration is not None:
            self.words[application] = migration.sentence()
            self._looked[application] = None
            return
        facts = self._collector.gather(application)  # read on in any case: what is trimmed unread is lost
        self._looked[application] = None
        if facts is None:
            return
        if (silent := driver_silence(facts.reported_at, self._leader.settings, self._clock())) is not None:
            self._occasions.not_ready(application)
            self.words[application] = f"not ready: {silent.sentence}"
            return
        began, settings = self._steady(), without_forecast(self._leader.settings)
        if (
            began < self._not_before.get(application, began)
            and readiness_problem(facts, settings, self._clock()) is None
        ):
            return
        drained = self._leader.orders.nodes
        with self._released(), DutyCycle(_SHARE, _LONGEST_REST, self._busy) as work:
            found = take_snapshot(facts, settings, self._clock(), drained)
        if application not in self._collector.reports:
            return
        self._not_before[application] = began + work.rest
        self.words[application] = self._words(application, found, facts)

    def _words(self, application: str, found: Snapshot | NotReady, facts: ApplicationMessages) -> str:
        if isinstance(found, NotReady):
            self._occasions.not_ready(application)
            return f"not ready: {found.sentence}"
        now = self._clock()
        self._occasions.look(application, found, facts.batches, self._occasions.usable(facts.report), self._window)
        resting = self._leader.migrations.resting(application, now)
        rest = f", cool-down for {resting:.0f} s" if resting else ""
        placed = sum(stage.n for stage in found.workload.placeable)
        held = self._occasions.guard.words(application, now)
        missing = f"; {words}" if (words := describe_silent_agents(found.coverage)) else ""
        return f"ready: {count(placed, 'partition')} on {count(found.cluster.size, 'executor')}{rest}{held}{missing}"
