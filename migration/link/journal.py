"""The journal of moves: every line is on disk before the step it tells of is taken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from rechannel.wire.messages import MoveTransition


class Journal:
    """Append-only JSON lines in the link's directory; what cannot be written is counted, the query goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._file: BinaryIO | None = None
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        except OSError:
            self.lost += 1

    def write(self, lines: list[MoveTransition]) -> bool:
        """Write lines through to the disk; False when that failed: then the steps must not be taken."""
        if not lines:
            return True
        if self._file is None:
            self.lost += len(lines)
            return False
        try:
            self._file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            self._file.flush()
            os.fdatasync(self._file.fileno())
        except OSError:
            self.lost += len(lines)
            return False
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
