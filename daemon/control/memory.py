"""What a leader knows of each application, in tables that forget it together.

Whoever keeps something by application has a table made here, and need not think of the end: an application that did not
report for an hour leaves all of them at once. Drivers come and go as long as somebody leads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

FORGOTTEN_AFTER = 3600.0  # seconds of silence: a driver or Redis that is back sooner is still known


class Memory:
    """The tables of one leader. ``steady``: seconds that nobody sets."""

    def __init__(self, steady: Callable[[], float] = lambda: 0.0) -> None:
        self._steady = steady
        self._tables: list[dict[Any, Any]] = []
        self._heard: dict[str, float] = {}  # application -> when it reported last

    def table(self) -> dict[Any, Any]:
        """Make a table, whose keys are applications or tuples that begin with one."""
        table: dict[Any, Any] = {}
        self._tables.append(table)
        return table

    def hear(self, applications: Iterable[str]) -> None:
        """Take in who reports, or may do so again, and forget who has not for long."""
        now = self._steady()
        self._heard |= dict.fromkeys(applications, now)
        self._heard = {name: at for name, at in self._heard.items() if now - at < FORGOTTEN_AFTER}
        for table in self._tables:
            for key in [key for key in table if (key if isinstance(key, str) else key[0]) not in self._heard]:
                del table[key]
