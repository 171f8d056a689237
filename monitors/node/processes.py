"""The executors of this node with their Python workers: who they are, and what they have used so far.

An executor belongs to this node when its ``--hostname`` is the agent's node name, so that several agents on one
machine never report one executor twice. A process is known by pid and creation time, never by pid alone.

CPU is a counter per executor in seconds. For the Python side it is the sum of the last value seen of every
descendant, ended ones included. The kernel's children times are not used: ``pyspark.daemon`` ignores SIGCHLD, and
then Linux drops the times of its workers when they end. What a worker used after its last sample is lost (less than
one sampling interval per worker; Spark reuses workers by default).
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own

VERIFY = 10  # a process's identity is checked every so many readings of its usage, and at once when CPU time went back
YOUNG = 3.0  # seconds in which a new process may still turn into another program (exec)
_BACKENDS = ("CoarseGrainedExecutorBackend", "KubernetesExecutorBackend")  # the first also ends YARN's class name
_IN_A_POD = "KubernetesExecutorBackend"
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_PYTHON = frozenset({"pyspark.daemon", "pyspark.worker"})


class ProcessGoneError(Exception):
    """The process ended, or its pid is another's by now: forget it."""


class ProcessDeniedError(Exception):
    """The rights to read this are missing: trying again will not help."""


@dataclass(frozen=True)
class Usage:
    """What a process has used: ``cpu`` seconds since it began (user and system), ``rss`` bytes now."""

    cpu: float
    rss: int


@dataclass(frozen=True)
class MachineUsage:
    """The whole machine: ``cpu`` seconds of all cores busy since boot, memory in bytes."""

    cpu: float
    cores: int
    memory_total: int
    memory_used: int


def machine_usage() -> MachineUsage:
    """Look at the whole machine."""
    times, memory = psutil.cpu_times(), psutil.virtual_memory()
    busy = times.user + times.nice + times.system + times.irq + times.softirq  # guests are part of user and nice
    return MachineUsage(busy, psutil.cpu_count() or 1, memory.total, memory.total - memory.available)


class Process(Protocol):
    """One process. Every method raises ProcessGoneError or ProcessDeniedError and nothing else."""

    created: float  # when it began, seconds since the epoch

    def parent(self) -> int:
        """Return the pid of its parent."""

    def command_line(self) -> list[str]:
        """Return its arguments."""

    def environment(self) -> Mapping[str, str]:
        """Return its environment as it was at the start."""

    def directory(self) -> str:
        """Return its working directory."""

    def usage(self) -> Usage:
        """Return what it has used so far."""


class ProcessTable(Protocol):
    """The processes of a machine."""

    def pids(self) -> Sequence[int]:
        """List all pids."""

    def open(self, pid: int) -> Process:
        """Return the process that has this pid now, or raise ProcessGoneError."""


class MachineTable:
    """The processes of this machine."""

    def pids(self) -> Sequence[int]:
        """List all pids."""
        pids: list[int] = psutil.pids()
        return pids

    def open(self, pid: int) -> Process:
        """Return the process that has this pid now, or raise ProcessGoneError."""
        return _MachineProcess(pid)


class _MachineProcess:
    def __init__(self, pid: int) -> None:
        with _translated():
            self._process = psutil.Process(pid)
            self.created: float = self._process.create_time()
        self._reads = 0
        self._cpu = 0.0

    def parent(self) -> int:
        with _translated():
            return int(self._process.ppid())

    def command_line(self) -> list[str]:
        with _translated():
            return list(self._process.cmdline())

    def environment(self) -> Mapping[str, str]:
        with _translated():
            return dict(self._process.environ())

    def directory(self) -> str:
        with _translated():
            return str(self._process.cwd())

    def usage(self) -> Usage:
        with _translated():
            with self._process.oneshot():
                times, memory = self._process.cpu_times(), self._process.memory_info()
            usage = Usage(times.user + times.system, memory.rss)
            self._reads += 1  # asking whether the pid is still this process's costs as much as the rest
            if (usage.cpu < self._cpu or self._reads % VERIFY == 0) and not self._process.is_running():
                raise ProcessGoneError
            self._cpu = usage.cpu
            return usage


@contextmanager
def _translated() -> Iterator[None]:
    """Turn every error of psutil and the system into one of ours; half-read files of a dying process included."""
    try:
        yield
    except (psutil.AccessDenied, PermissionError) as error:
        raise ProcessDeniedError(str(error)) from error
    except (psutil.Error, OSError, ValueError, IndexError) as error:
        raise ProcessGoneError(str(error)) from error


@dataclass(frozen=True)
class Executor:
    """An executor of this node. ``log`` is the file its standard error goes to, None when not known."""

    application: str
    executor: str
    host: str
    pid: int
    started: float  # seconds since the epoch
    cores: int
    directories: tuple[Path, ...] = ()  # local directories, the parents of ``blockmgr-*``
    log: Path | None = None


@dataclass(frozen=True)
class ExecutorSample:
    """Counters (CPU seconds since the executor was first seen alive) and gauges (bytes) of an executor."""

    executor: Executor
    jvm_cpu: float
    python_cpu: float
    jvm_rss: int
    python_rss: int  # pages that workers share with their daemon count once for each
    python_workers: int


@dataclass
class _Child:
    process: Process
    worker: bool | None  # None: not yet clear
    cpu: float = 0.0


@dataclass
class _Tracked:
    executor: Executor
    process: Process
    children: dict[int, _Child] = field(default_factory=dict)
    ended_cpu: float = 0.0
    notes: list[str] = field(default_factory=list)


def own_names() -> set[str]:
    """Return the names and addresses under which Spark may know this machine."""
    names = {socket.gethostname(), socket.getfqdn()}
    try:
        interfaces = psutil.net_if_addrs()
    except OSError:  # a sandbox that allows no netlink sockets
        return names
    for addresses in interfaces.values():
        names |= {item.address.partition("%")[0] for item in addresses if item.family in _INTERNET}
    return names


def find_host(table: ProcessTable, names: Collection[str]) -> str:
    """Return the host that an executor on this machine carries, if it is one of these names; else "".

    A standalone worker calls its executors by its address, not its host name, unless told otherwise.
    """
    for pid in table.pids():
        try:
            words = table.open(pid).command_line()
        except (ProcessGoneError, ProcessDeniedError):
            continue
        host = _options(words).get("--hostname", "") if _is_executor(words) else ""
        if host in names:
            return host
    return ""


class ProcessWatcher:
    """Finds the executors of one node and samples them.

    Only processes not seen before are looked into, so a sample costs one listing of pids and two small reads for each
    process of an executor. A new process is looked at again until it is `YOUNG` seconds old: before its exec it shows
    its parent's command line.
    """

    def __init__(
        self, node: str, table: ProcessTable | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.node = node
        self._table: ProcessTable = table or MachineTable()
        self._monotonic = monotonic
        self._skipped: Counter[str] = Counter()
        self._known: set[int] = set()
        self._young: dict[int, tuple[Process, float]] = {}  # with when first seen
        self._tracked: dict[int, _Tracked] = {}
        self._owner: dict[int, int] = {}  # pid of a descendant -> pid of its executor
        self._foreign: dict[int, str] = {}

    @property
    def other_hosts(self) -> list[str]:
        """Host names that the machine's other executors carry."""
        return sorted({host for host in self._foreign.values() if host})

    def take_skipped(self) -> dict[str, int]:
        """Return what could not be measured since the last call, by reason; lasting reasons are named each time."""
        skipped, self._skipped = self._skipped, Counter()
        skipped.update(note for tracked in self._tracked.values() for note in tracked.notes)
        return dict(skipped)

    def sample(self) -> list[ExecutorSample]:
        """Look once at every executor of the node."""
        now = self._monotonic()
        pids = set(self._table.pids())
        self._forget(pids)
        self._discover(pids, now)
        samples = [self._sampled(pid) for pid in list(self._tracked)]
        return [sample for sample in samples if sample is not None]

    def _forget(self, pids: set[int]) -> None:
        self._known &= pids
        self._young = {pid: newcomer for pid, newcomer in self._young.items() if pid in pids}
        self._foreign = {pid: host for pid, host in self._foreign.items() if pid in pids}
        for pid in self._tracked.keys() - pids:
            self._drop_executor(pid)
        for pid in self._owner.keys() - pids:
            self._drop_child(pid)

    def _discover(self, pids: set[int], now: float) -> None:
        for pid in pids - self._known:
            self._known.add(pid)
            try:
                self._young[pid] = (self._table.open(pid), now)
            except ProcessGoneError:
                self._known.discard(pid)
            except ProcessDeniedError:
                self._skipped["process: rights missing to read it"] += 1
        parents: dict[int, int] = {}
        arguments: dict[int, list[str]] = {}
        for pid, (process, _) in list(self._young.items()):
            try:
                parents[pid] = process.parent()
                arguments[pid] = process.command_line()
            except ProcessGoneError:
                del self._young[pid]
            except ProcessDeniedError:
                continue  # its parent may still tell whose it is
        self._adopt_executors(parents, arguments)
        self._adopt_children(parents, arguments)
        for pid in [pid for pid, (_, seen) in self._young.items() if now - seen >= YOUNG]:
            del self._young[pid]

    def _adopt_executors(self, parents: dict[int, int], arguments: dict[int, list[str]]) -> None:
        candidates = {pid for pid, words in arguments.items() if _is_executor(words)}
        for pid in candidates:
            if parents[pid] in candidates or parents[pid] in self._tracked or parents[pid] in self._foreign:
                continue  # a fork that has not yet become another program
            options = _options(arguments[pid])
            host = options.get("--hostname", "")
            process, _ = self._young.pop(pid)
            if host != self.node:
                self._foreign[pid] = host
                continue
            try:
                self._tracked[pid] = _described(pid, process, options)
            except ProcessGoneError:
                self._known.discard(pid)
            except ValueError:
                self._skipped["executor: command line not understood"] += 1

    def _adopt_children(self, parents: dict[int, int], arguments: dict[int, list[str]]) -> None:
        waiting = {pid: parent for pid, parent in parents.items() if pid in self._young}
        while found := [pid for pid, parent in waiting.items() if parent in self._tracked or parent in self._owner]:
            for pid in found:
                parent = waiting.pop(pid)
                executor = parent if parent in self._tracked else self._owner[parent]
                self._owner[pid] = executor
                worker = _is_worker(arguments.get(pid, []), of_jvm=parent == executor)
                self._tracked[executor].children[pid] = _Child(self._young.pop(pid)[0], worker)

    def _sampled(self, pid: int) -> ExecutorSample | None:
        tracked, name = self._tracked[pid], self._tracked[pid].executor.executor
        try:
            jvm = tracked.process.usage()
        except ProcessGoneError:
            self._skipped["executor vanished while read"] += 1
            self._drop_executor(pid)
            return None
        except ProcessDeniedError:
            self._skipped[f"executor {name}: rights missing to read its usage"] += 1
            return None
        rss = 0
        for child_pid, child in list(tracked.children.items()):
            try:
                usage = child.process.usage()
                if child.worker is None:
                    child.worker = _is_worker(child.process.command_line(), of_jvm=True)
            except ProcessGoneError:
                self._skipped["process of an executor vanished while read"] += 1
                self._drop_child(child_pid)
                continue
            except ProcessDeniedError:
                self._skipped[f"executor {name}: rights missing to read its workers"] += 1
                continue
            child.cpu, rss = max(child.cpu, usage.cpu), rss + usage.rss
        return ExecutorSample(
            executor=tracked.executor,
            jvm_cpu=jvm.cpu,
            python_cpu=tracked.ended_cpu + sum(child.cpu for child in tracked.children.values()),
            jvm_rss=jvm.rss,
            python_rss=rss,
            python_workers=sum(child.worker is True for child in tracked.children.values()),
        )

    def _drop_child(self, pid: int) -> None:
        self._known.discard(pid)
        tracked = self._tracked.get(self._owner.pop(pid))
        if tracked is not None:
            tracked.ended_cpu += tracked.children.pop(pid).cpu

    def _drop_executor(self, pid: int) -> None:
        self._known.discard(pid)
        for child in self._tracked.pop(pid).children:
            self._owner.pop(child, None)


def _is_executor(words: Sequence[str]) -> bool:
    # Not every process that names the class is it: a pod's tini has the executor's whole command line behind its own.
    return bool(words) and Path(words[0]).name == "java" and any(word.endswith(_BACKENDS) for word in words)


def _is_worker(words: Sequence[str], *, of_jvm: bool) -> bool | None:
    if not words or _is_executor(words):
        return None  # still the image of its parent
    # The JVM's own child is the daemon, which runs no rows; with daemons off it is the worker.
    if of_jvm:
        return "pyspark.worker" in words and "pyspark.daemon" not in words  # the daemon is told its worker's module
    return not _PYTHON.isdisjoint(words)


def _options(words: Sequence[str]) -> dict[str, str]:
    return {word: value for word, value in pairwise(words) if word.startswith("--")}


def _described(pid: int, process: Process, options: Mapping[str, str]) -> _Tracked:
    if not options.get("--executor-id") or not options.get("--app-id"):
        raise ValueError("no --executor-id or --app-id")
    name, notes, log = options["--executor-id"], list[str](), None
    directories: tuple[Path, ...] = ()
    in_a_pod = any(word.endswith(_IN_A_POD) for word in process.command_line())
    try:
        environment = process.environment()
        directories = local_directories(environment)
        if not directories:
            notes.append(f"executor {name}: no local directories in its environment")
        if environment.get("CONTAINER_ID") and environment.get("LOG_DIRS"):
            log = Path(environment["LOG_DIRS"].split(",")[0]) / "stderr"  # YARN
    except ProcessDeniedError:
        notes.append(f"executor {name}: rights missing to read its environment")
    if in_a_pod:
        # Its paths are those of its own mount namespace; its standard error goes to the container's log.
        directories = tuple(Path(f"/proc/{pid}/root{path}") for path in directories)
    else:
        try:
            log = log or Path(process.directory()) / "stderr"
        except ProcessDeniedError:
            notes.append(f"executor {name}: rights missing to read its working directory")
    executor = Executor(
        application=options["--app-id"],
        executor=name,
        host=options["--hostname"],
        pid=pid,
        started=process.created,
        cores=int(options.get("--cores", "1")),
        directories=directories,
        log=log,
    )
    return _Tracked(executor, process, notes=notes)


def local_directories(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return an executor's local directories, by the order in which Spark itself looks for them."""
    if environment.get("CONTAINER_ID"):
        names = environment.get("LOCAL_DIRS", "").split(",")
    elif environment.get("SPARK_EXECUTOR_DIRS"):
        names = environment["SPARK_EXECUTOR_DIRS"].split(os.pathsep)
    else:
        names = (environment.get("SPARK_LOCAL_DIRS") or environment.get("LOCAL_DIRS", "")).split(",")
    return tuple(Path(name.strip()) for name in names if name.strip())
