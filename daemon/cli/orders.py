"""Commands for the leading controller: orders, and plans of them.

`order_command` declares what all of them have in common; each function states its own options and builds its typed
command. ``rechannel.wire.commands`` is imported in the functions, so that ``--help`` stays quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rechannel.daemon.cli.options import (
    DurationRange,
    application_option,
    config_option,
    exit_code_on_error,
    json_lines_option,
    json_option,
    load_settings,
    policy_option,
    stop_on_signals,
    verbose_option,
    wait_option,
)
from rechannel.wire.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from rechannel.daemon.cli.client import ControllerClient

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
COMMANDS: list[click.Command] = []
_DECISION, _LOG, _ORDER = "Stored with the decision.", "Written to the controller's log.", "Stored with the order."
_NODES = click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
_FORCE = click.option("--force", is_flag=True, help="Skip the laws `gate` and `cooldown`, and no others.")


def _reason(text: str) -> Decorator:
    return click.option("--reason", metavar="TEXT", default="", help=text)


def order_command(
    *options: Decorator, verbose: bool = False, json: Decorator = json_option
) -> Callable[[Callable[..., int]], click.Command]:
    """Make a command of a function that takes a `ControllerClient` and its own ``options``.

    Adds ``--config``, ``--wait``, ``--json``, and with ``verbose`` that option too.
    """

    def make(function: Callable[..., int]) -> click.Command:
        @functools.wraps(function)
        def run(
            config: str | None, wait: float | None, as_json: bool, reason: str = "", verbose: bool = False, **own: Any
        ) -> int:
            from rechannel.daemon.cli.client import ControllerClient

            client = ControllerClient(load_settings(config), reason=reason, wait=wait, as_json=as_json, verbose=verbose)
            return function(client, **own)

        decorated: Callable[..., Any] = exit_code_on_error(run)
        decorators: list[Decorator] = [config_option, *options, wait_option]
        decorators += [verbose_option, json] if verbose else [json]
        for decorate in reversed(decorators):
            decorated = decorate(decorated)
        command = click.command()(decorated)
        COMMANDS.append(command)
        return command

    return make


@order_command(
    application_option,
    policy_option,
    click.option("--force", is_flag=True, help="Plan without the laws `gate` and `cooldown`."),
    click.option(
        "--save", metavar="FILE", type=click.Path(dir_okay=False), help="Save the plan to this file, for `apply`."
    ),
    verbose=True,
)
def plan(client: ControllerClient, application: str, policy: str, force: bool, save: str | None) -> int:
    """Plan a rebalance and print it with its reasons; nothing is moved."""
    from rechannel.wire.commands import Plan

    return client.decide(Plan(application=application, policy=policy, force=force), save)


@order_command(
    application_option,
    policy_option,
    click.option(
        "--apply", is_flag=True, help="Carry it out. Without this option it is a dry run, the same as `plan`."
    ),
    _FORCE,
    _reason(_DECISION),
    verbose=True,
)
def rebalance(client: ControllerClient, application: str, policy: str, apply: bool, force: bool) -> int:
    """Plan a rebalance, and with --apply carry it out."""
    from rechannel.wire.commands import Plan, Rebalance

    kind = Rebalance if apply else Plan
    return client.decide(kind(application=application, policy=policy, force=force))


@order_command(
    click.argument("plan", metavar="PLAN", type=click.Path(exists=True, dir_okay=False)),
    click.option(
        "--at", metavar="PERIOD", default="", help='Begin in this period of the day or week: "Sun 02:00-05:00".'
    ),
    click.option(
        "--when", type=click.Choice(["off-peak"]), default=None, help="Begin in the next reschedule.off_peak."
    ),
    _FORCE,
    _reason(_DECISION),
)
def apply(client: ControllerClient, plan: str, at: str, when: str | None, force: bool) -> int:
    """Check a saved PLAN again and carry it out.

    It is refused if executors or queries have changed. With --at or --when the controller stores the plan, and checks
    it when the period begins. `rechannel status` lists the scheduled plans, `rechannel cancel` cancels one.
    """
    from rechannel.wire.commands import Apply

    if at and when:
        raise click.UsageError("--at and --when exclude each other: give one of them")
    command = Apply(plan=client.read_plan(Path(plan)), at=at, when=when or "", force=force)
    return client.order(command) if at or when else client.decide(command)


@order_command(click.argument("scheduled_plan", metavar="ID"), _reason(_DECISION))
def cancel(client: ControllerClient, scheduled_plan: str) -> int:
    """Cancel a scheduled plan. `apply --at` and `status` print its ID."""
    from rechannel.wire.commands import Cancel

    return client.order(Cancel(scheduled_plan=scheduled_plan))


@order_command(
    application_option,
    click.option(
        "--decision",
        metavar="ID",
        default="",
        help="Decision to roll back. [default: the last one that moved something]",
    ),
    _reason(_DECISION),
)
def rollback(client: ControllerClient, application: str, decision: str) -> int:
    """Roll back the moves of a decision; a running migration is ended first."""
    from rechannel.wire.commands import Rollback

    return client.order(Rollback(application=application, decision=decision))


@order_command(application_option, _reason(_LOG))
def stop(client: ControllerClient, application: str) -> int:
    """End the running migration at the next batch boundary; completed moves stay."""
    from rechannel.wire.commands import Stop

    return client.order(Stop(application=application))


@order_command(_reason(_LOG))
def pause(client: ControllerClient) -> int:
    """Pause: no move is begun; running migrations stop after the moves already steered."""
    from rechannel.wire.commands import Pause

    return client.order(Pause())


@order_command(_reason(_LOG))
def resume(client: ControllerClient) -> int:
    """End the pause."""
    from rechannel.wire.commands import Resume

    return client.order(Resume())


@order_command(
    _NODES,
    click.option(
        "--dry-run", is_flag=True, help="Print what would move and whether the other nodes have room; drain nothing."
    ),
    click.option("--remove", is_flag=True, help="Release the nodes' executors once they hold no state."),
    click.option(
        "--deadline",
        type=DurationRange(0, min_open=True),
        help="With --remove: release them after this time even if state is left (seconds, or 90s, 10m, 1h30m).",
    ),
    _reason(_ORDER),
    click.option(
        "--follow",
        is_flag=True,
        help="Show the progress until no state is left; with --remove, until no executor is left. It goes on after an "
        "outage of Redis of up to five minutes.",
    ),
    json=json_lines_option,
)
def drain(
    client: ControllerClient, nodes: tuple[str, ...], dry_run: bool, remove: bool, deadline: float | None, follow: bool
) -> int:
    """Move all state off each NODE, and place no new state there.

    Prints first what will move, and warns if the remaining executors would be overloaded. The exit code of --dry-run
    is that of the first plan that could not begin.
    """
    from rechannel.wire.commands import Drain

    if deadline and not remove:
        raise click.UsageError(
            "--deadline needs --remove: it is the time after which executors are released even with state"
        )
    if dry_run and follow:
        raise click.UsageError("--follow needs a drain, and --dry-run begins none")
    try:
        command = Drain(nodes=_split(nodes), remove=remove, deadline=deadline or 0.0)
    except ValueError as error:
        raise CommandError(ExitCode.REFUSED, f"--{error}") from error
    if dry_run:
        return client.dry_run_drain(command.nodes)
    plans = client.preview_drain(command.nodes)
    code = client.order(command, **plans)
    if follow:
        from rechannel.daemon.cli.status import follow_drain

        follow_drain(client.settings, command.nodes, stop_on_signals(), as_json=client.as_json)
    return code


@order_command(_NODES, _reason(_LOG))
def undrain(client: ControllerClient, nodes: tuple[str, ...]) -> int:
    """End the drain of each NODE, so that state is placed there again."""
    from rechannel.wire.commands import Undrain

    return client.order(Undrain(nodes=_split(nodes)))


def _split(nodes: tuple[str, ...]) -> list[str]:
    """Return the nodes of the command line, where commas may separate them too."""
    return [name for text in nodes for node in text.split(",") if (name := node.strip())]
