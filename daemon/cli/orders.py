"""The commands that ask the leading controller to do something, or what it would do."""

from __future__ import annotations

from pathlib import Path

import click

from rechannel.daemon.cli.options import (
    application_option,
    config_option,
    duration,
    guarded,
    json_lines_option,
    json_option,
    policy_option,
    settings_of,
    stop_on_signals,
    verbose_option,
    wait_option,
)


@click.command()
@config_option
@application_option
@policy_option
@click.option("--force", is_flag=True, help="Plan as if gate and cool-down said yes.")
@click.option("--save", metavar="FILE", type=click.Path(dir_okay=False), help="Keep the plan there, for `apply`.")
@wait_option
@verbose_option
@json_option
@guarded
def plan(
    config: str | None,
    application: str,
    policy: str,
    force: bool,
    save: str | None,
    wait: float | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Say what would be moved now, and why; move nothing."""
    from rechannel.daemon.cli import client

    arguments = {"application": application, "policy": policy, "force": "yes" if force else ""}
    return client.decide(settings_of(config), "plan", arguments, wait=wait, as_json=as_json, verbose=verbose, save=save)


@click.command()
@config_option
@click.argument("plan", metavar="PLAN", type=click.Path(exists=True, dir_okay=False))
@click.option("--at", metavar="PERIOD", default="", help='Wait for this time of the day or week: "Sun 02:00-05:00".')
@click.option("--when", type=click.Choice(["off-peak"]), default=None, help="Wait for the next reschedule.off_peak.")
@click.option("--force", is_flag=True, help="Skip the gate and the cool-down; never the hard laws.")
@click.option("--reason", metavar="TEXT", default="", help="Kept with the decision.")
@wait_option
@json_option
@guarded
def apply(
    config: str | None,
    plan: str,
    at: str,
    when: str | None,
    force: bool,
    reason: str,
    wait: float | None,
    as_json: bool,
) -> int:
    """Do what a saved PLAN says, checked anew; refused where executors or queries are others by now.

    With --at or --when the controller keeps it until then, and checks it then. `rechannel status` lists what waits,
    `rechannel cancel` ends it.
    """
    from rechannel.daemon.cli import client

    if at and when:
        raise click.UsageError("--at and --when both say for what to wait: give one of them")
    settings = settings_of(config)
    arguments = {
        "plan": client.saved_plan(settings, Path(plan)),
        "at": at,
        "when": when or "",
        "force": "yes" if force else "",
    }
    if at or when:
        return client.order(settings, "apply", arguments, reason=reason, wait=wait, as_json=as_json)
    return client.decide(settings, "apply", arguments, reason=reason, wait=wait, as_json=as_json)


@click.command()
@config_option
@click.argument("pending", metavar="ID")
@click.option("--reason", metavar="TEXT", default="", help="Kept with the decision.")
@wait_option
@json_option
@guarded
def cancel(config: str | None, pending: str, reason: str, wait: float | None, as_json: bool) -> int:
    """Let a saved plan wait no longer: the ID that `apply --at` said, and `status` shows."""
    from rechannel.daemon.cli import client

    arguments = {"pending": pending}
    return client.order(settings_of(config), "cancel", arguments, reason=reason, wait=wait, as_json=as_json)


@click.command()
@config_option
@application_option
@click.option("--decision", metavar="ID", default="", help="What to undo. [default: the last that moved something]")
@click.option("--reason", metavar="TEXT", default="", help="Kept with the decision.")
@wait_option
@json_option
@guarded
def rollback(
    config: str | None, application: str, decision: str, reason: str, wait: float | None, as_json: bool
) -> int:
    """Move back what a decision moved; a running migration is ended first."""
    from rechannel.daemon.cli import client

    arguments = {"application": application, "decision": decision}
    return client.order(settings_of(config), "rollback", arguments, reason=reason, wait=wait, as_json=as_json)


@click.command()
@config_option
@application_option
@policy_option
@click.option("--apply", is_flag=True, help="Do it. Without this it is a dry run, the same as `plan`.")
@click.option("--force", is_flag=True, help="Skip the gate and the cool-down; never the hard laws.")
@click.option("--reason", metavar="TEXT", default="", help="Kept with the decision.")
@wait_option
@verbose_option
@json_option
@guarded
def rebalance(
    config: str | None,
    application: str,
    policy: str,
    apply: bool,
    force: bool,
    reason: str,
    wait: float | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Rebalance now."""
    from rechannel.daemon.cli import client

    arguments = {"application": application, "policy": policy, "force": "yes" if force else ""}
    verb = "rebalance" if apply else "plan"
    return client.decide(
        settings_of(config), verb, arguments, reason=reason, wait=wait, as_json=as_json, verbose=verbose
    )


@click.command()
@config_option
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@wait_option
@json_option
@guarded
def pause(config: str | None, reason: str, wait: float | None, as_json: bool) -> int:
    """Pause everything: nothing is begun, and running migrations hold after the moves already steered."""
    from rechannel.daemon.cli import client

    return client.order(settings_of(config), "pause", {}, reason=reason, wait=wait, as_json=as_json)


@click.command()
@config_option
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@wait_option
@json_option
@guarded
def resume(config: str | None, reason: str, wait: float | None, as_json: bool) -> int:
    """End the pause."""
    from rechannel.daemon.cli import client

    return client.order(settings_of(config), "resume", {}, reason=reason, wait=wait, as_json=as_json)


@click.command()
@config_option
@application_option
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@wait_option
@json_option
@guarded
def stop(config: str | None, application: str, reason: str, wait: float | None, as_json: bool) -> int:
    """End the running migration at the next batch boundary; what was moved stays moved."""
    from rechannel.daemon.cli import client

    arguments = {"application": application}
    return client.order(settings_of(config), "stop", arguments, reason=reason, wait=wait, as_json=as_json)


@click.command()
@config_option
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would move, and whether the others can hold it.")
@click.option("--remove", is_flag=True, help="Release the nodes' executors once they hold nothing.")
@click.option(
    "--deadline",
    metavar="DURATION",
    default="",
    callback=duration,
    help="With --remove: release them after this time even if state is left (seconds, or 90s, 10m, 2h).",
)
@click.option("--reason", metavar="TEXT", default="", help="Kept with the order.")
@click.option("--follow", is_flag=True, help="Show how far it is until nothing is left.")
@wait_option
@json_lines_option
@guarded
def drain(
    config: str | None,
    nodes: tuple[str, ...],
    dry_run: bool,
    remove: bool,
    deadline: float,
    reason: str,
    follow: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """Empty nodes: nothing new lands on NODE, and what is there leaves step by step.

    First it says what is to move, and warns where the executors that stay would be overloaded.
    """
    from rechannel.daemon.cli import client

    if deadline and not remove:
        raise click.UsageError("--deadline is when executors are released all the same: it needs --remove")
    if dry_run and follow:
        raise click.UsageError("--dry-run drains nothing that --follow could follow")
    settings, names = settings_of(config), ",".join(nodes)
    plans = client.plan_drain(settings, names, wait=wait, as_json=as_json, dry_run=dry_run)
    if dry_run:
        return 0
    arguments = {"node": names, "remove": "yes" if remove else "", "deadline": f"{deadline:g}" if deadline else ""}
    code = client.order(settings, "drain", arguments, reason=reason, wait=wait, as_json=as_json, more=plans)
    if follow:
        from rechannel.daemon.cli import status

        status.follow_drain(settings, nodes, stop_on_signals(), as_json=as_json)
    return code


@click.command()
@config_option
@click.argument("nodes", metavar="NODE...", nargs=-1, required=True)
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@wait_option
@json_option
@guarded
def undrain(config: str | None, nodes: tuple[str, ...], reason: str, wait: float | None, as_json: bool) -> int:
    """Let each drained NODE hold state again."""
    from rechannel.daemon.cli import client

    settings, names = settings_of(config), ",".join(nodes)
    return client.order(settings, "undrain", {"node": names}, reason=reason, wait=wait, as_json=as_json)


COMMANDS = (plan, rebalance, apply, cancel, rollback, stop, pause, resume, drain, undrain)
