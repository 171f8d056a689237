"""Where the link's own lines go when it is a guest in somebody's script: to standard error, not into its output."""

from __future__ import annotations

import sys
from typing import Any

import structlog


def keep_off_standard_output() -> None:
    """Log to standard error, unless the script has configured structlog itself: its output may be data."""
    if not structlog.is_configured():
        to_standard_error()


def to_standard_error() -> None:
    """Have Rechannel's loggers in this process write to standard error; nobody else's are touched."""
    logger: Any = structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
    )
    for name, module in list(sys.modules.items()):
        if name.startswith("rechannel.") and hasattr(module, "_LOG"):
            vars(module)["_LOG"] = logger
