"""CPU limits of executors and the time they were throttled, from control groups v1 and v2.

A limit may be set on an executor's group or on any group above it, so all of them up to the root are read. Where a
group has a limit, the kernel counts the time in which it was throttled, added up over CPUs, and the periods in which it
was throttled for a part at least. Both are upper bounds of the time by the clock.

Files are opened in the executor's own mount namespace, which shows the groups of a container. A group that cannot be
read, or holds no figures, has no limit as far as the agent knows. Sources: the kernel's sched-bwc.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rechannel.monitors.node import files
from rechannel.monitors.node.processes import Executor

_DEEPEST = 32  # groups above each other that are read
_LONGEST = 18  # digits of a number
_FILE_BYTES = 4096  # no file of a group is longer
_MICROSECONDS, _NANOSECONDS = 10**6, 10**9  # of a second


@dataclass(frozen=True)
class LimitedGroup:
    """A control group with a CPU limit, and its counters in seconds."""

    path: str
    cores: float  # its limit
    throttled: float  # time in which it was throttled, added up over CPUs
    periods: float  # length of the periods in which it was throttled for a part at least


@dataclass(frozen=True)
class _Location:
    """Group of a process."""

    version: int
    mount: tuple[str, ...]  # where its hierarchy shows the group `root`
    root: PurePosixPath
    below: tuple[str, ...]  # from there to the group of the process


class ThrottlingReader:
    """Reads the limited groups of executors; ``proc``: the kernel's files on processes."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._located: dict[tuple[int, float], tuple[str, _Location | None]] = {}  # with the text it was made from

    def retain(self, alive: set[tuple[int, float]]) -> None:
        """Keep what is known of the executors of these identities."""
        self._located = {identity: located for identity, located in self._located.items() if identity in alive}

    def read(self, executor: Executor) -> tuple[LimitedGroup, ...]:
        """Return the groups with a limit that hold an executor, from the root."""
        try:
            location = self._locate(executor)
        except OSError:  # it ended, or may not be read
            return ()
        return tuple(self._limited_groups(executor.pid, location)) if location is not None else ()

    def _locate(self, executor: Executor) -> _Location | None:
        identity, process = executor.identity, self._proc / str(executor.pid)
        text = (process / "cgroup").read_text(errors="replace")
        located = self._located.get(identity)
        if located is None or located[0] != text:  # the list of mounts can be long
            mounts = (process / "mountinfo").read_text(errors="replace")
            located = self._located[identity] = (text, _find_group(text, mounts))
        return located[1]

    def _limited_groups(self, pid: int, location: _Location) -> Iterator[LimitedGroup]:
        for depth in range(len(location.below) + 1):
            below = location.below[:depth]
            try:
                with files.open_directory(f"{self._proc}/{pid}/root", *location.mount, *below) as directory:
                    figures = (_read_v1 if location.version == 1 else _read_v2)(directory)
            except (OSError, ValueError, KeyError):
                continue
            if figures is not None:
                yield LimitedGroup(str(location.root.joinpath(*below)), *figures)


def group_version(process: Path) -> int:
    """Return the version of the control groups of a process's CPU; 0 if there are none."""
    try:
        texts = [(process / name).read_text(errors="replace") for name in ("cgroup", "mountinfo")]
    except OSError:
        return 0
    location = _find_group(*texts)
    return location.version if location else 0


def _find_group(groups: str, mounts: str) -> _Location | None:
    """Locate a process's group by its ``cgroup`` and ``mountinfo``."""
    lines = [line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2]
    v1 = [path for _, controllers, path in lines if "cpu" in controllers.split(",")]
    v2 = [path for number, controllers, path in lines if (number, controllers) == ("0", "")]
    version = 1 if v1 else 2  # where both are mounted, v2 has only the controllers that v1 has not
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 5 or len(right) < 3:
            continue
        kind = 2 if right[0] == "cgroup2" else 1 if right[0] == "cgroup" and "cpu" in right[2].split(",") else 0
        path = next(iter(v1 or v2), "")
        root = PurePosixPath(left[3])
        if kind == version and path.startswith("/") and PurePosixPath(path).is_relative_to(root):
            below = PurePosixPath(path).relative_to(root).parts
            if len(below) <= _DEEPEST and ".." not in below:
                return _Location(version, PurePosixPath(left[4]).parts[1:], root, below)
    return None


def _read_v1(group: int) -> tuple[float, float, float] | None:
    quota, period = (_read(group, f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    return None if quota == "-1" else _figures(group, quota, period, ("throttled_time", _NANOSECONDS))


def _read_v2(group: int) -> tuple[float, float, float] | None:
    quota, _, period = _read(group, "cpu.max").strip().partition(" ")
    return None if quota == "max" else _figures(group, quota, period, ("throttled_usec", _MICROSECONDS))


def _figures(group: int, quota: str, period: str, throttled: tuple[str, int]) -> tuple[float, float, float]:
    """Return the limit in cores, and the two counters in seconds.

    ``throttled``: name of the first counter, and its units in a second. Raises ValueError, KeyError or OSError.
    """
    length, (name, units) = _number(period), throttled
    if not length:
        raise ValueError("a period of no length")
    stat = dict(line.split(" ", 1) for line in _read(group, "cpu.stat").splitlines())
    return _number(quota) / length, _number(stat[name]) / units, _number(stat["nr_throttled"]) * length / _MICROSECONDS


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST):
        raise ValueError(f"no number: {text[:20]!r}")
    return int(text)


def _read(directory: int, name: str) -> str:
    descriptor, _ = files.open_regular(name, directory=directory)
    try:
        return os.read(descriptor, _FILE_BYTES).decode("ascii", "replace")
    finally:
        os.close(descriptor)
