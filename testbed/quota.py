"""CPU quotas of nodes: through cgroups v1 or v2, and without them by stopping processes and continuing them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "rechannel-testbed"
_PERIOD_US = 50_000  # shorter than the kernel's default, so that a throttled process stalls for less long at a time
_LOOK = 0.05  # seconds between two looks
_SAVED = 0.1  # seconds' worth of the quota that may be saved up: no more, or a node would run free after a pause
_OWED = 0.5  # seconds' worth of it that are made up for at most: who looked late does not stop a node for long
_KNOWN = 0.5  # seconds for which the list of processes holds
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Availability:
    """Whether quotas can be set on this machine, and why, or why not."""

    ok: bool
    reason: str
    version: int = 0
    parent: Path = _ROOT

    def __bool__(self) -> bool:
        return self.ok


def _version_and_parent(root: Path) -> tuple[int, Path] | None:
    if (root / "cpu" / "cpu.cfs_quota_us").exists() or (root / "cpu" / "cpu.shares").exists():
        return 1, root / "cpu"
    if (root / "cgroup.controllers").exists() and "cpu" in (root / "cgroup.controllers").read_text().split():
        return 2, root
    return None


def available(root: Path = _ROOT) -> Availability:
    """Try to create a group with a quota, and say what came of it."""
    hierarchy = _version_and_parent(root)
    if hierarchy is None:
        return Availability(False, f"no cpu controller below {root}")
    version, parent = hierarchy
    probe = parent / f"{_PREFIX}.{os.getpid()}.probe"
    try:
        if version == 2:
            _enable_v2(parent)
        probe.mkdir(exist_ok=True)
        _write_quota(probe, version, 1.0)
    except OSError as error:
        return Availability(False, f"cgroup v{version} cpu controller is not writable: {error}", version, parent)
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
    return Availability(True, f"cgroup v{version} cpu controller", version, parent)


def _enable_v2(parent: Path) -> None:
    control = parent / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu")


def _write_quota(path: Path, version: int, cores: float | None) -> None:
    quota = None if cores is None else max(1_000, round(cores * _PERIOD_US))
    if version == 1:
        (path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (path / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
    else:
        (path / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")


def _stale(parent: Path) -> Iterator[Path]:
    for path in parent.glob(f"{_PREFIX}.*"):
        owner = path.name.split(".")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            yield path


class CpuQuota:
    """A cgroup that holds the processes of one node to a number of cores; removed on exit."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self.version = version

    @classmethod
    def create(cls, name: str, cores: float | None, root: Path = _ROOT) -> Self:
        """Make the group; ``cores`` may be a fraction, None for no limit yet. Raises OSError where not permitted."""
        state = available(root)
        if not state:
            raise PermissionError(state.reason)
        for path in _stale(state.parent):  # left by a test bed that was killed
            with contextlib.suppress(OSError):
                path.rmdir()
        path = state.parent / f"{_PREFIX}.{os.getpid()}.{name}"
        path.mkdir(exist_ok=True)
        quota = cls(path, state.version)
        quota.set(cores)
        return quota

    def set(self, cores: float | None) -> None:
        """Change the limit while processes run; None lifts it."""
        _write_quota(self.path, self.version, cores)

    def add(self, pid: int) -> None:
        """Move a process into the group; what it starts from now on is in it as well."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the members."""
        return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        """Remove the group once it is empty; members that stay for five seconds are moved to the parent."""
        deadline = time.monotonic() + 5.0
        while self.path.exists():
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            if time.monotonic() > deadline:
                for pid in self.pids():
                    with contextlib.suppress(OSError):
                        (self.path.parent / "cgroup.procs").write_text(str(pid))
                deadline += 1.0
            time.sleep(0.05)


class Throttle:
    """Holds processes and all that they start to ``cores``, None for no limit, by stopping and continuing them.

    A thread looks at a node twenty times a second: each second brings it as much CPU time as it may have, and when its
    processes have used more, all of them are stopped (SIGSTOP) until that is made up for. Whoever may start processes
    may do that. A few percent off, and processes that are younger than half a second are not counted yet.
    """

    def __init__(self, cores: float | None) -> None:
        self._cores = _checked(cores)
        self._roots: list[psutil.Process] = []
        self._members: list[int] = []
        self._listed = -_KNOWN
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="throttle", daemon=True)
        self._thread.start()

    def add(self, pid: int) -> None:
        """Hold a process, and what it starts from now on or did start."""
        with contextlib.suppress(psutil.Error):
            self._roots = [*self._roots, psutil.Process(pid)]
            self._listed = -_KNOWN

    def set(self, cores: float | None) -> None:
        """Change the limit while processes run; None lifts it."""
        self._cores = _checked(cores)

    def pids(self) -> list[int]:
        """Return the processes that are held."""
        pids = []
        for root in self._roots:
            with contextlib.suppress(psutil.Error):  # it is gone, or the system tells nobody of others' processes
                pids += [root.pid, *(child.pid for child in root.children(recursive=True))]
        return pids

    def remove(self) -> None:
        """Let everything go on, for good."""
        self._over.set()
        self._thread.join()

    def _hold(self) -> None:
        balance, spent, before = 0.0, self._spent(), time.monotonic()
        while not self._over.wait(_LOOK):
            now, used = time.monotonic(), self._spent()
            cores = self._cores
            balance = min(balance + (cores or 0.0) * (now - before), (cores or 0.0) * _SAVED)
            balance -= sum(max(0.0, seconds - spent.get(pid, seconds)) for pid, seconds in used.items())
            spent, before = used, now
            if cores is None:
                balance = 0.0
            elif balance < 0:
                balance = max(balance, -cores * _OWED)
                self._pause(-balance / cores, cores)

    def _pause(self, seconds: float, cores: float) -> None:
        stopped, began = list(self._members), time.monotonic()
        _send(stopped, signal.SIGSTOP)
        try:
            while (left := began + seconds - time.monotonic()) > 0 and self._cores == cores:
                if self._over.wait(min(left, _LOOK)):
                    break
        finally:
            _send(stopped, signal.SIGCONT)

    def _spent(self) -> dict[int, float]:
        """CPU seconds of each process so far."""
        if time.monotonic() - self._listed >= _KNOWN:
            self._members, self._listed = self.pids(), time.monotonic()
        result = {}
        for pid in self._members:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                result[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        return result


def _checked(cores: float | None) -> float | None:
    if cores is not None and not cores > 0:
        raise ValueError(f"cores: expected more than 0, or None for no limit, got {cores!r}")
    return cores


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
