"""Abilities of the machine, and signals to its processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import psutil

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


def signal_tree(pid: int, number: int) -> None:
    """Send a signal to a process and to all that it started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        leader = psutil.Process(pid)
        for member in [leader, *leader.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(number)


def tmpfs_why_not() -> str:
    """Say why no small file system can be mounted here, "" if one can."""
    if os.geteuid() != 0:
        return "mounting a small disk needs root"
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"mounting a small disk: {error}"
    return f"mounting a small disk: {done.stderr.strip()}" if done.returncode else ""


def faketime_why_not() -> str:
    """Say why no clock can be made to jump here, "" if one can."""
    return "" if FAKETIME is not None else "a clock that jumps needs libfaketime (apt-get install libfaketime)"
