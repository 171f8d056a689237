"""Shorter ``spark.locality.wait`` while the partitions of a lost executor find new places.

Spark takes tasks that prefer a lost executor for local work that is still to come, so each of their stages waits before
it runs them elsewhere (``TaskSetManager.getAllowedLocalityLevel``). With a wait that is longer than any batch, which
keeps partitions in their places, two batches would last that long. A stage reads the wait from the context's
configuration when it begins, and whenever an executor is added or lost (``TaskSetManager.getLocalityWait``).
"""

from __future__ import annotations

from typing import Any

from rechannel.migration.spark.compatibility import ALWAYS_REPORTED, seconds
from rechannel.migration.spark.gateway import translate_errors

SHORT = 1.0  # seconds; without any wait, tasks would leave an executor as soon as others wait for it too
_DEFAULT = "spark.locality.wait"
_LEVELS = tuple(f"{_DEFAULT}.{level}" for level in ("process", "node", "rack"))  # where set, in place of the default


class LocalityWait:
    """The waits of one running application."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._before: dict[str, str] = {}  # key -> its value before, "" if it is not set

    @property
    def is_short(self) -> bool:
        """Whether some wait is shortened."""
        return bool(self._before)

    def shorten(self) -> None:
        """Let stages wait `SHORT` seconds for an executor; shorter waits stay."""
        with translate_errors():
            conf = self._context.conf()
            for key in (_DEFAULT, *_LEVELS):
                before = self._before.get(key, str(conf.get(key, "")))
                length = seconds(before or ALWAYS_REPORTED[_DEFAULT]) if before or key == _DEFAULT else None
                if length is not None and length > SHORT:
                    self._before[key] = before  # first: a call that fails may have had its effect
                    conf.set(key, f"{SHORT * 1000:.0f}ms")

    def restore(self) -> None:
        """Give the waits back what they were."""
        with translate_errors():
            for key, before in list(self._before.items()):
                conf = self._context.conf()
                if before:
                    conf.set(key, before)
                else:
                    conf.remove(key)
                del self._before[key]
