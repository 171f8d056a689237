"""Guards of automatic decisions: periods, budget, agreement, repetition.

Pure: times are arguments, and what has to outlive a controller is restored from the decision log. An operator's order
is never held back; it is warned (`ClusterLimits.order_warning`) and carried out.

    trigger        ordered            guarded            cool-down of a migration    tried again
    timeout        -                  yes                refuses                     at the next timeout
    executors      -                  yes                is waited for               within seconds
    overload       -                  yes                is waited for               within seconds
    imbalance      -                  yes                is waited for               within seconds
    continuation   -                  yes                -                           within seconds
    operator       yes                -                  refuses, unless forced      -
    scheduled      yes                -                  is waited for, or forced    within seconds
    drain          yes                -                  -                           within seconds
    rollback       or of itself       excluded periods   -                           within seconds
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rechannel.conf.settings import Settings
from rechannel.conf.time_windows import TimeWindow, calendar_of, clock_time
from rechannel.daemon.model.application_messages import averaging_time
from rechannel.daemon.model.usual_batch import UsualBatch, is_same_load, usual_batches
from rechannel.wire.codes import DecisionResult, Law, PlanResult, Trigger
from rechannel.wire.messages import Decision, DesiredMove, Refusal

AUTOMATIC = frozenset({Trigger.TIMEOUT, Trigger.EXECUTORS, Trigger.OVERLOAD, Trigger.IMBALANCE, Trigger.CONTINUATION})
AWAITING_OUTCOME = frozenset({Trigger.TIMEOUT, Trigger.IMBALANCE})  # that wait for the last migration's outcome
BLOCKING = frozenset({Law.EXCLUDED, Law.BUDGET})  # laws that refuse before anything is planned
HOUR = 3600.0  # seconds
NO_ANSWER = BLOCKING | {Law.COOLDOWN, Law.PAUSED}  # reasons that say nothing about load or executors
AGREEMENTS = 2  # decisions in a row that must recommend a costly plan
OVERLAP = 0.5  # share of equal moves (the same partition to the same executor) for two plans to agree
COSTLY, COSTLY_SHARE = 30.0, 0.75  # seconds that a costly plan adds to the batches; share of the partitions it moves
_STALE_AFTER = 3  # timeouts for which a recommendation counts

MoveKey = tuple[str, int, int, str]  # query, stage, partition, target
MoveCounts = Mapping[str, tuple[float, int]]  # decision -> time, number of moves


@dataclass(frozen=True)
class Recommendation:
    """The moves that consecutive decisions agreed on, and how many decisions these are.

    ``at``: time of the last decision that counted; ``batches``: query -> its last batch at that time.
    """

    moves: frozenset[MoveKey]
    at: float
    batches: Mapping[str, int]
    count: int = 1
    costly: bool = False


@dataclass(frozen=True)
class RolledBackPlan:
    """Moves that a rollback ended, with the usual batch of each query and the executors then."""

    moves: frozenset[MoveKey]
    usual_batches: Mapping[str, UsualBatch]
    executors: frozenset[str]

    @classmethod
    def of(cls, rollback: Decision) -> RolledBackPlan:
        """Return the plan that a rollback ended."""
        moves = frozenset((move.query, move.stage, move.partition, move.source) for move in rollback.moves)
        return cls(moves, usual_batches(rollback), executors_of(rollback))

    def resembles(self, decision: Decision) -> bool:
        """Return whether a plan is like it, on the same executors and under the same load.

        Compared are the loads of the queries that both plans move.
        """
        batches = usual_batches(decision)
        common = batches.keys() & self.usual_batches.keys()
        return (
            len(self.moves & move_keys(decision.moves)) >= OVERLAP * max(1, len(self.moves))
            and executors_of(decision) == self.executors
            and bool(common)
            and all(is_same_load(batches[query], self.usual_batches[query]) for query in common)
        )


def executors_of(decision: Decision) -> frozenset[str]:
    """Return the executors that a decision was made for."""
    return frozenset(load.executor for load in decision.executors)


def overlap(one: frozenset[MoveKey], other: frozenset[MoveKey]) -> float:
    """Return the common share of the larger set; 1 if both are empty."""
    most = max(len(one), len(other))
    return len(one & other) / most if most else 1.0


def combine(before: Recommendation | None, latest: Recommendation, settings: Settings) -> Recommendation:
    """Return the latest recommendation, counted with those before it that agree.

    Two recommendations from the same figures count once, at the time of the first: within the windows that are
    averaged, or without a new batch of any query that they move.
    """
    if before is None or latest.at - before.at > _STALE_AFTER * settings.reschedule.timeout:
        return latest
    if overlap(before.moves, latest.moves) < OVERLAP:
        return latest
    same = 0 <= latest.at - before.at < averaging_time(settings)
    if same or (latest.batches and latest.batches.items() <= before.batches.items()):
        return dataclasses.replace(latest, at=before.at, batches=before.batches, count=before.count)
    return dataclasses.replace(latest, count=before.count + 1)


def move_keys(moves: Iterable[DesiredMove]) -> frozenset[MoveKey]:
    """Return the identity of each move: its partition and its target."""
    return frozenset((move.query, move.stage, move.partition, move.target) for move in moves)


def moves_within_hour(counts: MoveCounts, now: float) -> int:
    """Return the number of moves in the last hour; times ahead of the clock count."""
    return sum(count for at, count in counts.values() if at > now - HOUR)


def next_room(counts: MoveCounts, now: float, limit: int) -> float:
    """Return the time from which one more move is within the limit; ``now`` if it already is."""
    left = moves_within_hour(counts, now)
    for at, count in sorted(counts.values()):
        if left < limit:
            break
        if at > now - HOUR:
            free, left = at + HOUR, left - count
            if left < limit:
                return free
    return now


class ClusterLimits:
    """Limits of all applications together: excluded periods, and the budget of moves."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._moves: dict[str, tuple[float, int]] = {}  # decision -> time, number of moves

    def record(self, decision: Decision) -> None:
        """Count the moves of an applied decision."""
        first = self._moves.get(decision.decision, (decision.at, 0))[0]
        self._moves[decision.decision] = (min(first, decision.at), len(decision.moves))
        self._moves = {name: entry for name, entry in self._moves.items() if entry[0] > decision.at - HOUR}

    def blocked_by(self, now: float) -> Refusal | None:
        """Return why nothing may begin automatically now, or None."""
        return self.excluded_period(now) or self.spent_budget(now)

    def excluded_period(self, now: float) -> Refusal | None:
        """Return the refusal of an excluded period, or None outside one."""
        period = self._period_at(now)
        if period is None:
            return None
        span, text = period
        detail = f"nothing begins automatically in the {text} (reschedule.excluded)"
        return Refusal(law=Law.EXCLUDED, detail=detail, until=span.end)

    def moves_left(self, now: float) -> int | None:
        """Return the moves left in the budget, None for any number."""
        limit = self.settings.reschedule.moves_per_hour
        return max(0, limit - moves_within_hour(self._counts(now), now)) if limit else None

    def spent_budget(self, now: float) -> Refusal | None:
        """Return the refusal of a spent budget, or None while moves are left."""
        rules = self.settings.reschedule
        if self.moves_left(now) != 0:
            return None
        counts = self._counts(now)
        used, until = moves_within_hour(counts, now), next_room(counts, now, rules.moves_per_hour)
        detail = (
            f"{used} moves within an hour, reschedule.moves_per_hour is {rules.moves_per_hour}: room again at "
            f"{clock_time(until, rules.time_zone)}"
        )
        return Refusal(
            law=Law.BUDGET,
            detail=detail,
            measured=used,
            limit=rules.moves_per_hour,
            unit="moves",
            until=until,
        )

    def order_warning(self, now: float, moves: int = 0) -> str:
        """Return the limits that an order of so many moves exceeds, each after "; ".

        "" if there is none.
        """
        rules, period = self.settings.reschedule, self._period_at(now)
        text = f"; warning: this is in the {period[1]}" if period is not None else ""
        left = self.moves_left(now)
        if left is not None and moves > left:
            total = moves_within_hour(self._counts(now), now) + moves
            text += f"; warning: {total} moves within an hour, reschedule.moves_per_hour is {rules.moves_per_hour}"
        return text

    def _period_at(self, now: float) -> tuple[TimeWindow, str] | None:
        """Return the excluded period of a moment, also in words, or None."""
        rules = self.settings.reschedule
        span = calendar_of(rules.excluded, rules.time_zone).inside(now)
        if span is None:
            return None
        return span, f"excluded period {span.text}, until {clock_time(span.end, rules.time_zone)}"

    def _counts(self, now: float) -> MoveCounts:
        # After the clock was set back, times ahead of it count for an hour from now on.
        self._moves = {name: (min(at, now), count) for name, (at, count) in self._moves.items()}
        return self._moves


class AutomaticDecisionGuard:
    """Guard of one application's automatic decisions."""

    def __init__(self, limits: ClusterLimits) -> None:
        self._limits = limits
        self._recommended: Recommendation | None = None
        self._rolled_back: RolledBackPlan | None = None
        self._logged: dict[tuple[str, str], float] = {}  # trigger, law -> end of the refusal that was logged

    def clear(self) -> None:
        """Drop everything, before the decision log is read again."""
        self._recommended = self._rolled_back = None
        self._logged.clear()

    def record(self, decision: Decision) -> None:
        """Record a published decision."""
        if decision.result == DecisionResult.APPLIED:
            self._limits.record(decision)
            self._recommended = None
            if decision.rollback_of:
                self._rolled_back = RolledBackPlan.of(decision)
            elif decision.trigger not in AUTOMATIC:
                self._rolled_back = None  # an operator decided otherwise since
        if decision.reason in BLOCKING:
            until = next((refusal.until for refusal in decision.refusals if refusal.law == decision.reason), None)
            if until is not None:
                self._logged[decision.trigger, decision.reason] = until
        elif (
            decision.trigger in AUTOMATIC
            and decision.result != DecisionResult.NOT_READY
            and decision.reason not in NO_ANSWER
        ):
            self._record_advice(decision)

    def _record_advice(self, decision: Decision) -> None:
        """Record an automatic decision that rests on a plan."""
        costly = decision.reason == Law.AGREEMENTS
        if decision.result != DecisionResult.APPLIED and (costly or decision.reason == PlanResult.OK):
            self._recommended = self._combined(decision, costly=costly)
        else:
            self._recommended = None

    def mending_moves(self, now: float) -> int:
        """Return the most moves of a drain that also evens out what it leaves.

        0 if it may not, as after a rollback, whose moves might come again.
        """
        if self._rolled_back is not None or self._limits.blocked_by(now) is not None:
            return 0
        left = self._limits.moves_left(now)
        return self._limits.settings.migration.max_moves if left is None else left

    def should_log(self, trigger: Trigger, refusal: Refusal) -> bool:
        """Return whether a refusal is to be published: once for each cause and period."""
        return self._logged.get((trigger, refusal.law)) != refusal.until

    def repetition(self, decision: Decision) -> Refusal | None:
        """Return the refusal of a plan like the one that was rolled back last, or None."""
        if not decision.moves or self._rolled_back is None or not self._rolled_back.resembles(decision):
            return None
        detail = "a plan like this one was rolled back, and neither the load nor the executors have changed since"
        return Refusal(law=Law.REPETITION, detail=detail)

    def agreement(self, decision: Decision, partitions: int) -> Refusal | None:
        """Return the refusal of a costly plan that was not recommended often enough, or None.

        ``decision`` is the draft to judge; ``partitions``: how many the application has.
        """
        share = len(decision.moves) / partitions if partitions else 0.0
        expensive = decision.cost > COSTLY
        if not decision.moves or not (expensive or share > COSTLY_SHARE):
            return None
        count = self._combined(decision).count
        if count >= AGREEMENTS:
            return None
        why = (
            f"it adds {decision.cost:.1f} s to the batches, more than {COSTLY:g} s"
            if expensive
            else f"it moves {share:.0%} of the partitions, more than {COSTLY_SHARE:.0%}"
        )
        detail = f"a costly plan, recommended {count} of {AGREEMENTS} times in a row: {why}"
        return Refusal(law=Law.AGREEMENTS, detail=detail, measured=count, limit=AGREEMENTS, unit="decisions")

    def describe(self, now: float) -> str:
        """Return what holds the application back and what was agreed so far, each after ", ".

        "" for nothing.
        """
        timeout, before, text = self._limits.settings.reschedule.timeout, self._recommended, ""
        if before is not None and before.costly and now - before.at <= _STALE_AFTER * timeout:
            text = f", a costly plan was recommended {before.count} of {AGREEMENTS} times"
        for refusal in (self._limits.excluded_period(now), self._limits.spent_budget(now)):
            text += f", {refusal.detail}" if refusal is not None else ""
        return text

    def _combined(self, decision: Decision, *, costly: bool = False) -> Recommendation:
        latest = Recommendation(move_keys(decision.moves), decision.at, decision.last_batches, costly=costly)
        return combine(self._recommended, latest, self._limits.settings)
