"""Client of the leading controller: sends a command through Redis and waits for its reply."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from rechannel.conf import lease_timing
from rechannel.conf.settings import Settings
from rechannel.daemon.view.last_leader import last_leadership
from rechannel.wire import keys
from rechannel.wire.commands import Command, Plan, encode
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, Reply, Request
from rechannel.wire.printable import plain
from rechannel.wire.redis.errors import StoreForbiddenError, StoreUnavailableError
from rechannel.wire.redis.store import Store

_POLL = 0.05
_MARGIN = 5.0  # seconds beyond the lease, so that a stand-by that takes over meanwhile can still answer
_PLANNING = 10.0  # seconds that a drain waits for its plan, which is only shown
_MISSED = 3  # leader's cycles without a sign of life before it counts as silent
_MAY_BE_DONE = "the order may have been accepted: see `rechannel history` and `rechannel status` before asking again"


class ControllerClient:
    """Sends commands to the leading controller, and prints its replies.

    ``reason``: the operator's, for the audit file and the decision. ``wait``: seconds to wait for a reply, None for a
    bit longer than the lease. ``verbose``: print streams and forecasts of a decision too.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        reason: str = "",
        wait: float | None = None,
        as_json: bool = False,
        verbose: bool = False,
    ) -> None:
        self.settings = settings
        self.as_json = as_json
        self._reason = reason
        self._wait = wait
        self._verbose = verbose

    def decide(self, command: Command, save: str | None = None) -> int:
        """Send a command, print its decision, save the plan if asked, and return the exit code."""
        reply = self.send(command)
        if "decision" not in reply.data:
            raise CommandError(ExitCode(reply.code), reply.sentence)
        application, decision = str(reply.data["application"]), msgspec.convert(reply.data["decision"], Decision)
        if not self.as_json:
            from rechannel.daemon.cli import tables

            tables.print_decision(application, decision, verbose=self._verbose)
        if save is not None:
            self._save(application, decision, Path(save))
        if self.as_json:  # only now: a plan that cannot be saved is a document too
            click.echo(json.dumps(_document(reply)))
        self._print_problem(reply.code, reply.sentence)
        return reply.code

    def order(self, command: Command, **more: Any) -> int:
        """Send an order, print the reply with ``more`` in its document, and return the exit code."""
        reply = self.send(command)
        if reply.code:
            raise CommandError(ExitCode(reply.code), reply.sentence)
        click.echo(json.dumps(_document(reply) | more) if self.as_json else plain(reply.sentence))
        return reply.code

    def preview_drain(self, nodes: list[str]) -> dict[str, Any]:
        """Print what a drain that is about to be ordered will move; returns it for --json.

        The drain does not wait for it: only a refusal raises CommandError.
        """
        wait = min(self._wait or _PLANNING, _PLANNING)
        try:
            reply = ControllerClient(self.settings, wait=wait).send(Plan(drain=nodes))
        except CommandError:
            return {}
        if reply.code == ExitCode.REFUSED:
            raise CommandError(ExitCode.REFUSED, reply.sentence)
        plans = reply.data.get("plans", [])
        if self.as_json:
            return {"plans": plans}
        _print_plans(plans)
        return {}

    def dry_run_drain(self, nodes: list[str]) -> int:
        """Print what a drain of these nodes would move, and order none.

        Returns the exit code of the first plan that could not begin.
        """
        reply = ControllerClient(self.settings, wait=self._wait).send(Plan(drain=nodes))
        if reply.code:
            raise CommandError(ExitCode(reply.code), reply.sentence)
        plans = reply.data.get("plans", [])
        code, sentence = _first_problem(plans)
        if self.as_json:
            click.echo(json.dumps(_document(reply) | ({"code": code, "sentence": sentence} if code else {})))
        else:
            _print_plans(plans)
            click.echo(plain(f"{'' if code else f'{reply.sentence}; '}a dry run: nothing is drained"))
        self._print_problem(code, sentence)
        return code

    def _print_problem(self, code: int, sentence: str) -> None:
        if code and (self.as_json or not sys.stdout.isatty()):  # on a terminal the plan ends with the sentence
            click.echo(f"rechannel: {plain(sentence)}", err=True)

    def read_plan(self, path: Path) -> str:
        """Return the text of a saved plan; CommandError if the file holds none."""
        from rechannel.daemon.decide.saved_plan import PlanFileError, read_plan

        text = path.read_text(encoding="utf-8", errors="replace")
        try:
            read_plan(text, self.settings.cluster.name)
        except PlanFileError as error:
            raise CommandError(ExitCode.REFUSED, f"{path}: {error}") from error
        return text

    def _save(self, application: str, decision: Decision, path: Path) -> None:
        from rechannel.daemon.decide.saved_plan import saved_plan_of

        if not decision.moves:
            if not self.as_json:
                click.echo(f"nothing to save in {path}")
            return
        plan = saved_plan_of(decision, self.settings.cluster.name, application)
        try:
            path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")
        except OSError as error:
            raise CommandError(ExitCode.REFUSED, f"{path}: the plan cannot be written ({error.strerror})") from error
        if not self.as_json:
            click.echo(f"saved in {path}; `rechannel apply {path}` carries it out")

    def send(
        self,
        command: Command,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Reply:
        """Send a command and return the reply; CommandError if no controller answers in time."""
        wait = self.settings.controller.lease + _MARGIN if self._wait is None else self._wait
        store = Store(self.settings.redis, self.settings.cluster.name)
        user = _user()
        request = Request(request=uuid.uuid4().hex, user=user, reason=self._reason, command=encode(command))
        author = EnvelopeFactory(self.settings.cluster.name, f"{user}@{socket.gethostname()}:{os.getpid()}", clock)
        store.check()  # a Redis that is away from the beginning is reported at once
        stream = keys.QUESTIONS if command.read_only else keys.REQUESTS
        envelope = author.envelope(request, ttl=wait)
        deadline = clock() + wait
        sent, outage, message = False, None, None
        while True:
            try:
                if not sent:  # sent twice, if Redis goes away before it answers, it is still one request
                    store.append(stream, "", envelope)
                    sent = True
                message, outage = store.get(keys.REPLY, request.request), None
            except StoreForbiddenError as error:
                if command.read_only or sent:
                    raise
                raise StoreForbiddenError(
                    f"{command.verb} is an order, which takes a Redis user of the role operator: {error}"
                ) from error
            except StoreUnavailableError as error:  # a fail-over takes some seconds; the order stays in its stream
                outage = error
            if message is not None and isinstance(message.body, Reply):
                return message.body
            if clock() >= deadline and outage is not None:
                if command.read_only:
                    raise outage
                raise CommandError(ExitCode.UNCLEAR, f"{outage}; {_MAY_BE_DONE}") from outage
            if clock() >= deadline:
                leader = self._describe_leader(store, clock())
                raise CommandError(ExitCode.NO_ANSWER, f"no controller answered within {wait:g} s{leader}")
            sleep(_POLL)

    def _describe_leader(self, store: Store, now: float) -> str:
        """Describe who leads or led last, as the end of a sentence; "" if Redis is away."""
        try:
            last = last_leadership(store)
        except StoreUnavailableError:
            return ""
        if last is None:
            return ": none leads; start one with `rechannel controller`"
        leader, age = last.state.leader, now - last.sent
        if last.expires <= now:
            return (
                f": none leads. {leader} last reported {age:.0f} s ago, its lease has run out and no stand-by took "
                "over: start one with `rechannel controller`"
            )
        if age > _MISSED * lease_timing.OBSERVE + 1:
            return (
                f": {leader} led and last reported {age:.0f} s ago. Its lease runs out in {last.expires - now:.0f} s; "
                "then a stand-by takes over, or start one with `rechannel controller`"
            )
        state = f"{leader} leads and reported {max(0.0, age):.0f} s ago"
        return f", though {state}; its requests may be stuck, or the clocks differ"


def _print_plans(plans: list[dict[str, Any]]) -> None:
    for plan in plans:
        click.echo(plain(f"{plan['application']}: {plan['decision']['sentence']}"))
        for note in plan["decision"]["notes"]:
            click.echo(plain(f"  note: {note}"))


def _first_problem(plans: list[dict[str, Any]]) -> tuple[ExitCode, str]:
    """Return exit code and sentence of the first plan that could not begin."""
    from rechannel.daemon.decide.pipeline import exit_of

    for plan in plans:
        decision = msgspec.convert(plan["decision"], Decision)
        if code := exit_of(decision):
            return code, f"{plan['application']}: {decision.sentence}"
    return ExitCode.DONE, ""


def _document(reply: Reply) -> dict[str, Any]:
    return {"code": reply.code, "sentence": reply.sentence, **reply.data}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in a container
        return str(os.getuid())
