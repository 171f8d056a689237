"""Automatic triggers of one application that keep state: changed executors, and overloads.

An overload has hysteresis. It begins after ``reschedule.overload_windows`` windows over the limit and asks for one
decision; it has to fall well below the limit before it can begin again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rechannel.conf.settings import RescheduleSettings, Settings
from rechannel.daemon.model.application_messages import averaging_time, batches_of
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.wire.codes import DecisionResult, Law
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision, LinkReport
from rechannel.wire.printable import query_name

_LONG_BATCH = 2.0  # times the usual length of a query's batches: it is overloaded
_OVER = 0.85  # share of its limit below which an overload is over
_FIRST_PAUSE = 10.0  # seconds until a refused decision is taken again; doubles with every refusal
RETRY_EVERY = 10.0  # seconds between two decisions that were not ready, or on the same order


def settle_time(settings: Settings) -> float:
    """Return the time in s for which an executor set must not change, at least a window."""
    return max(settings.reschedule.settle, settings.agent.window)


class ExecutorSetTrigger:
    """Trigger of one application whose executors changed and stayed so for a while.

    After a refusal it is due again at growing intervals, as long as an executor holds nothing: the first figures (of a
    cold executor, of batches that loaded state) are not reliable. ``steady_now``: seconds of a steady clock.
    """

    def __init__(self) -> None:
        self.executors: frozenset[str] = frozenset()
        self.since = 0.0
        self.decided_for: frozenset[str] | None = None  # initially those of the first time it was ready
        self._next_try = 0.0
        self._pause = _FIRST_PAUSE

    def mark_ready(self, executors: frozenset[str]) -> None:
        """Take the executors of the first time that it is ready as the initial set."""
        if self.decided_for is None:
            self.decided_for = executors

    def reopen(self) -> None:
        """Take executors that may hold partitions again as a change."""
        self.decided_for = frozenset()

    def observe(self, executors: frozenset[str], steady_now: float) -> None:
        """Record the executors that may hold partitions now."""
        if self.executors != executors:
            self.executors, self.since = executors, steady_now
            self._next_try, self._pause = 0.0, _FIRST_PAUSE

    def is_due(self, steady_now: float, settings: Settings) -> bool:
        """Return whether a change has lasted long enough and was not decided on."""
        changed = self.decided_for is not None and self.executors != self.decided_for
        return changed and steady_now - self.since >= settle_time(settings) and steady_now >= self._next_try

    def record(self, decision: Decision, report: LinkReport, steady_now: float, settings: Settings) -> None:
        """Record the decision on a change.

        Parameters
        ----------
        decision, report
            The decision, and the link's report that shows which executors hold nothing.
        steady_now
            Steady seconds.
        settings
            The settings it was decided by.
        """
        if decision.reason == Law.AGREEMENTS:
            self._next_try = steady_now + averaging_time(settings)
        elif decision.result == DecisionResult.NOT_READY:
            self._next_try = steady_now + _FIRST_PAUSE
        elif decision.result == DecisionResult.REFUSED and self.executors - executors_in_use(report):
            self._next_try = steady_now + self._pause
            self._pause = min(2 * self._pause, settings.reschedule.timeout)
        else:
            self.decided_for = self.executors


def executors_in_use(report: LinkReport) -> frozenset[str]:
    """Return the executors that hold a partition of an active query."""
    return frozenset(
        executor for query in report.queries if query.active for stage in query.stages for executor in stage.placement
    )


def usable_executors(report: LinkReport, drained_nodes: Collection[str]) -> frozenset[str]:
    """Return the executors that may hold partitions."""
    usable = frozenset(info.executor for info in report.executors if info.host not in drained_nodes)
    return usable - frozenset(report.releasing_executors)


@dataclass(frozen=True)
class LoadReading:
    """One measured load of an executor or a query.

    ``key`` names the executor or query, ``sentence`` has the numbers, ``counted`` names what it was measured over.
    ``fresh``: measured since the last observation.
    """

    key: str
    value: float
    limit: float
    sentence: str
    fresh: bool = True
    counted: str = "windows"


@dataclass
class _Level:
    streak: int = 0
    over: bool = False
    due: str = ""


class OverloadDetector:
    """Overloads of one application, and whether they were decided on.

    ``steady_now``: seconds of a steady clock.
    """

    def __init__(self) -> None:
        self._levels: dict[str, _Level] = {}
        self._next_try = 0.0
        self._window: float | None = None  # begin of the last window observed
        self._batches: dict[str, int] = {}  # query -> last batch observed

    def observe(self, readings: Iterable[LoadReading], rules: RescheduleSettings) -> None:
        """Record the readings of one window; what is no longer measured is no longer overloaded."""
        levels: dict[str, _Level] = {}
        for reading in readings if rules.overload_windows else ():
            level = levels[reading.key] = self._levels.get(reading.key, _Level())
            if reading.fresh:
                _advance(level, reading, rules)
        self._levels = levels

    def observe_window(
        self, snapshot: Snapshot, batches: Sequence[BatchReport], window: float, settings: Settings
    ) -> None:
        """Record the loads in a snapshot of measurements.

        Parameters
        ----------
        snapshot, batches
            Model of the application, without a forecast, and its batches.
        window
            Steady seconds of the begin of the agent window; each counts once.
        settings
            Limit of utilization, and number of windows over it.
        """
        fresh, self._window = self._window != window, window
        executors = _executor_readings(snapshot, settings.gate.max_utilization, fresh)
        self.observe([*executors, *self._query_readings(snapshot, batches)], settings.reschedule)

    def due_reason(self, steady_now: float) -> str:
        """Return the overloads to decide on, with their numbers; "" if there is none."""
        if steady_now < self._next_try:
            return ""
        return "; ".join(level.due for level in self._levels.values() if level.due)

    def record(self, decision: Decision, steady_now: float, pause: float = RETRY_EVERY) -> None:
        """Record a decision; only one that was not ready, or has to be agreed on, is taken again.

        ``pause``: seconds until there are new figures for an agreement.
        """
        agreement = decision.reason == Law.AGREEMENTS
        if decision.result == DecisionResult.NOT_READY or agreement:
            self._next_try = steady_now + (pause if agreement else RETRY_EVERY)
            return
        for level in self._levels.values():
            level.due = ""

    def _query_readings(self, snapshot: Snapshot, batches: Sequence[BatchReport]) -> list[LoadReading]:
        readings = []
        self._batches = {name: batch for name, batch in self._batches.items() if name in snapshot.median_batch}
        for name, (usual, _) in snapshot.median_batch.items():
            own, state = batches_of(batches, name), snapshot.queries.get(name)
            if not own or state is None:
                continue
            last = own[-1]
            limit = min(_LONG_BATCH * usual, state.interval) if state.interval else _LONG_BATCH * usual
            rule = (
                f"its trigger's interval is {state.interval:g} s"
                if limit == state.interval
                else f"more than {_LONG_BATCH:g} times the usual {usual:.2f} s"
            )
            sentence = f"the last batch of {query_name(name, state.name)} took {last.seconds:.2f} s, {rule}"
            fresh = self._batches.get(name) != last.batch
            self._batches[name] = last.batch
            readings.append(LoadReading(f"query {name}", last.seconds, limit, sentence, fresh, counted="batches"))
        return readings


def _executor_readings(snapshot: Snapshot, limit: float, fresh: bool) -> list[LoadReading]:
    cluster = snapshot.cluster
    utilization = executor_utilization(cluster, snapshot.workload, snapshot.placement).utilization
    return [
        LoadReading(
            f"executor {name}",
            float(share),
            limit,
            f"executor {name} is {share:.0%} busy, gate.max_utilization is {limit:.0%}",
            fresh,
        )
        for name, share in zip(cluster.executors, utilization, strict=True)
    ]


def _advance(level: _Level, reading: LoadReading, rules: RescheduleSettings) -> None:
    if reading.value > reading.limit:
        level.streak += 1
        if level.streak >= rules.overload_windows and not level.over:
            level.over, level.due = True, f"{reading.sentence}, {level.streak} {reading.counted} in a row"
        return
    level.streak = 0
    if reading.value < _OVER * reading.limit:
        level.over, level.due = False, ""
