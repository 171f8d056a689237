"""From a file and the environment to settings, with where each value comes from and every mistake."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rechannel.conf import config_file, validation
from rechannel.conf.config_file import Source
from rechannel.conf.parser import (
    ENVIRONMENT_PREFIX,
    POLICIES,
    build,
    known_are,
    read_environment,
    read_file,
    read_policies,
)
from rechannel.conf.settings import Settings, section_class

DEFAULT = "default"
_SECTIONS = frozenset(item.name for item in dataclasses.fields(Settings))


@dataclass(frozen=True)
class LoadResult:
    """What was read. ``settings`` holds defaults where there are ``mistakes``, and is then good for looking only.

    ``origins``: field, as in ``gate.min_gain`` -> the file or the variable that set it; fields left out are defaults.
    ``source``: the file, or where one was looked for.
    """

    settings: Settings
    origins: Mapping[str, str]
    mistakes: tuple[str, ...]
    source: Source = config_file.NOWHERE

    @property
    def path(self) -> Path | None:
        """The file, None without one."""
        return self.source.path

    def sentence(self) -> str:
        """Say which configuration is used."""
        return self.source.sentence(variables=bool(self.origins))

    def located(self, mistakes: Iterable[str]) -> list[str]:
        """Put before each mistake that begins with a field where that was set: file and line, or the variable."""
        mistakes = list(mistakes)
        lines = config_file.lines(self.path) if self.path is not None and mistakes else {}
        return [self._located(mistake, lines) for mistake in mistakes]

    def _located(self, mistake: str, lines: Mapping[tuple[str, ...], int]) -> str:
        field = (mistake.split() or [""])[0].strip(":[]")
        origin = self.origins.get(field, "")
        if origin.startswith(ENVIRONMENT_PREFIX):
            return f"{origin}: {mistake}"
        line = lines.get(tuple(field.split(".")))
        if line is not None:
            return f"{self.path}:{line}: {mistake}"
        section, dot, _ = field.partition(".")
        return f"{self.path}: {mistake}" if self.path and dot and section in _SECTIONS else mistake

    def wrong(self, *names: str) -> bool:
        """Whether one of these fields has a mistake."""
        return any(mistake.partition(":")[0] in names for mistake in self.mistakes)


def read(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> LoadResult:
    """Do as `rechannel.conf.settings.load`, but return the mistakes, and where each value comes from."""
    environ = os.environ if environ is None else environ
    file = config_file.find(path, environ)
    values: dict[str, dict[str, Any]] = {}
    mistakes: list[str] = []
    if file.path is not None:
        read_file(file.path, values, mistakes)
        _anchor(values, file.path.absolute().parent)
    origins = _named(values, str(file.path))
    known = [item.name for item in dataclasses.fields(Settings)]
    origins |= read_environment(environ, known, values, mistakes)
    sections: dict[str, Any] = {}
    for name in known:
        given = values.pop(name, {})
        if name == POLICIES:
            sections[name] = read_policies(given, mistakes)
        else:
            sections[name] = build(section_class(name), name, given, mistakes)
    mistakes += [f"[{name}]: no such section; {known_are(name, known)}" for name in values]
    settings = Settings(**sections)
    found = LoadResult(settings, origins, tuple(mistakes), file)
    # A field with a mistake stands at its default, which says nothing about how it fits the others.
    more = [mistake for names, mistake in validation.mistakes(settings) if not found.wrong(*names)]
    return dataclasses.replace(found, mistakes=(*mistakes, *more))


def _anchor(values: Mapping[str, dict[str, Any]], directory: Path) -> None:
    """Have the files that a configuration names be relative to the one they are named in."""
    for section in values.keys() & (_SECTIONS - {POLICIES}):
        for item in dataclasses.fields(section_class(section)):
            value = values[section].get(item.name)
            if item.metadata["path"] and isinstance(value, str) and value:
                values[section][item.name] = str(directory / value)


def _named(values: Mapping[str, Mapping[str, Any]], origin: str) -> dict[str, str]:
    """Field -> where it was given; a policy's table gives its parameters."""
    found = {f"{section}.{name}": origin for section, given in values.items() for name in given}
    for policy, given in values.get(POLICIES, {}).items():
        found |= {f"{POLICIES}.{policy}.{name}": origin for name in (given if isinstance(given, dict) else ())}
    return found
