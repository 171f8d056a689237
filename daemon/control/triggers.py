"""The occasions on which the leader decides without being asked at that moment, and what then holds it back.

They are, in this order: a drained node that holds state; a saved plan whose time has come; a plan that was cut to the
moves of one migration, and goes on; executors that joined or left; an overload; and the timeout, which the controller
itself counts. The first two are orders: nothing but the laws holds them back. The others are decided on by `by_itself`,
which keeps every reason not to, once for each period.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from rechannel.conf.settings import Settings
from rechannel.daemon.control import scheduled_plans
from rechannel.daemon.control.executor_set import ExecutorSetTrigger
from rechannel.daemon.control.guard import (
    CONTINUATION,
    EXECUTORS,
    HELD_BACK,
    OVERLOAD,
    LoadReading,
    OverloadDetector,
    SelfActionGuard,
    figures_last,
)
from rechannel.daemon.control.leader import Leader
from rechannel.daemon.control.memory import Memory
from rechannel.daemon.control.migration_progress import in_flight
from rechannel.daemon.control.scheduled_plans import PENDING, ScheduledPlans
from rechannel.daemon.control.standing_orders import left_on
from rechannel.daemon.control.time_windows import clock_time
from rechannel.daemon.decide.policy_settings import DRAIN
from rechannel.daemon.decide.requested_placement import SavedPlan, from_plan, read_plan
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.analysis.queueing import executor_utilization
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import Decision, LinkReport, PendingPlan, Refusal
from rechannel.wire.printable import count, query_name
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer

_RETRY_EVERY = 10.0  # seconds between two decisions on the same drain


class TriggerEngine:
    """When one controller decides by itself.

    ``clock``: seconds since the epoch; ``steady``: seconds that nobody sets, for waits.
    """

    def __init__(
        self,
        leader: Leader,
        store: Store,
        signer: Signer,
        author: EnvelopeFactory,
        clock: Callable[[], float],
        steady: Callable[[], float],
        memory: Memory,
    ) -> None:
        self.guard = SelfActionGuard(leader.settings, memory)
        self.pending = ScheduledPlans(store, signer, author, steady)
        self._leader = leader
        self._author = author
        self._clock = clock
        self._steady = steady
        self._joining = ExecutorSetTrigger(steady, 0.0, 0.0, memory=memory)
        self._overload = OverloadDetector(memory)
        # application -> query -> last batch that was looked at
        self._batches: dict[str, dict[str, int]] = memory.table()
        self._looked: dict[str, float] = memory.table()  # application -> last window in which it was looked at
        self._continue_at: dict[str, float] = memory.table()  # application -> when a cut plan is gone on with, at least
        self._drain_at: dict[str, float] = memory.table()  # application -> when its drains are decided on again
        self.take(leader.settings)

    def take(self, settings: Settings) -> None:
        """Go on by other settings."""
        self.guard.settings = settings
        self._joining.take(settings)

    def adopt(self, kept: Sequence[tuple[str, Decision]]) -> None:
        """Learn what was decided and which plans wait: a lead begins, or Redis is another one."""
        self.guard.adopt(kept)
        self.pending.adopt(decision for _, decision in kept)

    def by_itself(self, trigger: str, application: str, reason: str = "") -> Decision | None:
        """Decide because of a trigger, unless something holds that back: then None, or why, the first time."""
        apply = self._leader.settings.reschedule.mode == "apply" and not self._leader.paused
        now = self._clock()
        held = self.guard.held(trigger, application, now) if apply else self.guard.cooling(trigger, application, now)
        if held is None:
            return self._leader.decide(trigger, application=application, apply=apply, reason=reason)
        if not self.guard.tell(trigger, application, held):
            return None
        return self._leader.refuse(trigger, application, held, reason=reason)

    def look(
        self,
        application: str,
        snapshot: Snapshot,
        batches: Sequence[BatchReport],
        usable: frozenset[str],
        window: float,
    ) -> None:
        """Take in what one window says of an application that is ready.

        ``snapshot``: of what was measured, not of what is expected; ``window``: when it began, as one counts once.
        """
        self._joining.ready(application, usable)
        fresh = self._looked.get(application) != window
        self._looked[application] = window
        measures = [*self._executor_loads(snapshot, fresh), *self._batch_times(application, snapshot, batches)]
        self._overload.see(application, measures, self._leader.settings.reschedule)

    def not_ready(self, application: str) -> None:
        """An application cannot be decided on: whether it is overloaded is not known any more."""
        self._overload.see(application, (), self._leader.settings.reschedule)

    def act(self, application: str, report: LinkReport) -> None:
        """Decide on what asks for it now: at most one occasion at a time."""
        now, waited = self._clock(), self._steady()
        self._joining.see(application, self.usable(report))
        migrations = self._leader.migrations
        if application in migrations.running or in_flight(report):
            return
        if any(left_on(report, self._leader.orders.nodes).values()) and waited >= self._drain_at.get(application, 0.0):
            self._drain_at[application] = waited + _RETRY_EVERY
            if self._leader.decide(DRAIN, application=application, apply=True).outcome == "applied":
                return
        resting = migrations.resting(application, now)
        waiting = self.pending.due(application, now)
        if waiting is not None and (waiting.force or not resting):
            self._take_up(waiting)
            return
        if resting:
            return
        if left := migrations.continues(application, now):
            self._continue(application, left, waited)
            return
        if self._joining.due(application):
            decision = self.by_itself(EXECUTORS, application)
            if decision is not None and not self._held(decision):
                self._joining.decided(application, decision, report)
                return
        # What holds one trigger back, such as its cool-down, must not hold back the other.
        if words := self._overload.due(application, waited):
            decision = self.by_itself(OVERLOAD, application, words)
            if decision is not None and not self._held(decision):
                self._overload.decided(application, decision, waited, figures_last(self._leader.settings))

    def _continue(self, application: str, left: int, waited: float) -> None:
        if self._leader.settings.reschedule.mode != "apply" or waited < self._continue_at.get(application, 0.0):
            return
        self._continue_at[application] = waited + _RETRY_EVERY
        words = f"the plan before was cut to migration.max_moves, and kept: at most {left} more moves may follow"
        decision = self.by_itself(CONTINUATION, application, words)
        if decision is not None and decision.outcome not in ("applied", "not-ready") and not self._held(decision):
            self._leader.migrations.spoiled(application)  # there is no more to gain

    @property
    def settling(self) -> float:
        """Seconds for which a set of executors has to stay as it is before it is decided on."""
        return self._joining.settle

    def usable(self, report: LinkReport) -> frozenset[str]:
        """Return the executors that may hold partitions."""
        usable = (info for info in report.executors if info.host not in self._leader.orders.nodes)
        return frozenset(info.executor for info in usable) - frozenset(report.releasing_executors)

    def wait(self, text: str, *, at: str, when: str, user: str, reason: str, force: bool) -> tuple[str, PendingPlan]:
        """Let a saved plan wait for its time; ValueError where it cannot. Returns a sentence and what waits."""
        plan = read_plan(text, self._author.cluster)
        rules, now = self._leader.settings.reschedule, self._clock()
        span = scheduled_plans.window(at, when, rules, now)
        waiting = PendingPlan(
            pending=scheduled_plans.new_id(),
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
        self.pending.add(waiting, self._leader.epoch)
        since = "now" if span.begin <= now else clock_time(span.begin, rules.time_zone)
        until = clock_time(span.end, rules.time_zone)
        said = (
            f"plan {plan.decision} waits as {waiting.pending}: {count(len(plan.moves), 'move')} of {plan.application}, "
            f"to be checked anew and begun between {since} and {until}; `rechannel cancel {waiting.pending}` ends that"
        )
        held = self.guard.excluded(max(now, span.begin))
        return f"{said}; warning: then {held.detail}, this plan all the same" if held is not None else said, waiting

    def cancel(self, name: str, *, user: str, reason: str) -> str:
        """Let a plan wait no longer; ValueError where there is none of this id."""
        plan = self.pending.plan(name)
        refusal = scheduled_plans.canceled(plan, user, reason)
        self._settle(plan, refusal, user, reason)
        return refusal.detail

    def expire(self) -> None:
        """Let go of the plans whose time has passed, and see to it that the others stand in Redis."""
        for name in sorted(self.pending.settled):
            self.pending.remove(name, self._leader.epoch)  # which failed when that was decided
        for plan, why in self.pending.over(self._clock()):
            self._settle(plan, scheduled_plans.passed(plan, why), plan.user, plan.reason)
        self.pending.publish(self._leader.epoch)

    def undrained(self, application: str) -> None:
        """Decide on an application that may use a node again as soon as its executors stay the same for a while."""
        self._leader.migrations.rested(application)
        self._joining.undrained(application)

    def order_changed(self) -> None:
        """Decide on drains at once: another one was ordered."""
        self._drain_at.clear()

    def forget(self) -> None:
        """Another controller leads."""
        self._joining.forget()
        self._overload.forget()
        self._batches.clear()
        self._looked.clear()
        self._drain_at.clear()
        self.pending.forget()

    def _settle(self, plan: PendingPlan, refusal: Refusal, user: str, reason: str) -> None:
        """Say the last word on a plan, once, and take it off the list: in this order, so that it leaves a trace."""
        if plan.pending not in self.pending.settled:
            self._leader.refuse(PENDING, plan.application, refusal, user=user, reason=reason, pending=plan.pending)
            self.pending.settled[plan.pending] = refusal.law
        self.pending.remove(plan.pending, self._leader.epoch)

    def _take_up(self, waiting: PendingPlan) -> None:
        plan: SavedPlan = read_plan(waiting.plan, self._author.cluster)
        decision = self._leader.decide(
            PENDING,
            application=waiting.application,
            user=waiting.user,
            reason=waiting.reason or f"{waiting.pending} waited for {waiting.window}",
            apply=True,
            force=waiting.force,
            asked=functools.partial(from_plan, plan),
            pending=waiting.pending,
        )
        if self.pending.tried(waiting, decision):
            self.pending.remove(waiting.pending, self._leader.epoch)

    def _executor_loads(self, snapshot: Snapshot, fresh: bool) -> list[LoadReading]:
        limit = self._leader.settings.reschedule.overload_utilization
        cluster = snapshot.cluster
        busy = executor_utilization(cluster, snapshot.workload, snapshot.placement).utilization
        return [
            LoadReading(
                f"executor {name}",
                float(share),
                limit,
                f"executor {name} is {share:.0%} busy, reschedule.overload_utilization is {limit:.0%}",
                fresh,
            )
            for name, share in zip(cluster.executors, busy, strict=True)
        ]

    def _batch_times(self, application: str, snapshot: Snapshot, batches: Sequence[BatchReport]) -> list[LoadReading]:
        times = self._leader.settings.reschedule.overload_duration
        looked = self._batches.setdefault(application, {})
        found = []
        for name, (usual, _) in snapshot.usual.items():
            last = max((batch for batch in batches if batch.query == name), key=lambda batch: batch.batch, default=None)
            state = snapshot.queries.get(name)
            if last is None or state is None:
                continue
            interval = state.interval
            limit = min(times * usual, interval) if interval else times * usual
            rule = (
                f"its trigger's interval is {interval:g} s"
                if limit == interval
                else (f"usual are {usual:.2f} s, reschedule.overload_duration is {times:g} times that")
            )
            words = f"the last batch of {query_name(name, state.name)} took {last.seconds:.2f} s, {rule}"
            fresh = looked.get(name) != last.batch
            looked[name] = last.batch
            found.append(LoadReading(f"query {name}", last.seconds, limit, words, fresh))
        return found

    @staticmethod
    def _held(decision: Decision) -> bool:
        return decision.reason in HELD_BACK
