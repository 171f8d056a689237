"""The command line ``rechannel``.

The exit codes are those of `rechannel.wire.exit_codes`, and 130 if interrupted.

With ``--json`` exactly one JSON document is on standard output (for ``history --follow`` and ``drain --follow``, one a
line); on an error it is ``{"error": sentence, "code": number}``, for a configuration with its ``mistakes`` too. The
sentence always goes to standard error too.

Nothing heavy is imported here: each command imports what it needs, so that ``--help`` stays quick.
"""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rechannel.daemon.cli import orders
from rechannel.daemon.cli.options import (
    DurationRange,
    application_option,
    config_option,
    daemon_config_option,
    exit_code_on_error,
    json_lines_option,
    json_option,
    load_settings,
    log_source,
    refuse_conflict,
    reload_on_hangup,
    stop_on_signals,
    verbose_option,
)
from rechannel.daemon.cli.submit import submit
from rechannel.wire import distribution
from rechannel.wire.codes import OutcomeVerdict
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.version import __version__

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {int(code)}  {code.meaning}" for code in ExitCode)
_EPILOG += "\n  130  Interrupted."
#: one line of the overview for each command, by section
OVERVIEW = {
    "Look": {
        "status": "Controller, executors, queries, moves",
        "top": "Live view of the status, with partitions",
        "history": "Decisions, moves and outcomes",
        "explain": "One decision with all its numbers",
        "plan": "Plan a rebalance; nothing is moved",
        "assess": "Judge event logs of Spark, offline",
    },
    "Order": {
        "rebalance": "Rebalance now, with --apply",
        "apply": "Carry out a saved plan, now or later",
        "cancel": "Cancel a scheduled plan",
        "rollback": "Roll back the moves of a decision",
        "drain": "Move all state off nodes",
        "undrain": "End the drain of nodes",
        "stop": "End the running migration",
        "pause": "Pause all moves",
        "resume": "End the pause",
    },
    "Set up": {
        "doctor": "Check the installation",
        "config": "Check, show, prepare the configuration",
        "acl": "Make Redis users",
        "policies": "Policies and their parameters",
        "simulate": "Compare policies without a cluster",
    },
    "Run": {
        "submit": "spark-submit, with Rechannel attached",
        "controller": "Run the controller",
        "agent": "Run the agent of this node",
    },
}


class _Grouped(click.Group):
    """Group of commands whose help lists those that are installed, by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        complete = distribution.is_complete()
        for title, commands in OVERVIEW.items():
            rows = [row for row in commands.items() if complete or row[0] in distribution.LIGHT_COMMANDS]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.group(cls=_Grouped, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rechannel")
def main() -> None:
    """Rechannel rebalances stateful partitions of PySpark streaming queries while they run."""


for _command in orders.COMMANDS:
    main.add_command(_command)
main.add_command(submit)


@main.command()
@daemon_config_option
@click.option("--node", metavar="NAME", default="", help="Host name of this node's executors in Spark.")
@exit_code_on_error
def agent(config: str | None, node: str) -> None:
    """Run the agent of this node until it is stopped."""
    from rechannel.daemon import log
    from rechannel.monitors.node.agent import run_agent

    refuse_conflict()
    settings = load_settings(config)
    if node:
        settings = dataclasses.replace(settings, agent=dataclasses.replace(settings.agent, node=node))
    log.set_up()
    log_source(config)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # asks a controller to reload; an agent has nothing to reload
    run_agent(settings, stop=stop_on_signals())


@main.command()
@daemon_config_option
@exit_code_on_error
def controller(config: str | None) -> None:
    """Run the controller until it is stopped: lead or stand by, decide, and follow migrations."""
    # Before numpy: its matrices are small here, and threads would spin for longer than they work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from rechannel.daemon import log
    from rechannel.daemon.service import run_controller, tune_garbage_collection

    refuse_conflict()
    settings = load_settings(config)
    tune_garbage_collection()
    log.set_up()
    log_source(config)
    run_controller(settings, stop_on_signals(), reload_signal=reload_on_hangup(lambda: load_settings(config)))


@main.command()
@config_option
@application_option
@click.option("--query", metavar="ID|NAME", default="", help="Only this query.")
@click.option("--node", metavar="NAME", default="", help="Only the executors of this node.")
@click.option("--partitions", is_flag=True, help="Show each partition too: CPU, rows, state, snapshot lag.")
@verbose_option
@json_option
@exit_code_on_error
def status(config: str | None, partitions: bool, verbose: bool, as_json: bool, **only: str) -> None:
    """Show the controller, the executors with their load, the queries, and moves in flight."""
    from rechannel.daemon.cli.status import StatusFilter, run

    run(load_settings(config), StatusFilter(**only), partitions=partitions, verbose=verbose, as_json=as_json)


@main.command()
@config_option
@application_option
@click.option(
    "--every",
    type=DurationRange(0.5, 60),
    default=2.0,
    show_default=True,
    help="Time between refreshes (seconds, or 10s).",
)
@click.option("--once", is_flag=True, help="Print the figures once and exit.")
@exit_code_on_error
def top(config: str | None, application: str, every: float, once: bool) -> None:
    """Show executors, partitions, hot streams and moves, refreshed until interrupted."""
    from rechannel.daemon.cli.top import run

    run(load_settings(config), stop_on_signals(), application=application, every=every, once=once)


@main.command()
@config_option
@application_option
@click.option("--query", metavar="ID|NAME", default="", help="Only decisions and moves of this query.")
@click.option("--trigger", metavar="NAME", default="", help="Only decisions of this trigger: timeout, operator, …")
@click.option(
    "--result",
    metavar="NAME",
    default="",
    help="Only decisions with this result or reason: applied, refused, gate, …",
)
@click.option(
    "--verdict",
    metavar="NAME",
    default="",
    help=f"Only decisions whose migration has this verdict: {OutcomeVerdict.alternatives()}.",
)
@click.option(
    "--since", metavar="TIME", default="", help="Only newer entries: 90m, 1h30m, 3d, 2026-03-01 or 2026-03-01T10:00."
)
@click.option("--limit", type=click.IntRange(1, 20_000), default=50, show_default=True, help="Number of entries.")
@click.option(
    "--follow",
    is_flag=True,
    help="Show new entries until interrupted. It goes on after an outage of Redis of up to five minutes.",
)
@json_lines_option
@exit_code_on_error
def history(config: str | None, since: str, limit: int, follow: bool, as_json: bool, **filters: str) -> None:
    """Show decisions with user and reason, transitions of moves, and outcomes; oldest first."""
    from rechannel.daemon.cli.history import HistoryFilter, parse_time, show_history

    selection = HistoryFilter(since=parse_time(since), **filters)
    stop = stop_on_signals() if follow else None
    show_history(load_settings(config), selection, limit=limit, as_json=as_json, follow_until=stop)


@main.command()
@config_option
@click.argument("decision", default="")
@application_option
@json_option
@exit_code_on_error
def explain(config: str | None, **options: Any) -> None:
    """Explain DECISION with all its numbers: cause, moves with their reasons, refusals.

    `rechannel history` lists the ids. Without DECISION the last one that moved or proposed something is explained.
    """
    from rechannel.daemon.cli.explain import print_explanation

    print_explanation(load_settings(config), **options)


@main.command()
@json_option
@exit_code_on_error
def policies(as_json: bool) -> None:
    """Show the policies and the generators of scenarios, with their parameters."""
    from rechannel.daemon.cli.simulate import show_policies

    show_policies(as_json=as_json)


@main.command()
@click.option("--policy", metavar="NAME[,NAME...]|all", default="all", show_default=True, help="Policies to compare.")
@click.option(
    "--workload", metavar="FILE|GENERATOR", required=True, help="File of a scenario, or a generator: random-dag:seed=3."
)
@click.option(
    "--set",
    "settings",
    metavar="POLICY.PARAMETER=VALUE",
    multiple=True,
    help="Parameter of a policy; may be given several times.",
)
@click.option("--save", metavar="FILE", default="", help="Write the scenario to this file as JSON.")
@json_option
@exit_code_on_error
def simulate(**options: Any) -> None:
    """Compare policies on a scenario, without a cluster."""
    from rechannel.daemon.cli.simulate import compare_policies

    compare_policies(**options)


@main.command()
@click.argument("eventlogs", metavar="EVENTLOG...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--batches",
    type=click.IntRange(3, 1000),
    default=32,
    show_default=True,
    metavar="N",
    help="Newest batches of a query to assess, at most.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write the result as a page, too."
)
@json_option
@exit_code_on_error
def assess(eventlogs: tuple[Path, ...], batches: int, html: Path | None, as_json: bool) -> int:
    """Judge by Spark's event logs whether moving partitions is worth it, query by query.

    EVENTLOG is a file, an eventlog_v2_ directory, or a directory with the logs of several applications. Nothing is
    changed, and no Redis, key, configuration or cluster is needed.

    The exit code is 0 if it is worth it for some query, 3 if for none, and 4 if no query can be assessed.
    """
    from rechannel.daemon.cli.simulate import assess_logs

    return assess_logs(eventlogs, batches, html, as_json=as_json)


@main.command()
@config_option
@click.option(
    "--conf",
    "spark_conf",
    type=click.Path(dir_okay=False),
    default="",
    help="Check this file of Spark settings (spark-defaults.conf) alone, before a start.",
)
@click.option(
    "--machine", is_flag=True, help="Check this machine alone, for its agent. Neither Redis nor Spark is needed."
)
@json_option
@exit_code_on_error
def doctor(config: str | None, spark_conf: str, machine: bool, as_json: bool) -> int:
    """Check the installation, and print the cure of each problem. Nothing is changed.

    The exit code is 0 if no check failed; warnings do not count.
    """
    from rechannel.daemon.cli.doctor import run

    return run(config, spark_conf=spark_conf, machine_only=machine, as_json=as_json)


@main.group()
def config() -> None:
    """Check, show and prepare the configuration."""


@config.command("check")
@config_option
@json_option
@exit_code_on_error
def config_check(config: str | None, as_json: bool) -> None:
    """Check the configuration and the files that it names; prints every mistake."""
    from rechannel.daemon.cli.config import check

    check(config, as_json=as_json)


@config.command("show")
@config_option
@json_option
@exit_code_on_error
def config_show(config: str | None, as_json: bool) -> None:
    """Print the settings in force as TOML, each with its source, unit, bounds and reason."""
    from rechannel.daemon.cli.config import show

    show(config, as_json=as_json)


@config.command("init")
@click.argument("file", type=click.Path(dir_okay=False), default="rechannel.toml")
@click.option("--all", "all_settings", is_flag=True, help="Write every setting, with units, bounds and reasons.")
@json_option
@exit_code_on_error
def config_init(file: str, all_settings: bool, as_json: bool) -> None:
    """Write the settings that most clusters need to FILE, which must not exist yet."""
    from rechannel.daemon.cli.config import init

    init(file, all_settings=all_settings, as_json=as_json)


@config.command("reference")
@exit_code_on_error
def config_reference() -> None:
    """Print the table of all settings in Markdown, as in docs/configuration.md."""
    from rechannel.conf.render import to_markdown

    click.echo(to_markdown(), nl=False)


@config.command("keys")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--rotate", is_flag=True, help="Make the next key, trust both in signing.pub, and print the next steps.")
@click.option("--retire", is_flag=True, help="Trust only the key in use, which must be the newest.")
@click.option("--force", is_flag=True, help="With --retire: even if the key in use is not the newest.")
@json_option
@exit_code_on_error
def config_keys(directory: str, rotate: bool, retire: bool, force: bool, as_json: bool) -> None:
    """Make a signing key pair in DIRECTORY.

    signing.key is for controllers alone, signing.pub for drivers and controllers.
    """
    from rechannel.daemon.cli.config import change_keys

    change_keys(directory, rotate=rotate, retire=retire, force=force, as_json=as_json)


@main.group()
def acl() -> None:
    """Make a Redis user for each part, with no more rights than it needs."""


def _acl_options(command: Callable[..., Any]) -> Callable[..., Any]:
    file = click.option(
        "--password-file",
        type=click.Path(dir_okay=False),
        default="",
        help="File of the password; made if there is none. [default: ./<USER>.password]",
    )
    only_print = click.option(
        "--print", "only_print", is_flag=True, help="Print the line for Redis' ACL file, and make no user."
    )
    return file(only_print(json_option(command)))


@acl.command("add-node")
@daemon_config_option
@click.argument("node")
@_acl_options
@exit_code_on_error
def acl_add_node(config: str | None, node: str, password_file: str, only_print: bool, as_json: bool) -> None:
    """Make the Redis user of the agent on NODE, which can write that node's keys alone.

    The Redis user of the configuration needs the right to use ACL SETUSER.
    """
    from rechannel.daemon.cli.acl import add_user

    if not node:
        raise CommandError(ExitCode.USAGE, "name the node: `add-role agent` makes a user for all of them")
    add_user(load_settings(config), "agent", node, password_file, only_print=only_print, as_json=as_json)


@acl.command("add-role")
@daemon_config_option
@click.argument("role", type=click.Choice(["agent", "link", "controller", "viewer", "operator"]))
@click.argument("name", default="")
@_acl_options
@exit_code_on_error
def acl_add_role(config: str | None, role: str, name: str, password_file: str, only_print: bool, as_json: bool) -> None:
    """Make a Redis user with the rights of a ROLE.

    With a NAME one role has several users, each with its own password: links of different applications, operators. The
    name of an agent is its node; without one it may write the keys of all nodes, as agents of pods have to.
    """
    from rechannel.daemon.cli.acl import add_user

    add_user(load_settings(config), role, name, password_file, only_print=only_print, as_json=as_json)


if __name__ == "__main__":
    main()
