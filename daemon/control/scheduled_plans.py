"""Scheduled plans: saved plans that stand in Redis, signed, until their time.

A plan is scheduled for one time window. In it the plan is checked against the present, by the same laws as one that is
applied at once. What is not ready is tried again as long as the window lasts; every other answer is final. A plan whose
window passes expires. If Redis is emptied the leader publishes its plans again; if the leader is lost too, they are
lost.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Iterable

import structlog

from rechannel.conf.duration import TEN_YEARS
from rechannel.conf.settings import RescheduleSettings
from rechannel.conf.time_windows import Calendar, TimeWindow, clock_time
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.decide.pipeline import PlacementSource
from rechannel.daemon.decide.saved_plan import PlanFileError, SavedPlan, placement_of_saved_plan, read_plan
from rechannel.wire import keys
from rechannel.wire.codes import DecisionResult, Law
from rechannel.wire.commands import Apply
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, Refusal, ScheduledPlan, ScheduledPlans
from rechannel.wire.printable import with_noun
from rechannel.wire.redis.errors import StoreError

_MAX_PLANS = 20  # scheduled plans; beyond: a further one is refused
_MAX_BYTES = 400_000  # bytes of a scheduled plan; beyond: it is refused
_RETRY_AFTER = 10.0  # seconds
_PUBLISH_EVERY = 10.0  # seconds


def _window(command: Apply, rules: RescheduleSettings, now: float) -> TimeWindow:
    """Return the present or next window of a command; CommandError if there is none."""
    if command.at:
        periods: tuple[str, ...] = (command.at,)
    elif command.when != "off-peak":
        raise _refusal_error(f"when: {command.when!r} is not known; write off-peak, or give a period with --at")
    elif rules.off_peak:
        periods = rules.off_peak
    else:
        raise _refusal_error("no off-peak period is set: set reschedule.off_peak, or give a period with --at")
    try:
        calendar = Calendar(periods, rules.time_zone)
    except ValueError as error:
        raise _refusal_error(f"--at: {error}" if command.at else str(error)) from None
    coming = calendar.coming(now)
    if coming is None:
        raise _refusal_error(f"{', '.join(periods)} never comes")
    return coming


def _refusal_error(sentence: str) -> CommandError:
    return CommandError(ExitCode.REFUSED, sentence)


def describe(plan: ScheduledPlan, now: float, zone: str) -> str:
    """Return in one sentence what is scheduled, for when, and who asked for it.

    Within the window its end is named, before the window its start, in the time zone ``zone``. ``now``: seconds since
    the epoch.
    """
    since = "until" if plan.begin <= now else "from"
    moment = plan.end if plan.begin <= now else plan.begin
    who = f", asked by {plan.user}{f': {plan.reason}' if plan.reason else ''}" if plan.user else ""
    moves = with_noun(plan.moves, "move")
    return f"{moves} of {plan.application} scheduled for {plan.window}, {since} {clock_time(moment, zone)}{who}"


def is_final(decision: Decision) -> bool:
    """Return whether a decision is the last word on a scheduled plan."""
    return decision.result != DecisionResult.NOT_READY and decision.reason not in (Law.PAUSED, Law.COOLDOWN)


class ScheduledPlanStore:
    """The scheduled plans of one cluster, as the leader knows them.

    ``settled``: plan -> the reason of the last word on it, until it is removed from Redis too.
    """

    def __init__(self, context: LeaderContext) -> None:
        self.plans: dict[str, ScheduledPlan] = {}
        self.settled: dict[str, str] = {}
        self._context = context
        self._version = (0, 0)  # epoch and sequence of the newest list read or written
        self._published: float | None = None
        self._next_try: dict[str, float] = {}
        self._obstacles: dict[str, str] = {}  # plan -> what held it back last
        self._log = structlog.get_logger("rechannel.controller")

    @property
    def scheduled(self) -> frozenset[str]:
        """Ids of the plans without a last word."""
        return frozenset(self.plans) - self.settled.keys()

    def restore(self, decisions: Iterable[Decision]) -> None:
        """Take over the plans in Redis if they are newer.

        ``decisions``: the decision log, oldest first. Plans with a last word are not taken up again: whoever decided
        may not have come to removing them.
        """
        for decision in decisions:
            if decision.scheduled_plan and is_final(decision):
                self.settled[decision.scheduled_plan] = decision.reason
        self._read()
        self.settled = {name: reason for name, reason in self.settled.items() if name in self.plans}

    def schedule(self, command: Apply, plan: SavedPlan, *, user: str, reason: str) -> tuple[str, ScheduledPlan]:
        """Schedule a saved plan for its window.

        Returns a sentence and the plan, or raises CommandError.
        """
        rules, now = self._context.settings.reschedule, self._context.clock.wall()
        span = _window(command, rules, now)
        scheduled = ScheduledPlan(
            scheduled_plan=f"plan-{secrets.token_hex(3)}",
            at=now,
            application=plan.application,
            begin=span.begin,
            end=span.end,
            window=span.text,
            plan=command.plan,
            moves=len(plan.moves),
            user=user,
            reason=reason,
            force=command.force,
        )
        self._add(scheduled)
        since = "now" if span.begin <= now else clock_time(span.begin, rules.time_zone)
        until = clock_time(span.end, rules.time_zone)
        sentence = (
            f"plan {plan.decision} is scheduled as {scheduled.scheduled_plan}: {with_noun(len(plan.moves), 'move')} of "
            f"{plan.application}, to be checked anew and begun between {since} and {until}; "
            f"`rechannel cancel {scheduled.scheduled_plan}` ends that"
        )
        return sentence, scheduled

    def placement_source(self, plan: ScheduledPlan) -> PlacementSource:
        """Return the function that puts a plan into the place of a policy's.

        It refuses a plan that this release cannot read.
        """
        try:
            saved = read_plan(plan.plan, self._context.envelopes.cluster)
        except PlanFileError as error:
            refusal = Refusal(law=Law.PLAN_EXPIRED, detail=f"{plan.scheduled_plan} cannot be read: {error}")
            return lambda _snapshot: refusal
        return functools.partial(placement_of_saved_plan, saved)

    def cancel(self, name: str, *, user: str, reason: str) -> tuple[ScheduledPlan, Refusal]:
        """Return a plan and the refusal that cancels it; CommandError if none has this id.

        A plan that was canceled a moment ago, and could not be removed yet, is canceled again.
        """
        if name not in self.plans or self.settled.get(name, Law.CANCELED) != Law.CANCELED:
            names = ", ".join(sorted(self.scheduled)) or "none"
            raise _refusal_error(f"no plan {name} is scheduled; scheduled are {names}")
        detail = f"plan {name} is canceled by {user or '?'}{f': {reason}' if reason else ''}"
        return self.plans[name], Refusal(law=Law.CANCELED, detail=detail)

    def remove(self, name: str) -> None:
        """Remove a plan."""
        self._change({other: plan for other, plan in self.plans.items() if other != name})
        self._next_try.pop(name, None)
        self._obstacles.pop(name, None)
        self.settled.pop(name, None)

    def remove_settled(self) -> None:
        """Remove the plans whose removal failed when they were decided on."""
        for name in sorted(self.settled):
            self.remove(name)

    def in_window(self, now: float) -> list[ScheduledPlan]:
        """Return the plans whose window it is, oldest first."""
        plans = (plan for plan in self._open_plans() if plan.begin <= now < plan.end)
        return sorted(plans, key=lambda plan: (plan.at, plan.scheduled_plan))

    def due_plan(self, application: str, now: float, *, in_cooldown: bool) -> ScheduledPlan | None:
        """Return the oldest plan of an application whose window it is.

        In a cool-down it is the oldest forced one.
        """
        steady_now = self._context.clock.steady()
        for plan in self.in_window(now):
            if plan.application == application and (plan.force or not in_cooldown):
                return plan if steady_now >= self._next_try.get(plan.scheduled_plan, steady_now) else None
        return None

    def note_obstacle(self, plan: ScheduledPlan, sentence: str) -> None:
        """Note what holds a plan back, for the sentence about its end."""
        self._obstacles[plan.scheduled_plan] = sentence

    def expired(self, now: float) -> list[tuple[ScheduledPlan, Refusal]]:
        """Return the plans whose window has passed, and the refusal of each."""
        return [(plan, self._expire(plan)) for plan in self._open_plans() if plan.end <= now]

    def _expire(self, plan: ScheduledPlan) -> Refusal:
        last = self._obstacles.get(plan.scheduled_plan, "")
        detail = f"plan {plan.scheduled_plan} is expired: its period {plan.window} has passed"
        return Refusal(law=Law.WINDOW_PASSED, detail=f"{detail}; last: {last}" if last else detail, until=plan.end)

    def record(self, plan: ScheduledPlan, decision: Decision) -> None:
        """Record the decision on a plan; the last word on it removes it."""
        if is_final(decision):
            self.settled[plan.scheduled_plan] = decision.reason
            self.remove(plan.scheduled_plan)
        elif plan.scheduled_plan in self.plans:  # else it was canceled while the decision was made
            self._next_try[plan.scheduled_plan] = self._context.clock.steady() + _RETRY_AFTER
            self.note_obstacle(plan, decision.sentence)

    def publish(self) -> None:
        """Make sure, from time to time, that the plans stand in Redis."""
        now = self._context.clock.steady()
        if not self.plans and self._version == (0, 0):
            return  # no plan was ever scheduled
        if self._published is not None and now - self._published < _PUBLISH_EVERY:
            return
        present, body = self._context.read_signed(keys.SCHEDULED_PLANS), _body(self.plans)
        if present is None or present.body != body or present.epoch != self._context.lead.epoch:
            self._put(body)
        self._published = now

    def reset(self) -> None:
        """Drop everything: the plans in Redis are those of another leader now."""
        self.plans = {}
        self.settled.clear()
        self._version = (0, 0)
        self._next_try.clear()
        self._obstacles.clear()

    def _read(self) -> None:
        envelope = self._context.store.get(keys.SCHEDULED_PLANS)
        self._published = None
        if envelope is None:
            return
        if not self._context.signer.is_trusted(envelope) or not isinstance(envelope.body, ScheduledPlans):
            self._log.warning(
                "scheduled-plans-rejected", sentence="scheduled plans were not signed by this cluster's key"
            )
            return
        if (envelope.epoch, envelope.sequence) > self._version:
            self._version = (envelope.epoch, envelope.sequence)
            self.plans = {plan.scheduled_plan: plan for plan in envelope.body.plans}

    def _add(self, plan: ScheduledPlan) -> None:
        if len(self.plans) >= _MAX_PLANS:
            names = ", ".join(sorted(self.plans))
            raise _refusal_error(f"{_MAX_PLANS} plans are scheduled already: `rechannel cancel` one of {names}")
        if len(plan.plan.encode()) > _MAX_BYTES:
            raise _refusal_error(
                f"the plan has more than {_MAX_BYTES / 1e3:.0f} kB; apply it now, or make a smaller one"
            )
        self._change({**self.plans, plan.scheduled_plan: plan})

    def _open_plans(self) -> list[ScheduledPlan]:
        return [plan for plan in self.plans.values() if plan.scheduled_plan not in self.settled]

    def _change(self, plans: dict[str, ScheduledPlan]) -> None:
        before, self.plans = self.plans, plans
        try:
            self._put(_body(plans))
        except StoreError:
            self.plans = before  # the request is read again later
            raise

    def _put(self, body: ScheduledPlans) -> None:
        envelope = self._context.put_signed(keys.SCHEDULED_PLANS, body, ttl=TEN_YEARS)
        self._version = (envelope.epoch, envelope.sequence)


def _body(plans: dict[str, ScheduledPlan]) -> ScheduledPlans:
    return ScheduledPlans(plans=[plans[name] for name in sorted(plans)])
