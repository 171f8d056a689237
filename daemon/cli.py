"""The command line ``rechannel``: shows, asks the leading controller, starts the daemons. It plans nothing itself.

Exit codes (also of the controller's replies):

==== ==================================================================
0    done
1    the request is wrong, or a law refuses it
2    wrong usage of the command line
3    nothing to do, or the gate or the cool-down says no
4    not ready: the figures a decision needs are not there yet
5    Redis cannot be reached, or refuses
6    no controller answered
7    the configuration is wrong
==== ==================================================================

With ``--json`` exactly one JSON document is on standard output (for ``history --follow`` one a line); on an error it is
``{"error": sentence, "code": number}``. The sentence always goes to standard error too.

Nothing heavy is imported here: each command imports what it needs, so that ``--help`` is quick everywhere.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rechannel import __version__
from rechannel.daemon.exits import EXIT_WORDS, CommandError, Exit

if TYPE_CHECKING:
    from rechannel.conf.settings import Settings

_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {int(code)}  {words}" for code, words in EXIT_WORDS.items())
_DEBUG = "RECHANNEL_DEBUG"


def _config(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--config",
        metavar="FILE",
        help="Configuration file; the environment's RECHANNEL_CONFIG otherwise, the defaults if neither is given.",
    )(command)


def _json(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(command)


def _application(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--application", metavar="ID", default="", help="Which application, where there are several.")(
        command
    )


def _policy(command: Callable[..., Any]) -> Callable[..., Any]:
    words = "Ask this policy, this once; `rechannel policies` lists them. [default: reschedule.policy]"
    return click.option("--policy", metavar="NAME", default="", help=words)(command)


def _asking(command: Callable[..., Any]) -> Callable[..., Any]:
    wait = click.option(
        "--wait", type=click.FloatRange(0.1, 3600), metavar="SECONDS", help="How long to wait for an answer."
    )
    return wait(command)


def _duration(_context: click.Context, _option: click.Parameter, text: str) -> float:
    """Read seconds, or a number with s, m or h behind it."""
    if not text:
        return 0.0
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1], 0)
    try:
        seconds = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise click.BadParameter(f"{text!r} is no time; write seconds, or 90s, 10m, 2h")
    return seconds


def _guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn every error into one sentence and an exit code."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        as_json = bool(kwargs.get("as_json"))
        try:
            code = command(*args, **kwargs)
        except CommandError as error:
            _fail(error.code, error.sentence, as_json)
        except click.exceptions.ClickException:
            raise
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:
            if os.environ.get(_DEBUG):
                raise
            _fail(*_explained(error), as_json)
        sys.exit(int(code or 0))

    return guarded


def _explained(error: Exception) -> tuple[Exit, str]:
    from rechannel.conf.settings import SettingsError
    from rechannel.wire.keys import KeyNameError
    from rechannel.wire.signing import KeyFileError
    from rechannel.wire.store import StoreError

    if isinstance(error, (SettingsError, KeyFileError)):
        return Exit.CONFIGURATION, str(error)
    if isinstance(error, StoreError):
        return Exit.REDIS, str(error)
    if isinstance(error, KeyNameError):
        return Exit.REFUSED, str(error)
    return Exit.REFUSED, f"unexpected {type(error).__name__}: {error} ({_DEBUG}=1 shows where; please report it)"


def _fail(code: Exit, sentence: str, as_json: bool) -> NoReturn:
    if as_json:
        click.echo(json.dumps({"error": sentence, "code": int(code)}))
    click.echo(f"rechannel: {sentence}", err=True)
    sys.exit(int(code))


def _settings(config: str | None) -> Settings:
    from rechannel.conf.settings import load

    return load(config)


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rechannel")
def main() -> None:
    """Rechannel: moves stateful partitions of running PySpark streaming queries to where they run best."""


@main.command()
@_config
@click.option("--node", metavar="NAME", default="", help="The host name this node's executors carry in Spark.")
@_guarded
def agent(config: str | None, node: str) -> None:
    """Run the monitor of this node until it is told to stop."""
    import dataclasses

    from rechannel.daemon import log
    from rechannel.monitors.agent import run_agent

    settings = _settings(config)
    if node:
        settings = dataclasses.replace(settings, agent=dataclasses.replace(settings.agent, node=node))
    log.set_up()
    run_agent(settings, stop=_stop_on_signals())


@main.command()
@_config
@_guarded
def controller(config: str | None) -> None:
    """Run the controller: lead or stand by, decide, and follow migrations, until it is told to stop."""
    from rechannel.daemon import log
    from rechannel.daemon.service import run_controller

    settings = _settings(config)
    log.set_up()
    run_controller(settings, _stop_on_signals())


@main.command()
@_config
@_application
@click.option("--query", metavar="ID|NAME", default="", help="Only this query.")
@click.option("--node", metavar="NAME", default="", help="Only the executors of this node.")
@click.option("--partitions", is_flag=True, help="Also every partition: CPU, rows, state, snapshot lag.")
@_json
@_guarded
def status(config: str | None, application: str, query: str, node: str, partitions: bool, as_json: bool) -> None:
    """Show the controller, the executors with their load, the queries, and moves under way."""
    from rechannel.daemon import cli_status

    cli_status.run(
        _settings(config), application=application, query=query, node=node, partitions=partitions, as_json=as_json
    )


@main.command()
@_config
@_application
@click.option("--every", type=click.FloatRange(0.5, 60), default=2.0, show_default=True, metavar="SECONDS")
@click.option("--once", is_flag=True, help="Show it once and end.")
@_guarded
def top(config: str | None, application: str, every: float, once: bool) -> None:
    """Watch executors, partitions, hot streams and moves live, until interrupted."""
    from rechannel.daemon import cli_top

    cli_top.run(_settings(config), _stop_on_signals(), application=application, every=every, once=once)


@main.command()
@_config
@_application
@_policy
@click.option("--force", is_flag=True, help="Plan as if gate and cool-down said yes.")
@_asking
@_json
@_guarded
def plan(config: str | None, application: str, policy: str, force: bool, wait: float | None, as_json: bool) -> int:
    """Say what would be moved now, and why; move nothing."""
    from rechannel.daemon import cli_request

    arguments = {"application": application, "policy": policy, "force": "yes" if force else ""}
    return cli_request.decide(_settings(config), "plan", arguments, reason="", wait=wait, as_json=as_json)


@main.command()
@_config
@_application
@_policy
@click.option("--apply", is_flag=True, help="Do it. Without this it is a dry run, the same as `plan`.")
@click.option("--force", is_flag=True, help="Skip the gate and the cool-down; never the hard laws.")
@click.option("--reason", metavar="TEXT", default="", help="Kept with the decision.")
@_asking
@_json
@_guarded
def rebalance(
    config: str | None,
    application: str,
    policy: str,
    apply: bool,
    force: bool,
    reason: str,
    wait: float | None,
    as_json: bool,
) -> int:
    """Rebalance now."""
    from rechannel.daemon import cli_request

    arguments = {"application": application, "policy": policy, "force": "yes" if force else ""}
    verb = "rebalance" if apply else "plan"
    return cli_request.decide(_settings(config), verb, arguments, reason=reason, wait=wait, as_json=as_json)


@main.command()
@_config
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@_asking
@_json
@_guarded
def pause(config: str | None, reason: str, wait: float | None, as_json: bool) -> int:
    """Pause everything: nothing is begun, and running migrations hold after the moves already steered."""
    from rechannel.daemon import cli_request

    return cli_request.order(_settings(config), "pause", {}, reason=reason, wait=wait, as_json=as_json)


@main.command()
@_config
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@_asking
@_json
@_guarded
def resume(config: str | None, reason: str, wait: float | None, as_json: bool) -> int:
    """End the pause."""
    from rechannel.daemon import cli_request

    return cli_request.order(_settings(config), "resume", {}, reason=reason, wait=wait, as_json=as_json)


@main.command()
@_config
@_application
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@_asking
@_json
@_guarded
def stop(config: str | None, application: str, reason: str, wait: float | None, as_json: bool) -> int:
    """End the running migration at the next batch boundary; what was moved stays moved."""
    from rechannel.daemon import cli_request

    arguments = {"application": application}
    return cli_request.order(_settings(config), "stop", arguments, reason=reason, wait=wait, as_json=as_json)


@main.command()
@_config
@click.argument("node")
@click.option("--remove", is_flag=True, help="Release the node's executors once they hold nothing.")
@click.option(
    "--deadline",
    metavar="DURATION",
    default="",
    callback=_duration,
    help="With --remove: release them after this time even if state is left (seconds, or 90s, 10m, 2h).",
)
@click.option("--reason", metavar="TEXT", default="", help="Kept with the order.")
@click.option("--follow", is_flag=True, help="Show how far it is until nothing is left.")
@_asking
@_json
@_guarded
def drain(
    config: str | None,
    node: str,
    remove: bool,
    deadline: float,
    reason: str,
    follow: bool,
    wait: float | None,
    as_json: bool,
) -> int:
    """Empty a node: nothing new lands on NODE, and what is there leaves step by step."""
    from rechannel.daemon import cli_request

    if deadline and not remove:
        raise click.UsageError("--deadline is when executors are released all the same: it needs --remove")
    arguments = {"node": node, "remove": "yes" if remove else "", "deadline": f"{deadline:g}" if deadline else ""}
    settings = _settings(config)
    code = cli_request.order(settings, "drain", arguments, reason=reason, wait=wait, as_json=as_json and not follow)
    if follow:
        from rechannel.daemon import cli_status

        cli_status.follow_drain(settings, node, _stop_on_signals(), as_json=as_json)
    return code


@main.command()
@_config
@click.argument("node")
@click.option("--reason", metavar="TEXT", default="", help="Kept in the controller's log.")
@_asking
@_json
@_guarded
def undrain(config: str | None, node: str, reason: str, wait: float | None, as_json: bool) -> int:
    """Let a drained NODE hold state again."""
    from rechannel.daemon import cli_request

    settings = _settings(config)
    return cli_request.order(settings, "undrain", {"node": node}, reason=reason, wait=wait, as_json=as_json)


@main.command()
@_config
@_application
@click.option("--query", metavar="ID|NAME", default="", help="Only moves of this query, and decisions that touch it.")
@click.option("--limit", type=click.IntRange(1, 20_000), default=50, show_default=True, help="Newest entries shown.")
@click.option("--follow", is_flag=True, help="Go on showing what happens until interrupted.")
@_json
@_guarded
def history(config: str | None, application: str, query: str, limit: int, follow: bool, as_json: bool) -> None:
    """Show decisions and the steps of their moves, oldest first."""
    from rechannel.daemon import cli_history

    stop = _stop_on_signals() if follow else None
    cli_history.run(
        _settings(config), application=application, query=query, limit=limit, as_json=as_json, follow_until=stop
    )


@main.command()
@_json
@_guarded
def policies(as_json: bool) -> None:
    """Show the policies, their parameters, and the scenarios they can be tried on."""
    from rechannel.daemon import cli_simulate

    cli_simulate.policies(as_json=as_json)


@main.command()
@click.option("--policy", metavar="NAME[,NAME...]|all", default="all", show_default=True, help="Which to compare.")
@click.option(
    "--workload", metavar="FILE|GENERATOR", required=True, help="A scenario, or what makes one: random-dag:seed=3."
)
@click.option("--set", "settings", metavar="POLICY.PARAMETER=VALUE", multiple=True, help="May be given several times.")
@click.option("--save", metavar="FILE", default="", help="Write the scenario there as JSON, over what is there.")
@_json
@_guarded
def simulate(policy: str, workload: str, settings: tuple[str, ...], save: str, as_json: bool) -> None:
    """Compare what policies would make of a scenario; no cluster is asked."""
    from rechannel.daemon import cli_simulate

    cli_simulate.simulate(policy=policy, workload=workload, settings=settings, save=save, as_json=as_json)


@main.group()
def config() -> None:
    """Check, show and prepare the configuration."""


@config.command("check")
@_config
@_json
@_guarded
def config_check(config: str | None, as_json: bool) -> None:
    """Say whether the configuration can be used, with every mistake."""
    from rechannel.daemon import cli_config

    cli_config.check(_settings(config), as_json=as_json)


@config.command("show")
@_config
@_json
@_guarded
def config_show(config: str | None, as_json: bool) -> None:
    """Show every setting with its value, unit, bounds and reason."""
    from rechannel.daemon import cli_config

    cli_config.show(_settings(config), as_json=as_json)


@config.command("keys")
@click.argument("directory", type=click.Path(file_okay=False))
@_json
@_guarded
def config_keys(directory: str, as_json: bool) -> None:
    """Make a signing key pair in DIRECTORY: signing.key for controllers alone, signing.pub for the drivers."""
    from rechannel.daemon import cli_config

    cli_config.keys(directory, as_json=as_json)


@main.group()
def acl() -> None:
    """Give each part its own user in Redis, with no more rights than it needs."""


@acl.command("add-node")
@_config
@click.argument("node")
@click.option(
    "--password-file",
    type=click.Path(dir_okay=False),
    default="",
    help="Where the agent's password is, or is to be written. [default: <NODE>.password here]",
)
@click.option("--print", "only_print", is_flag=True, help="Only print the line for Redis' ACL file.")
@_json
@_guarded
def acl_add_node(config: str | None, node: str, password_file: str, only_print: bool, as_json: bool) -> None:
    """Make the Redis user of the agent on NODE: it can write that node's own keys and nothing else.

    Asks Redis with the user of the configuration, which needs the right to use ACL SETUSER.
    """
    from rechannel.daemon import cli_acl

    cli_acl.add_node(_settings(config), node, password_file, only_print=only_print, as_json=as_json)


if __name__ == "__main__":
    main()
