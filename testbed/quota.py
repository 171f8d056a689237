"""CPU quotas per simulated node, through cgroups v1 or v2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

__all__ = ["Availability", "CpuQuota", "available"]

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "rechannel-testbed"
_PERIOD_US = 50_000  # shorter than the kernel's default, so that a throttled process stalls for less long at a time


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

    @property
    def procs(self) -> tuple[Path, ...]:
        """The files to which a process id is written to join."""
        return (self.path / "cgroup.procs",)

    def set(self, cores: float | None) -> None:
        """Change the limit while processes run; None lifts it."""
        _write_quota(self.path, self.version, cores)

    def add(self, pid: int) -> None:
        """Move a process into the group; what it starts from now on is in it as well."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the members."""
        return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]

    def throttled_s(self) -> float:
        """Return for how many seconds members were held back so far."""
        stat = dict(line.split() for line in (self.path / "cpu.stat").read_text().splitlines())
        return int(stat["throttled_time"]) / 1e9 if "throttled_time" in stat else int(stat["throttled_usec"]) / 1e6

    def remove(self, timeout_s: float = 5.0) -> None:
        """Remove the group once it is empty; members that stay are moved to the parent."""
        deadline = time.monotonic() + timeout_s
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()
