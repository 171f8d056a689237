"""Where a configuration stands: which file is read, and on which line each of its fields begins."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rechannel.conf.settings import CONFIG_VARIABLE

#: Looked at in this order where no file is named.
PLACES = (Path("rechannel.toml"), Path("/etc/rechannel/rechannel.toml"))
_MISSING = "does not exist"
_MOST_LINES = 2000  # of a file whose lines are looked for


@dataclass(frozen=True)
class Source:
    """The file that is read, None without one, and what names it; ``passed`` says why others are not."""

    path: Path | None
    named_by: str = ""
    passed: tuple[str, ...] = ()

    def sentence(self, *, variables: bool = False) -> str:
        """Say which configuration is used; ``variables``: some of the environment are."""
        if self.path is None:
            used = "variables of the environment and defaults" if variables else "defaults"
            return f"no configuration file: {', '.join(self.passed)}; {used} used"
        named_by = f" ({self.named_by})" if self.named_by else ""
        passed = [reason for reason in self.passed[1:] if not reason.endswith(_MISSING)]
        more = f"; {', '.join(passed)}" if passed else ""
        return f"configuration: {self.path}{named_by}{more}"


NOWHERE = Source(None)


def find(path: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Source:
    """Find the file to read: the one that is named, the one of the environment, the first of `PLACES` that will do."""
    if path:
        return Source(Path(path))
    if environ.get(CONFIG_VARIABLE):
        return Source(Path(environ[CONFIG_VARIABLE]), CONFIG_VARIABLE)
    passed = [f"{CONFIG_VARIABLE} is not set"]
    for place in PLACES:
        problem = _problem(place)
        if not problem:
            return Source(place.absolute(), passed=tuple(passed))
        passed.append(f"{place if place.is_absolute() else f'./{place}'} {problem}")
    return Source(None, passed=tuple(passed))


def _problem(place: Path) -> str:
    """Say why a file that nobody named is not read, "" where nothing keeps from it."""
    try:
        status, link = place.stat(), place.lstat()
    except FileNotFoundError:
        return _MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if not os.access(place, os.R_OK):
        return "cannot be read (Permission denied)"
    # Of a working directory such as /tmp anybody may choose the contents.
    trusted = {status.st_uid, link.st_uid} <= {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH
    if not place.is_absolute() and not trusted:
        return "is passed over, as it belongs to another user or can be written to by everybody"
    return ""


def lines(path: Path) -> dict[tuple[str, ...], int]:
    """Return the line on which each section, field and parameter of a TOML file begins, counted from 1.

    The parser tells no positions: a field begins behind the longest beginning of the file that parses without it.
    """
    if not path.is_file():
        return {}  # a pipe was read already
    try:
        rows = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    found: dict[tuple[str, ...], int] = {}
    begin = 1
    for end in range(1, len(rows) + 1 if len(rows) <= _MOST_LINES else 0):
        if not rows[end - 1].strip() or (begin == end and rows[end - 1].lstrip().startswith("#")):
            begin = end + 1 if begin == end else begin
            continue
        try:
            document = tomllib.loads("\n".join(rows[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for names in _names(document):
            found.setdefault(names, begin)
        begin = end + 1
    return found


def _names(document: Mapping[str, Any], depth: int = 3) -> Iterator[tuple[str, ...]]:
    for name, content in document.items():
        yield (name,)
        if isinstance(content, dict) and depth > 1:
            yield from ((name, *inner) for inner in _names(content, depth - 1))
