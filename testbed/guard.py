"""Last line of defence: kills a process group's members when their owner is gone, even after ``kill -9``.

Run as a plain script with the group's marker as its argument and the read end of a pipe as standard input. It imports
nothing but the standard library, so that it starts quickly and stays small.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

MARKER_VARIABLE = "RECHANNEL_TESTBED_GROUP"


def marked_pids(marker: str) -> list[int]:
    """Return the live processes, other than this one, whose environment carries the group's marker."""
    variable = f"{MARKER_VARIABLE}={marker}".encode()
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # Processes vanish while they are read, and other users' are not ours to read.
        with contextlib.suppress(OSError):
            if variable in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids


def kill_marked(marker: str) -> None:
    """Kill every marked process, again and again until none is left or ten seconds are over."""
    deadline = time.monotonic() + 10.0
    while pids := marked_pids(marker):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def main() -> None:
    """Wait for the owner to close its end of the pipe, in good order or by dying, then sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    kill_marked(sys.argv[1])


if __name__ == "__main__":
    main()
