"""Shared parts of the commands: options, exit codes of errors, settings and signals."""

from __future__ import annotations

import functools
import io
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from rechannel.conf.duration import parse_duration
from rechannel.wire import distribution
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.printable import plain

if TYPE_CHECKING:
    from rechannel.conf.reload import ReloadSignal
    from rechannel.conf.settings import Settings

_PATIENCE = 300.0  # seconds for which a command with --follow goes on without Redis
_REPORTED_AGAIN = 30.0  # seconds in which controllers and links have reported again after an outage
Answer = TypeVar("Answer")
_DEBUG = "RECHANNEL_DEBUG"
_REDIS_VARIABLE = "RECHANNEL_REDIS__URL"


class DurationRange(click.FloatRange):
    """Type of an option: a duration in text as the configuration has it; in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert text to seconds within the bounds."""
        try:
            seconds: float = super().convert(parse_duration(str(value)), param, ctx)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return seconds


# Each of these decorates a command with the option of its name.
config_option = click.option(
    "--config",
    metavar="FILE",
    help="Configuration file. [default: RECHANNEL_CONFIG's, ./rechannel.toml, /etc/rechannel/rechannel.toml, the live "
    "solo run's]",
)
#: Of daemons and Redis users, which no solo run has: `exit_code_on_error` looks for a run where the value is None.
daemon_config_option = click.option(
    "--config",
    metavar="FILE",
    default="",
    help="Configuration file. [default: RECHANNEL_CONFIG's, ./rechannel.toml, /etc/rechannel/rechannel.toml]",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
json_lines_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document; with --follow, one per line."
)
application_option = click.option(
    "--application", metavar="ID", default="", help="Id of the application, if there are several."
)
policy_option = click.option(
    "--policy",
    metavar="NAME",
    default="",
    help="Use this policy once; `rechannel policies` lists them. [default: reschedule.policy]",
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show streams and forecasts too.")
wait_option = click.option(
    "--wait",
    type=DurationRange(0.1, 3600),
    help="Time to wait for an answer (seconds, or 90s, 2m). [default: a bit longer than controller.lease]",
)


def format_time(at: float, form: str = "%Y-%m-%d %H:%M:%S %Z") -> str:
    """Format a time in the local time zone, with the name of the zone."""
    return time.strftime(form, time.localtime(at))


def unknown_name(noun: str, name: str, existing: Iterable[str]) -> CommandError:
    """Return the error for a name that does not exist."""
    listed = ", ".join(sorted(set(existing))) or "none"
    return CommandError(ExitCode.REFUSED, f"unknown {noun} {name}; known are {listed}")


class RedisPatience:
    """Patience of a command with ``--follow`` while Redis is away, as at a fail-over.

    The start of an outage is printed on standard error, in one line.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_since: float | None = None
        self._back_since = -math.inf

    @property
    def is_back_lately(self) -> bool:
        """Whether Redis was away until now, so that not everybody has reported again."""
        return self._clock() - self._back_since < _REPORTED_AGAIN

    def read(self, call: Callable[[], Answer]) -> Answer | None:
        """Return the answer of a call, None while Redis is away.

        After five minutes the error is raised.
        """
        from rechannel.wire.redis.errors import StoreUnavailableError

        try:
            answer = call()
        except StoreUnavailableError as error:
            now = self._clock()
            if self._away_since is None:
                self._away_since = now
                sentence = f"rechannel: {error}; trying again for {_PATIENCE / 60:g} minutes"
                click.echo(plain(sentence), err=True)
            if now - self._away_since >= _PATIENCE:
                raise
            return None
        if self._away_since is not None:
            self._away_since, self._back_since = None, self._clock()
        return answer


def exit_code_on_error(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command: every error becomes one sentence on standard error, and an exit code.

    A command with ``--config`` that no configuration is named to gets that of the one live solo run, if there is one.
    """

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        as_json = bool(kwargs.get("as_json"))
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a locale such as Latin-1 has no arrows and no Greek letters
        _log_to_standard_error()
        try:
            reads_config = "config" in kwargs and not kwargs.get("spark_conf")  # as `doctor --conf` does not
            if reads_config and kwargs["config"] is None:
                kwargs["config"] = _solo_config()
            code = command(*args, **kwargs)
        except CommandError as error:
            _fail(error.code, [error.sentence], as_json)
        except (click.exceptions.ClickException, BrokenPipeError):
            raise  # click ends quietly if a reader such as `head` has enough
        except KeyboardInterrupt:
            sys.exit(130)
        except Exception as error:
            if os.environ.get(_DEBUG):
                raise
            _fail(*_classify(error, kwargs.get("config")), as_json)
        sys.exit(int(code or 0))

    return run


def _log_to_standard_error() -> None:
    """Send log lines to standard error; structlog's default is standard output."""
    import structlog

    if not structlog.is_configured():
        structlog.configure(
            logger_factory=lambda *_: structlog.PrintLogger(sys.stderr), cache_logger_on_first_use=False
        )


def _classify(error: Exception, config: str | None) -> tuple[ExitCode, list[str]]:
    """Return exit code and sentences of an error: one, or each mistake of a configuration."""
    from rechannel.conf.loader import read_settings
    from rechannel.conf.settings import SettingsError
    from rechannel.wire.keys import KeyNameError
    from rechannel.wire.redis.errors import StoreError

    if isinstance(error, SettingsError):
        return ExitCode.CONFIGURATION, read_settings(config).with_locations(error.errors)
    if isinstance(error, ModuleNotFoundError) and (sentence := distribution.missing_part(error.name or "")):
        return ExitCode.REFUSED, [sentence]
    if isinstance(error, StoreError):  # name the configuration: often another one was meant
        loaded = read_settings(config)
        source = loaded.describe()
        return ExitCode.REDIS, [f"{loaded.with_locations([str(error)])[0]}. {source[0].upper()}{source[1:]}"]
    if isinstance(error, KeyNameError):
        return ExitCode.REFUSED, [str(error)]
    return ExitCode.REFUSED, [f"unexpected {type(error).__name__}: {error} ({_DEBUG}=1 shows where; please report it)"]


def _fail(code: ExitCode, sentences: Sequence[str], as_json: bool) -> NoReturn:
    """Print sentences and exit; several mistakes of a configuration are printed one a line."""
    from rechannel.daemon.log import is_journal

    mistakes = sentences if code is ExitCode.CONFIGURATION else ()
    sentence = f"configuration: {'; '.join(mistakes)}" if mistakes else sentences[0]
    if as_json:
        document = {"error": sentence, "code": int(code)} | ({"mistakes": list(mistakes)} if mistakes else {})
        click.echo(json.dumps(document))
    if len(mistakes) > 1:
        lines = (" ".join(mistake.split("\n")) for mistake in mistakes)
        sentence = "\n  ".join([f"the configuration has {len(mistakes)} mistakes:", *lines])
    priority = "<3>" if is_journal(sys.stderr, os.environ) else ""  # an error, for `journalctl -p err`
    first, *rest = [plain(line) for line in sentence.split("\n")]
    click.echo("\n".join(priority + line for line in (f"rechannel: {first}", *rest)), err=True)
    sys.exit(int(code))


def _solo_config() -> str | None:
    """Return the configuration of the only live solo run; None if another one is to be used."""
    from rechannel.conf.loader import find_config_file
    from rechannel.conf.settings import CONFIG_VARIABLE
    from rechannel.conf.solo_runs import live_runs

    if os.environ.get(CONFIG_VARIABLE) or os.environ.get(_REDIS_VARIABLE):
        return None
    runs = live_runs()
    source = find_config_file(None, os.environ)
    options = ", ".join(f"--config {run}" for run in runs)
    if runs and source.path is not None:
        click.echo(f"rechannel: {source.describe()}; solo runs are live too: {options}", err=True)
    elif len(runs) == 1:
        click.echo(f"rechannel: configuration: {runs[0]} (the live solo run)", err=True)
        return str(runs[0])
    elif runs:
        raise CommandError(ExitCode.USAGE, f"there are {len(runs)} live solo runs; name one of them: {options}")
    return None


def load_settings(config: str | None) -> Settings:
    """Load the settings; SettingsError lists every mistake, which `exit_code_on_error` prints."""
    from rechannel.conf.loader import load

    return load(config)


def refuse_conflict() -> None:
    """Raise CommandError if `rechannel` and `rechannel-agent` are both installed."""
    sentence, cure = distribution.conflict()
    if sentence:
        raise CommandError(ExitCode.CONFIGURATION, f"{sentence}; {cure}")


def log_source(config: str | None) -> None:
    """Log the source of the configuration a daemon is started with."""
    import structlog

    from rechannel.conf.loader import find_config_file
    from rechannel.conf.settings import ENVIRONMENT_PREFIX

    variables = any(name.startswith(ENVIRONMENT_PREFIX) and "__" in name for name in os.environ)
    source = find_config_file(config, os.environ).describe(variables=variables)
    structlog.get_logger("rechannel").info("configuration", used=source)


def reload_on_hangup(load: Callable[[], Settings]) -> ReloadSignal:
    """Install a handler of SIGHUP that requests a reload; ``load`` reads the settings again."""
    from rechannel.conf.reload import ReloadSignal

    requested = threading.Event()
    signal.signal(signal.SIGHUP, lambda *_: requested.set())
    return ReloadSignal(requested, load)


def stop_on_signals() -> threading.Event:
    """Install handlers of SIGTERM and SIGINT; returns the event that they set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop
