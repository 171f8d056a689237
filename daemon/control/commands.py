"""Execution of operators' commands by the leading controller.

`execute` decodes the command of a request and carries it out on the applications of the cluster. Every command has one
branch in `_Execution.run`; a refusal is raised as `CommandError` and becomes a reply in `execute` alone.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from rechannel.daemon.control.cluster_state import ClusterState
from rechannel.daemon.control.decision_log import applied_decisions, read_decision_log
from rechannel.daemon.control.standing_orders import partitions_on
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import PlacementSource
from rechannel.daemon.decide.policy_settings import unknown_policy
from rechannel.daemon.decide.rollback import choose_rollback_target
from rechannel.daemon.decide.saved_plan import PlanFileError, placement_of_saved_plan, read_plan
from rechannel.policies.registry import known_policies
from rechannel.wire.codes import Mode, Trigger
from rechannel.wire.commands import (
    READ_ONLY_VERBS,
    Apply,
    Cancel,
    Command,
    Drain,
    Pause,
    Plan,
    Rebalance,
    Resume,
    Rollback,
    Stop,
    Undrain,
    UnknownCommandError,
    decode,
)
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, LinkReport, Reply, Request
from rechannel.wire.printable import NOBODY_REPORTS, with_noun
from rechannel.wire.redis.errors import StoreError

_PAUSED = "paused: `rechannel resume` first"
_UNKNOWN_USER = "unknown"  # an order without a name is an order all the same
_LOG = structlog.get_logger("rechannel.controller")


@dataclass(frozen=True)
class _Answer:
    """Sentence, data and code of a reply."""

    sentence: str
    data: dict[str, Any] = field(default_factory=dict)
    code: ExitCode = ExitCode.DONE


def execute(cluster: ClusterState, request: Request) -> Reply:
    """Carry out the command of a request; raises StoreError, every other problem is a reply."""
    try:
        answer = _Execution(cluster, request.user or _UNKNOWN_USER, request.reason).run(decode(request.command))
    except CommandError as error:
        answer = _Answer(error.sentence, code=error.code)
    except UnknownCommandError as error:
        answer = _Answer(str(error), code=ExitCode.REFUSED)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 a defect is reported to the sender, who would wait for a reply otherwise
        _LOG.exception("request-failed", verb=request.verb)
        sentence = (
            f"{request.verb} failed ({type(error).__name__}) and may be half done; see the controller's log and status"
        )
        answer = _Answer(sentence, code=ExitCode.REFUSED if request.verb in READ_ONLY_VERBS else ExitCode.UNCLEAR)
    return Reply(request=request.request, code=int(answer.code), sentence=answer.sentence, data=answer.data)


class _Execution:
    """Execution of one command, with the operator who gave it and the operator's reason."""

    def __init__(self, cluster: ClusterState, user: str, reason: str) -> None:
        self._cluster = cluster
        self._services = cluster.services
        self._lead = cluster.services.context.lead
        self._user = user
        self._reason = reason

    def run(self, command: Command) -> _Answer:
        """Carry out a command; raises CommandError."""
        match command:
            case Plan():
                return self._plan(command)
            case Rebalance():
                return self._decide(command.application, command.policy, apply=True, force=command.force)
            case Apply():
                return self._apply(command)
            case Cancel():
                return self._cancel(command)
            case Rollback():
                return self._rollback(command)
            case Stop():
                return self._stop(command)
            case Pause() | Resume():
                return self._pause(isinstance(command, Pause))
            case Drain():
                return self._drain(msgspec.structs.replace(command, nodes=_distinct(command.nodes)))
            case Undrain():
                return self._undrain(_distinct(command.nodes))

    def _plan(self, command: Plan) -> _Answer:
        if command.drain:
            return self._plan_drain(_distinct(command.drain))
        return self._decide(command.application, command.policy, force=command.force)

    def _plan_drain(self, nodes: list[str]) -> _Answer:
        """Plan the drain of these nodes for every application with state on them."""
        reports = self._check_drain(nodes)
        plans = []
        for name in sorted(name for name, report in reports.items() if any(partitions_on(report, nodes).values())):
            app = self._cluster.application(name)
            request = dataclasses.replace(
                app.new_request(Trigger.DRAIN, self._reason), user=self._user, drained_nodes=frozenset(nodes)
            )
            plans.append({"application": name, "decision": msgspec.to_builtins(app.decide(request))})
        left = f"state of {with_noun(len(plans), 'application')} would leave" if plans else "no state"
        return _Answer(f"{', '.join(nodes)}: {left}", {"nodes": nodes, "plans": plans})

    def _decide(
        self,
        application: str,
        policy: str = "",
        *,
        apply: bool = False,
        force: bool = False,
        placement_source: PlacementSource | None = None,
    ) -> _Answer:
        """Decide on an application; ``placement_source`` takes the place of the policy."""
        application = self._resolve(application)
        if policy and policy not in known_policies():
            raise CommandError(ExitCode.REFUSED, unknown_policy(policy))
        app = self._cluster.application(application)
        request = app.new_request(Trigger.OPERATOR, self._reason, apply=apply)
        decision = app.decide(
            dataclasses.replace(
                request,
                user=self._user,
                policy=policy or request.policy,
                force=force,
                placement_source=placement_source,
            )
        )
        return _decided(application, decision, decision.sentence)

    def _apply(self, command: Apply) -> _Answer:
        try:
            plan = read_plan(command.plan, self._services.context.envelopes.cluster)
        except PlanFileError as error:
            raise CommandError(ExitCode.REFUSED, f"the saved plan: {error}") from error
        if not (command.at or command.when):
            source = functools.partial(placement_of_saved_plan, plan)
            return self._decide(plan.application, apply=True, force=command.force, placement_source=source)
        self._resolve(plan.application)
        sentence, scheduled = self._services.plans.schedule(command, plan, user=self._user, reason=self._reason)
        period = self._services.limits.excluded_period(max(scheduled.at, scheduled.begin))
        warning = f"; warning: {period.detail} at that time; this plan runs anyway" if period is not None else ""
        data = msgspec.to_builtins(scheduled)
        del data["plan"]
        return self._ordered(f"{sentence}{warning}", data)

    def _cancel(self, command: Cancel) -> _Answer:
        plan, refusal = self._services.plans.cancel(command.scheduled_plan, user=self._user, reason=self._reason)
        self._cluster.close_scheduled_plan(plan, refusal, self._user, self._reason)
        return self._ordered(refusal.detail, {"scheduled_plan": command.scheduled_plan})

    def _rollback(self, command: Rollback) -> _Answer:
        """Move back what a decision moved; a running migration is ended first."""
        application = self._resolve(command.application)
        self._cluster.follow_migrations()
        context = self._services.context
        applied = applied_decisions(read_decision_log(context.store), application)
        target = choose_rollback_target(applied, command.decision, application, context.clock.wall())
        sentence, decision = self._cluster.application(application).order_rollback(
            target, user=self._user, reason=self._reason
        )
        if decision is None:
            return self._ordered(sentence)
        self._cluster.publish_state()
        suffix = f" (rollback of {decision.rollback_of})" if decision.rollback_of else ""
        return _decided(application, decision, f"decision {decision.decision}{suffix}: {decision.sentence}")

    def _stop(self, command: Stop) -> _Answer:
        """End migrations, at the next batch, and pending rollbacks of one application or of all."""
        self._cluster.follow_migrations()
        selected = [app for app in self._cluster.applications() if command.application in ("", app.name)]
        running = [app for app in selected if app.migrations.running is not None]
        pending, now = [app for app in selected if app.rollback is not None], self._services.context.clock.wall()
        series = [app for app in selected if app not in running and app.migrations.rest(now)]
        if not (running or pending or series):
            if command.application:  # one that no longer reports may still have a migration to be stopped
                self._check_known(command.application)
            raise CommandError(
                ExitCode.NOTHING, f"no migration of {command.application or 'any application'} is running"
            )
        parts = [app.migrations.stop() for app in running]
        parts += [app.cancel_rollback(user=self._user, reason=self._reason) for app in pending]
        for app in series:
            app.migrations.stop_continuation()
            parts.append(f"the rest of the last plan of {app.name} is canceled")
        sentence = "; ".join(parts)
        if nodes := self._services.standing_orders.nodes:
            sentence += f"; still drained: {', '.join(sorted(nodes))} (`rechannel undrain` ends that)"
        self._log_order("stop", applications=sorted({app.name for app in (*running, *pending, *series)}))
        return self._ordered(sentence)

    def _pause(self, paused: bool) -> _Answer:
        """Pause or resume everything; a running migration begins no further move while paused."""
        self._lead.pause(paused)
        self._services.standing_orders.publish()
        self._cluster.follow_migrations()
        running = len(self._cluster.migrating())
        going_on = "goes on" if running == 1 else "go on"
        held = f"; {with_noun(running, 'running migration')} {'held' if paused else going_on}"
        self._log_order("paused" if paused else "resumed", migrations=running)
        return self._ordered(f"{'paused' if paused else 'resumed'}{held if running else ''}", {"paused": paused})

    def _drain(self, command: Drain) -> _Answer:
        nodes, services = command.nodes, self._services
        reports = self._check_drain(nodes)
        services.standing_orders.drain(command, user=self._user, reason=self._reason)
        for app in self._cluster.applications():
            app.retry_drain()  # its next cycle decides (`Application._leave_drained_nodes`)
        partitions = sum(sum(partitions_on(report, nodes).values()) for report in reports.values())
        executors = sum(info.node_name in nodes for report in reports.values() for info in report.executors)
        self._log_order("drain", nodes=nodes, remove=command.remove, deadline=command.deadline)
        warning = services.limits.order_warning(services.context.clock.wall(), partitions)
        sentence = self._drain_sentence(command, partitions, executors)
        return self._ordered(f"{sentence}{warning}", {"node": ",".join(nodes), "nodes": nodes})

    def _drain_sentence(self, command: Drain, partitions: int, executors: int) -> str:
        names = ", ".join(command.nodes)
        if not executors:
            return f"{names}: no executor runs there; those that start hold no state"
        verb = "moves" if partitions == 1 else "move"
        leaving = f"{with_noun(partitions, 'partition')} {verb} off" if partitions else "no state on"
        released = f", {'which is' if executors == 1 else 'which are'} then released" if command.remove else ""
        held = f"; {_PAUSED}" if self._lead.paused else ""
        return f"draining {names}: {leaving} {with_noun(executors, 'executor')}{released}{held}"

    def _undrain(self, nodes: list[str]) -> _Answer:
        services = self._services
        if others := [node for node in nodes or [""] if node not in services.standing_orders.nodes]:
            drained = ", ".join(sorted(services.standing_orders.nodes)) or "none"
            raise CommandError(ExitCode.REFUSED, f"node {', '.join(others)} is not drained; drained are {drained}")
        services.standing_orders.undrain(nodes)
        for name, report in services.collector.refresh().items():
            if any(info.node_name in nodes for info in report.executors):
                self._cluster.application(name).reopen()
        self._log_order("undrain", nodes=nodes)
        automatic = services.context.acts_automatically
        sentence = self._undrain_sentence(nodes) + services.limits.order_warning(services.context.clock.wall())
        return self._ordered(sentence, {"node": ",".join(nodes), "nodes": nodes, "moves_automatically": automatic})

    def _undrain_sentence(self, nodes: list[str]) -> str:
        settings = self._services.context.settings
        parts = [f"{', '.join(nodes)} may hold state again"]
        if self._cluster.migrating():
            parts.append("the running migration goes on: `rechannel stop` ends it")
        if self._lead.paused:
            parts.append(_PAUSED)
        elif settings.reschedule.mode == Mode.APPLY:
            settle = settings.reschedule.settle
            parts.append(f"in about {settle:.0f} s it is decided whether moving partitions there pays")
        else:
            parts.append("in observe mode nothing moves there automatically: `rechannel rebalance --apply` does it")
        return "; ".join(parts)

    # -- checks and replies --

    def _check_drain(self, nodes: list[str]) -> dict[str, LinkReport]:
        """Return the reports of all applications; CommandError if nodes cannot be drained."""
        reports = self._services.collector.refresh()
        self._services.standing_orders.check_drain(nodes, reports)
        return reports

    def _resolve(self, application: str) -> str:
        """Return the application that is meant; CommandError if that is not clear."""
        if application:
            self._check_known(application)
            return application
        reporting = sorted(self._services.collector.reports)
        if not reporting:
            raise CommandError(ExitCode.NOT_READY, NOBODY_REPORTS)
        if len(reporting) > 1:
            names = ", ".join(reporting)
            raise CommandError(
                ExitCode.REFUSED, f"there are several applications, name one with --application: {names}"
            )
        return reporting[0]

    def _check_known(self, application: str) -> None:
        reporting = sorted(self._services.collector.reports)
        if application not in reporting:
            names = ", ".join(reporting) or "none"
            raise CommandError(ExitCode.REFUSED, f"unknown application {application}; known are {names}")

    def _ordered(self, sentence: str, data: dict[str, Any] | None = None) -> _Answer:
        return _Answer(self._cluster.report_order(sentence), data or {})

    def _log_order(self, event: str, **fields: object) -> None:
        _LOG.info(event, user=self._user, reason=self._reason, **fields)


def _decided(application: str, decision: Decision, sentence: str) -> _Answer:
    data = {"application": application, "decision": msgspec.to_builtins(decision)}
    return _Answer(sentence, data, pipeline.exit_of(decision))


def _distinct(nodes: list[str]) -> list[str]:
    return list(dict.fromkeys(node.strip() for node in nodes if node.strip()))
