"""Asking the leading controller: a request on the stream of questions or of orders, the reply by its id."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.view.last_leader import last_leadership
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, Reply, Request
from rechannel.wire.printable import plain
from rechannel.wire.redis.errors import StoreForbiddenError, StoreUnavailableError
from rechannel.wire.redis.store import Store

_POLL = 0.05
_PATIENCE = 5.0  # seconds beyond the lease, so that a take-over meanwhile still answers
_PLANNING = 10.0  # seconds that a drain waits for its plan, which is only told
_MISSED = 3  # times that a leader may fail to say that it leads
_MAY_BE_DONE = "the order may have been taken up: see `rechannel history` and `rechannel status` before asking again"


def decide(
    settings: Settings,
    verb: str,
    arguments: Mapping[str, str],
    *,
    reason: str = "",
    wait: float | None,
    as_json: bool,
    verbose: bool = False,
    save: str | None = None,
) -> int:
    """Ask for a plan or a rebalance and show the decision; ``save``: a file for the plan. Returns the exit code."""
    reply = ask(settings, verb, arguments, reason=reason, wait=wait)
    if "decision" not in reply.data:
        raise CommandError(ExitCode(reply.code), reply.sentence)
    application, decision = str(reply.data["application"]), msgspec.convert(reply.data["decision"], Decision)
    if as_json:
        click.echo(json.dumps({"code": reply.code, "sentence": reply.sentence, **reply.data}))
    else:
        from rechannel.daemon.cli import tables

        tables.print_decision(application, decision, verbose=verbose)
    if save is not None:
        _save(settings, application, decision, Path(save), quiet=as_json)
    if reply.code and (as_json or not sys.stdout.isatty()):  # on a terminal it was read just now
        click.echo(f"rechannel: {plain(reply.sentence)}", err=True)
    return reply.code


def _save(settings: Settings, application: str, decision: Decision, path: Path, *, quiet: bool) -> None:
    from rechannel.daemon.decide.requested_placement import saved_plan_of

    if not decision.moves:
        if not quiet:
            click.echo(f"nothing to save in {path}")
        return
    data = msgspec.json.format(
        msgspec.json.encode(saved_plan_of(decision, settings.cluster.name, application)), indent=1
    )
    try:
        path.write_bytes(data + b"\n")
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"{path}: the plan cannot be written ({error.strerror})") from error
    if not quiet:
        click.echo(f"saved in {path}; `rechannel apply {path}` does it")


def saved_plan(settings: Settings, path: Path) -> str:
    """Return what stands in the file of a saved plan; CommandError where that is none, before anybody is asked."""
    from rechannel.daemon.decide.requested_placement import PlanFileError, read_plan

    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        read_plan(text, settings.cluster.name)
    except PlanFileError as error:
        raise CommandError(ExitCode.REFUSED, f"{path}: {error}") from error
    return text


def plan_drain(settings: Settings, nodes: str, *, wait: float | None, as_json: bool, dry_run: bool) -> dict[str, Any]:
    """Ask what a drain of these nodes (commas between) would move, and say it; returns the plans, by ``plans``.

    A drain does not depend on it: what is no refusal, such as no answer in time, ends a dry run alone.
    """
    patience = _PLANNING if wait is None else min(wait, _PLANNING)
    try:
        reply = ask(settings, "plan", {"drain": nodes}, wait=wait if dry_run else patience)
    except CommandError:
        if dry_run:
            raise
        return {}
    if reply.code == ExitCode.REFUSED or (reply.code and dry_run):
        raise CommandError(ExitCode(reply.code), reply.sentence)
    if "plans" not in reply.data:
        if dry_run:
            raise CommandError(ExitCode.REFUSED, "the controller is of a release that plans no drains: upgrade it")
        return {}
    if as_json:
        if dry_run:
            click.echo(json.dumps({"code": reply.code, "sentence": reply.sentence, **reply.data}))
        return {"plans": reply.data["plans"]}
    for plan in reply.data["plans"]:
        click.echo(plain(f"{plan['application']}: {plan['decision']['sentence']}"))
        for note in plan["decision"]["notes"]:
            click.echo(plain(f"  note: {note}"))
    if dry_run:
        click.echo(plain(f"{reply.sentence}; a dry run: nothing is drained"))
    return {}


def order(
    settings: Settings,
    verb: str,
    arguments: Mapping[str, str],
    *,
    reason: str,
    wait: float | None,
    as_json: bool,
    more: Mapping[str, Any] | None = None,
) -> int:
    """Give a standing order (a pause, a drain) or end it; returns the exit code. ``more``: goes into the document."""
    reply = ask(settings, verb, arguments, reason=reason, wait=wait)
    if reply.code:
        raise CommandError(ExitCode(reply.code), reply.sentence)
    document = {"code": reply.code, "sentence": reply.sentence, **reply.data, **(more or {})}
    click.echo(json.dumps(document) if as_json else plain(reply.sentence))
    return reply.code


def ask(
    settings: Settings,
    verb: str,
    arguments: Mapping[str, str],
    *,
    reason: str = "",
    wait: float | None = None,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> Reply:
    """Put a request and wait for its reply; CommandError when no controller answers within ``wait`` seconds."""
    patience = settings.controller.lease + _PATIENCE if wait is None else wait
    store = Store(settings.redis, settings.cluster.name)
    user = _user()
    request = Request(
        request=uuid.uuid4().hex,
        verb=verb,
        user=user,
        reason=reason,
        arguments={name: value for name, value in arguments.items() if value},
    )
    author = EnvelopeFactory(settings.cluster.name, f"{user}@{socket.gethostname()}:{os.getpid()}", clock)
    question = verb in keys.READ_ONLY_VERBS
    store.check()  # a Redis that is away from the beginning is said at once
    stream, envelope = keys.QUESTIONS if question else keys.REQUESTS, author.envelope(request, ttl=patience)
    deadline = clock() + patience
    sent, away, found = False, None, None
    while True:
        try:
            if not sent:  # said twice, where Redis went away before it answered, it is one request all the same
                store.append(stream, "", envelope)
                sent = True
            found, away = store.get(keys.REPLY, request.request), None
        except StoreForbiddenError as error:
            if question or sent:
                raise
            raise StoreForbiddenError(
                f"{verb} is an order, which takes a Redis user of the role operator: {error}"
            ) from error
        except StoreUnavailableError as error:  # a fail-over takes some seconds; the order stands meanwhile
            away = error
        if found is not None and isinstance(found.body, Reply):
            return found.body
        if clock() >= deadline and away is not None:
            if question:
                raise away
            raise CommandError(ExitCode.UNCLEAR, f"{away}; {_MAY_BE_DONE}") from away
        if clock() >= deadline:
            raise CommandError(
                ExitCode.NO_ANSWER,
                f"no controller answered within {patience:g} s{_who_leads(store, settings, clock())}",
            )
        sleep(_POLL)


def _who_leads(store: Store, settings: Settings, now: float) -> str:
    try:
        last = last_leadership(store)
    except StoreUnavailableError:
        return ""
    if last is None:
        return ": none leads; start one with `rechannel controller`"
    leader, age = last.state.leader, now - last.sent
    if last.expires <= now:
        return (
            f": none leads. {leader} was last heard {age:.0f} s ago, its lease has run out and no stand-by took over: "
            "start one with `rechannel controller`"
        )
    if age > _MISSED * settings.controller.observe + 1:
        return (
            f": {leader} led and was last heard {age:.0f} s ago. Its lease runs out in {last.expires - now:.0f} s; "
            "then a stand-by takes over, or start one with `rechannel controller`"
        )
    return f", though {leader} leads and was heard {max(0.0, age):.0f} s ago: is it stuck, or are the clocks apart?"


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user id without a name
        return str(os.getuid())
