"""`attach`: joins the streaming queries of an application to Rechannel."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import structlog

from rechannel.conf.loader import find_config_file, load
from rechannel.conf.settings import Settings
from rechannel.migration.link.loop import Link
from rechannel.migration.link.submit_main import write_to_standard_error
from rechannel.migration.solo.start import SoloRun
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.wire.codes import Mode

_LOG = structlog.get_logger("rechannel.link")
_FIRST_CALL = "the link of the first call goes on with its own mode; detach() it, then attach with apply=True"

_links: dict[str, Link] = {}  # by application
_links_lock = threading.RLock()  # a link that cannot start unregisters itself under it


def attach(
    spark: Any, settings: Settings | None = None, *, strict: bool = False, solo: bool = False, apply: bool = False
) -> Link:
    """Join this application's streaming queries to Rechannel.

    Never makes a query fail: where attaching is not possible, the returned link is inactive and its ``problem`` says
    why. Attaching twice returns the same link; after `Link.detach` it waits for the end of that link, 10 s at most.

    Parameters
    ----------
    spark
        A classic session. A Spark Connect session has no driver JVM to steer.
    settings
        Without them they are read as `rechannel.conf.loader.load` does.
    strict
        Raise the error instead of returning an inactive link.
    solo
        Start a private Redis and a controller for this application, which end with the link or with the driver
        (`rechannel.migration.solo`). They take up to 15 s to start or to fail. No settings are given then.
    apply
        With ``solo``: act on decisions; without it they are recorded only.
    """
    if structlog.is_configured():  # by the script itself
        _suppress_errors_of_logging()
    else:
        log_to_standard_error()
    link = Link()
    try:
        if (solo and settings is not None) or (apply and not solo):
            raise ValueError("solo has settings of its own, and apply is for solo alone: set reschedule.mode instead")
        if settings is None and not solo:
            _LOG.info("configuration", sentence=find_config_file(None, os.environ).describe())
            settings = load()
        adapter = SparkAdapter(spark)
        previous = _links.get(adapter.application)
        # A link that was detached takes everything out of Spark first.
        ended = previous is None or previous.active or previous.detach()
        with _links_lock:
            present = _links.get(adapter.application)
            if present is not None and (present.active or not ended):
                with contextlib.suppress(LinkError):
                    adapter.close()
                if not present.active:
                    raise LinkError("the link that was detached has not ended yet: attach again in some seconds")
                if apply and present.mode != Mode.APPLY:
                    _LOG.info("attached already", sentence=_FIRST_CALL)
                return present
            _start(link, adapter, settings, Mode.APPLY if apply else Mode.OBSERVE)
            _links[adapter.application] = link
    except Exception as error:  # the user's query must never notice
        if strict:
            raise
        link.problem = str(error)
        _LOG.error("not attached; queries run as without Rechannel", error=str(error))
    return link


def _start(link: Link, adapter: SparkAdapter, settings: Settings | None, mode: Mode) -> None:
    """Start a link; without settings, with a solo run that ends with it."""
    if settings is not None:
        link.start(adapter, settings, on_end=_unregister)
        return
    try:
        run = SoloRun(mode, os.environ)
    except BaseException:
        with contextlib.suppress(LinkError):
            adapter.close()
        raise

    def end(application: str, ended: Link) -> None:
        _unregister(application, ended)
        run.close()

    try:
        link.start(adapter, run.settings, on_end=end)
    except BaseException:
        run.close()
        raise


def _unregister(application: str, link: Link) -> None:
    with _links_lock:
        if _links.get(application) is link:
            del _links[application]


class _SafeLogger:
    """Logger that never raises, whatever its stream or the script's own processors do."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __getattr__(self, level: str) -> Callable[..., None]:
        def log(*arguments: Any, **fields: Any) -> None:
            with contextlib.suppress(Exception):
                getattr(self._logger, level)(*arguments, **fields)

        return log


class _StandardError(io.TextIOBase):
    """Standard error as a stream that takes every line."""

    def write(self, text: str, /) -> int:
        """Write what standard error takes."""
        write_to_standard_error(text)
        return len(text)


def log_to_standard_error() -> None:
    """Have Rechannel's loggers alone write to standard error: standard output may be data."""
    stream: Any = _StandardError()
    logger = structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False),
        ],
    )
    for module in _logging_modules():
        vars(module)["_LOG"] = _SafeLogger(logger)


def _suppress_errors_of_logging() -> None:
    for module in _logging_modules():
        logger = vars(module)["_LOG"]
        if not isinstance(logger, _SafeLogger):
            vars(module)["_LOG"] = _SafeLogger(logger)


def _logging_modules() -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.startswith("rechannel.") and hasattr(module, "_LOG"):
            yield module
