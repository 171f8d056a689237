"""How Rechannel's daemons log: set up once, before the first line. Readable on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

import structlog

_STANDARD_LEVEL = logging.WARNING  # libraries (APScheduler above all) log every job they run at INFO

# Without the values of variables, among which secrets may be.
_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


class _Forward(logging.Handler):
    """Hands the lines of libraries that use the standard library's logging to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one line on."""
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def set_up(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send all log lines to ``stream`` (standard error if None)."""
    target = sys.stderr if stream is None else stream
    people = target.isatty()
    last: list[Any] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if people
        else [structlog.processors.ExceptionRenderer(_TRACEBACKS), structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(target),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    root.setLevel(_STANDARD_LEVEL)
