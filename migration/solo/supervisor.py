"""Process that owns Redis and the controller of a solo run, and ends when its driver does.

``python -m rechannel.migration.solo.supervisor MODE`` makes the run's directory, starts both, and prints one line:
`READY` and the path of the configuration, or `PROBLEM` and a sentence. Further lines are warnings. The driver holds the
other end of standard input: its end, however the driver ends, ends everything here. If one of the two children ends,
both are started again; what Redis held is lost, and link and controller write it anew.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from rechannel.conf.loader import load
from rechannel.migration.solo import SoloError
from rechannel.migration.solo.run_directory import RunDirectory, remove_leftovers
from rechannel.migration.solo.server_binary import ServerBinary, find_server
from rechannel.wire.codes import Mode
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store

READY, PROBLEM = "ready", "problem"
_REDIS_START = 8.0  # seconds; the driver waits a little longer than that
_LOOK_EVERY = 0.5  # seconds between two looks at the children
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0  # seconds before both are started again; doubles
_PR_SET_PDEATHSIG = 1
_LIBC: Any = ctypes.CDLL(None)
_NAMES = "Redis", "the controller"


class Supervisor:
    """Redis and controller of one run; ``driver`` is the descriptor whose end ends both."""

    def __init__(self, directory: RunDirectory, server: ServerBinary, driver: int) -> None:
        self._directory = directory
        self._server = server
        self._driver = driver
        self._selector = selectors.DefaultSelector()
        self._selector.register(driver, selectors.EVENT_READ)
        self._announced = False

    def serve(self) -> None:
        """Run both until the driver ends; SoloError if the first start fails."""
        pause = _FIRST_PAUSE
        while True:
            began = time.monotonic()
            try:
                problem = self._run_once()
            except (SoloError, StoreError, OSError) as error:  # such as no memory for a process
                if not self._announced:
                    raise
                problem = str(error)
            if not problem:
                return
            pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            _print(f"{problem}; Redis and controller are started again in {pause:g} s, the queries go on")
            if not self._driver_lives(pause):
                return

    def _run_once(self) -> str:
        """Run both until one of them ends, and return that; "" if the driver ended."""
        children: list[subprocess.Popen[bytes]] = []
        try:
            # Some releases of Redis end if the locale of the environment is not installed, as over ssh.
            server = [str(self._server.path), str(self._directory.redis_config)]
            children.append(self._start(server, {"LC_ALL": "C"}))
            if not self._await_redis(children[0]):
                return ""
            self._directory.renew_port()
            arguments = ["-P", "-m", "rechannel", "controller", "--config", str(self._directory.config)]
            children.append(self._start([sys.executable, *arguments]))
            if not self._announced:
                _print(f"{READY} {self._directory.config}")
                self._announced = True
            while self._driver_lives(_LOOK_EVERY):
                self._directory.trim_log()
                for name, child in zip(_NAMES, children, strict=True):
                    if child.poll() is not None:
                        return f"{name} ended with code {child.returncode}: {self._directory.log_tail()}"
            return ""
        finally:
            for child in reversed(children):
                child.kill()
                child.wait()

    def _start(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with self._directory.log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603  our own interpreter and module, or the server that was found
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(variables or {})},
                preexec_fn=_end_with_supervisor,
            )

    def _await_redis(self, server: subprocess.Popen[bytes]) -> bool:
        """Wait until Redis answers; False if the driver ended, SoloError if Redis does not answer."""
        settings = load(self._directory.config, {})
        store = Store(settings.redis, settings.cluster.name)
        until = time.monotonic() + _REDIS_START
        problem = "it did not answer in time"
        try:
            while server.poll() is None and time.monotonic() < until:
                try:
                    store.check()
                    return True
                except StoreError as error:
                    problem = str(error)
                if not self._driver_lives(0.02):
                    return False
        finally:
            store.close()
        raise SoloError(f"{self._server} does not start: {self._directory.log_tail() or problem}")

    def _driver_lives(self, seconds: float) -> bool:
        """Wait so long, or until the driver ends; returns whether it lives."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._selector.select(left) and not os.read(self._driver, 4096):
                return False
        return True


def _end_with_supervisor() -> None:
    """Have the kernel kill this child if the supervisor, which has one thread, is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _print(line: str) -> None:
    try:
        print(" ".join(line.split()), flush=True)
    except OSError:
        return  # the driver has just ended


def _end(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the clean-up is not interrupted by who sends it again and again
    raise SystemExit(0)


def main(arguments: Sequence[str]) -> int:
    """Serve one run in the mode that the argument names; 1 if it cannot start."""
    signal.signal(signal.SIGTERM, _end)
    os.umask(0o077)
    directory = None
    try:
        mode = Mode(arguments[0])
        remove_leftovers()
        server = find_server()
        directory = RunDirectory(os.getppid())
        directory.write(mode)
        Supervisor(directory, server, sys.stdin.fileno()).serve()
    except Exception as error:  # noqa: BLE001  the driver prints the reason
        _print(f"{PROBLEM} {error}")
        return 1
    finally:
        if directory is not None:
            directory.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
