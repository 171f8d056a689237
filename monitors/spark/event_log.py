"""Reader of the rolling event log that Spark writes for the link; what is read is deleted."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import BinaryIO

_PART = re.compile(r"events_(\d+)_")
_PARENT = "eventlog_v2_"
_CHUNK = 4 * 2**20


class EventStream:
    """Reads the lines of ``eventlog_v2_*/events_<n>_*`` (``RollingEventLogFilesWriter``)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: BinaryIO | None = None
        self._number = 0
        self._path: Path | None = None
        self._rest = b""

    def read(self) -> list[bytes]:
        """Return the complete lines written since the last call (at most some megabytes of them)."""
        lines: list[bytes] = []
        while True:
            part = self._file or self._open_next()
            if part is None:
                return lines
            data = part.read(_CHUNK)
            if data:
                pieces = (self._rest + data).split(b"\n")
                self._rest = pieces.pop()
                lines += [piece for piece in pieces if piece]
                return lines
            if self._successor() is None:
                return lines
            # Spark closes a part before it opens the next; what was flushed in between is read once more.
            data = part.read()
            lines += [piece for piece in (self._rest + data).split(b"\n") if piece]
            self._rest = b""
            self.close()
            if self._path is not None:
                self._path.unlink(missing_ok=True)
                self._path = None

    def close(self) -> None:
        """Close the open part."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_next(self) -> BinaryIO | None:
        following = self._successor()
        if following is None:
            return None
        self._number, self._path = following
        self._file = self._path.open("rb")
        return self._file

    def _successor(self) -> tuple[int, Path] | None:
        # Called ten times a second and more: plain listings, as a glob costs ten times as much.
        if self._path is not None:
            parents = [self._path.parent]
        else:
            with os.scandir(self._directory) as entries:
                parents = [Path(entry.path) for entry in entries if entry.name.startswith(_PARENT)]
        successors = []
        for parent in parents:
            with os.scandir(parent) as entries:
                for entry in entries:
                    match = _PART.match(entry.name)
                    if match and int(match[1]) > self._number:
                        successors.append((int(match[1]), Path(entry.path)))
        return min(successors, default=None)
