"""Facts about this machine, read in the ways in which an agent reads them."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
import resource
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rechannel.daemon.doctor.machine import AGENT_UNIT, FILES, WATCHES, MachineFacts
from rechannel.monitors.node import files, shuffle, throttling
from rechannel.monitors.node.executor_log import ClosedStoreReader
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import Executor, ProcessTable, ProcessWatcher, find_host, own_names

_UNITS = (AGENT_UNIT, "rechannel-controller.service")
_UNIT_PLACES = ("etc/systemd/system", "usr/local/lib/systemd/system", "usr/lib/systemd/system", "lib/systemd/system")
_SPARE_FILES = 64  # what an agent without executors has open, at most
_UNSYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)
_LASTING = re.compile("executor .*(rights missing|not understood)|unreadable")


def clock_state() -> int:
    """Return the state of the kernel's clock as adjtimex(2) does; -1 if it may not be read."""
    return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))  # all zeros: nothing is set


@dataclass(frozen=True)
class Sources:
    """Sources of the facts: files below ``root``, the program's ``prefix``, processes, clock."""

    root: Path = Path("/")
    prefix: Path = Path(sys.prefix)
    table: ProcessTable = field(default_factory=ProcessTable)
    clock: Callable[[], int] = clock_state


class _NoWatch(DirectoryWatch):
    """Takes no watches, which an agent of the same user may need."""

    def watch(self, path: str) -> bool:  # noqa: ARG002
        return False


def collect(node: str, sources: Sources) -> MachineFacts:
    """Collect the facts; ``node``: agent.node."""
    proc, state = sources.root / "proc", sources.clock()
    executors, other_hosts, reasons, watches = _sample(node, sources)
    missing, free = _file_systems(path for executor in executors for path in executor.directories)
    agent_unit = "\n".join(_read(path) for path in _unit_files(sources.root, AGENT_UNIT))
    return MachineFacts(
        user=_owner(proc / "self"),
        executors={f"{item.application}/{item.executor}": _owner(proc / str(item.pid)) for item in executors},
        other_hosts=other_hosts,
        unreadable=reasons,
        proc=_mount_options(_read(proc / "self/mounts")),
        sees_others=bool(_read(proc / "1/stat")),
        missing=missing,
        free=free,
        limits={
            FILES: (_SPARE_FILES + len(executors), resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
            WATCHES: (watches, int(_read(proc / "sys/fs/inotify/max_user_watches") or 0)),
        },
        control_groups=throttling.group_version(proc / "self"),
        in_time=None if state < 0 else state != _UNSYNCHRONIZED,
        units={str(path): _is_changed(path, sources) for name in _UNITS for path in _unit_files(sources.root, name)},
        agent_unit=_unit_settings(agent_unit),
    )


def _unit_settings(text: str) -> dict[str, str]:
    """Return the checked settings of a unit.

    As in systemd, lines of a list add up and an empty one clears it.
    """
    settings: dict[str, str] = {}
    pattern = r"^(User|AmbientCapabilities|CapabilityBoundingSet)=[ \t]*(.*?)[ \t]*$"
    for name, value in re.findall(pattern, text, re.MULTILINE):
        settings[name] = f"{settings.get(name, '')} {value}".strip() if value and name != "User" else value
    return settings


def _sample(node: str, sources: Sources) -> tuple[list[Executor], list[str], list[str], int]:
    """Return executors, hosts of others, lasting reasons, and directories to watch.

    The last one is their number.
    """
    watcher = ProcessWatcher(node or find_host(sources.table, own_names()), sources.table)
    reader, logs = shuffle.ShuffleReader(_NoWatch()), ClosedStoreReader()
    executors = [sample.executor for sample in watcher.sample()]
    for executor in executors:
        list(reader.read(executor))
        logs.read(executor)
    skipped = filter(_LASTING.search, [*watcher.skipped, *reader.skipped])
    reasons = list(dict.fromkeys([*watcher.lasting, *logs.lasting.values(), *skipped]))
    logs.close()
    return executors, watcher.other_hosts, reasons, reader.skipped[shuffle.UNWATCHED]


def _file_systems(directories: Iterable[Path]) -> tuple[list[str], dict[str, tuple[float, float]]]:
    """Return missing directories, and one of each file system with its free space and inodes."""
    missing, free = list[str](), dict[int, tuple[str, tuple[float, float]]]()
    for path in sorted(set(directories)):
        try:
            with files.open_directory(str(path)) as descriptor:
                figures, device = os.fstatvfs(descriptor), os.fstat(descriptor).st_dev
        except FileNotFoundError:
            missing.append(str(path))
        except OSError:
            continue  # the reader of map outputs has the reason
        else:
            inodes = figures.f_favail / figures.f_files if figures.f_files else 1.0  # btrfs counts none
            free.setdefault(device, (str(path), (figures.f_bavail / max(figures.f_blocks, 1), inodes)))
    return missing, dict(free.values())


def _mount_options(mounts: str) -> dict[str, str]:
    """Return the options of /proc that have a value."""
    lines = [line.split() for line in mounts.splitlines()]
    options = next((line[3] for line in reversed(lines) if line[1:2] == ["/proc"]), "")
    return dict(option.split("=", 1) for option in options.split(",") if "=" in option)


def _unit_files(root: Path, name: str) -> list[Path]:
    """Return the file of a unit that is in force, and its drop-ins; empty without it."""
    file = next((path for place in _UNIT_PLACES if (path := root / place / name).is_file()), None)
    return [file, *sorted((root / _UNIT_PLACES[0] / f"{name}.d").glob("*.conf"))] if file else []


def _is_changed(file: Path, sources: Sources) -> bool | None:
    """Whether a unit is not the installed one; None if that is not here, as of a drop-in."""
    places = (sources.prefix, sources.root / "opt/rechannel")
    shipped = next(filter(None, (_read(place / "share/rechannel/systemd" / file.name) for place in places)), None)
    return None if shipped is None else _read(file) != shipped


def _owner(process: Path) -> str:
    try:
        number = process.stat().st_uid
        return pwd.getpwuid(number).pw_name
    except KeyError:  # as in a container
        return str(number)
    except OSError:  # it ended
        return "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
