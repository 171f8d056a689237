"""The command line ``rechannel``.

The exit codes are those of `rechannel.wire.exit_codes`, and 130 if interrupted.

With ``--json`` exactly one JSON document is on standard output (for ``history --follow`` and ``drain --follow``, one a
line); on an error it is ``{"error": sentence, "code": number}``, for a configuration with its ``mistakes`` too. The
sentence always goes to standard error too.

Nothing heavy is imported here: each command imports what it needs, so that ``--help`` stays quick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rechannel.daemon.cli import orders
from rechannel.daemon.cli.options import (
    application_option,
    config_option,
    exit_code_on_error,
    json_lines_option,
    json_option,
    load_settings,
    log_source,
    reload_on_hangup,
    stop_on_signals,
    verbose_option,
)
from rechannel.daemon.cli.submit import submit
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.version import __version__

if TYPE_CHECKING:
    from rechannel.conf.settings import Settings

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {int(code)}  {code.meaning}" for code in ExitCode)
_EPILOG += "\n  130  interrupted"
#: one line of the overview for each command, by section
OVERVIEW = {
    "Look": {
        "status": "Controller, executors, queries, moves",
        "top": "The same live, with partitions",
        "history": "Decisions, moves, and what came of them",
        "explain": "One decision with all its numbers",
        "plan": "What would be moved now, and why",
    },
    "Order": {
        "rebalance": "Rebalance now, with --apply",
        "apply": "Do what a saved plan says, now or later",
        "cancel": "Cancel a scheduled plan",
        "rollback": "Move back what a decision moved",
        "drain": "Empty a node",
        "undrain": "Let a drained node hold state again",
        "stop": "End the running migration",
        "pause": "Begin nothing, hold what runs",
        "resume": "End the pause",
    },
    "Set up": {
        "doctor": "What keeps it from working, and the cure",
        "config": "Check, show, prepare the configuration",
        "acl": "A Redis user for each part",
        "policies": "Policies and their parameters",
        "simulate": "Compare policies; no cluster is asked",
    },
    "Run": {
        "submit": "spark-submit, with Rechannel attached",
        "controller": "The controller, until told to stop",
        "agent": "The monitor of this node",
    },
}


class _Grouped(click.Group):
    """Group of commands whose help lists them by section."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        for title, commands in OVERVIEW.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


@click.group(cls=_Grouped, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rechannel")
def main() -> None:
    """Rechannel: moves stateful partitions of running PySpark streaming queries to where they
    run best.
    """


for _command in orders.COMMANDS:
    main.add_command(_command)
main.add_command(submit)


@main.command()
@config_option
@click.option("--node", metavar="NAME", default="", help="The host name this node's executors carry in Spark.")
@exit_code_on_error
def agent(config: str | None, node: str) -> None:
    """Run the monitor of this node until it is told to stop."""
    from rechannel.daemon import log
    from rechannel.monitors.node.agent import run_agent

    def load() -> Settings:
        settings = load_settings(config)
        return dataclasses.replace(settings, agent=dataclasses.replace(settings.agent, node=node)) if node else settings

    settings = load()
    log.set_up()
    log_source(config)
    run_agent(settings, stop=stop_on_signals(), reload_signal=reload_on_hangup(load))


@main.command()
@config_option
@exit_code_on_error
def controller(config: str | None) -> None:
    """Run the controller: lead or stand by, decide, and follow migrations, until it is told to
    stop.
    """
    from rechannel.daemon import log
    from rechannel.daemon.service import run_controller

    settings = load_settings(config)
    log.set_up()
    log_source(config)
    run_controller(settings, stop_on_signals(), reload_signal=reload_on_hangup(lambda: load_settings(config)))


@main.command()
@config_option
@application_option
@click.option("--query", metavar="ID|NAME", default="", help="Only this query.")
@click.option("--node", metavar="NAME", default="", help="Only the executors of this node.")
@click.option("--partitions", is_flag=True, help="Also every partition: CPU, rows, state, snapshot lag.")
@verbose_option
@json_option
@exit_code_on_error
def status(config: str | None, partitions: bool, verbose: bool, as_json: bool, **only: str) -> None:
    """Show the controller, the executors with their load, the queries, and moves under way."""
    from rechannel.daemon.cli.status import StatusFilter, run

    run(load_settings(config), StatusFilter(**only), partitions=partitions, verbose=verbose, as_json=as_json)


@main.command()
@config_option
@application_option
@click.option("--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Show it once and end.")
@exit_code_on_error
def top(config: str | None, application: str, every: float, once: bool) -> None:
    """Watch executors, partitions, hot streams and moves live, until interrupted."""
    from rechannel.daemon.cli.top import run

    run(load_settings(config), stop_on_signals(), application=application, every=every, once=once)


@main.command()
@config_option
@application_option
@click.option("--query", metavar="ID|NAME", default="", help="Only moves of this query, and decisions that touch it.")
@click.option("--trigger", metavar="NAME", default="", help="Only decisions made because of it: timeout, operator, …")
@click.option("--outcome", metavar="NAME", default="", help="Only decisions that ended so: applied, refused, gate, …")
@click.option("--since", metavar="TIME", default="", help="Only what is newer: 90m, 2h, 3d, 2026-03-01 or with 10:00.")
@click.option("--limit", type=click.IntRange(1, 20_000), default=50, show_default=True, help="Newest entries shown.")
@click.option("--follow", is_flag=True, help="Go on showing what happens until interrupted.")
@json_lines_option
@exit_code_on_error
def history(config: str | None, since: str, limit: int, follow: bool, as_json: bool, **filters: str) -> None:
    """Show decisions, who asked for them and why, and the steps of their moves, oldest first."""
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
    """Explain DECISION with all its numbers: why it was made, what it moves and why, what
    refused what.

    Without DECISION the last one that moved something or proposed to; the ids are those of `rechannel history`.
    """
    from rechannel.daemon.cli.explain import print_explanation

    print_explanation(load_settings(config), **options)


@main.command()
@json_option
@exit_code_on_error
def policies(as_json: bool) -> None:
    """Show the policies, their parameters, and the scenarios they can be tried on."""
    from rechannel.daemon.cli.simulate import show_policies

    show_policies(as_json=as_json)


@main.command()
@click.option("--policy", metavar="NAME[,NAME...]|all", default="all", show_default=True, help="Which to compare.")
@click.option(
    "--workload", metavar="FILE|GENERATOR", required=True, help="A scenario, or what makes one: random-dag:seed=3."
)
@click.option("--set", "settings", metavar="POLICY.PARAMETER=VALUE", multiple=True, help="May be given several times.")
@click.option("--save", metavar="FILE", default="", help="Write the scenario there as JSON, over what is there.")
@json_option
@exit_code_on_error
def simulate(**options: Any) -> None:
    """Compare what policies would make of a scenario; no cluster is asked."""
    from rechannel.daemon.cli.simulate import compare_policies

    compare_policies(**options)


@main.command()
@config_option
@click.option(
    "--conf",
    "spark_conf",
    type=click.Path(dir_okay=False),
    default="",
    help="Check this file of Spark settings (spark-defaults.conf) alone, before a start.",
)
@json_option
@exit_code_on_error
def doctor(config: str | None, spark_conf: str, as_json: bool) -> int:
    """Look for what keeps Rechannel from doing its work here, and say the cure; changes
    nothing.

    Ends with 0 where nothing failed: warnings do not count.
    """
    from rechannel.daemon.cli.doctor import run

    return run(config, spark_conf=spark_conf, as_json=as_json)


@main.group()
def config() -> None:
    """Check, show and prepare the configuration."""


@config.command("check")
@config_option
@json_option
@exit_code_on_error
def config_check(config: str | None, as_json: bool) -> None:
    """Say whether the configuration can be used, with every mistake, also in the files that it
    names.
    """
    from rechannel.daemon.cli.config import check

    check(config, as_json=as_json)


@config.command("show")
@config_option
@json_option
@exit_code_on_error
def config_show(config: str | None, as_json: bool) -> None:
    """Show what is in force as a TOML file: each setting, where its value comes from, unit,
    bounds and reason.
    """
    from rechannel.daemon.cli.config import show

    show(config, as_json=as_json)


@config.command("init")
@click.argument("file", type=click.Path(dir_okay=False), default="rechannel.toml")
@json_option
@exit_code_on_error
def config_init(file: str, as_json: bool) -> None:
    """Write a commented configuration to FILE, all of it at its defaults; never over what is
    there.
    """
    from rechannel.daemon.cli.config import init

    init(file, as_json=as_json)


@config.command("reference")
@exit_code_on_error
def config_reference() -> None:
    """Print the table of all settings in Markdown, as it stands in docs/configuration.md."""
    from rechannel.conf.render import to_markdown

    click.echo(to_markdown(), nl=False)


@config.command("keys")
@click.argument("directory", type=click.Path(file_okay=False))
@click.option("--rotate", is_flag=True, help="Make the next key, and let signing.pub trust both; says what is next.")
@click.option("--retire", is_flag=True, help="Let signing.pub trust the key in use alone; it must be the newest.")
@click.option("--force", is_flag=True, help="With --retire: even if the key in use is not the newest.")
@json_option
@exit_code_on_error
def config_keys(directory: str, rotate: bool, retire: bool, force: bool, as_json: bool) -> None:
    """Make a signing key pair in DIRECTORY: signing.key for controllers alone, signing.pub for
    drivers and them.
    """
    from rechannel.daemon.cli.config import change_keys

    change_keys(directory, rotate=rotate, retire=retire, force=force, as_json=as_json)


@main.group()
def acl() -> None:
    """Give each part its own user in Redis, with no more rights than it needs."""


def _acl_options(command: Callable[..., Any]) -> Callable[..., Any]:
    file = click.option(
        "--password-file",
        type=click.Path(dir_okay=False),
        default="",
        help="Where the user's password is, or is to be written. [default: <USER>.password here]",
    )
    only_print = click.option("--print", "only_print", is_flag=True, help="Only print the line for Redis' ACL file.")
    return file(only_print(json_option(command)))


@acl.command("add-node")
@config_option
@click.argument("node")
@_acl_options
@exit_code_on_error
def acl_add_node(config: str | None, node: str, password_file: str, only_print: bool, as_json: bool) -> None:
    """Make the Redis user of the agent on NODE: it can write that node's own keys and nothing
    else.

    Asks Redis with the user of the configuration, which needs the right to use ACL SETUSER.
    """
    from rechannel.daemon.cli.acl import add_user

    add_user(load_settings(config), "agent", node, password_file, only_print=only_print, as_json=as_json)


@acl.command("add-role")
@config_option
@click.argument("role", type=click.Choice(["agent", "link", "controller", "viewer", "operator"]))
@click.argument("name", default="")
@_acl_options
@exit_code_on_error
def acl_add_role(config: str | None, role: str, name: str, password_file: str, only_print: bool, as_json: bool) -> None:
    """Make a Redis user of a ROLE: it can do what that part needs and nothing else.

    A NAME makes several of one role, each with a password of its own: a link's for one application, an operator's for
    one person. An agent's is its node.
    """
    from rechannel.daemon.cli.acl import add_user

    add_user(load_settings(config), role, name, password_file, only_print=only_print, as_json=as_json)


if __name__ == "__main__":
    main()
