"""Network namespaces for the parts that a drill cuts off: a hub with Redis, and a cable from there to each part.

The namespaces have no names: a process holds each, and the kernel takes namespace and cable away when it ends. All
addresses are inside them; nothing is ever added to the machine's own network.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.testbed.processes import ProcessGroup

_CLONE_NEWNET = 0x40000000
HUB = "hub"
_HUB_ADDRESS = "10.99.{n}.1"
_PART_ADDRESS = "10.99.{n}.2"


class NetworkError(RuntimeError):
    """Namespaces cannot be had here."""


def why_not() -> str:
    """Say why there are no network namespaces here, "" if there are."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = ["unshare", "-n", "sh", "-c", "ip link add probe0 type veth peer name probe1 && ip link set probe0 up"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces: {error} (packages util-linux and iproute2)"
    return f"network namespaces: {done.stderr.strip()}" if done.returncode else ""


class Network:
    """The hub and its parts. ``group`` owns the processes that hold the namespaces."""

    def __init__(self, group: ProcessGroup, parts: list[str]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._pids: dict[str, int] = {}
        self._numbers = {part: number for number, part in enumerate(parts, start=1)}
        for name in [HUB, *parts]:
            self._pids[name] = group.start(f"network-{name}", ["unshare", "-n", "sleep", "infinity"]).pid
        for name in [HUB, *parts]:
            self._await(name)
            self._ip(name, "link", "set", "lo", "up")
        for part, number in self._numbers.items():
            self._ip(
                HUB,
                "link",
                "add",
                f"to{number}",
                "type",
                "veth",
                "peer",
                "name",
                "cable",
                "netns",
                str(self._pids[part]),
            )
            self._ip(HUB, "addr", "add", f"{_HUB_ADDRESS.format(n=number)}/30", "dev", f"to{number}")
            self._ip(HUB, "link", "set", f"to{number}", "up")
            self._ip(part, "addr", "add", f"{_PART_ADDRESS.format(n=number)}/30", "dev", "cable")
            self._ip(part, "link", "set", "cable", "up")

    @property
    def hub_addresses(self) -> list[str]:
        """Where a server in the hub has to listen."""
        return [_HUB_ADDRESS.format(n=number) for number in self._numbers.values()]

    def hub_from(self, part: str) -> str:
        """Return the hub's address as a part sees it."""
        return _HUB_ADDRESS.format(n=self._numbers[part])

    def cut(self, part: str) -> None:
        """Take a part's cable out: what it sends is lost without a word."""
        self._ip(HUB, "link", "set", f"to{self._numbers[part]}", "down")

    def mend(self, part: str) -> None:
        """Put the cable back."""
        self._ip(HUB, "link", "set", f"to{self._numbers[part]}", "up")

    @contextlib.contextmanager
    def inside(self, part: str) -> Iterator[None]:
        """Have the calling thread, and the processes it starts meanwhile, live in a part's namespace."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/proc/{self._pids[part]}/ns/net", os.O_RDONLY)
        try:
            self._enter(there)
            try:
                yield
            finally:
                self._enter(home)
        finally:
            os.close(home)
            os.close(there)

    def _enter(self, descriptor: int) -> None:
        if self._libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise NetworkError(f"setns: {os.strerror(ctypes.get_errno())}")

    def _await(self, name: str, seconds: float = 10.0) -> None:
        own = Path("/proc/self/ns/net").readlink()
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{self._pids[name]}/ns/net").readlink() != own:
                    return
            if time.monotonic() > deadline:
                raise NetworkError(f"no namespace for {name} within {seconds:g} s")
            time.sleep(0.02)

    def _ip(self, name: str, *words: str) -> None:
        command = ["nsenter", "-t", str(self._pids[name]), "-n", "ip", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode:
            raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
