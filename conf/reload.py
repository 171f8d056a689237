"""Reload the configuration of a running controller.

Settings that are ``live`` by their rule are applied. Changes of others are logged and wait for a restart. A
configuration with errors changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rechannel.conf.settings import POLICIES, Settings, SettingsError, fields

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

#: Sections and settings that the controller uses; changes of others do not concern it.
_CONCERNS = frozenset(
    {"cluster", "redis", "signing", "agent.window", "reschedule", "policies", "gate", "migration", "controller"}
)


@dataclass(frozen=True)
class Change:
    """A setting with another value. ``live``: a running controller may apply it."""

    field: str
    before: Any
    after: Any
    live: bool


def changes(old: Settings, new: Settings) -> list[Change]:
    """Return the settings of the controller that differ."""
    differences = []
    for name, item in fields().items():
        section = name.partition(".")[0]
        before, after = (getattr(getattr(side, section), item.name) for side in (old, new))
        if before != after and not _CONCERNS.isdisjoint((section, name)):
            differences.append(Change(name, before, after, item.metadata["live"]))
    return differences + _policy_changes(old.policies, new.policies)


def merged(old: Settings, new: Settings) -> Settings:
    """Return the old settings with live ones and parameters of policies of the new ones."""
    live: dict[str, dict[str, Any]] = {}
    for name, item in fields().items():
        if item.metadata["live"]:
            section = name.partition(".")[0]
            live.setdefault(section, {})[item.name] = getattr(getattr(new, section), item.name)
    sections: dict[str, Any] = {name: replace(getattr(old, name), **values) for name, values in live.items()}
    return replace(old, policies=new.policies, **sections)


@dataclass(frozen=True)
class ReloadSignal:
    """Request to reload the configuration, set by SIGHUP; ``load`` may raise SettingsError."""

    requested: threading.Event
    load: Callable[[], Settings]


class Reloader:
    """Reloads the configuration of a controller on request and logs each changed setting.

    Without a ``signal`` the settings never change. ``validate`` returns more errors of new settings, such as unknown
    parameters of policies.
    """

    def __init__(
        self,
        settings: Settings,
        signal: ReloadSignal | None,
        log: FilteringBoundLogger,
        validate: Callable[[Settings], list[str]] = lambda _: [],
    ) -> None:
        self._settings = settings
        self._signal = signal
        self._log = log
        self._validate = validate

    def poll(self) -> Settings | None:
        """Return the settings to continue with, or None if no live setting changed."""
        if self._signal is None or not self._signal.requested.is_set():
            return None
        self._signal.requested.clear()
        try:
            new = self._signal.load()
            errors = self._validate(new)
        except SettingsError as error:
            errors = list(error.errors)
        if errors:
            for sentence in errors:
                self._log.error("configuration-error", sentence=sentence)
            self._log.error("configuration-rejected", errors=len(errors), sentence="nothing was changed")
            return None
        differences = changes(self._settings, new)
        for change in differences:
            values = {"field": change.field, "before": change.before, "after": change.after}
            if change.live:
                self._log.info("setting-applied", **values)
            else:
                self._log.warning("setting-needs-restart", **values, sentence=f"{change.field}: restart needed")
        live = sum(change.live for change in differences)
        self._log.info("configuration-read-again", applied=live, restart_needed=len(differences) - live)
        if not live:
            return None
        self._settings = merged(self._settings, new)
        return self._settings


def _policy_changes(old: Any, new: Any) -> list[Change]:
    """Return the parameters that differ, with None for one that is not set."""
    before, after = (
        {f"{POLICIES}.{policy}.{name}": value for policy, content in side.items() for name, value in content.items()}
        for side in (old, new)
    )
    return [
        Change(name, before.get(name), after.get(name), True)
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]
