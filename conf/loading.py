"""From a file and the environment to settings, with where each value comes from and every mistake."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rechannel.conf import together
from rechannel.conf.reading import POLICIES, build, known_are, read_environment, read_file, read_policies
from rechannel.conf.settings import CONFIG_VARIABLE, Settings, section_class

DEFAULT = "default"


@dataclass(frozen=True)
class Loaded:
    """What was read. ``settings`` holds defaults where there are ``mistakes``, and is then good for looking only.

    ``origins``: field, as in ``gate.min_gain`` -> the file or the variable that set it; fields left out are defaults.
    ``path``: the file, None without one.
    """

    settings: Settings
    origins: Mapping[str, str]
    mistakes: tuple[str, ...]
    path: Path | None = None

    def wrong(self, *names: str) -> bool:
        """Whether one of these fields has a mistake."""
        return any(mistake.partition(":")[0] in names for mistake in self.mistakes)


def read(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> Loaded:
    """Do as `rechannel.conf.settings.load`, but return the mistakes, and where each value comes from."""
    environ = os.environ if environ is None else environ
    path = path or environ.get(CONFIG_VARIABLE) or None
    values: dict[str, dict[str, Any]] = {}
    mistakes: list[str] = []
    if path is not None:
        read_file(Path(path), values, mistakes)
    origins = _named(values, str(path))
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
    found = Loaded(settings, origins, tuple(mistakes), None if path is None else Path(path))
    # A field with a mistake stands at its default, which says nothing about how it fits the others.
    more = [mistake for names, mistake in together.mistakes(settings) if not found.wrong(*names)]
    return dataclasses.replace(found, mistakes=(*mistakes, *more))


def _named(values: Mapping[str, Mapping[str, Any]], origin: str) -> dict[str, str]:
    """Field -> where it was given; a policy's table gives its parameters."""
    found = {f"{section}.{name}": origin for section, given in values.items() for name in given}
    for policy, given in values.get(POLICIES, {}).items():
        found |= {f"{POLICIES}.{policy}.{name}": origin for name in (given if isinstance(given, dict) else ())}
    return found
