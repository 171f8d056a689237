"""What makes the controller decide by itself, and what holds it back.

The first is overload (time and executors are in the controller and in `rechannel.daemon.control.executor_set`); the
second are
cool-downs, excluded periods, the budget of moves an hour, and agreement before a costly move.

Pure: times are given, and what has to outlive a controller is read off the decisions that are kept in Redis. Nobody is
held back for an order: an operator is warned (`SelfActionGuard.warning`), and goes on.

An overload has hysteresis. It begins when an executor's utilization, or a query's batch, was over its limit for so many
windows in a row; it asks for one decision; and it has to fall below a lower bound before it can begin again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.conf.settings import RescheduleSettings, Settings
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.time_windows import calendar_of, clock_time
from rechannel.wire.messages import Decision, DesiredMove, Refusal

TIMEOUT, EXECUTORS, OVERLOAD = "timeout", "executors", "overload"
CONTINUATION = "continuation"  # of a plan that was cut to the moves of one migration
BY_ITSELF = frozenset({TIMEOUT, EXECUTORS, OVERLOAD, CONTINUATION})
EXCLUDED, COOLING, BUDGET, AGREEMENTS = "excluded", "trigger-cooldown", "budget", "agreements"
HELD_BACK = frozenset({EXCLUDED, COOLING, BUDGET})  # laws that refuse before anything is planned
HOUR = 3600.0  # seconds
_RETRY = 10.0  # seconds until a decision that was not ready is taken again
_PATIENCE = 3  # timeouts for which a recommendation counts

Unit = tuple[str, int, int, str]


@dataclass(frozen=True)
class LoadReading:
    """What may be too much: ``key`` of an executor or a query, its value and limit, and words with the numbers.

    ``fresh``: whether it was measured since it was looked at last; else it says nothing new.
    """

    key: str
    value: float
    limit: float
    words: str
    fresh: bool = True


@dataclass
class _Level:
    streak: int = 0
    over: bool = False
    due: str = ""


class OverloadDetector:
    """Which overloads have begun in each application, and whether they were decided on."""

    def __init__(self, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self._levels: dict[str, dict[str, _Level]] = memory.table()
        self._next_try: dict[str, float] = memory.table()

    def see(self, application: str, measures: Iterable[LoadReading], rules: RescheduleSettings) -> None:
        """Take in one window; what is no longer measured is no longer overloaded."""
        known = self._levels.get(application, {})
        now: dict[str, _Level] = {}
        for measure in measures if rules.overload_windows else ():
            level = now[measure.key] = known.get(measure.key, _Level())
            if measure.fresh:
                _step(level, measure, rules)
        self._levels[application] = now

    def due(self, application: str, waited: float) -> str:
        """Say which overload is to be decided on, with its numbers; "" where none is. ``waited``: steady seconds."""
        if waited < self._next_try.get(application, waited):
            return ""
        return "; ".join(level.due for level in self._levels.get(application, {}).values() if level.due)

    def decided(self, application: str, decision: Decision, waited: float, pause: float = _RETRY) -> None:
        """Take in what was decided: only what was not ready is decided on again, and what is to be agreed on.

        ``pause``: seconds until there are other figures to agree on it.
        """
        if decision.outcome == "not-ready" or decision.reason == AGREEMENTS:
            self._next_try[application] = waited + (pause if decision.reason == AGREEMENTS else _RETRY)
            return
        for level in self._levels.get(application, {}).values():
            level.due = ""

    def forget(self) -> None:
        """Forget everything: another controller leads."""
        self._levels.clear()
        self._next_try.clear()


def _step(level: _Level, measure: LoadReading, rules: RescheduleSettings) -> None:
    if measure.value > measure.limit:
        level.streak += 1
        if level.streak >= rules.overload_windows and not level.over:
            level.over, level.due = True, f"{measure.words}, {level.streak} windows in a row"
        return
    level.streak = 0
    if measure.value < rules.overload_release * measure.limit:
        level.over, level.due = False, ""


@dataclass(frozen=True)
class Recommendation:
    """What decisions in a row agreed on: the last one's moves, and how many they are.

    ``at``: when the last one that counted was; ``batches``: query -> its last batch then.
    """

    units: frozenset[Unit]
    at: float
    batches: Mapping[str, int]
    count: int = 1
    costly: bool = False


def overlap(one: frozenset[Unit], other: frozenset[Unit]) -> float:
    """Return the share of the larger one's moves that both have; 1 where neither has any."""
    most = max(len(one), len(other))
    return len(one & other) / most if most else 1.0


def figures_last(settings: Settings) -> float:
    """Return the seconds within which two decisions rest on the same figures: those of the windows averaged."""
    return settings.agent.window * settings.reschedule.windows


def agreed(known: Recommendation | None, now: Recommendation, settings: Settings) -> Recommendation:
    """Return a decision's recommendation with those in a row before it that recommended such moves counted in.

    Two that rest on the same figures count as one, at the time of the first: within the windows that are averaged, or
    without a new batch of any query that they move.
    """
    rules = settings.reschedule
    if known is None or now.at - known.at > _PATIENCE * rules.timeout:
        return now
    if overlap(known.units, now.units) < rules.agreement_overlap:
        return now
    same = 0 <= now.at - known.at < figures_last(settings)
    if same or (now.batches and now.batches.items() <= known.batches.items()):
        return dataclasses.replace(now, at=known.at, batches=known.batches, count=known.count)
    return dataclasses.replace(now, count=known.count + 1)


def units_of(moves: Iterable[DesiredMove]) -> frozenset[Unit]:
    """Return what makes moves the same: the partition, and where it goes."""
    return frozenset((move.query, move.stage, move.partition, move.target) for move in moves)


def within_hour(moved: Mapping[str, tuple[float, int]], now: float) -> int:
    """Count the moves of the last hour; ``moved``: decision -> when, how many. What is ahead of the clock counts."""
    return sum(count for at, count in moved.values() if at > now - HOUR)


def room_from(moved: Mapping[str, tuple[float, int]], now: float, limit: int) -> float:
    """Return the moment from which one more move is within the limit; ``now`` if it is already."""
    left = within_hour(moved, now)
    for at, count in sorted(moved.values()):
        if left < limit:
            break
        if at > now - HOUR:
            now_free, left = at + HOUR, left - count
            if left < limit:
                return now_free
    return now


class SelfActionGuard:
    """What holds the controller back when nobody asks it to move. `take` tells it of every decision that was kept.

    What was moved outlives its application, for an hour: it is everybody's budget.
    """

    def __init__(self, settings: Settings, memory: Memory | None = None) -> None:
        memory = memory or Memory()
        self.settings = settings
        self._last: dict[tuple[str, str], float] = memory.table()  # application, trigger -> its last decision
        self._moved: dict[str, tuple[float, int]] = {}  # decision -> when, how many moves
        self._recommended: dict[str, Recommendation] = memory.table()
        self._told: dict[tuple[str, str, str], float] = memory.table()  # application, trigger, law -> until

    def adopt(self, kept: Sequence[tuple[str, Decision]]) -> None:
        """Learn from the decisions in Redis, oldest first: (application, decision). None: Redis was emptied."""
        if kept:
            self._last.clear()
            self._recommended.clear()
            self._told.clear()
        for application, decision in kept:
            self.take(application, decision)

    def take(self, application: str, decision: Decision) -> None:
        """Take in a decision."""
        if decision.outcome == "applied":
            first = self._moved.get(decision.decision, (decision.at, 0))[0]
            self._moved[decision.decision] = (min(first, decision.at), len(decision.moves))
            self._moved = {name: it for name, it in self._moved.items() if it[0] > decision.at - HOUR}
            self._recommended.pop(application, None)
        for refusal in decision.refusals:
            if decision.reason in HELD_BACK and refusal.law == decision.reason:
                self._told[application, decision.trigger, refusal.law] = refusal.until
                return
        if decision.trigger not in BY_ITSELF or decision.outcome == "not-ready" or decision.reason in HELD_BACK:
            return
        if decision.reason != AGREEMENTS:  # those are to come one after the other
            self._last[application, decision.trigger] = decision.at
        if decision.outcome != "applied" and decision.reason in ("ok", AGREEMENTS):
            costly = decision.reason == AGREEMENTS
            now = Recommendation(units_of(decision.moves), decision.at, decision.last_batches, costly=costly)
            self._recommended[application] = agreed(self._recommended.get(application), now, self.settings)
        elif decision.reason != "cooldown":  # that is about the last migration, not about this plan
            self._recommended.pop(application, None)

    def copy(self) -> SelfActionGuard:
        """Return what is known at this moment, for a plan that is made while others decide."""
        copy = SelfActionGuard(self.settings)
        for mine, its in zip(self._tables(), copy._tables(), strict=True):
            its.update(mine)
        return copy

    def _tables(self) -> tuple[dict[Any, Any], ...]:
        return self._last, self._moved, self._recommended, self._told

    def held(self, trigger: str, application: str, now: float) -> Refusal | None:
        """Say why nothing begins by itself now; None where something may."""
        return self.excluded(now) or self.cooling(trigger, application, now) or self._spent(now)

    def excluded(self, now: float) -> Refusal | None:
        """Say which excluded period it is; None where it is none."""
        rules = self.settings.reschedule
        span = calendar_of(rules.excluded, rules.time_zone).inside(now) if rules.excluded else None
        if span is None:
            return None
        until = clock_time(span.end, rules.time_zone)
        detail = f"nothing begins by itself in the excluded period {span.text}, until {until} (reschedule.excluded)"
        return Refusal(law=EXCLUDED, scope="plan", detail=detail, until=span.end)

    def tell(self, trigger: str, application: str, refusal: Refusal) -> bool:
        """Whether this is to be told: once for each cause and period."""
        return self._told.get((application, trigger, refusal.law)) != refusal.until

    def room(self, now: float) -> int | None:
        """Return how many moves the budget leaves, None for any number."""
        limit = self.settings.reschedule.moves_per_hour
        return max(0, limit - within_hour(self._of_hour(now), now)) if limit else None

    def warning(self, now: float, moves: int = 0) -> str:
        """Say what an order of so many moves goes against, from "; " on; "" where it goes against nothing."""
        rules, said = self.settings.reschedule, ""
        span = calendar_of(rules.excluded, rules.time_zone).inside(now) if rules.excluded else None
        if span is not None:
            until = clock_time(span.end, rules.time_zone)
            said += f"; warning: this is in the excluded period {span.text}, until {until}"
        room = self.room(now)
        if room is not None and moves > room:
            used = within_hour(self._of_hour(now), now)
            said += (
                f"; warning: {used + moves} moves within an hour, reschedule.moves_per_hour is {rules.moves_per_hour}"
            )
        return said

    def agreement(
        self,
        application: str,
        moves: Sequence[DesiredMove],
        cost: float,
        total: int,
        at: float,
        batches: Mapping[str, int],
    ) -> Refusal | None:
        """Say how often a costly plan was recommended, where that is not often enough; None where it may be done.

        ``cost`` in seconds of batch time; ``total``: partitions there are; ``batches``: as the decision will have them.
        """
        rules = self.settings.reschedule
        share = len(moves) / total if total else 0.0
        dear, large = cost > rules.costly, share > rules.costly_share
        if not moves or not (dear or large):
            return None
        now = Recommendation(units_of(moves), at, batches)
        count = agreed(self._recommended.get(application), now, self.settings).count
        if count >= rules.agreements:
            return None
        why = (
            f"it adds {cost:.1f} s to the batches, reschedule.costly is {rules.costly:g} s"
            if dear
            else (f"it moves {share:.0%} of the partitions, reschedule.costly_share is {rules.costly_share:.0%}")
        )
        detail = (
            f"a costly plan, recommended {count} of {rules.agreements} times in a row (reschedule.agreements): {why}"
        )
        return Refusal(
            law=AGREEMENTS, scope="plan", detail=detail, measured=count, limit=rules.agreements, unit="decisions"
        )

    def words(self, application: str, now: float) -> str:
        """Say what holds an application back now, or was agreed so far, from ", " on; "" where there is nothing."""
        known = self._recommended.get(application)
        said = ""
        if known is not None and known.costly and now - known.at <= _PATIENCE * self.settings.reschedule.timeout:
            said = f", a costly plan was recommended {known.count} of {self.settings.reschedule.agreements} times"
        period = self.excluded(now)
        spent = self._spent(now)
        said += f", {period.detail}" if period is not None else ""
        return said + (f", {spent.detail}" if spent is not None else "")

    def cooling(self, trigger: str, application: str, now: float) -> Refusal | None:
        """Say how long ago the last decision by a trigger was, where that is not long enough; None where it is."""
        rest = float(getattr(self.settings.reschedule, f"{trigger}_cooldown", 0.0))
        last = self._last.get((application, trigger))
        if last is None or not 0 <= now - last < rest:  # a clock that was set back holds nobody back
            return None
        detail = (
            f"the last decision by {trigger} was {now - last:.0f} s ago, reschedule.{trigger}_cooldown is {rest:g} s"
        )
        return Refusal(
            law=COOLING, scope="plan", detail=detail, measured=now - last, limit=rest, unit="s", until=last + rest
        )

    def _of_hour(self, now: float) -> Mapping[str, tuple[float, int]]:
        """What was moved, and when. What is ahead of a clock that was set back counts for an hour from then on."""
        self._moved = {name: (min(at, now), count) for name, (at, count) in self._moved.items()}
        return self._moved

    def _spent(self, now: float) -> Refusal | None:
        rules = self.settings.reschedule
        if self.room(now) != 0:
            return None
        moved = self._of_hour(now)
        used, until = within_hour(moved, now), room_from(moved, now, rules.moves_per_hour)
        detail = (
            f"{used} moves within an hour, reschedule.moves_per_hour is {rules.moves_per_hour}: room again at "
            f"{clock_time(until, rules.time_zone)}"
        )
        return Refusal(
            law=BUDGET,
            scope="plan",
            detail=detail,
            measured=used,
            limit=rules.moves_per_hour,
            unit="moves",
            until=until,
        )
