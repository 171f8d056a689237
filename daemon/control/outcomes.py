"""Outcomes of migrations: measured, published, used for later decisions, and rolled back.

The outcome of a migration is awaited as long as it is its application's last one. A new leader finds it again in Redis:
the last applied decision without an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain

import structlog

from rechannel.conf.time_windows import calendar_of
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.decide.verdict import OUTCOME_PATIENCE, measure_outcome
from rechannel.daemon.jobs.clock import RateLimit
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.migration.plan.cost import UNMEASURED, LoadRates, fit_load_rates
from rechannel.policies.prediction.correction import GainShare, expect_gain_share
from rechannel.wire import keys
from rechannel.wire.bounded_dict import BoundedDict
from rechannel.wire.codes import MoveState, OutcomeVerdict, Trigger
from rechannel.wire.envelope import bodies_of
from rechannel.wire.messages import Decision, LinkReport, MigrationOutcome, MoveTransition

_LINES_A_MOVE = 8  # of the journal, usually at most
_LOADS_COUNT_FOR = 86_400.0  # seconds
_POLL_EVERY = 2.0  # seconds
_ROLLBACK_WITHIN = 600.0  # seconds in which a new leader rolls back what the one before it measured
_RETRY_EVERY = 10.0  # seconds between two tries of a rollback
_PATIENCE = 600.0  # seconds in which a rollback has to become possible
REGRESSED_REASON = "its batches are longer than predicted and than before"


@dataclass
class PendingRollback:
    """A decision to roll back, and who asked for that ("": nobody).

    ``since`` and ``until``: steady seconds between which it is tried.
    """

    decision: Decision
    user: str
    reason: str
    since: float

    def __post_init__(self) -> None:
        self.until = self.since + _PATIENCE
        self._tries = RateLimit(_RETRY_EVERY)

    @property
    def is_ordered(self) -> bool:
        """Whether an operator ordered it."""
        return bool(self.user)

    def extend(self, steady_now: float, excluded_for: float) -> None:
        """Wait for the end of an excluded period of so many seconds, and the usual time after it."""
        self.until = max(self.until, steady_now + excluded_for + _PATIENCE)

    def start_try(self, report: LinkReport, steady_now: float) -> bool:
        """Return whether a try is due, and begin the pause until the next one if it is.

        Spark still directs the moves that were released while idle, and only their next batch shows where they are.
        """
        own = f"{self.decision.decision}."
        idle = any(view.state == MoveState.RELEASED_IDLE and view.move.startswith(own) for view in report.moves)
        return not idle and self._tries.allows(steady_now)


class OutcomeHistory:
    """Outcomes of earlier migrations, for the cost of loading state and the gains to expect."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._outcomes: BoundedDict[str, MigrationOutcome] | None = None  # by decision, oldest first

    def rates(self) -> LoadRates:
        """Return what loading costs now, by the moves of the last day."""
        # An expensive load is forgotten after a day: without moves there would be no new measurement.
        recent = self._since(_LOADS_COUNT_FOR)
        return fit_load_rates(chain.from_iterable(outcome.loads for outcome in recent), UNMEASURED)

    def gain_shares(self) -> dict[str, GainShare]:
        """Return query -> what is expected of a gain promised to it.

        By id of the query, which it keeps when its application is started again.
        """
        shares: dict[str, list[float]] = {}
        for outcome in reversed(self._since(keys.OUTCOMES.ttl)):  # as long as Redis has them, for every leader the same
            for query, share in outcome.gain_shares.items():
                shares.setdefault(query, []).append(share)
        return {query: expect_gain_share(newest_first) for query, newest_first in shares.items()}

    def confirmed(self) -> set[str]:
        """Return the ids of the decisions whose outcome is confirmed."""
        outcomes = self._by_decision()
        return {name for name, outcome in outcomes.items() if outcome.verdict == OutcomeVerdict.CONFIRMED}

    def last_of(self, decision: str) -> MigrationOutcome | None:
        """Return the last outcome of a decision, None where it is still to come."""
        return self._by_decision().get(decision)

    def add(self, outcome: MigrationOutcome) -> None:
        """Count a measured outcome."""
        if self._outcomes is not None:
            self._outcomes[outcome.decision] = outcome

    def reset(self) -> None:
        """Read the outcomes in Redis again before the next use."""
        self._outcomes = None

    def _since(self, seconds: float) -> list[MigrationOutcome]:
        """Return the outcomes of the last so many seconds, oldest first."""
        since = self._context.clock.wall() - seconds
        return [outcome for outcome in self._by_decision().values() if outcome.at >= since]

    def _by_decision(self) -> BoundedDict[str, MigrationOutcome]:
        """Return the outcomes; of one that was stored again, the last counts."""
        if self._outcomes is None:
            measured = bodies_of(self._context.store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound), MigrationOutcome)
            self._outcomes = BoundedDict(keys.OUTCOMES.bound)
            for outcome in measured:
                self._outcomes[outcome.decision] = outcome
        return self._outcomes


class OutcomeTracker:
    """The migration of one application whose outcome is still to come.

    ``unlocked`` releases the controller's lock for a while.
    """

    def __init__(
        self,
        application: str,
        context: LeaderContext,
        history: OutcomeHistory,
        unlocked: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._application = application
        self._context = context
        self._history = history
        self._unlocked = unlocked
        self._awaited: Decision | None = None
        self._awaited_since: float | None = None  # steady seconds of the first poll
        self._polls = RateLimit(_POLL_EVERY)
        self._log = structlog.get_logger("rechannel.controller")

    @property
    def is_awaiting(self) -> bool:
        """Whether the outcome of the application's last migration is still to come."""
        return self._awaited is not None

    def start_tracking(self, decision: Decision) -> None:
        """Await the outcome of a migration that begins, and no longer that of the one before it."""
        self._awaited, self._awaited_since, self._polls = decision, None, RateLimit(_POLL_EVERY)

    def restore(self, applied: list[Decision]) -> Decision | None:
        """Await the outcome of an earlier leader's migration.

        Returns its decision if it must be rolled back. ``applied``: decisions that moved something, the last one first.
        """
        if not applied or self._awaited is not None:
            return None
        outcome = self._history.last_of(applied[0].decision)
        if outcome is None:
            self.start_tracking(applied[0])
            return None
        fresh = self._context.clock.wall() <= self._rollback_until(outcome.at)
        return applied[0] if fresh and self._must_roll_back(applied[0], outcome) else None

    def poll(self, messages: ApplicationMessages) -> tuple[MigrationOutcome, Decision | None] | None:
        """Measure and publish the awaited outcome, if it is known by now.

        Returns it, and the decision if it has to be rolled back.
        """
        decision, steady_now = self._awaited, self._context.clock.steady()
        if decision is None or not self._polls.allows(steady_now):
            return None
        if self._awaited_since is None:
            self._awaited_since = steady_now
        patient = steady_now - self._awaited_since < OUTCOME_PATIENCE
        settings, now = self._context.settings, self._context.clock.wall()
        most = min(keys.JOURNAL.bound, 1000 + _LINES_A_MOVE * len(decision.moves))
        journal = bodies_of(self._context.store.last(keys.JOURNAL, self._application, most), MoveTransition)
        epoch = self._context.lead.epoch
        with self._unlocked():  # thousands of partitions are replayed for seconds
            outcome = measure_outcome(decision, journal, messages, settings, now, patient=patient)
        if self._awaited is not decision or self._context.lead.epoch != epoch or not self._context.can_act:
            return None  # another migration or another leader began meanwhile
        if outcome is None:
            return None
        envelope = self._context.envelope(outcome, ttl=keys.OUTCOMES.ttl, application=self._application)
        self._context.store.append(keys.OUTCOMES, "", envelope)
        self._awaited = None
        self._history.add(outcome)
        self._log.info(
            "outcome",
            application=self._application,
            decision=outcome.decision,
            verdict=outcome.verdict,
            sentence=outcome.sentence,
        )
        return outcome, decision if self._must_roll_back(decision, outcome) else None

    def _rollback_until(self, at: float) -> float:
        """Return until when a new leader rolls back a migration measured at this time.

        Excluded periods do not count.
        """
        rules, until = self._context.settings.reschedule, at + _ROLLBACK_WITHIN
        if not rules.excluded:
            return until
        calendar = calendar_of(rules.excluded, rules.time_zone)
        span = calendar.inside(at) or calendar.inside(until)
        return until if span is None else span.end + _ROLLBACK_WITHIN

    def _must_roll_back(self, decision: Decision, outcome: MigrationOutcome) -> bool:
        """Return whether a migration is rolled back: not a forced one, a drain, or a rollback."""
        ordered = decision.forced or decision.trigger == Trigger.DRAIN or decision.rollback_of
        return outcome.verdict == OutcomeVerdict.REGRESSED and self._context.rolls_back and not ordered
