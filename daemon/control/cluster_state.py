"""State of a cluster under one leader: its applications, and what is done for all of them.

The controller's lock has to be held; the cycles of all applications take it themselves. Everything is written through
the leader's fenced store, so nothing is written once another controller leads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TypeVar

import structlog

from rechannel.conf import lease_timing
from rechannel.daemon.control.application import Application, ControllerServices
from rechannel.daemon.control.decision_log import LoggedDecision, applied_decisions, read_decision_log
from rechannel.daemon.control.migrations import RunningMigration
from rechannel.daemon.decide import pipeline
from rechannel.wire import keys
from rechannel.wire.codes import Trigger
from rechannel.wire.messages import AgentLimits, ControllerState, Decision, LinkReport, Refusal, ScheduledPlan
from rechannel.wire.redis.errors import StoreError, StoreForbiddenError

Result = TypeVar("Result")

FORGOTTEN_AFTER = 3600.0  # seconds without a report: a driver or Redis that is back sooner finds its state
# Sizes of map outputs that all agents together send in a window, on average; beyond: each chooses some of its outputs.
MAX_CLUSTER_SIZES = 4_000_000
_LIMITS_RETRY = 300.0  # seconds after Redis refused the limits of the agents


class ClusterState:
    """The applications of one cluster, as its leader knows them.

    ``next_decision``: time of the next periodic decision.
    """

    def __init__(self, services: ControllerServices) -> None:
        context = services.context
        self.services = services
        self.next_decision = context.clock.wall() + context.settings.reschedule.timeout
        self._context = context
        self._clock = context.clock
        self._applications: dict[str, Application] = {}
        self._followed_at = self._clock.steady()
        self._window = 0.0  # begin of the present agent window
        self._limits_refused: float | None = None  # steady seconds; the Redis user is of an older release
        self._log = structlog.get_logger("rechannel.controller")

    # -- applications --

    def application(self, name: str) -> Application:
        """Return the state of an application, new if it is not known."""
        app = self._applications.get(name)
        if app is None:
            app = self._applications[name] = Application(name, self.services)
        return app

    def applications(self) -> list[Application]:
        """Return all applications, with a report or not, by name."""
        return [app for _, app in sorted(self._applications.items())]

    def migrating(self) -> list[Application]:
        """Return the applications whose migration is running, by name."""
        return [app for app in self.applications() if app.migrations.running is not None]

    def running_migrations(self) -> list[RunningMigration]:
        """Return the running migrations, by name of their application."""
        return [app.migrations.running for app in self.applications() if app.migrations.running is not None]

    def mark_reporting(self, names: Iterable[str]) -> None:
        """Note which applications report, and forget those that were silent for long."""
        now = self._clock.steady()
        for name in names:
            self.application(name).last_reported = now
        for name in [name for name, app in self._applications.items() if now - app.last_reported >= FORGOTTEN_AFTER]:
            del self._applications[name]

    def for_each(self, names: Iterable[str], act: Callable[[Application], Result]) -> list[Result]:
        """Act on applications and return the results; one that fails is logged and left out."""
        results = []
        for app in [self.application(name) for name in names]:
            try:
                results.append(act(app))
            except StoreError:
                raise
            except Exception:  # noqa: BLE001 one application's odd figures must not leave the others without a leader
                if app.complaints.allows(self._clock.steady()):
                    self._log.exception("application-failed", application=app.name)
        return results

    # -- cycles of all applications --

    def refresh_models(self) -> None:
        """Describe every application that reports, from a new model once in each window."""
        with self.services.lock:
            now = self._clock.steady()
            if now >= self._window + self._context.settings.agent.window:
                self._window = now
            self.for_each(sorted(self.services.collector.reports), lambda app: app.describe(self._window))

    def decide_all(self) -> list[Decision]:
        """Decide on every application that reports."""
        with self.services.lock:
            if not self._context.can_act:
                return []
            reports = self.services.collector.refresh()
            decisions = self.for_each(reports, lambda app: app.decide_automatically(Trigger.TIMEOUT))
            return [decision for decision in decisions if decision is not None]

    def run_cycles(self) -> None:
        """Run the cycle of every application.

        Of those without a report too: their rollbacks are given up in time.
        """
        with self.services.lock:
            names = [app.name for app in self.applications()]
            self.for_each(names, lambda app: app.run_cycle() if self._context.can_act else None)

    # -- begin and end of a lead --

    def stand_by(self) -> None:
        """Drop what another leader has now."""
        if any(app.migrations.examined or app.migrations.running for app in self._applications.values()):
            self._log.warning("lead-lost", leader=self._context.lead.holder, epoch=self._context.lead.epoch)
        self._context.restored = False
        self._window = 0.0
        for app in self._applications.values():
            app.reset()
        self.services.plans.reset()
        self.services.history.reset()

    def restore(self, reports: dict[str, LinkReport]) -> None:
        """Take over the applications not examined yet, all of them at the start of a lead."""
        first = not self._context.restored
        if first:
            self.services.history.reset()  # others may have led meanwhile
            for app in self._applications.values():
                app.migrations.examined = False
        names = sorted(name for name in reports if not self.application(name).migrations.examined)
        if not names and not first:
            return
        log = read_decision_log(self._context.store)
        if first:
            self.mark_reporting(name for name, _ in log)  # they may report again
            self._restore_log(log)
        paused = self.services.standing_orders.restore({name: reports[name] for name in names})
        if paused and not self._context.lead.paused:
            self._context.lead.pause(True)
        confirmed = self.services.history.confirmed()
        self.for_each(
            names, lambda app: app.migrations.restore(reports[app.name], applied_decisions(log, app.name), confirmed)
        )
        self.for_each(names, lambda app: app.restore_rollback(log))
        self._context.restored = True

    def _restore_log(self, log: list[LoggedDecision]) -> None:
        for app in self._applications.values() if log else ():  # an empty log means that Redis was emptied
            app.guard.clear()
        for name, decision in log:
            self.application(name).guard.record(decision)
        self.services.plans.restore(decision for _, decision in log)

    # -- migrations and scheduled plans --

    def follow_migrations(self) -> bool:
        """Renew running migrations, and close scheduled plans whose window has passed.

        Returns False if this controller may not act.
        """
        if not self._context.can_act:
            return False
        if any(app.migrations.running or app.rollback for app in self._applications.values()):
            self.services.collector.refresh()
        now = self._clock.steady()
        silence, self._followed_at = now - self._followed_at, now
        if silence > 3 * lease_timing.OBSERVE:  # Redis was away, and no report could arrive
            for app in self.migrating():
                app.migrations.extend_deadline(silence)
        self.for_each([app.name for app in self.migrating()], Application.follow)
        self._follow_scheduled_plans(self._clock.wall())
        return True

    def _follow_scheduled_plans(self, now: float) -> None:
        plans = self.services.plans
        plans.remove_settled()
        for plan in plans.in_window(now):
            if obstacle := self._obstacle(plan, now):
                plans.note_obstacle(plan, obstacle)
        for plan, refusal in plans.expired(now):
            self.close_scheduled_plan(plan, refusal, plan.user, plan.reason)
        plans.publish()

    def _obstacle(self, plan: ScheduledPlan, now: float) -> str:
        """Return why a scheduled plan is not even tried now, "" if it is."""
        if self._context.lead.paused:
            return pipeline.PAUSED.detail
        report = self.services.collector.reports.get(plan.application)
        if report is None:
            return pipeline.no_report(plan.application).sentence
        migrations = self.application(plan.application).migrations
        if busy := migrations.busy_sentence(report):
            return busy
        left = 0.0 if plan.force else migrations.cooldown_left(now)
        return f"the cool-down after the last migration had {left:.0f} s to go" if left else ""

    def close_scheduled_plan(self, plan: ScheduledPlan, refusal: Refusal, user: str, reason: str) -> None:
        """Publish the last word on a plan, once, and only then remove it.

        ``user`` and ``reason``: who ended it and why; of a plan whose window has passed, who scheduled it.
        """
        plans, name = self.services.plans, plan.scheduled_plan
        if name not in plans.settled:
            app = self.application(plan.application)
            request = dataclasses.replace(app.new_request(Trigger.SCHEDULED, reason), user=user, scheduled_plan=name)
            app.refuse(request, refusal)
            plans.settled[name] = refusal.law
        plans.remove(name)

    # -- description --

    def publish_state(self) -> None:
        """Publish what the leader is doing, for as long as its lease lasts."""
        context, lead = self._context, self._context.lead
        sentences = {name: self.application(name).sentence for name in self.services.collector.reports}
        state = ControllerState(
            leader=lead.name,
            since=lead.since,
            epoch=lead.epoch,
            paused=lead.paused,
            mode=context.settings.reschedule.mode,
            next_decision=self.next_decision,
            last_sentence=self.services.last_sentence,
            applications={name: sentence for name, sentence in sentences.items() if sentence},
        )
        # It expires with the lease: a valid state means that somebody leads.
        context.store.put(keys.STATE, "", context.envelope(state, ttl=context.settings.controller.lease))

    def publish_agent_limits(self) -> None:
        """Publish the sizes of map outputs that each agent may send, by the number of agents."""
        context, agents = self._context, self.services.collector.agents
        now, refused = self._clock.steady(), self._limits_refused
        if not agents or (refused is not None and now - refused < _LIMITS_RETRY):
            return  # agents without limits send all they have
        limits = AgentLimits(window_sizes=MAX_CLUSTER_SIZES // agents)
        try:
            context.store.put(keys.AGENT_LIMITS, "", context.envelope(limits, ttl=keys.AGENT_LIMITS.ttl))
            self._limits_refused = None
        except StoreForbiddenError as error:
            self._limits_refused = now
            cure = "make the controller's user again: rechannel acl add-role controller"
            self._log.warning("agent-limits-not-published", problem=str(error), cure=cure)

    def report_order(self, sentence: str) -> str:
        """Publish the sentence about an order as the last event; returns it."""
        self.services.last_sentence = sentence
        self.publish_state()
        return sentence
