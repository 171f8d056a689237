"""Saved plans that wait for their time: kept in Redis, signed, so that they outlive the controller that took them.

A plan waits for one window of time. In it the plan is checked against what is so then, by the same laws as one that is
applied at once; what is not ready is tried again as long as the window lasts, every other answer is final. A plan whose
window passes, in which nobody led or nothing was ready, expires. An emptied Redis gets them back from the leader; where
the leader went too, they are lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

import structlog

from rechannel.conf.settings import RescheduleSettings
from rechannel.daemon.control.time_windows import Calendar, TimeWindow, clock_time
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import Decision, PendingPlan, PendingPlans, Refusal
from rechannel.wire.printable import count
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer

PENDING = "pending"  # the trigger of decisions on plans that waited
PASSED, CANCELED = "window-passed", "canceled"
MOST = 20  # plans that wait at a time
MOST_BYTES = 400_000  # of one
_LIFE = 3650 * 86_400.0  # seconds; they hold until something else is said
_RETRY = 10.0  # seconds
_PUBLISH_EVERY = 10.0  # seconds


def window(at: str, when: str, rules: RescheduleSettings, now: float) -> TimeWindow:
    """Return the time that is meant, the one that holds already or the next; ValueError with the cure if none is.

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
    found = calendar.coming(now)
    if found is None:
        raise ValueError(f"{', '.join(periods)} never comes")
    return found


def passed(plan: PendingPlan, why: str) -> Refusal:
    """Return the refusal of a plan whose window is over. ``why``: what was in the way last, if that is known."""
    detail = f"plan {plan.pending} is expired: its window {plan.window} has passed{f'; last: {why}' if why else ''}"
    return Refusal(law=PASSED, scope="plan", detail=detail, until=plan.end)


def canceled(plan: PendingPlan, user: str, reason: str) -> Refusal:
    """Return the refusal of a plan that somebody canceled."""
    detail = f"plan {plan.pending} is canceled by {user or '?'}{f': {reason}' if reason else ''}"
    return Refusal(law=CANCELED, scope="plan", detail=detail)


def sentence(plan: PendingPlan, now: float, zone: str) -> str:
    """Say what waits, for when, and who wants it."""
    since = "until" if plan.begin <= now else "from"
    moment = plan.end if plan.begin <= now else plan.begin
    who = f", asked by {plan.user}{f': {plan.reason}' if plan.reason else ''}" if plan.user else ""
    moves = count(plan.moves, "move")
    return f"{moves} of {plan.application} wait for {plan.window}, {since} {clock_time(moment, zone)}{who}"


def final(decision: Decision) -> bool:
    """Whether a decision is the last word on a plan that waited."""
    return decision.outcome != "not-ready" and decision.reason not in ("paused", "cooldown")


class ScheduledPlans:
    """The plans that wait in one cluster, as the leader knows them. ``steady``: seconds that nobody sets, for waits.

    ``settled``: plan -> the reason of the last word on it, as long as it stands with those that wait: it is only to be
    taken off the list any more.
    """

    def __init__(self, store: Store, signer: Signer, author: EnvelopeFactory, steady: Callable[[], float]) -> None:
        self.plans: dict[str, PendingPlan] = {}
        self.settled: dict[str, str] = {}
        self._store = store
        self._signer = signer
        self._author = author
        self._steady = steady
        self._known = (0, 0)  # epoch and sequence of what we know
        self._published: float | None = None
        self._next_try: dict[str, float] = {}
        self._last: dict[str, str] = {}  # plan -> what was in its way
        self._log = structlog.get_logger("rechannel.controller")

    def adopt(self, decisions: Iterable[Decision]) -> None:
        """Take over what Redis holds, where that is newer than what we know; ``decisions``: those kept, oldest first.

        What was decided on for good is not taken up again: whoever did so may not have got to taking it off the list.
        """
        for decision in decisions:
            if decision.pending_plan and final(decision):
                self.settled[decision.pending_plan] = decision.reason
        self._take_over()
        self.settled = {name: reason for name, reason in self.settled.items() if name in self.plans}

    def _take_over(self) -> None:
        found = self._store.get(keys.PENDING)
        self._published = None
        if found is None:
            return
        if not self._signer.is_own_signature(found) or not isinstance(found.body, PendingPlans):
            self._log.warning("pending-rejected", sentence="pending plans were not signed by this cluster's key")
            return
        if (found.epoch, found.sequence) > self._known:
            self._known = (found.epoch, found.sequence)
            self.plans = {plan.pending: plan for plan in found.body.plans}

    def add(self, plan: PendingPlan, epoch: int) -> None:
        """Let a plan wait; ValueError where it cannot."""
        if len(self.plans) >= MOST:
            raise ValueError(f"{MOST} plans wait already: `rechannel cancel` one of {', '.join(sorted(self.plans))}")
        if len(plan.plan.encode()) > MOST_BYTES:
            raise ValueError(f"the plan has more than {MOST_BYTES / 1e3:.0f} kB; apply it now, or make a smaller one")
        self._change({**self.plans, plan.pending: plan}, epoch)

    def plan(self, pending: str) -> PendingPlan:
        """Return a plan that waits, or that somebody canceled just now; ValueError where there is none of this id."""
        if pending not in self.plans or self.settled.get(pending, CANCELED) != CANCELED:
            waiting = sorted(plan.pending for plan in self._waiting())
            raise ValueError(f"no plan {pending} waits; waiting are {', '.join(waiting) or 'none'}")
        return self.plans[pending]

    def remove(self, pending: str, epoch: int) -> None:
        """Take a plan off the list."""
        self._change({name: known for name, known in self.plans.items() if name != pending}, epoch)
        self._next_try.pop(pending, None)
        self._last.pop(pending, None)
        self.settled.pop(pending, None)

    def due(self, application: str, now: float) -> PendingPlan | None:
        """Return the plan of an application whose time it is, the one that came first."""
        waited = self._steady()
        for plan in sorted(self._waiting(), key=lambda plan: (plan.at, plan.pending)):
            if plan.application == application and plan.begin <= now < plan.end:
                return plan if waited >= self._next_try.get(plan.pending, waited) else None
        return None

    def over(self, now: float) -> list[tuple[PendingPlan, str]]:
        """Return the plans whose window has passed, and what was in their way last."""
        return [(plan, self._last.get(plan.pending, "")) for plan in self._waiting() if plan.end <= now]

    def tried(self, plan: PendingPlan, decision: Decision) -> bool:
        """Take in what became of a plan; returns whether that is the last word on it."""
        if not final(decision):
            if plan.pending not in self.plans:
                return False  # it was canceled while the decision was made
            self._next_try[plan.pending] = self._steady() + _RETRY
            self._last[plan.pending] = decision.sentence
            return False
        self.settled[plan.pending] = decision.reason
        return True

    def publish(self, epoch: int) -> None:
        """See to it that the plans stand in Redis, from time to time."""
        now = self._steady()
        if not self.plans and self._known == (0, 0):
            return  # nothing has ever waited
        if self._published is not None and now - self._published < _PUBLISH_EVERY:
            return
        found = self._store.get(keys.PENDING)
        body = self._body(self.plans)
        if found is None or not self._signer.is_own_signature(found) or found.body != body or found.epoch != epoch:
            self._put(body, epoch)
        self._published = now

    def forget(self) -> None:
        """Another leader sees to them now, and may take them away: what it leaves in Redis is what there is."""
        self.plans = {}
        self.settled.clear()
        self._known = (0, 0)
        self._next_try.clear()
        self._last.clear()

    def _waiting(self) -> list[PendingPlan]:
        return [plan for plan in self.plans.values() if plan.pending not in self.settled]

    def _change(self, plans: dict[str, PendingPlan], epoch: int) -> None:
        before, self.plans = self.plans, plans
        try:
            self._put(self._body(plans), epoch)
        except StoreError:
            self.plans = before  # the request is read again, and answered then
            raise

    def _put(self, body: PendingPlans, epoch: int) -> None:
        envelope = self._author.envelope(body, ttl=_LIFE, epoch=epoch)
        self._store.put(keys.PENDING, "", self._signer.sign(envelope))
        self._known = (epoch, envelope.sequence)

    @staticmethod
    def _body(plans: dict[str, PendingPlan]) -> PendingPlans:
        return PendingPlans(plans=[plans[name] for name in sorted(plans)])


def new_id() -> str:
    """Return a name for a plan that begins to wait."""
    return f"wait-{secrets.token_hex(3)}"
