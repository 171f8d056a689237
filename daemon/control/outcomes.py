"""What comes after a migration: its outcome is measured and kept, later prices learn from it, and one that made
things worse goes back.

An outcome is looked for as long as its migration is the application's last one. It is found again in Redis by a new
leader: the last applied decision without an outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control.decision_log import kept_decisions
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.time_windows import calendar_of
from rechannel.daemon.decide.outcome import REGRESSED, measure
from rechannel.daemon.decide.policy_settings import DRAIN
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.migration.plan.cost import LoadRates, MeasuredLoad, fit_load_rates
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import Decision, MigrationOutcome, MoveTransition
from rechannel.wire.redis.store import Store

_LINES_A_MOVE = 8  # of the journal, at most, as a rule
_LEARNED_FROM = 86_400.0  # seconds that a measured load counts
_LOOK_EVERY = 2.0  # seconds
_STILL_TO_UNDO = 600.0  # seconds in which a new leader undoes what the one before it measured


@dataclass
class PendingRollback:
    """A decision whose moves are to go back, who asks for that and why, and until when it is tried."""

    decision: Decision
    user: str
    reason: str
    until: float
    next_try: float = 0.0


class OutcomeTracker:
    """The migrations of one cluster whose outcome is still to come, and what the earlier ones cost.

    ``clock``: seconds since the epoch; ``steady``: seconds that nobody sets, for waits.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        author: EnvelopeFactory,
        clock: Callable[[], float],
        steady: Callable[[], float],
        memory: Memory,
    ) -> None:
        self._settings = settings
        self._store = store
        self._author = author
        self._clock = clock
        self._steady = steady
        self._awaited: dict[str, Decision] = memory.table()
        self._looked: dict[str, float] = memory.table()
        self._loads: list[tuple[float, MeasuredLoad]] | None = None  # when they were measured
        self._log = structlog.get_logger("rechannel.controller")

    def take(self, settings: Settings) -> None:
        """Go on with other settings."""
        self._settings = settings

    def rates(self) -> LoadRates:
        """What loading costs: by the settings, or as this cluster's last moves say."""
        if self._loads is None:
            self._loads = [
                (envelope.time, MeasuredLoad(size, added))
                for envelope in self._store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound)
                if isinstance(envelope.body, MigrationOutcome)
                for size, added in envelope.body.loads
            ]
        # What was dear once is tried again: where nothing is moved for its price, nothing new is learned of it.
        since = self._clock() - _LEARNED_FROM
        self._loads = [(at, load) for at, load in self._loads if at >= since]
        given = LoadRates(self._settings.gate.move_cost, self._settings.gate.load_rate)
        return fit_load_rates([load for _, load in self._loads], given)

    def begun(self, application: str, decision: Decision) -> None:
        """A migration begins: its outcome is awaited, that of the one before it no more."""
        self._awaited[application] = decision

    def adopt(self, application: str, kept: Sequence[tuple[str, Decision]]) -> Decision | None:
        """Await the outcome of what a leader before us began; returns its decision if that was to be undone."""
        applied = _applied(application, kept)
        if not applied or application in self._awaited:
            return None
        known = [
            envelope.body
            for envelope in self._store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound)
            if isinstance(envelope.body, MigrationOutcome) and envelope.body.decision == applied[0].decision
        ]
        if not known:
            self._awaited[application] = applied[0]
            return None
        fresh = self._clock() <= self._undone_until(known[-1].at)
        return applied[0] if fresh and known[-1].verdict == REGRESSED and self._may_undo(applied[0]) else None

    def undoable(self, application: str, decision: str = "") -> Decision | None:
        """Return the decision of this id, or the last one that moved something and was not undone ("")."""
        applied = _applied(application, kept_decisions(self._store))
        undone = {known.rollback_of for known in applied}
        for known in applied:
            if known.decision == decision or not (decision or known.rollback_of or known.decision in undone):
                return known
        return None

    def undone_last(self, application: str) -> Decision | None:
        """Return the rollback that is the last decision to have moved something; None where it is another one."""
        applied = _applied(application, kept_decisions(self._store))
        return applied[0] if applied and applied[0].rollback_of else None

    def awaits(self, application: str) -> bool:
        """Whether the outcome of an application's last migration is still to come."""
        return application in self._awaited

    def look(
        self, application: str, facts: ApplicationMessages, epoch: int
    ) -> tuple[MigrationOutcome, Decision | None] | None:
        """Measure what can be measured now; returns the outcome, and the decision if it is to be undone."""
        decision, now = self._awaited[application], self._steady()
        if now < self._looked.get(application, now - _LOOK_EVERY) + _LOOK_EVERY:
            return None
        self._looked[application] = now
        most = min(keys.JOURNAL.bound, 1000 + _LINES_A_MOVE * len(decision.moves))
        lines = [envelope.body for envelope in self._store.last(keys.JOURNAL, application, most)]
        outcome = measure(
            decision,
            [line for line in lines if isinstance(line, MoveTransition)],
            facts.batches,
            {query.query: query.run for query in facts.report.queries if query.active},
            {info.executor for info in facts.report.executors},
            self._settings,
            self._clock(),
        )
        if outcome is None:
            return None
        envelope = self._author.envelope(outcome, ttl=keys.OUTCOMES.ttl, application=application, epoch=epoch)
        self._store.append(keys.OUTCOMES, "", envelope)
        del self._awaited[application], self._looked[application]
        if self._loads is not None:
            self._loads += [(outcome.at, MeasuredLoad(size, added)) for size, added in outcome.loads]
        self._log.info(
            "outcome",
            application=application,
            decision=outcome.decision,
            verdict=outcome.verdict,
            sentence=outcome.sentence,
        )
        return outcome, decision if outcome.verdict == REGRESSED and self._may_undo(decision) else None

    def forget(self) -> None:
        """Another leader sees to it now."""
        self._awaited.clear()
        self._looked.clear()
        self._loads = None

    def _undone_until(self, at: float) -> float:
        """Until when a new leader undoes what was measured then; an excluded period, when nobody does, is left out."""
        rules, until = self._settings.reschedule, at + _STILL_TO_UNDO
        if not rules.excluded:
            return until
        calendar = calendar_of(rules.excluded, rules.time_zone)
        span = calendar.inside(at) or calendar.inside(until)
        return until if span is None else span.end + _STILL_TO_UNDO

    def _may_undo(self, decision: Decision) -> bool:
        """Not what an operator forced, what had to leave a node, or what was undone itself; nothing unless acting."""
        asked = decision.forced or decision.trigger == DRAIN or decision.rollback_of
        acts = self._settings.reschedule.mode == "apply" and self._settings.migration.rollback
        return acts and not asked


def _applied(application: str, kept: Sequence[tuple[str, Decision]]) -> list[Decision]:
    """Decisions that moved something in an application, the last one first."""
    return [decision for name, decision in reversed(kept) if name == application and decision.outcome == "applied"]
