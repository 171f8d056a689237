"""What comes after a migration: its outcome is measured and kept, later prices learn from it, and one that made
things worse goes back.

An outcome is looked for as long as its migration is the application's last one. It is found again in Redis by a new
leader: the last applied decision without an outcome.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.choosing import DRAIN
from rechannel.daemon.collect import Facts
from rechannel.daemon.outcome import REGRESSED, measure
from rechannel.migration.plan.price import Outcome, Rates, learned
from rechannel.wire import keys
from rechannel.wire.messages import Decision, MigrationOutcome, MoveTransition
from rechannel.wire.store import Author, Store

_LINES_A_MOVE = 8  # of the journal, at most, as a rule


class Aftermath:
    """The migrations of one cluster whose outcome is still to come, and what the earlier ones cost."""

    def __init__(self, settings: Settings, store: Store, author: Author, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._store = store
        self._author = author
        self._clock = clock
        self._awaited: dict[str, Decision] = {}
        self._loads: list[Outcome] | None = None
        self._log = structlog.get_logger("rechannel.controller")

    def rates(self) -> Rates:
        """What loading costs: by the settings, or as this cluster's last moves say."""
        if self._loads is None:
            self._loads = [
                Outcome(size, added)
                for envelope in self._store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound)
                if isinstance(envelope.body, MigrationOutcome)
                for size, added in envelope.body.loads
            ]
        return learned(self._loads, Rates(self._settings.gate.move_cost, self._settings.gate.load_rate))

    def begun(self, application: str, decision: Decision) -> None:
        """A migration begins: its outcome is awaited, that of the one before it no more."""
        self._awaited[application] = decision

    def adopt(self, application: str) -> None:
        """Await the outcome of what a leader before us began, where it has none yet."""
        decision = self.last_applied(application)
        if decision is None or application in self._awaited:
            return
        known = self._store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound)
        if all(getattr(envelope.body, "decision", "") != decision.decision for envelope in known):
            self._awaited[application] = decision

    def last_applied(self, application: str, decision: str = "") -> Decision | None:
        """Return the last decision that moved something in an application, or the one of this id if it did."""
        for envelope in reversed(self._store.last(keys.DECISIONS, "", keys.DECISIONS.bound)):
            body = envelope.body
            if not isinstance(body, Decision) or envelope.application != application or body.outcome != "applied":
                continue
            if decision in ("", body.decision):
                return body
        return None

    def awaits(self, application: str) -> bool:
        """Whether the outcome of an application's last migration is still to come."""
        return application in self._awaited

    def look(self, application: str, facts: Facts, epoch: int) -> Decision | None:
        """Measure what can be measured now; returns the decision if it is to be undone."""
        decision = self._awaited[application]
        most = min(keys.JOURNAL.bound, 1000 + _LINES_A_MOVE * len(decision.moves))
        lines = [envelope.body for envelope in self._store.last(keys.JOURNAL, application, most)]
        outcome = measure(
            decision,
            [line for line in lines if isinstance(line, MoveTransition)],
            facts.batches,
            {info.executor for info in facts.report.executors},
            self._settings,
            self._clock(),
        )
        if outcome is None:
            return None
        envelope = self._author.envelope(outcome, ttl=keys.OUTCOMES.ttl, application=application, epoch=epoch)
        self._store.append(keys.OUTCOMES, "", envelope)
        del self._awaited[application]
        if self._loads is not None:
            self._loads += [Outcome(size, added) for size, added in outcome.loads]
        self._log.info(
            "outcome",
            application=application,
            decision=outcome.decision,
            verdict=outcome.verdict,
            sentence=outcome.sentence,
        )
        return decision if outcome.verdict == REGRESSED and self._may_undo(decision) else None

    def forget(self) -> None:
        """Another leader sees to it now."""
        self._awaited.clear()
        self._loads = None

    def _may_undo(self, decision: Decision) -> bool:
        """Not what an operator forced, what had to leave a node, or what was undone itself."""
        asked = decision.forced or decision.trigger == DRAIN or decision.undoes
        return self._settings.migration.rollback and not asked
