"""What a daemon makes of a configuration that was read again while it runs: it takes over what is safe.

A field says by its metadata (``live``) whether a running daemon may take it over. All others stay as they are until a
restart, and are named. A configuration with mistakes changes nothing.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rechannel.conf.parser import POLICIES
from rechannel.conf.settings import Settings, SettingsError

#: Sections, and fields of other sections, that each daemon lives by. What else has changed is not its business.
CONTROLLER = frozenset(
    {"cluster", "redis", "signing", "agent.window", "reschedule", "policies", "gate", "migration", "controller"}
)
AGENT = frozenset({"cluster", "redis", "agent"})


@dataclass(frozen=True)
class Change:
    """A field whose value is another one now. ``live``: what runs may take it over."""

    field: str
    before: Any
    after: Any
    live: bool


def changes(old: Settings, new: Settings, concerns: frozenset[str]) -> list[Change]:
    """Return the fields that differ, of these sections and fields."""
    found = []
    for section in dataclasses.fields(Settings):
        before, after = getattr(old, section.name), getattr(new, section.name)
        if section.name == POLICIES:
            found += _policy_changes(before, after) if POLICIES in concerns else []
            continue
        for item in dataclasses.fields(before):
            name, was, now = f"{section.name}.{item.name}", getattr(before, item.name), getattr(after, item.name)
            if was != now and not concerns.isdisjoint((section.name, name)):
                found.append(Change(name, was, now, item.metadata["live"]))
    return found


def merged(old: Settings, new: Settings) -> Settings:
    """Return the old settings with every field that is live, and the policies' parameters, as the new ones have it."""
    sections: dict[str, Any] = {POLICIES: new.policies}
    for section in dataclasses.fields(Settings):
        if section.name != POLICIES:
            before, after = getattr(old, section.name), getattr(new, section.name)
            live = {
                item.name: getattr(after, item.name) for item in dataclasses.fields(before) if item.metadata["live"]
            }
            sections[section.name] = dataclasses.replace(before, **live)
    return Settings(**sections)


@dataclass(frozen=True)
class ReloadSignal:
    """How a daemon is told to read its configuration again (``asked``, by SIGHUP), and how it does.

    ``again`` raises SettingsError with the mistakes.
    """

    asked: threading.Event
    again: Callable[[], Settings]


class Log(Protocol):
    """The part of a logger that `Reloader` needs."""

    def info(self, event: str, **words: Any) -> Any:
        """Log a line."""

    def warning(self, event: str, **words: Any) -> Any:
        """Log a line that wants attention."""

    def error(self, event: str, **words: Any) -> Any:
        """Log a line that wants something mended."""


class Reloader:
    """Reads the configuration again for one daemon, and says field by field what became of it.

    ``given`` are the settings it was started with; without ``reread`` they never change. ``examine`` returns what else
    is wrong with new ones.
    """

    def __init__(
        self,
        given: Settings,
        reread: ReloadSignal | None,
        concerns: frozenset[str],
        log: Log,
        examine: Callable[[Settings], list[str]] = lambda _: [],
    ) -> None:
        self._given = given
        self._reread = reread
        self._concerns = concerns
        self._log = log
        self._examine = examine

    def turn(self) -> Settings | None:
        """Return the settings to go on with; None where nobody asked, or nothing is to be taken over."""
        if self._reread is None or not self._reread.asked.is_set():
            return None
        self._reread.asked.clear()
        try:
            new = self._reread.again()
            mistakes = self._examine(new)
        except SettingsError as error:
            mistakes = list(error.mistakes)
        if mistakes:
            for mistake in mistakes:
                self._log.error("configuration-mistake", sentence=mistake)
            self._log.error("configuration-not-taken", mistakes=len(mistakes), sentence="nothing was changed")
            return None
        found = changes(self._given, new, self._concerns)
        for change in found:
            words = {"field": change.field, "before": change.before, "after": change.after}
            if change.live:
                self._log.info("setting-taken", **words)
            else:
                self._log.warning("setting-not-taken", **words, sentence=f"{change.field}: restart needed")
        taken = sum(change.live for change in found)
        self._log.info("configuration-read-again", taken=taken, restart_needed=len(found) - taken)
        if not taken:
            return None
        self._given = merged(self._given, new)
        return self._given


def _policy_changes(old: Any, new: Any) -> list[Change]:
    """Return the parameters that differ; None stands for one that is not set."""
    before, after = (
        {f"{POLICIES}.{policy}.{name}": value for policy, given in side.items() for name, value in given.items()}
        for side in (old, new)
    )
    names = dict.fromkeys([*before, *after])
    return [
        Change(name, before.get(name), after.get(name), True)
        for name in names
        if before.get(name) != after.get(name) or (name in before) != (name in after)
    ]
