"""Resources of a process, read from /proc: memory, threads, descriptors, CPU; and disk usage of a directory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Usage:
    """Resources of one process at one moment; CPU in seconds since its start.

    ``memory``: bytes that the process wrote and shares with nobody. What it maps from files, libraries above all, would
    jump when another process that maps them ends.
    """

    memory: int
    threads: int
    descriptors: int
    cpu: float


def usage(pid: int | str = "self") -> Usage | None:
    """Return what a process holds, None if it is gone; all of its memory where its own cannot be told."""
    root = Path("/proc") / str(pid)
    try:
        fields = (root / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(root / "fd"))  # noqa: PTH208  a Path for each would cost ten times as much
        return Usage(
            memory=_private(root, int(fields[21]) * _PAGE),
            threads=int(fields[17]),
            descriptors=descriptors - (pid == "self"),  # the listing itself
            cpu=(int(fields[11]) + int(fields[12])) / _TICKS,
        )
    except (OSError, IndexError):
        return None


def _private(root: Path, resident: int) -> int:
    with contextlib.suppress(OSError):
        lines = (root / "smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))
    return resident


def disk(directory: Path) -> int:
    """Return the bytes that the files below a directory take; files that vanish meanwhile count nothing."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118  many files
    return total
