"""Processes of a node: its executors with their Python workers, and their usage.

An executor belongs to this node when the agent's node name is its ``--hostname``, or the node that its environment
names (`NODE_ATTRIBUTE`), so that several agents on one machine never report one executor twice. A process is identified
by pid and creation time, never by pid alone.

CPU is a counter per executor in seconds. For the Python side it is the sum of the last value read of every descendant,
ended ones included. The kernel's children times are not used: ``pyspark.daemon`` ignores SIGCHLD, and then Linux drops
the times of its workers when they end. The CPU time of a worker after its last sample is lost (less than one sampling
interval per worker; Spark reuses workers by default).
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

import psutil  # type: ignore[import-untyped]  # its stubs are a package of their own

from rechannel.wire.messages import NODE_ATTRIBUTE

VERIFY = 10  # a process's identity is checked every so many readings of its usage, and at once when CPU time went back
YOUNG = 3.0  # seconds in which a new process may still turn into another program (exec)
_BACKENDS = ("CoarseGrainedExecutorBackend", "KubernetesExecutorBackend")  # the first also ends YARN's class name
_POD_BACKEND = "KubernetesExecutorBackend"
_YARN_BACKEND = "YarnCoarseGrainedExecutorBackend"
_YARN_LOGS = "-Dspark.yarn.app.container.log.dir="  # set by Spark's ExecutorRunnable
_NODE_VARIABLE = f"SPARK_EXECUTOR_ATTRIBUTE_{NODE_ATTRIBUTE}"
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_NAMING = ("--executor-id", "--app-id", "--hostname")
_MAX_NAME = 256  # characters of the name of an executor; beyond: it is not measured, and counted
_MAX_CORES = 100_000  # cores of an executor that an agent measures; beyond: it is not measured, and counted
_PYTHON = frozenset({"pyspark.daemon", "pyspark.worker"})


class ProcessGoneError(Exception):
    """The process ended, or its pid belongs to another process by now."""


class ProcessDeniedError(Exception):
    """The rights to read this are missing; a new try does not help."""


@dataclass(frozen=True)
class Usage:
    """Usage of a process: ``cpu`` seconds since it began (user and system), ``rss`` bytes now."""

    cpu: float
    rss: int


@dataclass(frozen=True)
class MachineUsage:
    """Usage of the machine: seconds of all cores since boot, memory in bytes."""

    cpu: float  # busy
    cores: int
    memory_total: int
    memory_used: int
    stolen: float  # the hypervisor gave them to other machines


def machine_usage() -> MachineUsage:
    """Return the usage of the whole machine."""
    times, memory = psutil.cpu_times(), psutil.virtual_memory()
    busy = times.user + times.nice + times.system + times.irq + times.softirq  # guests are part of user and nice
    used = memory.total - memory.available
    return MachineUsage(busy, psutil.cpu_count() or 1, memory.total, used, stolen=times.steal)


class Process:
    """One process. Every method raises ProcessGoneError or ProcessDeniedError only."""

    def __init__(self, pid: int) -> None:
        with _translate_errors():
            self._process = psutil.Process(pid)
            self.created: float = self._process.create_time()  # seconds since the epoch
        self._reads = 0
        self._cpu = 0.0

    def parent(self) -> int:
        """Return the pid of its parent."""
        with _translate_errors():
            return int(self._process.ppid())

    def command_line(self) -> list[str]:
        """Return its arguments."""
        with _translate_errors():
            return list(self._process.cmdline())

    def environment(self) -> Mapping[str, str]:
        """Return its environment as it was at the start."""
        with _translate_errors():
            return dict(self._process.environ())

    def directory(self) -> str:
        """Return its working directory."""
        with _translate_errors():
            return str(self._process.cwd())

    def usage(self) -> Usage:
        """Return its usage so far."""
        with _translate_errors():
            with self._process.oneshot():
                times, memory = self._process.cpu_times(), self._process.memory_info()
            usage = Usage(times.user + times.system, memory.rss)
            self._reads += 1  # the check that the pid is still of this process costs as much as the rest
            if (usage.cpu < self._cpu or self._reads % VERIFY == 0) and not self._process.is_running():
                raise ProcessGoneError
            self._cpu = usage.cpu
            return usage


class ProcessTable:
    """The processes of this machine."""

    def pids(self) -> Sequence[int]:
        """List all pids."""
        pids: list[int] = psutil.pids()
        return pids

    def open(self, pid: int) -> Process:
        """Return the process that has this pid now, or raise ProcessGoneError."""
        return Process(pid)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of psutil and the system, half-read files of a dying process too."""
    try:
        yield
    except (psutil.AccessDenied, PermissionError) as error:
        raise ProcessDeniedError(str(error)) from error
    except (psutil.Error, OSError, ValueError, IndexError) as error:
        raise ProcessGoneError(str(error)) from error


@dataclass(frozen=True)
class Executor:
    """An executor of this node."""

    application: str
    executor: str
    host: str
    pid: int
    started: float  # seconds since the epoch
    cores: int
    directories: tuple[Path, ...] = ()  # local directories, the parents of ``blockmgr-*``
    log: Path | None = None  # the file of its standard error, None if not known

    @property
    def identity(self) -> tuple[int, float]:
        """Pid and start time: a pid alone may belong to another process later."""
        return self.pid, self.started


@dataclass(frozen=True)
class ExecutorSample:
    """Counters (CPU seconds since the first sample) and gauges (bytes) of an executor."""

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
    # A standalone worker uses its address, not its host name, for its executors, unless configured otherwise.
    names = {socket.gethostname(), socket.getfqdn()}
    try:
        interfaces = psutil.net_if_addrs()
    except OSError:  # a sandbox that allows no netlink sockets
        return names
    for addresses in interfaces.values():
        names |= {item.address.partition("%")[0] for item in addresses if item.family in _INTERNET}
    return names


def find_host(table: ProcessTable, names: Collection[str]) -> str:
    """Return the host name, one of these, of an executor on this machine, else ""."""
    for pid in table.pids():
        try:
            arguments = table.open(pid).command_line()
        except (ProcessGoneError, ProcessDeniedError):
            continue
        host = _options(arguments).get("--hostname", "") if _is_executor(arguments) else ""
        if host in names:
            return host
    return ""


class ProcessWatcher:
    """Finds the executors of one node and samples them.

    Only new processes are examined, so a sample costs one listing of pids and two small reads for each process of an
    executor. A new process is examined again until it is `YOUNG` seconds old: before its exec it has the command line
    of its parent. ``skipped`` counts failed readings by reason.
    """

    def __init__(
        self, node: str, table: ProcessTable | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.node = node
        self._table = table or ProcessTable()
        self._monotonic = monotonic
        self.skipped: Counter[str] = Counter()
        self._examined: set[int] = set()
        self._young: dict[int, tuple[Process, float]] = {}  # with the time of its first sample
        self._tracked: dict[int, _Tracked] = {}
        self._executor_of: dict[int, int] = {}  # pid of a descendant -> pid of its executor
        self._foreign: dict[int, str] = {}

    @property
    def other_hosts(self) -> list[str]:
        """Host names that the machine's other executors carry."""
        return sorted({host for host in self._foreign.values() if host})

    @property
    def lasting(self) -> list[str]:
        """Reasons why something of the present executors cannot be read at all."""
        return [note for tracked in self._tracked.values() for note in tracked.notes]

    def sample(self) -> list[ExecutorSample]:
        """Sample every executor of the node once."""
        now = self._monotonic()
        pids = set(self._table.pids())
        self._drop_ended(pids)
        self._discover(pids, now)
        samples = [self._sample_executor(pid) for pid in list(self._tracked)]
        return [sample for sample in samples if sample is not None]

    def _drop_ended(self, pids: set[int]) -> None:
        self._examined &= pids
        self._young = {pid: newcomer for pid, newcomer in self._young.items() if pid in pids}
        self._foreign = {pid: host for pid, host in self._foreign.items() if pid in pids}
        for pid in self._tracked.keys() - pids:
            self._drop_executor(pid)
        for pid in self._executor_of.keys() - pids:
            self._drop_child(pid)

    def _discover(self, pids: set[int], now: float) -> None:
        for pid in pids - self._examined:
            self._examined.add(pid)
            try:
                self._young[pid] = (self._table.open(pid), now)
            except ProcessGoneError:
                self._examined.discard(pid)
            except ProcessDeniedError:
                self.skipped["process: rights missing to read it"] += 1
        parents: dict[int, int] = {}
        arguments: dict[int, list[str]] = {}
        for pid, (process, _) in list(self._young.items()):
            try:
                parents[pid] = process.parent()
                arguments[pid] = process.command_line()
            except ProcessGoneError:
                del self._young[pid]
            except ProcessDeniedError:
                continue  # its parent may still identify its executor
        self._track_executors(parents, arguments)
        self._track_children(parents, arguments)
        for pid in [pid for pid, (_, first) in self._young.items() if now - first >= YOUNG]:
            del self._young[pid]

    def _track_executors(self, parents: dict[int, int], arguments: dict[int, list[str]]) -> None:
        candidates = {pid for pid, line in arguments.items() if _is_executor(line)}
        for pid in candidates:
            if parents[pid] in candidates or parents[pid] in self._tracked or parents[pid] in self._foreign:
                continue  # a fork that has not yet become another program
            options = _options(arguments[pid])
            host = options.get("--hostname", "")
            process, _ = self._young.pop(pid)
            try:
                if host != self.node and not self._is_named(process):
                    self._foreign[pid] = host
                    continue
                self._tracked[pid] = _describe_executor(pid, process, options)
            except ProcessGoneError:
                self._examined.discard(pid)
            except ValueError:
                self.skipped["executor: command line not understood"] += 1

    def _is_named(self, process: Process) -> bool:
        """Whether the environment of an executor names this node."""
        try:
            return process.environment().get(_NODE_VARIABLE) == self.node
        except ProcessDeniedError:
            self.skipped["executor of another host: rights missing to read its node"] += 1
            return False

    def _track_children(self, parents: dict[int, int], arguments: dict[int, list[str]]) -> None:
        waiting = {pid: parent for pid, parent in parents.items() if pid in self._young}
        while children := [
            pid for pid, parent in waiting.items() if parent in self._tracked or parent in self._executor_of
        ]:
            for pid in children:
                parent = waiting.pop(pid)
                executor = parent if parent in self._tracked else self._executor_of[parent]
                self._executor_of[pid] = executor
                worker = _is_worker(arguments.get(pid, []), of_jvm=parent == executor)
                self._tracked[executor].children[pid] = _Child(self._young.pop(pid)[0], worker)

    def _sample_executor(self, pid: int) -> ExecutorSample | None:
        tracked, name = self._tracked[pid], self._tracked[pid].executor.executor
        try:
            jvm = tracked.process.usage()
        except ProcessGoneError:
            self.skipped["executor vanished while read"] += 1
            self._drop_executor(pid)
            return None
        except ProcessDeniedError:
            self.skipped[f"executor {name}: rights missing to read its usage"] += 1
            return None
        rss = 0
        for child_pid, child in list(tracked.children.items()):
            try:
                usage = child.process.usage()
                if child.worker is None:
                    child.worker = _is_worker(child.process.command_line(), of_jvm=True)
            except ProcessGoneError:
                self.skipped["process of an executor vanished while read"] += 1
                self._drop_child(child_pid)
                continue
            except ProcessDeniedError:
                self.skipped[f"executor {name}: rights missing to read its workers"] += 1
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
        self._examined.discard(pid)
        tracked = self._tracked.get(self._executor_of.pop(pid))
        if tracked is not None:
            tracked.ended_cpu += tracked.children.pop(pid).cpu

    def _drop_executor(self, pid: int) -> None:
        self._examined.discard(pid)
        for child in self._tracked.pop(pid).children:
            self._executor_of.pop(child, None)


def _is_executor(arguments: Sequence[str]) -> bool:
    # Not every process that names the class is one: a pod's tini has the executor's command line behind its own.
    is_java = bool(arguments) and Path(arguments[0]).name == "java"
    return is_java and any(argument.endswith(_BACKENDS) for argument in arguments)


def _is_worker(arguments: Sequence[str], *, of_jvm: bool) -> bool | None:
    if not arguments or _is_executor(arguments):
        return None  # still the image of its parent
    # The JVM's own child is the daemon, which runs no rows; with daemons off it is the worker.
    if of_jvm:  # the daemon's command line names its worker's module too
        return "pyspark.worker" in arguments and "pyspark.daemon" not in arguments
    return not _PYTHON.isdisjoint(arguments)


def _options(arguments: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in pairwise(arguments) if name.startswith("--")}


def _describe_executor(pid: int, process: Process, options: Mapping[str, str]) -> _Tracked:
    # Any user of this machine can start such a process: an argument may be of any length, and need not be text.
    names, cores = [options.get(option, "") for option in _NAMING], int(options.get("--cores", "1"))
    if not all(0 < len(name) <= _MAX_NAME and name.isprintable() for name in names) or not 0 < cores <= _MAX_CORES:
        raise ValueError("not the arguments of an executor")
    name, notes = options["--executor-id"], list[str]()
    log: Path | None = None
    directories: tuple[Path, ...] = ()
    arguments = process.command_line()
    try:
        environment = process.environment()
        directories = local_directories(environment)
        if not directories:
            notes.append(f"executor {name}: no local directories in its environment")
    except ProcessDeniedError:
        notes.append(f"executor {name}: rights missing to read its environment")
    if any(argument.endswith(_POD_BACKEND) for argument in arguments):
        # Its paths are of its own mount namespace; its standard error goes to the container's log.
        directories = tuple(Path(f"/proc/{pid}/root{path}") for path in directories)
    else:
        try:
            log = Path(_yarn_logs(arguments) or process.directory()) / "stderr"
        except ProcessDeniedError:
            notes.append(f"executor {name}: rights missing to read its working directory")
    executor = Executor(
        application=options["--app-id"],
        executor=name,
        host=options["--hostname"],
        pid=pid,
        started=process.created,
        cores=cores,
        directories=directories,
        log=log,
    )
    return _Tracked(executor, process, notes=notes)


def _yarn_logs(arguments: Sequence[str]) -> str:
    """Return the directory of the logs of a container of YARN; "" elsewhere."""
    directories = [argument.removeprefix(_YARN_LOGS) for argument in arguments if argument.startswith(_YARN_LOGS)]
    return directories[-1] if directories and any(argument.endswith(_YARN_BACKEND) for argument in arguments) else ""


def local_directories(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return an executor's local directories, as ``Utils.getConfiguredLocalDirs``."""
    if environment.get("CONTAINER_ID"):
        names = environment.get("LOCAL_DIRS", "").split(",")
    elif environment.get("SPARK_EXECUTOR_DIRS"):
        names = environment["SPARK_EXECUTOR_DIRS"].split(os.pathsep)
    else:
        names = (environment.get("SPARK_LOCAL_DIRS") or environment.get("LOCAL_DIRS", "")).split(",")
    return tuple(Path(name.strip()) for name in names if name.strip())
