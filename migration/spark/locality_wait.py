"""Shorter ``spark.locality.wait`` while the partitions of a lost executor find new places.

Spark takes tasks that prefer a lost executor for local work that is still to come, so each of their stages waits before
it runs them elsewhere (``TaskSetManager.getAllowedLocalityLevel``). A wait that is longer than any batch, which keeps
partitions in their places, would then be what the loss of an executor costs, twice. The wait of a stage is read from
the context's configuration when it begins, and whenever an executor is added or lost
(``TaskSetManager.getLocalityWait``).
"""

from __future__ import annotations

from typing import Any

from rechannel.migration.spark.compatibility import seconds
from rechannel.migration.spark.gateway import translate_errors

SHORT = 1.0  # seconds: other tasks must not leave their executors for a short queue
_DEFAULT = "spark.locality.wait"
_LEVELS = tuple(f"{_DEFAULT}.{level}" for level in ("process", "node", "rack"))  # where set, in place of the default


class LocalityWait:
    """The waits of one running application."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._before: dict[str, str] = {}  # key -> its value without us, "" if it is not set

    def shorten(self) -> None:
        """Let stages wait `SHORT` seconds for an executor; shorter waits stay."""
        with translate_errors():
            conf = self._context.conf()
            for key in (_DEFAULT, *_LEVELS):
                before = str(conf.get(key, ""))
                length = seconds(before or "3s") if before or key == _DEFAULT else None
                if key not in self._before and length is not None and length > SHORT:
                    conf.set(key, f"{SHORT * 1000:.0f}ms")
                    self._before[key] = before

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
