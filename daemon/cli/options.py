"""What the commands of the command line share: their options, how errors become exit codes, settings and signals."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.printable import plain

if TYPE_CHECKING:
    from rechannel.conf.reload import ReloadSignal
    from rechannel.conf.settings import Settings

_DEBUG = "RECHANNEL_DEBUG"


def config_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--config``."""
    return click.option(
        "--config",
        metavar="FILE",
        help="Configuration file. [default: RECHANNEL_CONFIG's, ./rechannel.toml, /etc/rechannel/rechannel.toml]",
    )(command)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json``, as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")(command)


def json_lines_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` to a command that can go on with ``--follow``."""
    words = "One JSON document on standard output; with --follow one a line."
    return click.option("--json", "as_json", is_flag=True, help=words)(command)


def application_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--application``."""
    return click.option("--application", metavar="ID", default="", help="Which application, where there are several.")(
        command
    )


def policy_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--policy``."""
    words = "Ask this policy, this once; `rechannel policies` lists them. [default: reschedule.policy]"
    return click.option("--policy", metavar="NAME", default="", help=words)(command)


def verbose_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--verbose``."""
    return click.option("-v", "--verbose", is_flag=True, help="Also streams and forecasts.")(command)


def wait_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--wait``."""
    wait = click.option(
        "--wait", type=click.FloatRange(0.1, 3600), metavar="SECONDS", help="How long to wait for an answer."
    )
    return wait(command)


def duration(_context: click.Context, _option: click.Parameter, text: str) -> float:
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


def shown_time(at: float, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """Return a moment as people here write it, with its zone."""
    return time.strftime(form, time.localtime(at))


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn every error into one sentence and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        as_json = bool(kwargs.get("as_json"))
        _log_to_standard_error()
        try:
            code = command(*args, **kwargs)
        except CommandError as error:
            _fail(error.code, [error.sentence], as_json)
        except click.exceptions.ClickException:
            raise
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:
            if os.environ.get(_DEBUG):
                raise
            _fail(*_explained(error, kwargs.get("config")), as_json)
        sys.exit(int(code or 0))

    return run


def _log_to_standard_error() -> None:
    """Keep log lines of what a command calls out of its output; structlog's default is standard output."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr), cache_logger_on_first_use=False
        )


def _explained(error: Exception, config: str | None) -> tuple[ExitCode, list[str]]:
    """Return the exit code and what is wrong: one sentence, or each mistake of a configuration with its place."""
    from rechannel.conf.loader import read_settings
    from rechannel.conf.settings import SettingsError
    from rechannel.wire.keys import KeyNameError
    from rechannel.wire.redis.errors import StoreError
    from rechannel.wire.signing import KeyFileError

    if isinstance(error, SettingsError):
        return ExitCode.CONFIGURATION, read_settings(config).with_locations(error.errors)
    if isinstance(error, KeyFileError):
        return ExitCode.CONFIGURATION, read_settings(config).with_locations([str(error)])
    if isinstance(error, StoreError):  # the wrong Redis is mostly one of another configuration than was meant
        loaded = read_settings(config)
        used = loaded.describe()
        return ExitCode.REDIS, [f"{loaded.with_locations([str(error)])[0]}. {used[0].upper()}{used[1:]}"]
    if isinstance(error, KeyNameError):
        return ExitCode.REFUSED, [str(error)]
    return ExitCode.REFUSED, [f"unexpected {type(error).__name__}: {error} ({_DEBUG}=1 shows where; please report it)"]


def _fail(code: ExitCode, wrong: Sequence[str], as_json: bool) -> NoReturn:
    """Say what went wrong and end; several mistakes of a configuration are told one a line."""
    mistakes = wrong if code is ExitCode.CONFIGURATION else ()
    sentence = f"configuration: {'; '.join(mistakes)}" if mistakes else wrong[0]
    if as_json:
        document = {"error": sentence, "code": int(code)} | ({"mistakes": list(mistakes)} if mistakes else {})
        click.echo(json.dumps(document))
    if len(mistakes) > 1:
        told = (" ".join(mistake.split("\n")) for mistake in mistakes)
        sentence = "\n  ".join([f"the configuration has {len(mistakes)} mistakes:", *told])
    lines = [plain(line) for line in sentence.split("\n")]
    click.echo("\n".join(["rechannel: " + lines[0], *lines[1:]]), err=True)
    sys.exit(int(code))


def settings_of(config: str | None) -> Settings:
    """Read the settings; `guarded` makes a sentence of what is wrong with them."""
    from rechannel.conf.loader import load

    return load(config)


def log_source(config: str | None) -> None:
    """Log which configuration a daemon was started with."""
    import structlog

    from rechannel.conf import loader
    from rechannel.conf.settings import ENVIRONMENT_PREFIX

    variables = any(name.startswith(ENVIRONMENT_PREFIX) and "__" in name for name in os.environ)
    used = loader.find_config_file(config, os.environ).describe(variables=variables)
    structlog.get_logger("rechannel").info("configuration", used=used)


def reread_on_hangup(again: Callable[[], Settings]) -> ReloadSignal:
    """Have SIGHUP ask for the configuration to be read ``again``."""
    from rechannel.conf.reload import ReloadSignal

    asked = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: asked.set())
    return ReloadSignal(asked, again)


def stop_on_signals() -> threading.Event:
    """Return an event that is set when the process is asked to end."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
