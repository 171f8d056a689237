"""Overload detection: executors and queries that were over their limit for several windows in a row.

An overload has hysteresis. It begins after ``reschedule.overload_windows`` windows over the limit and asks for one
decision; it has to fall below ``reschedule.overload_release`` of the limit before it can begin again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rechannel.conf.settings import RescheduleSettings
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.wire.codes import Law, Outcome
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision
from rechannel.wire.printable import query_name

_RETRY_AFTER = 10.0  # seconds until a decision that was not ready is taken again


@dataclass(frozen=True)
class LoadReading:
    """One measured load of an executor or a query.

    ``key`` names the executor or query, ``sentence`` has the numbers. ``fresh``: measured since the last observation.
    """

    key: str
    value: float
    limit: float
    sentence: str
    fresh: bool = True


@dataclass
class _Level:
    streak: int = 0
    over: bool = False
    due: str = ""


class OverloadDetector:
    """Overloads of one application, and whether they were decided on."""

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
        self, snapshot: Snapshot, batches: Sequence[BatchReport], window: float, rules: RescheduleSettings
    ) -> None:
        """Record the loads in a snapshot of measurements (not of forecasts); each ``window`` counts once."""
        fresh, self._window = self._window != window, window
        executors = _executor_readings(snapshot, rules.overload_utilization, fresh)
        self.observe([*executors, *self._query_readings(snapshot, batches, rules.overload_duration)], rules)

    def due(self, waited: float) -> str:
        """Return the overloads to decide on, with their numbers; "" if there is none. ``waited``: steady seconds."""
        if waited < self._next_try:
            return ""
        return "; ".join(level.due for level in self._levels.values() if level.due)

    def record(self, decision: Decision, waited: float, pause: float = _RETRY_AFTER) -> None:
        """Record a decision; only one that was not ready, or has to be agreed on, is taken again.

        ``pause``: seconds until there are new figures for an agreement.
        """
        agreement = decision.reason == Law.AGREEMENTS
        if decision.outcome == Outcome.NOT_READY or agreement:
            self._next_try = waited + (pause if agreement else _RETRY_AFTER)
            return
        for level in self._levels.values():
            level.due = ""

    def _query_readings(self, snapshot: Snapshot, batches: Sequence[BatchReport], times: float) -> list[LoadReading]:
        readings = []
        for name, (usual, _) in snapshot.usual.items():
            last = max((batch for batch in batches if batch.query == name), key=lambda batch: batch.batch, default=None)
            state = snapshot.queries.get(name)
            if last is None or state is None:
                continue
            limit = min(times * usual, state.interval) if state.interval else times * usual
            rule = (
                f"its trigger's interval is {state.interval:g} s"
                if limit == state.interval
                else f"usual are {usual:.2f} s, reschedule.overload_duration is {times:g} times that"
            )
            sentence = f"the last batch of {query_name(name, state.name)} took {last.seconds:.2f} s, {rule}"
            fresh = self._batches.get(name) != last.batch
            self._batches[name] = last.batch
            readings.append(LoadReading(f"query {name}", last.seconds, limit, sentence, fresh))
        return readings


def _executor_readings(snapshot: Snapshot, limit: float, fresh: bool) -> list[LoadReading]:
    cluster = snapshot.cluster
    utilization = executor_utilization(cluster, snapshot.workload, snapshot.placement).utilization
    return [
        LoadReading(
            f"executor {name}",
            float(share),
            limit,
            f"executor {name} is {share:.0%} busy, reschedule.overload_utilization is {limit:.0%}",
            fresh,
        )
        for name, share in zip(cluster.executors, utilization, strict=True)
    ]


def _advance(level: _Level, reading: LoadReading, rules: RescheduleSettings) -> None:
    if reading.value > reading.limit:
        level.streak += 1
        if level.streak >= rules.overload_windows and not level.over:
            level.over, level.due = True, f"{reading.sentence}, {level.streak} windows in a row"
        return
    level.streak = 0
    if reading.value < rules.overload_release * reading.limit:
        level.over, level.due = False, ""
