"""Execution of operators' commands by the leading controller.

`execute` decodes the command of a request and calls the controller. Every command has one `_run` branch; a refusal is
raised as `CommandError` (or as ValueError by the controller) and becomes a reply in `execute` alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.policy_settings import unknown_policy
from rechannel.daemon.decide.requested_placement import (
    PlanFileError,
    RequestedPlacement,
    placement_of_saved_plan,
    read_plan,
)
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.registry import known_policies
from rechannel.wire.codes import Trigger
from rechannel.wire.commands import (
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
from rechannel.wire.exit_codes import NOBODY_REPORTS, CommandError, ExitCode
from rechannel.wire.messages import Decision, Refusal, Reply, Request
from rechannel.wire.printable import count
from rechannel.wire.redis.errors import StoreError

if TYPE_CHECKING:
    from rechannel.daemon.control.controller import Controller

_log = structlog.get_logger("rechannel.controller")


@dataclass(frozen=True)
class _Answer:
    """Sentence, data and code of a reply."""

    sentence: str
    data: dict[str, Any] = field(default_factory=dict)
    code: ExitCode = ExitCode.DONE


def execute(controller: Controller, request: Request) -> Reply:
    """Carry out the command of a request; raises StoreError, every other problem is a reply."""
    try:
        answer = _run(_Execution(controller, request.user, request.reason), decode(request.command))
    except CommandError as error:
        answer = _Answer(error.sentence, code=error.code)
    except UnknownCommandError as error:
        answer = _Answer(str(error), code=ExitCode.REFUSED)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001 a defect is reported to the sender, who would wait for a reply otherwise
        _log.exception("request-failed", verb=request.verb)
        sentence = f"{request.verb} failed ({type(error).__name__}); see the controller's log"
        answer = _Answer(sentence, code=ExitCode.REFUSED)
    return Reply(request=request.request, code=int(answer.code), sentence=answer.sentence, data=answer.data)


def _run(execution: _Execution, command: Command) -> _Answer:
    match command:
        case Plan():
            return execution.plan(command)
        case Rebalance():
            return execution.decide(command.application, command.policy, apply=True, force=command.force)
        case Apply():
            return execution.apply(command)
        case Cancel():
            return execution.cancel(command)
        case Rollback():
            return execution.rollback(command)
        case Stop():
            return execution.stop(command)
        case Pause() | Resume():
            paused = isinstance(command, Pause)
            return _Answer(execution.controller.pause(paused), {"paused": paused})
        case Drain():
            return execution.drain(command)
        case Undrain():
            return execution.undrain(command)


@contextlib.contextmanager
def _refusing(code: ExitCode = ExitCode.REFUSED, hint: str = "") -> Iterator[None]:
    """Turn the ValueError by which the controller refuses into a CommandError."""
    try:
        yield
    except ValueError as error:
        raise CommandError(code, f"{error}{hint}") from error


@dataclass(frozen=True)
class _Execution:
    """Execution of one command, with the operator who gave it and the operator's reason."""

    controller: Controller
    user: str
    reason: str

    def plan(self, command: Plan) -> _Answer:
        if command.drain:
            return self._plan_drain(_distinct(command.drain))
        return self.decide(command.application, command.policy, force=command.force)

    def _plan_drain(self, nodes: list[str]) -> _Answer:
        """Plan the drain of these nodes for every application with state on them."""
        with _refusing():
            applications = self.controller.held_on(nodes)
        plans = []
        for application in applications:
            decision = self.controller.decide(
                Trigger.DRAIN, application=application, user=self.user, reason=self.reason, leave=frozenset(nodes)
            )
            plans.append({"application": application, "decision": msgspec.to_builtins(decision)})
        names = ", ".join(nodes)
        left = f"state of {count(len(plans), 'application')} would leave" if plans else "no state"
        return _Answer(f"{names}: {left}", {"nodes": nodes, "plans": plans})

    def decide(
        self,
        application: str,
        policy: str = "",
        *,
        apply: bool = False,
        force: bool = False,
        propose: Callable[[Snapshot], RequestedPlacement | Refusal] | None = None,
    ) -> _Answer:
        """Have the controller decide; ``propose`` makes a placement instead of the policy."""
        application = self._resolve(application)
        if policy and policy not in known_policies():
            raise CommandError(ExitCode.REFUSED, unknown_policy(policy))
        decision = self.controller.decide(
            Trigger.OPERATOR,
            application=application,
            user=self.user,
            reason=self.reason,
            apply=apply,
            force=force,
            policy=policy,
            source=propose,
        )
        return _decided(application, decision, decision.sentence)

    def apply(self, command: Apply) -> _Answer:
        try:
            plan = read_plan(command.plan, self.controller.settings.cluster.name)
        except PlanFileError as error:
            raise CommandError(ExitCode.REFUSED, f"the saved plan: {error}") from error
        if not (command.at or command.when):
            propose = functools.partial(placement_of_saved_plan, plan)
            return self.decide(plan.application, apply=True, force=command.force, propose=propose)
        self._resolve(plan.application)
        with _refusing():
            sentence, pending = self.controller.wait(
                command.plan,
                at=command.at,
                when=command.when,
                user=self.user,
                reason=self.reason,
                force=command.force,
            )
        return _Answer(
            sentence, {name: value for name, value in msgspec.to_builtins(pending).items() if name != "plan"}
        )

    def cancel(self, command: Cancel) -> _Answer:
        with _refusing():
            sentence = self.controller.cancel(command.pending, user=self.user, reason=self.reason)
        return _Answer(sentence, {"pending": command.pending})

    def rollback(self, command: Rollback) -> _Answer:
        application = self._resolve(command.application)
        # A named decision that moved nothing is a wrong request; without a name there is nothing to undo.
        refusal = (
            _refusing(hint="; `rechannel history` lists them") if command.decision else _refusing(ExitCode.NOTHING)
        )
        with refusal:
            sentence, decision = self.controller.rollback(
                application, command.decision, user=self.user, reason=self.reason
            )
        if decision is None:  # the running migration is ended first
            return _Answer(sentence)
        undoes = f" (undoes {decision.rollback_of})" if decision.rollback_of else ""
        return _decided(application, decision, f"decision {decision.decision}{undoes}: {decision.sentence}")

    def stop(self, command: Stop) -> _Answer:
        try:
            return _Answer(self.controller.stop(command.application, user=self.user, reason=self.reason))
        except ValueError as error:
            # Only now: an application that no longer reports may still have a migration to be stopped.
            if command.application:
                self._check_known(command.application)
            raise CommandError(ExitCode.NOTHING, str(error)) from error

    def drain(self, command: Drain) -> _Answer:
        nodes = _distinct(command.nodes)
        with _refusing():
            sentence = self.controller.drain(
                *nodes, user=self.user, reason=self.reason, remove=command.remove, patience=command.deadline
            )
        return _Answer(sentence, {"node": ",".join(nodes), "nodes": nodes})

    def undrain(self, command: Undrain) -> _Answer:
        nodes = _distinct(command.nodes)
        with _refusing():
            sentence = self.controller.undrain(*nodes, user=self.user, reason=self.reason)
        unattended = self.controller.settings.reschedule.mode == "apply" and not self.controller.paused
        return _Answer(sentence, {"node": ",".join(nodes), "nodes": nodes, "moves_by_itself": unattended})

    def _resolve(self, application: str) -> str:
        """Return the application that is meant; CommandError if that is not clear."""
        reporting = self.controller.applications
        if application:
            self._check_known(application)
            return application
        if not reporting:
            raise CommandError(ExitCode.NOT_READY, NOBODY_REPORTS)
        if len(reporting) > 1:
            names = ", ".join(reporting)
            raise CommandError(
                ExitCode.REFUSED, f"there are several applications, name one with --application: {names}"
            )
        return reporting[0]

    def _check_known(self, application: str) -> None:
        reporting = self.controller.applications
        if application not in reporting:
            names = ", ".join(reporting) or "none"
            raise CommandError(ExitCode.REFUSED, f"unknown application {application}; known are {names}")


def _decided(application: str, decision: Decision, sentence: str) -> _Answer:
    data = {"application": application, "decision": msgspec.to_builtins(decision)}
    return _Answer(sentence, data, pipeline.exit_of(decision))


def _distinct(nodes: list[str]) -> list[str]:
    return list(dict.fromkeys(node.strip() for node in nodes if node.strip()))


def drain_sentence(nodes: Sequence[str], partitions: int, executors: int, *, remove: bool, paused: bool) -> str:
    """Describe what a drain of nodes with so many partitions and executors begins."""
    names = ", ".join(nodes)
    if not executors:
        return f"{names}: no executor runs there; those that start hold no state"
    leaving = f"{count(partitions, 'partition')} to leave" if partitions else "no state to leave"
    released = f", {'which is' if executors == 1 else 'which are'} released then" if remove else ""
    held = "; paused: `rechannel resume` first" if paused else ""
    return f"draining {names}: {leaving} {count(executors, 'executor')}{released}{held}"


def undrain_sentence(nodes: Sequence[str], *, mode: str, paused: bool, running: bool, wait: float) -> str:
    """Describe what the end of a drain begins; ``wait``: seconds until the next decision."""
    parts = [f"{', '.join(nodes)} may hold state again"]
    if running:
        parts.append("the running migration goes on: `rechannel stop` ends it")
    if paused:
        parts.append("paused: `rechannel resume` first")
    elif mode == "apply":
        parts.append(f"in about {wait:.0f} s it is decided whether moving partitions there pays")
    else:
        parts.append("in observe mode nothing moves there by itself: `rechannel rebalance --apply` does it")
    return "; ".join(parts)
