"""Automatic triggers with state: changed executors, overloads, and imbalance.

An overload has hysteresis. It begins after ``reschedule.trigger_windows`` windows over the limit and asks for one
decision; it has to fall well below the limit before it can begin again. An imbalance is compared with what can be
reached.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import ClassVar

from rechannel.conf.settings import RescheduleSettings, Settings
from rechannel.daemon.control.guard import NO_ANSWER
from rechannel.daemon.model.application_messages import averaging_time
from rechannel.daemon.model.newest_load import NewestLoad
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.wire.codes import DecisionResult, Law, Mode, NotReadyReason, Trigger
from rechannel.wire.messages import Decision, LinkReport
from rechannel.wire.printable import query_name

_LONG_BATCH = 2.0  # times the usual length of a query's batches: it is overloaded
_OVER = 0.85  # share of its limit below which an overload is over
_FIRST_PAUSE = 10.0  # seconds until the next decision by changed executors, if refused, or by load; doubles each time
_LONGEST_PAUSE = 300.0  # seconds between two decisions by load, and between two pauses that an outcome ends
RETRY_EVERY = 10.0  # seconds between two decisions that were not ready, or on the same order
_RETRY_BATCHES = 5.0  # the same where only batches are missing, which is seen without a model
_REOPENED = 60.0  # seconds without a change of the queries, after which one makes the pause short and counts anew
_RECENT = 3  # observations, of which the highest imbalance is that of a decision


def pause_of(decision: Decision, settings: Settings) -> float | None:
    """Return the seconds after which a decision is taken again; None if it is final.

    It is not final if it was not ready, or has to be agreed on, which takes new figures.
    """
    if decision.reason == Law.AGREEMENTS:
        return averaging_time(settings)
    if decision.reason == NotReadyReason.TOO_FEW_BATCHES:
        return _RETRY_BATCHES
    return RETRY_EVERY if decision.result == DecisionResult.NOT_READY else None


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
        return changed and self.is_stable(steady_now, settings) and steady_now >= self._next_try

    def is_stable(self, steady_now: float, settings: Settings) -> bool:
        """Return whether the set of executors has been the same for long enough."""
        return steady_now - self.since >= settings.reschedule.settle

    def record(self, decision: Decision, report: LinkReport, steady_now: float, settings: Settings) -> None:
        """Record the decision on a change."""
        if (pause := pause_of(decision, settings)) is not None:
            self._next_try = steady_now + pause
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
    usable = frozenset(info.executor for info in report.executors if info.node_name not in drained_nodes)
    return usable - frozenset(report.releasing_executors)


class LoadTrigger(ABC):
    """Trigger of one application by its measured load.

    The pause between two decisions because of it grows. It is short again after a time without any, and a confirmed
    outcome of a migration ends it, once in five minutes. ``steady_now``: seconds of a steady clock.
    """

    trigger: ClassVar[Trigger]

    def __init__(self) -> None:
        self._next_try = 0.0
        self._last_decision, self._pause = -math.inf, _FIRST_PAUSE
        self._ended_early = -math.inf  # when an outcome ended a pause
        self.load_since = 0.0  # seconds since the epoch since which the load is the present one, 0 if it did not change

    def observe_window(self, snapshot: Snapshot, window: float, settings: Settings) -> None:  # noqa: B027
        """Record the loads in a snapshot of measurements, which is one without a forecast.

        ``window``: steady seconds of the begin of the agent window; each counts once.
        """

    def observe_batches(self, load: NewestLoad | None, steady_now: float, settings: Settings) -> None:  # noqa: B027
        """Record the load of the newest batches; None while moves are under way, as they show."""

    def confirm(self, steady_now: float) -> None:
        """End the pause: the last migration brought what was predicted.

        Once in a while: a load that alternates must not have partitions move with it.
        """
        if self._next_try > steady_now and steady_now - self._ended_early >= _LONGEST_PAUSE:
            self._next_try, self._ended_early = 0.0, steady_now

    @abstractmethod
    def interrupt(self) -> None:
        """Forget what is under way: it may end unseen while the application is not ready."""

    def due_reason(self, steady_now: float) -> str:
        """Return what is to be decided on, with its numbers; "" if there is nothing."""
        return self._reason() if steady_now >= self._next_try else ""

    def record(self, decision: Decision, steady_now: float, settings: Settings) -> None:
        """Record a decision that was automatic, or that moves something.

        It is taken again if it was not ready, or has to be agreed on. One that was refused whatever the load is, such
        as by the cool-down, is no answer. One because of this trigger begins a pause.
        """
        if decision.reason not in NO_ANSWER:
            if (pause := self._pause_of(decision, settings)) is None:
                self._settle(decision, settings)
            else:
                self._next_try = max(self._next_try, steady_now + pause)
        if decision.trigger == self.trigger and decision.result != DecisionResult.NOT_READY:
            self._begin_pause(steady_now, min(settings.reschedule.timeout, _LONGEST_PAUSE))

    def _begin_pause(self, steady_now: float, longest: float) -> None:
        if steady_now - self._last_decision > 2 * longest:
            self._pause = _FIRST_PAUSE
        self._next_try = max(self._next_try, steady_now + self._pause)
        self._last_decision, self._pause = steady_now, min(2 * self._pause, longest)

    def _pause_of(self, decision: Decision, settings: Settings) -> float | None:
        return pause_of(decision, settings)

    @abstractmethod
    def _reason(self) -> str: ...

    @abstractmethod
    def _settle(self, decision: Decision, settings: Settings) -> None: ...


class ImbalanceTrigger(LoadTrigger):
    """Trigger of one application whose executors are loaded more unevenly than they need be.

    The imbalance is the utilization of the busiest executor over the mean of all. A decision is due where that could
    fall by ``gate.min_gain``, to what can be reached: the highest of the last three observations at the last decision
    that moved nothing, less half of a gain that was refused as too small. Half, because the next prediction may be
    another one. What can be reached is 1 again after a migration, so that what it left is decided on by its batches;
    when a query ends or has enough batches; and once the mode is ``apply``: what nothing could be done about is open
    again.

    The first decision has few batches with the new load. If the gate refuses it, whatever its trigger, there is another
    one when all averaged batches have that load.
    """

    trigger = Trigger.IMBALANCE

    def __init__(self) -> None:
        super().__init__()
        self._reachable = 1.0
        self._recent: deque[float] = deque([1.0], _RECENT)
        self._refused = 0.0  # share that the gate refused to gain, as it is too small
        self._due = ""
        self._streak = 0
        self._newest: dict[str, int] = {}  # query -> last batch observed
        self._queries: set[str] = set()  # with enough batches for a decision, at the last observation
        self._reopened = -math.inf
        self._mode = Mode.APPLY
        self._again = False  # to be decided on once more

    def observe_batches(self, load: NewestLoad | None, steady_now: float, settings: Settings) -> None:
        """Record the imbalance of the newest batches; each batch counts once."""
        if load is None:
            self.interrupt()
            return
        start = load.start_after(self._newest)
        counts = {query.query: len(load.batches[query.query]) for query in load.queries}
        queries = {query for query, count in counts.items() if count >= settings.reschedule.batches}
        if queries != self._queries:
            self._reopen(steady_now)
        self._newest, self._queries = load.newest, queries
        if not settings.reschedule.trigger_windows:
            self.interrupt()
        elif start < math.inf:
            self._observe(load, start, settings)

    def _observe(self, load: NewestLoad, start: float, settings: Settings) -> None:
        imbalance = load.imbalance()
        if self._mode != (mode := Mode(settings.reschedule.mode)):
            self._mode = mode
            if mode == Mode.APPLY:
                self._reachable, self._again, self._next_try, self._pause = 1.0, False, 0.0, _FIRST_PAUSE
        self._recent.append(imbalance)
        if imbalance * (1 - settings.gate.min_gain) <= self._reachable:
            self.interrupt()
            return
        if not self._streak:
            self.load_since = start
        self._streak += 1
        self._due = ""
        need = settings.reschedule.trigger_windows
        # Batches of before tell of another load.
        enough = bool(self._queries) and load.tells(self.load_since, need, averaging_time(settings))
        if enough and need <= self._streak:
            self._due = (
                f"the busiest executor has {imbalance:.2f} times the mean load, {self._streak} times in a row; "
                f"{self._reachable:.2f} times can be reached"
            )

    def _reopen(self, steady_now: float) -> None:
        """Compare with an even load, as other queries run.

        The pause between decisions is short again too, and what is under way is forgotten, except where queries come
        and go all the time: nothing would ever be decided.
        """
        if steady_now - self._reopened >= _REOPENED:
            self._next_try, self._pause = 0.0, _FIRST_PAUSE
            self.interrupt()
        self._reopened, self._again = steady_now, False
        self._reachable, self._recent = 1.0, deque([1.0], _RECENT)

    def interrupt(self) -> None:
        """Count the batches anew; an imbalance that the gate refused is decided on."""
        if self._again:
            self._conclude()
        self._streak, self._due, self.load_since = 0, "", 0.0

    def record(self, decision: Decision, steady_now: float, settings: Settings) -> None:
        """Record a decision; before the second one on an imbalance, only a migration."""
        if not self._again or steady_now >= self._next_try or decision.result == DecisionResult.APPLIED:
            super().record(decision, steady_now, settings)

    def _pause_of(self, decision: Decision, settings: Settings) -> float | None:
        if not self._again and self._due and decision.reason == Law.GATE:
            self._again, self._refused = True, _refused_gain(decision, settings)
            return averaging_time(settings)
        return super()._pause_of(decision, settings)

    def _reason(self) -> str:
        return self._due

    def confirm(self, steady_now: float) -> None:
        """End the pause, except that before a second decision."""
        if not self._again:
            super().confirm(steady_now)

    def _settle(self, decision: Decision, settings: Settings) -> None:
        if decision.result == DecisionResult.APPLIED:
            self._recent = deque([1.0], _RECENT)
        self._refused = _refused_gain(decision, settings)
        self._conclude()
        self.interrupt()

    def _conclude(self) -> None:
        """Compare with what can be reached after the decision from now on."""
        self._reachable, self._again = max(1.0, max(self._recent) * (1 - self._refused / 2)), False


def _refused_gain(decision: Decision, settings: Settings) -> float:
    """Return the share that a batch would gain, where the gate refused that as too small."""
    if decision.reason != Law.GATE:
        return 0.0
    after = decision.batch_time_after
    before = decision.batch_time_before.items()
    gain = max((1 - after.get(query, seconds) / seconds for query, seconds in before if seconds > 0), default=0.0)
    return gain if 0 < gain < settings.gate.min_gain else 0.0


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


class OverloadTrigger(LoadTrigger):
    """Trigger of one application of which an executor or a query is overloaded."""

    trigger = Trigger.OVERLOAD

    def __init__(self) -> None:
        super().__init__()
        self._levels: dict[str, _Level] = {}
        self._window: float | None = None  # begin of the last window observed
        self._batches: dict[str, int] = {}  # query -> last batch observed

    def observe(self, readings: Iterable[LoadReading], rules: RescheduleSettings) -> None:
        """Record the readings of one window; what is no longer measured is no longer overloaded."""
        levels: dict[str, _Level] = {}
        for reading in readings if rules.trigger_windows else ():
            level = levels[reading.key] = self._levels.get(reading.key, _Level())
            if reading.fresh:
                _advance(level, reading, rules)
        self._levels = levels

    def observe_window(self, snapshot: Snapshot, window: float, settings: Settings) -> None:
        """Record the loads of executors and queries in a snapshot."""
        fresh, self._window = self._window != window, window
        executors = _executor_readings(snapshot, settings.gate.max_utilization, fresh)
        self.observe([*executors, *self._query_readings(snapshot)], settings.reschedule)

    def interrupt(self) -> None:
        """Let every overload begin anew."""
        self._levels = {}

    def _reason(self) -> str:
        return "; ".join(level.due for level in self._levels.values() if level.due)

    def _settle(self, _decision: Decision, _settings: Settings) -> None:
        for level in self._levels.values():
            level.due = ""

    def _query_readings(self, snapshot: Snapshot) -> list[LoadReading]:
        readings = []
        self._batches = {name: batch for name, batch in self._batches.items() if name in snapshot.median_batch}
        for name, (usual, _) in snapshot.median_batch.items():
            last, state = snapshot.measured_queries.queries[name].recent[-1], snapshot.queries[name]
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
    return [
        LoadReading(
            f"executor {name}",
            float(share),
            limit,
            f"executor {name} is {share:.0%} busy, gate.max_utilization is {limit:.0%}",
            fresh,
        )
        for name, share in zip(snapshot.cluster.executors, snapshot.utilization, strict=True)
    ]


def _advance(level: _Level, reading: LoadReading, rules: RescheduleSettings) -> None:
    if reading.value > reading.limit:
        level.streak += 1
        if level.streak >= rules.trigger_windows and not level.over:
            level.over, level.due = True, f"{reading.sentence}, {level.streak} {reading.counted} in a row"
        return
    level.streak = 0
    if reading.value < _OVER * reading.limit:
        level.over, level.due = False, ""


class LoadTriggers:
    """The load triggers of one application, by priority; the methods are those of one."""

    def __init__(self) -> None:
        self._triggers: tuple[LoadTrigger, ...] = (OverloadTrigger(), ImbalanceTrigger())

    def due(self, steady_now: float, *, is_stable: bool) -> list[tuple[Trigger, str, float]]:
        """Return those that are due, why, and the time since which the load is the present one.

        An overload often comes with an imbalance, which tells that time to both. ``is_stable``: the set of executors is
        the same.
        """
        reasons = [
            (one, one.due_reason(steady_now)) for one in self._triggers if is_stable or one.trigger != Trigger.IMBALANCE
        ]
        since = max((one.load_since for one, reason in reasons if reason), default=0.0)
        return [(one.trigger, reason, since) for one, reason in reasons if reason]

    def observe_window(self, snapshot: Snapshot, window: float, settings: Settings) -> None:
        """Show a snapshot to all."""
        for one in self._triggers:
            one.observe_window(snapshot, window, settings)

    def observe_batches(self, load: NewestLoad | None, steady_now: float, settings: Settings) -> None:
        """Show the newest batches to all."""
        for one in self._triggers:
            one.observe_batches(load, steady_now, settings)

    def record(self, decision: Decision, steady_now: float, settings: Settings) -> None:
        """Record a decision with all."""
        for one in self._triggers:
            one.record(decision, steady_now, settings)

    def confirm(self, steady_now: float) -> None:
        """End the pauses of all, after a migration whose outcome is confirmed."""
        for one in self._triggers:
            one.confirm(steady_now)

    def interrupt(self) -> None:
        """Have all forget what is under way."""
        for one in self._triggers:
            one.interrupt()
