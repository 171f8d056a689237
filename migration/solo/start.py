"""Driver's part of a solo run: starts its supervisor, and ends it by closing a pipe."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import structlog

from rechannel.conf.loader import load
from rechannel.conf.settings import CONFIG_VARIABLE
from rechannel.migration.solo import SoloError
from rechannel.wire import distribution
from rechannel.wire.codes import Mode

#: Printed once at the start; docs/solo.md has the details.
WITHOUT_AGENTS = (
    "decisions need no agents, but without them these are unknown: the sizes of streams between executors, so no "
    "partition is placed near its data; CPU and memory of executors and nodes; why an executor is slow, so a node that "
    "is busy for a moment counts as slow; the closing of an old copy, which is presumed after two maintenance intervals"
)
_NO_CONTROLLER = (
    f"{distribution.LIGHT} holds no controller, which solo starts; install {distribution.WHOLE} in an environment of "
    f"its own: {distribution.how_to_install('solo')}"
)
_LOG = structlog.get_logger("rechannel.link")
_PATIENCE = 10.0  # seconds for the supervisor to start Redis
_END = 5.0  # seconds for it to end
_SUPERVISOR = "rechannel.migration.solo.supervisor"
_READY, _PROBLEM = b"ready ", b"problem "  # as in supervisor, which the driver need not import
_LONGEST_LINE = 4096  # bytes
#: Variables that would lead link or controller to another Redis, or contradict the caller's mode.
_OWN_VARIABLES = ("RECHANNEL_REDIS__", "RECHANNEL_SIGNING__", "RECHANNEL_CLUSTER__", "RECHANNEL_RESCHEDULE__MODE")
_OF_SERVICE = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # systemd's, which are about the driver

_running: set[SoloRun] = set()


class SoloRun:
    """A solo run of this process; it lives until `close`, or the end of this process."""

    def __init__(self, mode: Mode, environ: Mapping[str, str]) -> None:
        """Start it; SoloError if it is not ready in time."""
        variables = environment(environ)
        if not distribution.is_complete():
            raise SoloError(_NO_CONTROLLER)
        if not sys.executable:
            raise SoloError("the driver's Python has no executable to start the controller with")
        command = [sys.executable, "-P", "-m", _SUPERVISOR, mode.value]
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=variables,
                bufsize=0,  # a buffer's lock could be held at a fork
                start_new_session=True,  # a terminal's or notebook's interrupt is for the driver alone
            )
        except OSError as error:
            raise SoloError(f"{sys.executable} cannot be started ({error.strerror})") from error
        _running.add(self)
        self._config = self._problem = ""
        self._answered, self._closed = threading.Event(), False
        self._reader = threading.Thread(target=self._read, name="rechannel-solo", daemon=True)
        try:
            self._reader.start()
            if not self._answered.wait(_PATIENCE):
                raise SoloError(f"the controller's process was not ready within {_PATIENCE:g} s; is the machine busy?")
            if not self._config:
                raise SoloError(self._problem)
            self.settings = load(self._config, variables)
        except BaseException:
            self.close()
            raise
        self._log_start()

    def close(self) -> None:
        """End Redis and controller, and remove their directory."""
        _running.discard(self)
        self._closed = True
        self.close_pipe()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel ends its children too
            self._process.wait()

    def close_pipe(self) -> None:
        """Close this process's end of the pipe: the supervisor ends once no process holds it."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _log_start(self) -> None:
        settings = self.settings
        listen = settings.controller.listen
        web = {"web": f"http://{listen}/"} if listen else {}
        _LOG.info("solo", mode=settings.reschedule.mode, config=self._config, **web)
        _LOG.info("solo runs without agents", sentence=WITHOUT_AGENTS)

    def _read(self) -> None:
        """Read the supervisor's lines until it ends."""
        last = ""
        with self._process.stdout or open(os.devnull, "rb") as lines:  # noqa: PTH123  never None, by Popen's arguments
            while line := lines.readline(_LONGEST_LINE):
                last = line.decode(errors="replace").strip() or last
                if self._answered.is_set():
                    _LOG.warning("solo is disturbed", sentence=last)
                elif line.startswith(_READY):
                    self._config = last.removeprefix(_READY.decode())
                    self._answered.set()
                elif line.startswith(_PROBLEM):
                    self._problem = last.removeprefix(_PROBLEM.decode())
                    self._answered.set()
        if not self._answered.is_set():
            self._problem = f"the controller's process ended at once: {last or 'it printed nothing'}"
            self._answered.set()
        elif self._config and not self._closed:
            _LOG.warning("solo has ended; the queries go on, and nothing is moved any more")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the supervisor, by which it imports what this process imports."""
    kept_out = (*_OWN_VARIABLES, CONFIG_VARIABLE, *_OF_SERVICE)
    variables = {name: value for name, value in environ.items() if not name.startswith(kept_out)}
    # With the directory that this package was imported from, which an editable installation may keep elsewhere.
    paths = [*filter(None, sys.path), str(Path(__file__).parents[3])]
    absolute = map(os.path.abspath, paths)  # a link among them must stay one
    return variables | {"PYTHONPATH": os.pathsep.join(dict.fromkeys(absolute))}


def _close_in_child() -> None:
    """Close the pipes in a forked child, which may outlive this process."""
    for run in _running:
        run.close_pipe()
    _running.clear()


os.register_at_fork(after_in_child=_close_in_child)
