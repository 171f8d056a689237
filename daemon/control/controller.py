"""Controller of one cluster: leads or stands by, and runs its applications.

Each public method is one cycle or one order: it reads once, walks its guards, and returns a sentence or a decision. Any
of them may raise StoreError (nothing is decided on stale data; the next cycle tries again), and they may be called from
several threads. Everything is written through the leader's fenced store, so nothing is written once another one leads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable
from typing import TypedDict, Unpack

import structlog

from rechannel.conf.settings import Settings
from rechannel.daemon.control.application import FORGOTTEN_AFTER, Application, ControllerServices
from rechannel.daemon.control.commands import drain_sentence, execute, undrain_sentence
from rechannel.daemon.control.decision_log import LoggedDecision, read_decision_log
from rechannel.daemon.control.guard import ClusterLimits
from rechannel.daemon.control.leadership import LeaderContext, LeaderElection, LeaseResult, Role
from rechannel.daemon.control.migrations import MigrationStatus
from rechannel.daemon.control.outcomes import LoadRateEstimator
from rechannel.daemon.control.requests import RequestHandler
from rechannel.daemon.control.scheduled_plans import ScheduledPlans, canceled
from rechannel.daemon.control.standing_orders import StandingOrderStore, partitions_on
from rechannel.daemon.control.triggers import settle_time
from rechannel.daemon.decide.pipeline import PlacementSource
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.planning import Aside, Mutex
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import Collector
from rechannel.wire import keys
from rechannel.wire.codes import Outcome, Trigger
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.messages import ControllerState, Decision, Drain, LinkReport, PendingPlan, Refusal
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer

_COMPLAIN_EVERY = 60.0  # seconds between two tracebacks about one application


@dataclasses.dataclass(frozen=True)
class ControllerSnapshot:
    """Copy of what a controller knows at one moment, for display.

    ``holder``: of the lease. ``rejected``: number of messages that were unreadable or impossible.
    """

    applications: tuple[ApplicationMessages, ...]
    migrations: tuple[MigrationStatus, ...]
    role: Role
    name: str
    holder: str
    epoch: int
    paused: bool
    rejected: int


class RequestFields(TypedDict, total=False):
    """Optional fields of a `rechannel.daemon.decide.pipeline.DecisionRequest`."""

    user: str
    force: bool
    policy: str
    source: PlacementSource | None
    leave: frozenset[str]


class Controller:
    """One controller of one cluster."""

    def __init__(  # noqa: PLR0913 one for each part that a test replaces
        self,
        settings: Settings,
        store: Store,
        signer: Signer,
        clock: Clock,
        *,
        name: str = "controller",
        aside: Aside | None = None,
        count_answer: Callable[[str, int], None] | None = None,
    ) -> None:
        self.lead = LeaderElection(settings, store, clock, name)
        self.next_decision = clock.wall() + settings.reschedule.timeout
        self._aside = aside or Aside()
        self._clock = clock
        self._lock = Mutex()
        envelopes = EnvelopeFactory(settings.cluster.name, self.lead.name, clock.wall)
        self._context = context = LeaderContext(settings, self.lead, signer, envelopes, clock)
        self._cluster = ControllerServices(
            context=context,
            collector=Collector(context.store, settings, clock.wall),
            orders=StandingOrderStore(context),
            plans=ScheduledPlans(context),
            limits=ClusterLimits(settings),
            estimator=LoadRateEstimator(context),
            planning=self._aside.planning,
            lock=self._lock,
        )
        self._applications: dict[str, Application] = {}
        self._window = 0.0  # begin of the present agent window
        self._followed_at = clock.steady()
        run, count = functools.partial(execute, self), count_answer or (lambda _verb, _code: None)
        self._requests = RequestHandler(settings, self.lead, envelopes, clock.wall, run, count)
        self._log = structlog.get_logger("rechannel.controller")

    # -- cycles --

    def run_leader_cycle(self) -> str:
        """Renew the lease, read the links' reports, and publish what the controller is doing."""
        sentence = self._renew()
        if self._context.can_act:
            self._aside.run("look", self._refresh_models)
            with self._lock:
                if self._context.can_act:
                    self._publish_state()
        return sentence

    def decide_all(self) -> list[Decision]:
        """Decide on every application that reports; acts in mode ``apply`` only."""
        with self._lock:
            self.next_decision = self._clock.wall() + self.settings.reschedule.timeout
        return self._aside.run("decide", self._decide_all) or []

    def follow(self) -> str:
        """Renew running migrations, notice what is over, and decide on the triggers that are due."""
        if not self._follow_migrations():
            return "not leading"
        self._aside.run("act", self._step_all)
        with self._lock:
            running = [app.migrations.running.sentence() for app in self._migrating() if app.migrations.running]
            return "; ".join(running) or "no migration runs"

    def answer_requests(self) -> int:
        """Answer operators' requests; returns how many were answered."""
        with self._lock:
            answered = self._requests.answer() if self._context.can_act else 0
        return answered + (self._aside.run("plans", self._answer_plans) or 0)

    def _renew(self) -> str:
        """Renew the lease; a new leader takes over what it finds in Redis and the reports."""
        with self._lock:
            reports = self._cluster.collector.refresh()
            self._mark_heard(reports)
            result = self.lead.renew(max((report.accepted_epoch for report in reports.values()), default=0))
            if result is LeaseResult.WAITING:
                self._stand_by()
                return f"standing by: {self.lead.holder} leads in epoch {self.lead.epoch}"
            if result is not LeaseResult.KEPT:
                self._context.restored = False
                self._log.info(f"lead-{result}", leader=self.lead.name, epoch=self.lead.epoch, paused=self.lead.paused)
            self._restore(reports)
            self._cluster.orders.publish()
            return f"leading in epoch {self.lead.epoch}{', paused' if self.lead.paused else ''}"

    def _stand_by(self) -> None:
        if any(app.migrations.examined or app.migrations.running for app in self._applications.values()):
            self._log.warning("lead-lost", leader=self.lead.holder, epoch=self.lead.epoch)
        self._context.restored = False
        for app in self._applications.values():
            app.reset()
        self._cluster.plans.reset()
        self._cluster.estimator.reset()
        self._requests.forget()
        self._window = 0.0

    def _restore(self, reports: dict[str, LinkReport]) -> None:
        """Take over the applications not examined yet, all of them at the begin of a lead."""
        first = not self._context.restored
        if first:
            for app in self._applications.values():
                app.migrations.examined = False
        names = sorted(name for name in reports if not self.application(name).migrations.examined)
        if not names and not first:
            return
        log = read_decision_log(self._context.store)
        if first:
            self._mark_heard(name for name, _ in log)  # they may report again
            self._restore_log(log)
        paused = self._cluster.orders.restore({name: reports[name] for name in names})
        if paused and not self.lead.paused:
            self.lead.pause(True)
        for name, decision in log:
            if decision.outcome == Outcome.APPLIED:
                self.application(name).migrations.note_applied(decision)
        self._for_each(names, lambda app: app.migrations.restore(reports[app.name]))
        self._for_each(names, lambda app: app.restore_rollback(log))
        self._context.restored = True

    def _restore_log(self, log: list[LoggedDecision]) -> None:
        for app in self._applications.values() if log else ():  # an empty log means that Redis was emptied
            app.guard.clear()
        for name, decision in log:
            self.application(name).guard.record(decision)
        self._cluster.plans.restore(decision for _, decision in log)

    def _refresh_models(self) -> None:
        with self._lock:
            now = self._clock.steady()
            if now >= self._window + self.settings.agent.window:
                self._window = now
            self._for_each(sorted(self._cluster.collector.reports), lambda app: app.describe(self._window))

    def _decide_all(self) -> list[Decision]:
        with self._lock:
            if not self._context.can_act:
                return []
            decisions: list[Decision | None] = []
            self._for_each(
                self._cluster.collector.refresh(), lambda app: decisions.append(app.decide_unattended(Trigger.TIMEOUT))
            )
            return [decision for decision in decisions if decision is not None]

    def _follow_migrations(self) -> bool:
        """Renew migrations and expire scheduled plans; returns False if it may not act."""
        with self._lock:
            if not self._context.can_act:
                return False
            if any(app.migrations.running or app.rollback for app in self._applications.values()):
                self._cluster.collector.refresh()
            now = self._clock.steady()
            silence = now - self._followed_at
            self._followed_at = now
            if silence > 3 * self.settings.controller.observe:  # Redis was away, and no link could be heard
                for app in self._migrating():
                    app.migrations.extend_deadline(silence)
            self._for_each([app.name for app in self._migrating()], Application.follow)
            self._expire_scheduled_plans()
            return True

    def _expire_scheduled_plans(self) -> None:
        self._cluster.plans.remove_settled()
        for plan, refusal in self._cluster.plans.expired(self._clock.wall()):
            self._close_scheduled_plan(plan, refusal, plan.user, plan.reason)
        self._cluster.plans.publish()

    def _step_all(self) -> None:
        with self._lock:
            # Applications without a report too: their rollbacks are given up in time.
            self._for_each(sorted(self._applications), lambda app: app.step() if self._context.can_act else None)

    def _answer_plans(self) -> int:
        with self._lock:
            return self._requests.answer_plans() if self._context.can_act else 0

    # -- decisions and orders of operators --

    def decide(
        self,
        trigger: str,
        *,
        application: str,
        reason: str = "",
        apply: bool = False,
        **fields: Unpack[RequestFields],
    ) -> Decision:
        """Decide on one application, publish the decision, and with ``apply`` begin its migration."""
        with self._lock:
            app = self.application(application)
            request = app.new_request(Trigger(trigger), reason, apply=apply)
            fields["policy"] = fields.get("policy") or request.policy
            return app.decide(dataclasses.replace(request, **fields))

    def pause(self, paused: bool) -> str:
        """Pause or resume everything; a running migration begins no further move while paused."""
        with self._lock:
            self.lead.pause(paused)
            self._cluster.orders.publish()
            self._follow_migrations()
            running = len(self._migrating())
            held = f"; {running} running migration{'s' if running != 1 else ''} {'held' if paused else 'go on'}"
            self._log.info("paused" if paused else "resumed", migrations=running)
            return self._report_order(f"{'paused' if paused else 'resumed'}{held if running else ''}")

    def held_on(self, nodes: Collection[str]) -> list[str]:
        """Return the applications with state on these nodes; or ValueError."""
        with self._lock:
            reports = self._check_drain(nodes)
            return sorted(name for name, report in reports.items() if any(partitions_on(report, nodes).values()))

    def drain(self, *nodes: str, user: str, reason: str, remove: bool, patience: float) -> str:
        """Order that nodes are to hold no state; ValueError if that is not possible."""
        with self._lock:
            reports = self._check_drain(nodes)
            before = dict(self._cluster.orders.drains)
            for node in nodes:
                self._cluster.orders.drain(node, user=user, reason=reason, remove=remove, patience=patience)
            self._publish_orders(before)
            for app in self._applications.values():
                app.retry_drain()
            left = sum(sum(partitions_on(report, nodes).values()) for report in reports.values())
            there = sum(info.host in nodes for report in reports.values() for info in report.executors)
            sentence = drain_sentence(nodes, left, there, remove=remove, paused=self.paused)
            self._log.info("drain", nodes=nodes, user=user, reason=reason, remove=remove, patience=patience)
            return self._report_order(f"{sentence}{self._cluster.limits.order_warning(self._clock.wall(), left)}")

    def undrain(self, *nodes: str, user: str, reason: str) -> str:
        """Let nodes hold state again; ValueError if one was not drained."""
        with self._lock:
            before = dict(self._cluster.orders.drains)
            if others := [node for node in nodes or ("",) if node not in before]:
                drained = ", ".join(sorted(before)) or "none"
                raise ValueError(f"node {', '.join(others)} is not drained; drained are {drained}")
            for node in nodes:
                self._cluster.orders.undrain(node)
            self._publish_orders(before)
            for name, report in self._cluster.collector.refresh().items():
                if any(info.host in nodes for info in report.executors):
                    self.application(name).reopen()
            sentence = undrain_sentence(
                nodes,
                mode=self.settings.reschedule.mode,
                paused=self.paused,
                running=bool(self._migrating()),
                wait=settle_time(self.settings),
            )
            self._log.info("undrain", nodes=nodes, user=user, reason=reason)
            return self._report_order(f"{sentence}{self._cluster.limits.order_warning(self._clock.wall())}")

    def stop(self, application: str, *, user: str, reason: str) -> str:
        """End the running migration of an application, or of all (""), at the next batch.

        ValueError without one.
        """
        with self._lock:
            self._follow_migrations()
            running = [app for app in self._migrating() if application in ("", app.name)]
            if not running:
                raise ValueError(f"no migration of {application or 'any application'} is running")
            sentence = "; ".join(app.migrations.stop() for app in running)
            if nodes := self._cluster.orders.nodes:
                sentence += f"; drained still: {', '.join(sorted(nodes))}, `undrain` ends that"
            for app in running:
                app.rollback = None
            self._log.info("stop", applications=[app.name for app in running], user=user, reason=reason)
            return self._report_order(sentence)

    def rollback(self, application: str, decision: str, *, user: str, reason: str) -> tuple[str, Decision | None]:
        """Move back what a decision moved ("": the last one that was not undone).

        ValueError if there is none. A running migration is ended first; then there is no decision to return yet.
        """
        with self._lock:
            self._follow_migrations()
            sentence, begun = self.application(application).order_rollback(decision, user=user, reason=reason)
            return self._report_order(sentence or self._cluster.last_sentence), begun

    def wait(self, plan: str, *, at: str, when: str, user: str, reason: str, force: bool) -> tuple[str, PendingPlan]:
        """Let a saved plan wait for its window; ValueError if it cannot."""
        with self._lock:
            sentence, pending = self._cluster.plans.schedule(plan, (at, when), user=user, reason=reason, force=force)
            period = self._cluster.limits.quiet_period(max(pending.at, pending.begin))
            warning = f"; warning: then {period.detail}, this plan all the same" if period is not None else ""
            return self._report_order(f"{sentence}{warning}"), pending

    def cancel(self, pending: str, *, user: str, reason: str) -> str:
        """Let a saved plan wait no longer; ValueError if none of this id waits."""
        with self._lock:
            plan = self._cluster.plans.find(pending)
            refusal = canceled(plan, user, reason)
            self._close_scheduled_plan(plan, refusal, user, reason)
            return self._report_order(refusal.detail)

    # -- state --

    def reload(self, settings: Settings) -> None:
        """Continue with other settings; only live fields differ (`rechannel.conf.reload`)."""
        with self._lock:
            self._context.settings = self._cluster.limits.settings = settings
            self._cluster.collector.reload(settings)
            self._requests.reload(settings)

    @property
    def settings(self) -> Settings:
        """Current settings."""
        return self._context.settings

    @property
    def epoch(self) -> int:
        """Epoch this controller leads in, or the last one it knows."""
        return self.lead.epoch

    @property
    def paused(self) -> bool:
        """Whether everything is paused."""
        return self.lead.paused

    @property
    def applications(self) -> list[str]:
        """Ids of the applications with a fresh report."""
        return sorted(self._cluster.collector.reports)

    def application(self, name: str) -> Application:
        """Return the state of an application, new if it is not known."""
        app = self._applications.get(name)
        if app is None:
            app = self._applications[name] = Application(name, self._cluster)
        return app

    def snapshot(self) -> ControllerSnapshot:
        """Read new messages, and return a copy of what this controller knows."""
        with self._lock:
            collector = self._cluster.collector
            messages = [collector.gather(name) for name in collector.refresh()]
            running = [app.migrations.running for app in self._migrating() if app.migrations.running]
            return ControllerSnapshot(
                applications=tuple(item for item in messages if item is not None),
                migrations=tuple(migration.status() for migration in running),
                role=self.lead.role,
                name=self.lead.name,
                holder=self.lead.holder,
                epoch=self.lead.epoch,
                paused=self.lead.paused,
                rejected=self._context.store.rejected + collector.incomplete,
            )

    def close(self) -> None:
        """Give the lead up, so that a stand-by takes over at once."""
        with self._lock:
            self.lead.release()

    def _migrating(self) -> list[Application]:
        return [app for _, app in sorted(self._applications.items()) if app.migrations.running is not None]

    def _mark_heard(self, names: Iterable[str]) -> None:
        """Note which applications report, and forget those that were silent for long."""
        now = self._clock.steady()
        for name in names:
            self.application(name).last_heard = now
        for name in [name for name, app in self._applications.items() if now - app.last_heard >= FORGOTTEN_AFTER]:
            del self._applications[name]

    def _check_drain(self, nodes: Collection[str]) -> dict[str, LinkReport]:
        reports = self._cluster.collector.refresh()
        self._cluster.orders.check_drain(nodes, reports)
        return reports

    def _publish_orders(self, before: dict[str, Drain]) -> None:
        try:
            self._cluster.orders.publish()
        except StoreError:
            self._cluster.orders.drains = before  # the request is read again later
            raise

    def _close_scheduled_plan(self, plan: PendingPlan, refusal: Refusal, user: str, reason: str) -> None:
        """Publish the last word on a plan, once, and only then remove it."""
        plans = self._cluster.plans
        if plan.pending not in plans.settled:
            app = self.application(plan.application)
            request = dataclasses.replace(app.new_request(Trigger.PENDING, reason), user=user, pending=plan.pending)
            app.refuse(request, refusal)
            plans.settled[plan.pending] = refusal.law
        plans.remove(plan.pending)

    def _report_order(self, sentence: str) -> str:
        self._cluster.last_sentence = sentence
        self._publish_state()
        return sentence

    def _publish_state(self) -> None:
        sentences = {name: self.application(name).sentence for name in self._cluster.collector.reports}
        state = ControllerState(
            leader=self.lead.name,
            since=self.lead.since,
            epoch=self.lead.epoch,
            paused=self.lead.paused,
            mode=self.settings.reschedule.mode,
            next_decision=self.next_decision,
            last_sentence=self._cluster.last_sentence,
            applications={name: sentence for name, sentence in sentences.items() if sentence},
        )
        # It expires with the lease: a valid state means that somebody leads.
        lease = self.settings.controller.lease
        envelope = self._context.envelopes.envelope(state, ttl=lease, epoch=self.lead.epoch)
        self._context.store.put(keys.STATE, "", envelope)

    def _for_each(self, names: Iterable[str], act: Callable[[Application], object]) -> None:
        """Act on applications; what fails for one is logged and never stops the others."""
        for app in [self.application(name) for name in names]:
            try:
                act(app)
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 one application's odd figures must not leave the others without a leader
                now = self._clock.steady()
                if app.last_complaint is None or now >= app.last_complaint + _COMPLAIN_EVERY:
                    app.last_complaint = now
                    self._log.exception("application-failed", application=app.name)
