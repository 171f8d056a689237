"""Shorter ``spark.locality.wait`` while the partitions of a lost executor find new places.

Spark takes tasks that prefer a lost executor for local work that is still to come, so each of their stages waits before
it runs them elsewhere (``TaskSetManager.getAllowedLocalityLevel``). With a wait that is longer than any batch, which
keeps partitions in their places, two batches would last that long. A stage reads the wait from the context's
configuration when it begins, and whenever an executor is added or lost (``TaskSetManager.getLocalityWait``).

If the link is gone, the watchdog gives the waits back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rechannel.migration.spark.compatibility import ALWAYS_REPORTED, seconds
from rechannel.migration.spark.gateway import translate_errors
from rechannel.migration.spark.hooks import Watchdog

SHORT = 1.0  # seconds; without any wait, tasks would leave an executor as soon as others wait for it too
_DEFAULT = "spark.locality.wait"
_LEVELS = tuple(f"{_DEFAULT}.{level}" for level in ("process", "node", "rack"))  # where set, in place of the default
_CONF = "org.apache.spark.SparkConf"


class LocalityWait:
    """The waits of one running application."""

    def __init__(self, context: Any, watchdog: Callable[[], Watchdog | None]) -> None:
        self._context, self._watchdog = context, watchdog
        self.restore_failed = False  # some wait is still to be given back
        self._before: dict[str, str] = {}  # key -> its value before, "" if it is not set
        self._clean_ups: dict[str, tuple[Watchdog, Any]] = {}  # key -> the watchdog that gives it back, and its call

    @property
    def is_short(self) -> bool:
        """Whether some wait is shortened."""
        return bool(self._before)

    def shorten(self) -> None:
        """Let stages wait `SHORT` seconds for an executor; shorter waits stay."""
        self.restore_failed = False
        with translate_errors():
            conf = self._context.conf()
            for key in (_DEFAULT, *_LEVELS):
                before = self._before.get(key, str(conf.get(key, "")))
                length = seconds(before or ALWAYS_REPORTED[_DEFAULT]) if before or key == _DEFAULT else None
                if length is not None and length > SHORT:
                    self._before[key] = before  # first: a call that fails may have had its effect
                    self._add_clean_up(conf, key)
                    conf.set(key, f"{SHORT * 1000:.0f}ms")

    def renew(self) -> None:
        """Shorten the waits again after a change of the watchdog.

        The one before may have restored them.
        """
        if self._before:
            self.shorten()

    def restore(self) -> None:
        """Give the waits back what they were."""
        self.restore_failed = bool(self._before)
        with translate_errors():
            for key, before in list(self._before.items()):
                conf = self._context.conf()
                name, *arguments = _restoring_call(key, before)
                getattr(conf, name)(*arguments)
                del self._before[key]
                if key in self._clean_ups:
                    watchdog, clean_up = self._clean_ups.pop(key)
                    watchdog.withdraw(clean_up)
        self.restore_failed = False

    def _add_clean_up(self, conf: Any, key: str) -> None:
        """Have the watchdog give a wait back, once."""
        watchdog = self._watchdog()
        if watchdog is not None and (key not in self._clean_ups or self._clean_ups[key][0] is not watchdog):
            name, *texts = _restoring_call(key, self._before[key])
            arguments = [("java.lang.String", text) for text in texts]
            self._clean_ups[key] = watchdog, watchdog.add(conf, _CONF, name, *arguments, result=_CONF)


def _restoring_call(key: str, before: str) -> tuple[str, ...]:
    """Return method and arguments of the call of a ``SparkConf`` that gives a wait back."""
    return ("set", key, before) if before else ("remove", key)
