"""One application: all of its state, its cycle, and the order of its triggers."""

from __future__ import annotations

import dataclasses
import secrets
import time
from dataclasses import dataclass

import structlog

from rechannel.daemon.control.decision_log import (
    DecisionDeduplicator,
    LoggedDecision,
    append_decision,
    applied_decisions,
    is_rollback_canceled,
    log_decision,
)
from rechannel.daemon.control.guard import AUTOMATIC, AWAITING_OUTCOME, NO_ANSWER, AutomaticDecisionGuard, ClusterLimits
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.control.migrations import MigrationTracker
from rechannel.daemon.control.outcomes import REGRESSED_REASON, OutcomeHistory, OutcomeTracker, PendingRollback
from rechannel.daemon.control.scheduled_plans import ScheduledPlanStore, is_final
from rechannel.daemon.control.standing_orders import StandingOrderStore, partitions_on
from rechannel.daemon.control.triggers import RETRY_EVERY, ExecutorSetTrigger, LoadTriggers, usable_executors
from rechannel.daemon.control.unlocked_plan import UnlockedPlan
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest, Draft, NoPlan, PlanBasis, moves_in_flight
from rechannel.daemon.decide.policy_settings import policy_for
from rechannel.daemon.decide.rollback import rollback_placement
from rechannel.daemon.jobs.clock import COMPLAIN_EVERY, DutyCycle, RateLimit
from rechannel.daemon.jobs.planning import Mutex
from rechannel.daemon.jobs.running_plans import RunningPlans
from rechannel.daemon.model.application_messages import ApplicationMessages, describe_silent_agents
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.readiness import NotReady, driver_silence, readiness_problem
from rechannel.daemon.model.snapshot import Snapshot, take_snapshot
from rechannel.migration.plan.inputs import Cooldown
from rechannel.wire.codes import DecisionResult, Law, Mode, NotReadyReason, OutcomeVerdict, Trigger
from rechannel.wire.messages import Decision, LinkReport, Refusal, ScheduledPlan
from rechannel.wire.printable import with_noun
from rechannel.wire.redis.errors import StoreUnavailableError

_MODEL_SHARE = 0.2  # of a core, for the models of one application
_LONGEST_REST = 30.0  # seconds between two models: an overload has to be seen several times in a row


@dataclass
class ControllerServices:
    """Shared parts of a controller's applications; ``last_sentence``: the last event."""

    context: LeaderContext
    collector: Collector
    standing_orders: StandingOrderStore
    plans: ScheduledPlanStore
    limits: ClusterLimits
    history: OutcomeHistory
    running_plans: RunningPlans
    lock: Mutex
    last_sentence: str = ""


class Application:
    """All state of one application, and its leader's cycle.

    The controller's lock has to be held. A plan or a model is made without the lock.
    """

    def __init__(self, name: str, services: ControllerServices) -> None:
        self.name, self.sentence = name, ""
        self.last_reported = services.context.clock.steady()
        self.guard, self.complaints = AutomaticDecisionGuard(services.limits), RateLimit(COMPLAIN_EVERY)
        self.migrations = MigrationTracker(name, services.context)
        self.executors, self.load_triggers = ExecutorSetTrigger(), LoadTriggers()
        self.rollback: PendingRollback | None = None
        self._services, self._context, self._clock = services, services.context, services.context.clock
        self.outcome = self._new_outcome()
        self._unlocked_plan = UnlockedPlan(
            name, services.context, services.collector, services.running_plans, services.lock
        )
        self._continuation_timer, self._drain_timer = RateLimit(RETRY_EVERY), RateLimit(RETRY_EVERY)
        self._log = structlog.get_logger("rechannel.controller")
        self._published = DecisionDeduplicator()
        self._unstored: Decision | None = None  # applied, but whether Redis has it is unknown
        self._window: float | None = None  # agent window in which it was described last
        self._next_model = 0.0

    def _new_outcome(self) -> OutcomeTracker:
        return OutcomeTracker(self.name, self._context, self._services.history, self._services.lock.released)

    def reset(self) -> None:
        """Drop what only a leader may rely on, but not the guard and the cool-down."""
        self.executors, self.load_triggers = ExecutorSetTrigger(), LoadTriggers()
        self.outcome, self.rollback, self._unstored = self._new_outcome(), None, None
        self._published = DecisionDeduplicator()
        self.migrations.reset()
        self.retry_drain()
        self.invalidate_sentence()

    def restore_rollback(self, log: list[LoggedDecision]) -> None:
        """Await the outcome of an earlier leader's migration, or continue its rollback."""
        target = self.outcome.restore(applied_decisions(log, self.name))
        if target is not None and not is_rollback_canceled(log, self.name, target):
            self._await_rollback(target)

    # -- one cycle --

    def follow(self) -> None:
        """Renew the running migration, and note how it ended."""
        if self._unstored is not None:
            append_decision(self._context, self.name, self._unstored)
            self._unstored = None
        if ended := self.migrations.follow(self._report):
            self._services.last_sentence = ended
            self.invalidate_sentence()

    def run_cycle(self) -> None:
        """Do the first thing that is due, in order of priority."""
        if self._context.lead.paused:
            if self.rollback is not None:
                self.rollback.extend(self._clock.steady(), 0.0)
            return
        self._handle_outcome()
        if self._unlocked_plan.is_running:
            return
        self._try_rollback()
        report = self._report
        if report is None or not self._context.can_act:  # a rollback's plan may have taken minutes
            return
        self.executors.observe(usable_executors(report, self._services.standing_orders.nodes), self._clock.steady())
        self.migrations.cooldown_timer.observe(usable_executors(report, ()))
        is_moving = self.migrations.running is not None or bool(moves_in_flight(report))
        self._observe_batches(is_moving=is_moving)
        if not is_moving:
            self._run_due_triggers(report)

    def _observe_batches(self, *, is_moving: bool) -> None:
        """Detect imbalances in the newest batches, in the cycle that decides on them."""
        load = None if is_moving else self._services.collector.read_newest_load(self.name, self.executors.executors)
        self.load_triggers.observe_batches(load, self._clock.steady(), self._context.settings)

    def _run_due_triggers(self, report: LinkReport) -> None:
        """Decide on the first trigger that is due: orders, the cool-down, automatic triggers."""
        now, steady_now = self._clock.wall(), self._clock.steady()
        if self._leave_drained_nodes(report, steady_now):
            return
        cooldown = self.migrations.cooldown_left(now)
        plan = self._services.plans.due_plan(self.name, now, in_cooldown=cooldown > 0)
        if plan is not None:
            self._run_scheduled_plan(plan)
        elif cooldown or self._is_rollback_ordered:
            return
        elif left := self.migrations.continuation(now):
            self._continue_plan(left, steady_now)
        elif not self._decide_on_executors(report, steady_now):
            self._decide_on_load()

    def _leave_drained_nodes(self, report: LinkReport, steady_now: float) -> bool:
        """Move partitions off drained nodes, whatever the cool-down."""
        placed = any(partitions_on(report, self._services.standing_orders.nodes).values())
        if not placed or not self._drain_timer.allows(steady_now):
            return False
        return self.decide(self.new_request(Trigger.DRAIN, apply=True)).result == DecisionResult.APPLIED

    def _run_scheduled_plan(self, plan: ScheduledPlan) -> None:
        reason = plan.reason or f"{plan.scheduled_plan} was scheduled for {plan.window}"
        request = dataclasses.replace(
            self.new_request(Trigger.SCHEDULED, reason, apply=True),
            user=plan.user,
            force=plan.force,
            scheduled_plan=plan.scheduled_plan,
            placement_source=self._services.plans.placement_source(plan),
        )
        self._services.plans.record(plan, self.decide(request))

    def _continue_plan(self, left: int, steady_now: float) -> None:
        if self._context.settings.reschedule.mode != Mode.APPLY or not self._continuation_timer.allows(steady_now):
            return
        reason = f"the plan before was cut to migration.max_moves and confirmed: at most {left} more moves may follow"
        decision = self.decide_automatically(Trigger.CONTINUATION, reason)
        going_on = DecisionResult.APPLIED, DecisionResult.NOT_READY
        if decision is not None and decision.reason not in NO_ANSWER and decision.result not in going_on:
            self.migrations.cancel_continuation()  # there is nothing more to gain

    def _decide_on_executors(self, report: LinkReport, steady_now: float) -> bool:
        trigger, settings = self.executors, self._context.settings
        if not trigger.is_due(steady_now, settings):
            return False
        decision = self.decide_automatically(Trigger.EXECUTORS)
        if decision is None or decision.reason in NO_ANSWER:
            return False  # what refused this trigger, such as the budget, must not hold back the next one
        trigger.record(decision, report, self._clock.steady(), settings)
        return True

    def _decide_on_load(self) -> None:
        is_stable = self.executors.is_stable(steady_now := self._clock.steady(), self._context.settings)
        for trigger, reason, load_since in self.load_triggers.due(steady_now, is_stable=is_stable):
            decision = self.decide_automatically(trigger, reason, load_since)
            if decision is not None and decision.reason not in NO_ANSWER:
                break

    # -- decisions --

    def new_request(self, trigger: Trigger, reason: str = "", *, apply: bool = False) -> DecisionRequest:
        """Return a request for a decision, with an id and the policy of the settings."""
        now = self._clock.wall()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(2)}"
        policy = policy_for(trigger, self._context.settings)
        return DecisionRequest(name, now, trigger, policy, reason=reason, apply=apply)

    def decide_automatically(self, trigger: Trigger, reason: str = "", load_since: float = 0.0) -> Decision | None:
        """Decide because of a trigger; a guard's refusal is returned once, then None."""
        apply, now = self._context.acts_automatically, self._clock.wall()
        refusal = self._services.limits.blocked_by(now) if apply else None
        if refusal is None:
            request = self.new_request(trigger, reason, apply=apply)
            return self.decide(dataclasses.replace(request, load_since=load_since))
        if not self.guard.should_log(trigger, refusal):
            return None
        return self.refuse(self.new_request(trigger, reason), refusal)

    def decide(self, request: DecisionRequest) -> Decision:
        """Make a decision, publish it, and begin its migration if it is to be applied."""
        if self._unlocked_plan.await_end():
            request = dataclasses.replace(request, at=self._clock.wall())
        try:
            decision = self._ask_guard(request, self._plan(request))
        except NoPlan as end:
            decision = pipeline.decision_without_plan(request, end.reason)
            if end.reason is pipeline.NOT_LEADING:
                return decision  # decisions are published by the leader alone
        self._publish(decision)
        answers = request.trigger in AUTOMATIC and not self._context.lead.paused
        if answers or decision.result == DecisionResult.APPLIED:
            self.load_triggers.record(decision, self._clock.steady(), self._context.settings)
        return decision

    def refuse(self, request: DecisionRequest, refusal: Refusal) -> Decision:
        """Publish a decision not to act that needs no plan."""
        decision = pipeline.decision_without_plan(request, refusal)
        self._publish(decision)
        return decision

    def _plan(self, request: DecisionRequest) -> Draft:
        if not self._context.can_act:
            raise NoPlan(pipeline.NOT_LEADING)
        basis = self._plan_basis(request)
        with self._unlocked_plan.make(request, self._orders):
            return pipeline.draft_decision(request, basis)

    def _plan_basis(self, request: DecisionRequest) -> PlanBasis:
        """Return what a plan rests on; raises NoPlan if none can be made."""
        services, settings = self._services, self._context.settings
        if request.apply and self._context.lead.paused:
            raise NoPlan(pipeline.PAUSED)
        services.collector.refresh()
        messages = services.collector.gather(self.name)
        if messages is None:
            raise NoPlan(pipeline.no_report(self.name))
        if (silent := driver_silence(messages.reported_at, request.at)) is not None:
            raise NoPlan(silent)
        self.migrations.refresh(messages.report, request.at)
        if busy := self.migrations.busy_sentence(messages.report):
            raise NoPlan(NotReady(NotReadyReason.MIGRATION_RUNNING, busy))
        cooldown = self.migrations.cooldown_left(request.at)
        if request.apply and request.trigger in AWAITING_OUTCOME and not cooldown and self.outcome.is_awaiting:
            raise NoPlan(pipeline.OUTCOME_AWAITED)
        limited = request.apply and request.trigger in AUTOMATIC
        return PlanBasis(
            messages=dataclasses.replace(messages, load_since=request.load_since),
            settings=settings,
            drained_nodes=services.standing_orders.nodes | request.drained_nodes,
            cooldown=Cooldown(cooldown, *self.migrations.cooldown_length()),
            rates=services.history.rates(),
            gain_shares=services.history.gain_shares(),
            moves_left=services.limits.moves_left(request.at) if limited else None,
            mending_moves=self.guard.mending_moves(request.at) if self._context.acts_automatically else 0,
        )

    def _orders(self) -> tuple[object, ...]:
        """Return the orders that a plan has to know; if they change, it is out of date."""
        migration = self.migrations.running
        return (
            self._services.standing_orders.nodes,
            self.rollback and self.rollback.decision.decision,
            migration and migration.desired.decision,
            self._services.plans.scheduled,
        )

    def _ask_guard(self, request: DecisionRequest, draft: Draft) -> Decision:
        """Return the decision of a draft, once the guard was asked."""
        limits, now, moves = self._services.limits, self._clock.wall(), len(draft.decision.moves)
        if not request.apply or not moves:
            return draft.decision
        if request.trigger not in AUTOMATIC:
            return pipeline.with_verdict(draft, None, limits.order_warning(now, moves))
        verdict = self.guard.repetition(draft.decision)
        if verdict is None and request.trigger != Trigger.CONTINUATION:  # its first part was agreed on
            verdict = self.guard.agreement(draft.decision, draft.partitions)
        decision = pipeline.with_verdict(draft, verdict)
        if decision.result == DecisionResult.APPLIED:
            left = limits.moves_left(now)
            if left is not None and moves > left:
                raise NoPlan(pipeline.OVERTAKEN)
            if (period := limits.excluded_period(now)) is not None:
                raise NoPlan(period)
        return decision

    def _publish(self, decision: Decision) -> None:
        """Publish a decision unless it repeats the one before; one that is applied begins."""
        self._services.last_sentence = f"{self.name}: {decision.sentence}"
        log_decision(self.name, decision)
        if self._published.repeats(decision):
            return
        try:
            append_decision(self._context, self.name, decision)
        except StoreUnavailableError as error:
            if decision.result != DecisionResult.APPLIED:
                raise
            # It may be in the log all the same, so it begins; `follow` stores it again.
            self._unstored = decision
            self._log.warning("decision-not-stored", application=self.name, sentence=str(error))
        self._published.record(decision)  # only now: a decision that was not stored was not published
        self.guard.record(decision)
        if decision.result == DecisionResult.APPLIED:
            self.invalidate_sentence()
            if not (decision.rollback_of or (self._is_rollback_ordered and decision.trigger in AUTOMATIC)):
                self.rollback = None  # the newer order stands
            self.migrations.begin(decision)
            self.outcome.start_tracking(decision)

    # -- outcomes and rollbacks --

    def order_rollback(self, target: Decision, *, user: str, reason: str) -> tuple[str, Decision | None]:
        """Roll a decision back; a running migration is ended first.

        Returns a sentence, and the rollback's decision if there is one already.
        """
        pending = self.rollback = PendingRollback(target, user, reason, self._clock.steady())
        paused = self._context.lead.paused
        stopped = f"{self.migrations.stop()}; then " if self.migrations.running is not None else ""
        self._log.info("rollback", application=self.name, decision=target.decision, user=user, reason=reason)
        begun = None if stopped or paused else self._try_rollback()
        if begun is not None and self.rollback is not pending:
            return "", begun
        later = "" if stopped or paused else ", once the moves that wait for a batch have landed"
        if begun is not None:
            later = f" as soon as possible ({begun.sentence})"
        held = "; paused: `rechannel resume` first" if paused else ""
        warning = self._services.limits.order_warning(self._clock.wall())
        return f"{stopped}decision {target.decision} is rolled back{later}{held}{warning}", None

    def cancel_rollback(self, *, user: str, reason: str) -> str:
        """Cancel the pending rollback, for later leaders too; returns a sentence."""
        if self.rollback is None:
            return ""
        sentence = f"the rollback of decision {self.rollback.decision.decision} is canceled"
        self.rollback = None
        request = dataclasses.replace(self.new_request(Trigger.ROLLBACK, reason), user=user)
        self.refuse(request, Refusal(law=Law.CANCELED, detail=sentence))
        return sentence

    @property
    def _is_rollback_ordered(self) -> bool:
        return self.rollback is not None and self.rollback.is_ordered

    def _handle_outcome(self) -> None:
        """Ask what a migration brought, once it is over; one that regressed is rolled back."""
        report = self._report
        if report is None or not self.outcome.is_awaiting:
            return
        if self.migrations.running is not None or moves_in_flight(report):
            return
        messages = self._services.collector.gather(self.name)
        measured = self.outcome.poll(messages) if messages is not None else None
        if measured is None:
            return
        outcome, target = measured
        if outcome.verdict == OutcomeVerdict.CONFIRMED:
            self.migrations.confirm(outcome.decision)
            self.load_triggers.confirm(self._clock.steady())
        else:
            self.migrations.cancel_continuation()
        if target is not None:
            self._await_rollback(target)

    def _await_rollback(self, target: Decision) -> None:
        if not self._is_rollback_ordered:
            self.rollback = PendingRollback(target, "", REGRESSED_REASON, self._clock.steady())

    def _try_rollback(self) -> Decision | None:
        """Move a decision's partitions back, once nothing else is under way.

        Returns the decision once it is made. An operator's rollback does not wait for the end of an excluded period;
        an automatic one is given up when the mode or `migration.rollback` changes.
        """
        pending, report, steady_now = self.rollback, self._report, self._clock.steady()
        if pending is None:
            return None
        allowed = pending.is_ordered or self._context.rolls_back
        period = None if pending.is_ordered else self._services.limits.excluded_period(self._clock.wall())
        if period is not None and allowed:
            pending.extend(steady_now, period.until - self._clock.wall())
            if self.guard.should_log(Trigger.ROLLBACK, period):
                self.refuse(self.new_request(Trigger.ROLLBACK, pending.reason), period)
            return None
        if steady_now >= pending.until or not allowed:
            self._log.warning("rollback-given-up", application=self.name, decision=pending.decision.decision)
            self.rollback = None
            return None
        if self.migrations.running is not None or report is None or moves_in_flight(report):
            return None
        if not pending.start_try(report, steady_now):
            return None
        request = dataclasses.replace(
            self.new_request(Trigger.ROLLBACK, pending.reason, apply=True),
            user=pending.user,
            placement_source=lambda snapshot: rollback_placement(pending.decision, snapshot),
        )
        decision = self.decide(request)
        if is_final(decision) and self.rollback is pending:
            self.rollback = None
        return decision

    # -- orders --

    def retry_drain(self) -> None:
        """Decide on drains at once: another one was ordered."""
        self._drain_timer = RateLimit(RETRY_EVERY)

    def reopen(self) -> None:
        """Decide again as soon as the executors stay the same: a node may hold state again."""
        self.migrations.cooldown_timer.clear()
        self.executors.reopen()

    # -- description --

    def invalidate_sentence(self) -> None:
        """Let the next cycle describe the application again, whatever that takes."""
        self.sentence, self._window, self._next_model = "", None, 0.0

    def describe(self, window: float) -> None:
        """Describe the application and detect overloads, once in each window.

        Models take at most a fifth of a core, but one is made each half minute: one of tens of thousands of partitions
        takes seconds.
        """
        if self._window == window:
            return
        try:
            self._refresh_model(window)
        except Exception:
            self.sentence = ""  # it may no longer be true
            raise

    def _refresh_model(self, window: float) -> None:
        messages = self._services.collector.gather(self.name)  # in any case: entries that are trimmed unread are lost
        self._window = window
        if self.migrations.running is not None:
            self.sentence = self.migrations.running.sentence()
            return
        if messages is None:
            return
        now, began = self._clock.wall(), self._clock.steady()
        if (silent := driver_silence(messages.reported_at, now)) is not None:
            self._note_not_ready(silent)
            return
        settings = self._context.settings
        if began < self._next_model and readiness_problem(messages, settings, now) is None:
            return
        drained_nodes = self._services.standing_orders.nodes
        with self._services.lock.released(), DutyCycle(_MODEL_SHARE, _LONGEST_REST, self._clock.cpu) as work:
            snapshot = take_snapshot(messages, settings, now, drained_nodes, forecast=False)
        if self._report is None:
            return
        self._next_model = began + work.rest
        if isinstance(snapshot, NotReady):
            self._note_not_ready(snapshot)
        else:
            self._note_ready(snapshot, messages, window)

    def _note_not_ready(self, reason: NotReady) -> None:
        self.load_triggers.interrupt()  # an overload may be over unseen
        self.sentence = f"not ready: {reason.sentence}"

    def _note_ready(self, snapshot: Snapshot, messages: ApplicationMessages, window: float) -> None:
        self.executors.mark_ready(usable_executors(messages.report, self._services.standing_orders.nodes))
        self.load_triggers.observe_window(snapshot, window, self._context.settings)
        now = self._clock.wall()
        waiting = f", cool-down for {left:.0f} s" if (left := self.migrations.cooldown_left(now)) else ""
        placed = with_noun(snapshot.workload.partitions, "partition")
        executors = with_noun(snapshot.cluster.size, "executor")
        missing = f"; {text}" if (text := describe_silent_agents(snapshot.coverage)) else ""
        self.sentence = f"ready: {placed} on {executors}{waiting}{self.guard.describe(now)}{missing}"

    @property
    def _report(self) -> LinkReport | None:
        return self._services.collector.reports.get(self.name)
