"""Scheduled plans: saved plans that wait in Redis, signed, for their time.

A plan waits for one time window. In it the plan is checked against the present, by the same laws as one that is applied
at once. What is not ready is tried again as long as the window lasts; every other answer is final. A plan whose window
passes expires. If Redis is emptied the leader publishes its plans again; if the leader is lost too, they are lost.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable

import structlog

from rechannel.conf.settings import RescheduleSettings
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.control.time_windows import Calendar, TimeWindow, clock_time
from rechannel.daemon.decide.pipeline import PlacementSource
from rechannel.daemon.decide.requested_placement import placement_of_saved_plan, read_plan
from rechannel.wire import keys
from rechannel.wire.codes import Law, Outcome
from rechannel.wire.messages import Decision, PendingPlan, PendingPlans, Refusal
from rechannel.wire.printable import count
from rechannel.wire.redis.errors import StoreError

MOST = 20  # plans that wait at a time
MOST_BYTES = 400_000  # of one plan
_LIFE = 3650 * 86_400.0  # seconds; they hold until they are removed
_RETRY_AFTER = 10.0  # seconds
_PUBLISH_EVERY = 10.0  # seconds


def window(at: str, when: str, rules: RescheduleSettings, now: float) -> TimeWindow:
    """Return the present or next time of a window; ValueError with the cure if there is none.

    ``at`` is a period, ``when`` is ``off-peak``; one of them is empty.
    """
    if at:
        periods: tuple[str, ...] = (at,)
    elif when != "off-peak":
        raise ValueError(f"when: {when!r} is not known; say off-peak, or a period with --at")
    elif rules.off_peak:
        periods = rules.off_peak
    else:
        raise ValueError("no off-peak period is set: set reschedule.off_peak, or say a period with --at")
    try:
        calendar = Calendar(periods, rules.time_zone)
    except ValueError as error:
        raise ValueError(f"--at: {error}" if at else str(error)) from None
    coming = calendar.coming(now)
    if coming is None:
        raise ValueError(f"{', '.join(periods)} never comes")
    return coming


def passed(plan: PendingPlan, why: str) -> Refusal:
    """Return the refusal of a plan whose window is over.

    ``why``: what was in its way last, "" if unknown.
    """
    detail = f"plan {plan.pending} is expired: its window {plan.window} has passed{f'; last: {why}' if why else ''}"
    return Refusal(law=Law.WINDOW_PASSED, scope="plan", detail=detail, until=plan.end)


def canceled(plan: PendingPlan, user: str, reason: str) -> Refusal:
    """Return the refusal of a canceled plan."""
    detail = f"plan {plan.pending} is canceled by {user or '?'}{f': {reason}' if reason else ''}"
    return Refusal(law=Law.CANCELED, scope="plan", detail=detail)


def sentence(plan: PendingPlan, now: float, zone: str) -> str:
    """Return in one sentence what waits, for when, and who asked for it."""
    since = "until" if plan.begin <= now else "from"
    moment = plan.end if plan.begin <= now else plan.begin
    who = f", asked by {plan.user}{f': {plan.reason}' if plan.reason else ''}" if plan.user else ""
    moves = count(plan.moves, "move")
    return f"{moves} of {plan.application} wait for {plan.window}, {since} {clock_time(moment, zone)}{who}"


def is_final(decision: Decision) -> bool:
    """Return whether a decision is the last word on a scheduled plan."""
    return decision.outcome != Outcome.NOT_READY and decision.reason not in (Law.PAUSED, Law.COOLDOWN)


class ScheduledPlans:
    """The plans that wait in one cluster, as the leader knows them.

    ``settled``: plan -> the reason of the last word on it, until it is removed from Redis too.
    """

    def __init__(self, context: LeaderContext) -> None:
        self.plans: dict[str, PendingPlan] = {}
        self.settled: dict[str, str] = {}
        self._context = context
        self._version = (0, 0)  # epoch and sequence of the newest list read or written
        self._published: float | None = None
        self._next_try: dict[str, float] = {}
        self._last: dict[str, str] = {}  # plan -> what was in its way
        self._log = structlog.get_logger("rechannel.controller")

    @property
    def waiting(self) -> frozenset[str]:
        """Ids of the plans without a last word."""
        return frozenset(self.plans) - self.settled.keys()

    def restore(self, decisions: Iterable[Decision]) -> None:
        """Take over the plans in Redis if they are newer.

        ``decisions``: the decision log, oldest first. Plans with a last word are not taken up again: whoever decided
        may not have come to removing them.
        """
        for decision in decisions:
            if decision.pending_plan and is_final(decision):
                self.settled[decision.pending_plan] = decision.reason
        self._read()
        self.settled = {name: reason for name, reason in self.settled.items() if name in self.plans}

    def schedule(
        self, text: str, window_text: tuple[str, str], *, user: str, reason: str, force: bool
    ) -> tuple[str, PendingPlan]:
        """Let a saved plan wait for its window.

        Returns a sentence and the plan, or raises ValueError. ``window_text``: the period, and ``off-peak``; one of
        them is empty.
        """
        plan = read_plan(text, self._context.envelopes.cluster)
        rules, now = self._context.settings.reschedule, self._context.clock.wall()
        span = window(*window_text, rules, now)
        pending = PendingPlan(
            pending=f"wait-{secrets.token_hex(3)}",
            at=now,
            application=plan.application,
            begin=span.begin,
            end=span.end,
            window=span.text,
            plan=text,
            moves=len(plan.moves),
            user=user,
            reason=reason,
            force=force,
        )
        self._add(pending)
        since = "now" if span.begin <= now else clock_time(span.begin, rules.time_zone)
        until = clock_time(span.end, rules.time_zone)
        sentence = (
            f"plan {plan.decision} waits as {pending.pending}: {count(len(plan.moves), 'move')} of {plan.application}, "
            f"to be checked anew and begun between {since} and {until}; `rechannel cancel {pending.pending}` ends that"
        )
        return sentence, pending

    def requested_placement(self, plan: PendingPlan) -> PlacementSource:
        """Return the function that puts a plan into the place of a policy's."""
        return functools.partial(placement_of_saved_plan, read_plan(plan.plan, self._context.envelopes.cluster))

    def find(self, pending: str) -> PendingPlan:
        """Return a plan that waits or was canceled a moment ago.

        ValueError if there is none of this id.
        """
        if pending not in self.plans or self.settled.get(pending, Law.CANCELED) != Law.CANCELED:
            raise ValueError(f"no plan {pending} waits; waiting are {', '.join(sorted(self.waiting)) or 'none'}")
        return self.plans[pending]

    def remove(self, pending: str) -> None:
        """Remove a plan."""
        self._change({name: plan for name, plan in self.plans.items() if name != pending})
        self._next_try.pop(pending, None)
        self._last.pop(pending, None)
        self.settled.pop(pending, None)

    def remove_settled(self) -> None:
        """Remove the plans whose removal failed when they were decided on."""
        for pending in sorted(self.settled):
            self.remove(pending)

    def due(self, application: str, now: float) -> PendingPlan | None:
        """Return the plan of an application whose window it is, the oldest one."""
        steady_now = self._context.clock.steady()
        for plan in sorted(self._waiting_plans(), key=lambda plan: (plan.at, plan.pending)):
            if plan.application == application and plan.begin <= now < plan.end:
                return plan if steady_now >= self._next_try.get(plan.pending, steady_now) else None
        return None

    def expired(self, now: float) -> list[tuple[PendingPlan, Refusal]]:
        """Return the plans whose window has passed, and the refusal of each."""
        over = [plan for plan in self._waiting_plans() if plan.end <= now]
        return [(plan, passed(plan, self._last.get(plan.pending, ""))) for plan in over]

    def record(self, plan: PendingPlan, decision: Decision) -> None:
        """Record the decision on a plan; the last word on it removes it."""
        if is_final(decision):
            self.settled[plan.pending] = decision.reason
            self.remove(plan.pending)
        elif plan.pending in self.plans:  # else it was canceled while the decision was made
            self._next_try[plan.pending] = self._context.clock.steady() + _RETRY_AFTER
            self._last[plan.pending] = decision.sentence

    def publish(self) -> None:
        """Make sure, from time to time, that the plans stand in Redis."""
        now = self._context.clock.steady()
        if not self.plans and self._version == (0, 0):
            return  # no plan has ever waited
        if self._published is not None and now - self._published < _PUBLISH_EVERY:
            return
        present, body = self._context.store.get(keys.PENDING), _body(self.plans)
        own = present is not None and self._context.signer.is_own_signature(present)
        if present is None or not own or present.body != body or present.epoch != self._context.lead.epoch:
            self._put(body)
        self._published = now

    def reset(self) -> None:
        """Drop everything: the plans in Redis are those of another leader now."""
        self.plans = {}
        self.settled.clear()
        self._version = (0, 0)
        self._next_try.clear()
        self._last.clear()

    def _read(self) -> None:
        envelope = self._context.store.get(keys.PENDING)
        self._published = None
        if envelope is None:
            return
        if not self._context.signer.is_own_signature(envelope) or not isinstance(envelope.body, PendingPlans):
            self._log.warning("pending-rejected", sentence="pending plans were not signed by this cluster's key")
            return
        if (envelope.epoch, envelope.sequence) > self._version:
            self._version = (envelope.epoch, envelope.sequence)
            self.plans = {plan.pending: plan for plan in envelope.body.plans}

    def _add(self, plan: PendingPlan) -> None:
        if len(self.plans) >= MOST:
            raise ValueError(f"{MOST} plans wait already: `rechannel cancel` one of {', '.join(sorted(self.plans))}")
        if len(plan.plan.encode()) > MOST_BYTES:
            raise ValueError(f"the plan has more than {MOST_BYTES / 1e3:.0f} kB; apply it now, or make a smaller one")
        self._change({**self.plans, plan.pending: plan})

    def _waiting_plans(self) -> list[PendingPlan]:
        return [plan for plan in self.plans.values() if plan.pending not in self.settled]

    def _change(self, plans: dict[str, PendingPlan]) -> None:
        before, self.plans = self.plans, plans
        try:
            self._put(_body(plans))
        except StoreError:
            self.plans = before  # the request is read again later
            raise

    def _put(self, body: PendingPlans) -> None:
        context = self._context
        envelope = context.envelopes.envelope(body, ttl=_LIFE, epoch=context.lead.epoch)
        context.store.put(keys.PENDING, "", context.signer.sign(envelope))
        self._version = (context.lead.epoch, envelope.sequence)


def _body(plans: dict[str, PendingPlan]) -> PendingPlans:
    return PendingPlans(plans=[plans[name] for name in sorted(plans)])
