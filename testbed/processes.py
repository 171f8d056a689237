"""Child processes that never outlive the block that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Self

import psutil

from testbed import guard

ROOT = Path(__file__).resolve().parents[1]
PYTHON_PATH = os.pathsep.join(str(ROOT / part) for part in ("src", "."))
_PR_SET_PDEATHSIG = 1


def wait_until(
    ready: Callable[[], Any],
    what: str,
    seconds: float,
    every: float = 0.05,
    details: Callable[[], str] = str,
    alive: Iterable[ManagedProcess] = (),
) -> Any:
    """Wait until ``ready`` returns what is true, and return that; TimeoutError after ``seconds``.

    ``ready`` is tried every ``every`` seconds, and may raise, e.g. when a process has died. ``what`` is waited for,
    and ``details``, more lines, are in the error's message. :class:`ProcessDiedError` once one of ``alive`` is not.
    """
    deadline = time.monotonic() + seconds
    while True:
        for process in alive:
            process.require_alive()
        if result := ready():
            return result
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s\n{details()}".rstrip())
        time.sleep(every)


class Block(ABC):
    """Base of what a ``with`` block starts and closes; closed as well when its start fails."""

    @abstractmethod
    def start(self) -> Self:
        """Start it, and wait until it can be used."""

    @abstractmethod
    def close(self) -> None:
        """Stop all of it; nothing is left."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close()


class ProcessDiedError(RuntimeError):
    """A child ended before it was ready; the message carries the tail of its log."""


@dataclass
class ManagedProcess:
    """One child of a :class:`ProcessGroup`, leader of a session of its own."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        """The process id, which is the id of the child's session and process group as well."""
        return self.popen.pid

    def alive(self) -> bool:
        """Whether the child still runs."""
        return self.popen.poll() is None

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of the child's log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def require_alive(self) -> None:
        """Raise :class:`ProcessDiedError` with the end of the log if the child is gone."""
        if not self.alive():
            raise ProcessDiedError(
                f"{self.name} ended with code {self.popen.returncode}; {self.log}:\n{self.log_tail()}"
            )


def cpu_seconds(process: psutil.Process) -> float:
    """Return user and system time of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


class ProcessGroup:
    """Starts children and stops all of them, and all that they started, however the block ends.

    Three nets, one below the other: the block's own exit (also on SIGINT and SIGTERM), the kernel's parent-death
    signal, and a guard process that sweeps by an environment marker when this process vanishes without a word.
    """

    def __init__(self, log_dir: Path, grace_s: float = 8.0) -> None:
        self.log_dir = log_dir
        self.grace_s = grace_s
        self.marker = uuid.uuid4().hex
        self.processes: dict[str, ManagedProcess] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._handlers: dict[int, Any] = {}
        self._closed = False
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._guard = subprocess.Popen(  # noqa: S603 - our own interpreter, our own script
            [sys.executable, "-I", "-S", str(Path(guard.__file__)), self.marker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._guard.stdout is not None:
            self._guard.stdout.readline()  # only now are its signals ignored and its pipe watched
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                self._handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @staticmethod
    def _on_signal(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        cgroup: Path | None = None,
    ) -> ManagedProcess:
        """Start a child; ``env`` replaces the environment (the marker is added), its output goes to ``<name>.log``.

        The child joins the given cgroup before it runs its first instruction, so its own children are in it too.
        """
        with self._lock:
            if self._guard is None or self._closed:
                raise RuntimeError("the process group is not open")
            if name in self.processes and self.processes[name].alive():
                raise ValueError(f"a process named {name!r} is already running")
            environment = dict(os.environ if env is None else env)
            environment[guard.MARKER_VARIABLE] = self.marker
            log = self.log_dir / f"{name}.log"
            with log.open("ab") as output:
                popen = subprocess.Popen(  # noqa: S603 - the caller's command, no shell
                    list(command),
                    env=environment,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=self._before_exec(cgroup),
                )
            process = self.processes[name] = ManagedProcess(name, popen, log)
            return process

    @staticmethod
    def _before_exec(cgroup: Path | None) -> Callable[[], None]:
        # The parent-death signal is sent when the *thread* that forked ends: asked for from the main thread only.
        libc = ctypes.CDLL(None) if threading.current_thread() is threading.main_thread() else None
        parent = os.getpid()

        def prepare() -> None:
            if cgroup is not None:
                descriptor = os.open(cgroup / "cgroup.procs", os.O_WRONLY)
                os.write(descriptor, b"0")
                os.close(descriptor)
            if libc is not None:
                libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != parent:  # it died in between
                    os._exit(1)

        return prepare

    def stop(self, name: str, grace_s: float | None = None) -> None:
        """Stop one child and everything it started: terminate, wait, kill."""
        process = self.processes.pop(name, None)
        if process is not None:
            self._stop_all([process], self.grace_s if grace_s is None else grace_s)

    def kill(self, name: str) -> None:
        """Kill one child outright, with everything it started."""
        self.stop(name, grace_s=0.0)

    def check(self) -> None:
        """Raise if any child has died on its own."""
        for process in self.processes.values():
            process.require_alive()

    def close(self) -> None:
        """Stop every child, latest first; may be called more than once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        main = threading.current_thread() is threading.main_thread()
        held: dict[int, Any] = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM) if main}
        try:
            self._stop_all(list(reversed(self.processes.values())), self.grace_s)
            guard.kill_marked(self.marker)
            self.processes.clear()
            if self._guard is not None:
                self._guard.communicate(timeout=15)
        finally:
            for number, handler in {**held, **self._handlers}.items():
                signal.signal(number, handler)

    @staticmethod
    def _stop_all(processes: list[ManagedProcess], grace_s: float) -> None:
        family: list[psutil.Process] = []
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                leader = psutil.Process(process.pid)
                family += [leader, *leader.children(recursive=True)]
        if grace_s > 0:
            for process in processes:
                if process.alive():
                    with contextlib.suppress(ProcessLookupError):
                        process.popen.terminate()
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline and any(process.alive() for process in processes):
                time.sleep(0.05)
            psutil.wait_procs(family, timeout=0.5 if grace_s >= 1 else grace_s)
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        for process in processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.popen.wait()
