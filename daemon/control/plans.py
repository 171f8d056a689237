"""What a plan for one application rests on, and whether that still holds once the plan is made.

A plan may take minutes, in which others give orders and decide: `prepare` copies what it needs, `overtaken` looks at
what is so by then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from rechannel.daemon.control.guard import BY_ITSELF
from rechannel.daemon.control.outcomes import OutcomeTracker
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest
from rechannel.daemon.decide.requested_placement import RequestedPlacement
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.readiness import NotReady, driver_silence
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.wire.codes import NotReadyReason
from rechannel.wire.messages import Decision, Refusal

if TYPE_CHECKING:
    from rechannel.daemon.control.controller import Controller

Asked = Callable[[Snapshot], RequestedPlacement | Refusal]
Basis = tuple[object, ...]


class Plans:
    """Plans of one controller, whose lock has to be held. ``clock``: seconds since the epoch."""

    def __init__(
        self, leader: Controller, collector: Collector, aftermath: OutcomeTracker, clock: Callable[[], float]
    ) -> None:
        self._leader = leader
        self._collector = collector
        self._aftermath = aftermath
        self._clock = clock

    def prepare(self, ask: DecisionRequest, application: str, asked: Asked | None) -> Decision | Callable[[], Decision]:
        """Return a decision that needs no plan, or else what makes the plan, without reading anything that changes."""
        leader = self._leader
        if ask.apply and leader.paused:
            return pipeline.refused(ask, pipeline.PAUSED)
        self._collector.refresh()
        facts = self._collector.gather(application)
        if facts is None:
            return pipeline.not_ready(ask, pipeline.no_report(application))
        if (silent := driver_silence(facts.reported_at, leader.settings, ask.at)) is not None:
            return pipeline.not_ready(ask, silent)
        busy = leader.migrations.busy(application, facts.report, ask.at)
        if busy:
            return pipeline.not_ready(ask, NotReady(NotReadyReason.MIGRATION_RUNNING, busy))
        resting = leader.migrations.resting(application, ask.at)
        if ask.apply and ask.trigger == "timeout" and not resting and self._aftermath.awaits(application):
            words = "what the last migration brought is not known yet: its queries have not settled"
            return pipeline.not_ready(ask, NotReady(NotReadyReason.OUTCOME_AWAITED, words))
        return functools.partial(
            pipeline.plan,
            ask,
            facts,
            leader.settings,
            leader.orders.nodes | ask.leave,
            asked=asked,
            resting=resting,
            rest=leader.migrations.rest(application),
            rates=self._aftermath.rates(),
            guard=leader.occasions.guard.copy(),
        )

    def basis(self, application: str) -> Basis:
        """Return what a plan must know of orders: it is out of date where this is another once it is made."""
        leader = self._leader
        undo, migration = leader.undoing.waiting.get(application), leader.migrations.running.get(application)
        return (
            leader.orders.nodes,
            undo and undo.decision.decision,
            migration and migration.desired.decision,
            frozenset(leader.occasions.pending.plans) - leader.occasions.pending.settled.keys(),
        )

    def overtaken(self, ask: DecisionRequest, application: str, basis: Basis, made: Decision) -> Decision | None:
        """Return what is decided instead of what was planned, where that is out of date by now."""
        if ask.apply and self._leader.paused:
            return pipeline.refused(ask, pipeline.PAUSED)
        if application not in self._collector.reports:
            return pipeline.not_ready(ask, pipeline.no_report(application))
        if self.basis(application) != basis:
            return pipeline.not_ready(ask, pipeline.OVERTAKEN)
        if made.outcome == "applied" and ask.trigger in BY_ITSELF:
            now, guard = self._clock(), self._leader.occasions.guard
            room = guard.room(now)
            if room is not None and len(made.moves) > room:
                return pipeline.not_ready(ask, pipeline.OVERTAKEN)
            if (period := guard.excluded(now)) is not None:
                return pipeline.refused(ask, period)
        return None
