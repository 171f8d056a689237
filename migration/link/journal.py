"""The journal of moves: every line is on disk before the step it tells of is taken."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rechannel.wire.messages import MoveTransition


class Journal:
    """Append-only JSON lines in the link's directory; what cannot be written is counted, the query goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._descriptor = -1
        self._cut_off = False  # the last write stopped in the middle of a line
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            self.lost += 1

    def write(self, lines: list[MoveTransition]) -> bool:
        """Write lines through to the disk; False when that failed: then the steps must not be taken."""
        if not lines:
            return True
        data = (b"\n" if self._cut_off else b"") + b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            # Not through a buffered file: what a full disk refuses must not wait in a buffer for later.
            while data:
                data = data[os.write(self._descriptor, data) :]
                self._cut_off = True
            os.fdatasync(self._descriptor)
        except OSError:
            self.lost += len(lines)
            return False
        self._cut_off = False
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
