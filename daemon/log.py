"""Log set-up of the daemons.

There are three formats: readable text on a terminal, ``event name=value …`` in the journal, and JSON lines elsewhere.
`FORM_VARIABLE` selects one of them. Except on a terminal an event is one line, its traceback included. A line to the
journal begins with its priority as ``<N>`` (sd-daemon(3)), which the journal removes.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from rechannel.conf.settings import SettingsError

FORM_VARIABLE = "RECHANNEL_LOG"
TERMINAL, JOURNAL, LINES = "terminal", "journal", "json"

_STANDARD_LEVEL = logging.WARNING  # libraries (APScheduler above all) log every job they run at INFO
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_LONGEST = 40_000  # bytes; the journal splits a line of 48 KiB

_JSON = structlog.processors.JSONRenderer()
# Without the values of variables, which may be secrets.
_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _Forward(logging.Handler):
    """Handler that forwards the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Forward one line."""
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def set_up(stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> None:
    """Send all log lines to ``stream``.

    None for standard error, with crashes and failures of threads. Raises SettingsError if the environment selects an
    unknown format.
    """
    environ = os.environ if environ is None else environ
    target = sys.stderr if stream is None else stream
    journal = is_journal(target, environ)
    form = _form(target, journal, environ)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *_last(form, journal, colors=target.isatty() and not environ.get("NO_COLOR")),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(_STANDARD_LEVEL)
    if stream is None:
        # An expired watchdog sends SIGABRT; the stacks then show where the threads stood.
        faulthandler.enable(file=2)
        threading.excepthook = _thread_failed


def _form(target: TextIO, journal: bool, environ: Mapping[str, str]) -> str:
    selected = environ.get(FORM_VARIABLE, "")
    if selected in (TERMINAL, JOURNAL, LINES):
        return selected
    if selected:
        raise SettingsError([f"{FORM_VARIABLE}: {selected!r} is no form of log; write terminal, journal or json"])
    if journal:
        return JOURNAL
    return TERMINAL if target.isatty() else LINES


def is_journal(target: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether the target is the journal's socket, by its device and inode."""
    named = environ.get("JOURNAL_STREAM", "")
    if not named:
        return False
    try:
        status = os.fstat(target.fileno())
    except (OSError, ValueError):  # no file behind it
        return False
    return named == f"{status.st_dev}:{status.st_ino}"


def _last(form: str, journal: bool, *, colors: bool) -> list[Processor]:
    """Return the processors that render an event."""
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    traceback = structlog.processors.ExceptionRenderer(_TRACEBACKS)
    if form == JOURNAL:
        return [traceback, _line]  # the journal has its own time stamps
    if form == TERMINAL:
        console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        return [stamp, console]
    return [stamp, traceback, _prefixed_json if journal else _JSON]


def _prefixed_json(logger: WrappedLogger, name: str, event: EventDict) -> str:
    return _prefix(event) + str(_JSON(logger, name, event))


def _prefix(event: EventDict) -> str:
    return f"<{_PRIORITIES.get(str(event.get('level')), 5)}>"


def _line(_logger: WrappedLogger, _name: str, event: EventDict) -> str:
    """Return one event as one line for the journal: ``<N>event name=value … exception="…"``."""
    head = _prefix(event) + _plain(str(event.pop("event", "")))
    event.pop("level", None)
    stacks = event.pop("exception", None)
    fields = [f"{name}={_value(value)}" for name, value in event.items()]
    if stacks:
        fields.append(f"exception={_value(_one_line(stacks))}")
    line = " ".join([head, *fields]).encode("utf-8", "replace")
    return line[:_LONGEST].decode("utf-8", "ignore")


def _value(value: object) -> str:
    if isinstance(value, (bool, int, float)) or value is None:
        return json.dumps(value)
    text = value if isinstance(value, str) else json.dumps(value, default=repr, ensure_ascii=False)
    simple = text and all(letter.isprintable() and letter not in ' "=\\' for letter in text)
    return text if simple else '"' + _plain(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _plain(text: str) -> str:
    """Return text with everything escaped that would end the line or control a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "backslashreplace").decode()
        for letter in text
    )


def _one_line(stacks: object) -> str:
    """Return a traceback in one line: ``KeyError: 'a' at b.py:3 in f, from a.py:9 in g``."""
    if not isinstance(stacks, list):
        return str(stacks)
    parts = []
    for stack in stacks:
        frames = [
            f"{frame['filename']}:{frame['lineno']} in {frame['name']}" for frame in reversed(stack.get("frames", []))
        ]
        where = f" at {', from '.join(frames)}" if frames else ""
        parts.append(f"{stack.get('exc_type')}: {stack.get('exc_value')}{where}")
    return "; after ".join(parts)


def _thread_failed(arguments: threading.ExceptHookArgs) -> None:
    if arguments.exc_type is SystemExit:
        return
    structlog.get_logger("rechannel").error(
        "thread-failed",
        thread=arguments.thread.name if arguments.thread else "",
        exc_info=(arguments.exc_type, arguments.exc_value, arguments.exc_traceback),
    )
