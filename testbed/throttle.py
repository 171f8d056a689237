"""CPU quotas without control groups: the processes of a node are stopped and continued.

A thread looks at a node twenty times a second: each second brings it as much CPU time as it may have, and when its
processes have used more, all of them are stopped (SIGSTOP) until that is made up for. Whoever may start processes may
do that. A few percent off, and processes that are younger than half a second are not counted yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

__all__ = ["Throttle"]

_PERIOD = 0.05  # seconds between two looks
_SAVED = 0.1  # seconds' worth of the quota that may be saved up: no more, or a node would run free after a pause
_OWED = 0.5  # seconds' worth of it that are made up for at most: who looked late does not stop a node for long
_KNOWN = 0.5  # seconds for which the list of processes holds
_TICKS = os.sysconf("SC_CLK_TCK")


class Throttle:
    """Holds a process and all that it starts to ``cores``, None for no limit; lets them go on exit.

    It is told whom with `add`; processes of a node that cannot be joined to it from inside need nothing else.
    """

    procs: tuple[Path, ...] = ()  # a control group would have a file to write one's process id to

    def __init__(self, cores: float | None) -> None:
        self._cores = _checked(cores)
        self._roots: list[psutil.Process] = []
        self._members: list[int] = []
        self._listed = -_KNOWN
        self._throttled = 0.0
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

    def throttled_s(self) -> float:
        """Return for how many seconds they were stopped so far."""
        return self._throttled

    def remove(self) -> None:
        """Let everything go on, for good."""
        self._over.set()
        self._thread.join()

    def _hold(self) -> None:
        balance, spent, before = 0.0, self._spent(), time.monotonic()
        while not self._over.wait(_PERIOD):
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
                if self._over.wait(min(left, _PERIOD)):
                    break
        finally:
            _send(stopped, signal.SIGCONT)
            self._throttled += time.monotonic() - began

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
