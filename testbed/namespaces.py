"""Network namespaces without names: a process holds each, and the kernel takes it away when that process ends.

Nothing here touches the machine's own network: links, addresses and queues are made inside the namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from testbed.processes import ProcessGroup, wait_until

_CLONE_NEWNET = 0x40000000
_NEW = ("unshare", "-n")
_OWN = Path("/proc/thread-self/ns/net")


class NetworkError(RuntimeError):
    """The network cannot be had, or not be changed like that; the message says what the system said."""


def trial(script: str) -> str:
    """Run a shell script in a namespace that is gone afterwards; return why it failed, "" if it did not."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    command = [*_NEW, "sh", "-ec", script]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces: {error} (packages util-linux and iproute2)"
    return f"network namespaces: {done.stderr.strip()}" if done.returncode else ""


class Namespaces:
    """Namespaces by the names of the parts that live in them. ``group`` owns the processes that hold them."""

    def __init__(self, group: ProcessGroup) -> None:
        self._group = group
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._pids: dict[str, int] = {}

    def add(self, *names: str) -> None:
        """Make namespaces, with nothing in them but a loopback device. Raises :class:`NetworkError`."""
        for name in names:
            self._pids[name] = self._group.start(f"network-{name}", [*_NEW, "sleep", "infinity"]).pid
        for name in names:
            self._await(name)
            self.run(name, "ip", "link", "set", "lo", "up")

    def remove(self, name: str) -> None:
        """End the process that holds a namespace; it stays for as long as others live in it."""
        if self._pids.pop(name, None) is not None:
            self._group.kill(f"network-{name}")

    def close(self) -> None:
        """Remove all of them."""
        for name in list(self._pids):
            self.remove(name)

    def pid(self, name: str) -> int:
        """Return the process that holds a namespace, by which system calls and commands can refer to it."""
        return self._pids[name]

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Have the calling thread, and the processes it starts meanwhile, live in a namespace."""
        with _OWN.open("rb", 0) as home, self._file(name).open("rb", 0) as there:
            self._enter(there.fileno())
            try:
                yield
            finally:
                self._enter(home.fileno())

    def run(self, name: str, *command: str) -> str:
        """Run a command in a namespace; return what it printed. Raises :class:`NetworkError` with its complaint."""
        with self.inside(name):
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)  # noqa: S603
        if done.returncode:
            raise NetworkError(f"{' '.join(command)} (in {name}): {done.stderr.strip()}")
        return done.stdout

    def _enter(self, descriptor: int) -> None:
        if self._libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}")

    def _file(self, name: str) -> Path:
        return Path(f"/proc/{self._pids[name]}/ns/net")

    def _await(self, name: str) -> None:
        def apart() -> bool:
            with contextlib.suppress(OSError):
                return self._file(name).readlink() != _OWN.readlink()
            return False

        try:
            wait_until(apart, f"a namespace for {name}", 60.0, 0.01)
        except TimeoutError as error:
            raise NetworkError(str(error)) from error
