"""What a daemon tells the service manager: that it works, what it is doing, that it still gets on, that it ends.

The protocol of sd_notify(3): lines of ``NAME=value`` in one datagram to the unix socket that ``NOTIFY_SOCKET`` names.
Where there is none, nothing is sent and everything here does nothing. Nothing here raises, and nothing waits long: a
service manager that does not listen must not hold a daemon up.

One thread tells; it may be any.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self, TypeVar

import structlog

_PATIENCE = 1.0  # seconds in which the datagram has to be taken
_LONGEST = 500  # characters of a status
_BEATS = 4  # heartbeats sent in one watchdog interval, at most; the service manager wants two
_MICRO = 1_000_000
_T = TypeVar("_T")


class Notifier:
    """One daemon's word to its service manager.

    ``address``: a path, ``@name`` for an abstract socket, or empty for nobody. ``watchdog``: the seconds without a
    heartbeat after which the service manager kills and restarts the daemon; 0 where it does not.
    """

    def __init__(
        self, address: str = "", watchdog: float = 0.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.watchdog = watchdog
        self._address = address
        self._monotonic = monotonic
        self._ready = False
        self._status = ""
        self._beaten: float | None = None  # when the last heartbeat was sent
        self._complained = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return the notifier that the service manager's variables ask for."""
        environ = os.environ if environ is None else environ
        return cls(environ.get("NOTIFY_SOCKET", ""), _watchdog(environ))

    @property
    def is_ready(self) -> bool:
        """Whether the service manager was told that the daemon works, or nobody wants to know."""
        return self._ready or not self._address

    def request_watchdog(self, seconds: float) -> None:
        """Ask for a longer watchdog interval, where this daemon may rightly take so long between two heartbeats."""
        if 0 < self.watchdog < seconds and self._send(f"WATCHDOG_USEC={int(seconds * _MICRO)}"):
            self.watchdog = seconds

    def extend_timeout(self, seconds: float) -> None:
        """Say that the start, or the end, may take so many seconds more from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _MICRO)}")

    def ready(self, status: str = "") -> None:
        """Say that the daemon works, once. What did not arrive is said again."""
        if self._ready:
            self.status(status)
            return
        text = _line(status)
        self._ready = self._send("READY=1", *([f"STATUS={text}"] if text else []))
        if self._ready and text:
            self._status = text

    def announce_reload(self, again: Callable[[], _T]) -> Callable[[], _T]:
        """Wrap what reads the configuration again: the service manager hears of its beginning and its end."""

        def reload() -> _T:
            if not self._ready:
                return again()
            # CLOCK_MONOTONIC, as the service manager wants it, whatever clock this notifier was given.
            stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._send("RELOADING=1", f"MONOTONIC_USEC={stamp}")
            try:
                return again()
            finally:
                self._ready = self._send("READY=1")

        return reload

    def stopping(self, status: str = "ends") -> None:
        """Say that the daemon is about to end."""
        self._status = _line(status)
        self._send("STOPPING=1", f"STATUS={self._status}")

    def status(self, text: str) -> None:
        """Say what the daemon is doing, in one line for people; sent only when it changed."""
        text = _line(text)
        if text and text != self._status and self._send(f"STATUS={text}"):
            self._status = text

    def beat(self) -> bool:
        """Say that the daemon gets on; returns whether that was due. Call it as often as you like."""
        if not self.watchdog:
            return False
        now = self._monotonic()
        if self._beaten is not None and now - self._beaten < self.watchdog / _BEATS:
            return False
        if self._send("WATCHDOG=1"):
            self._beaten = now
        return True

    def _send(self, *lines: str) -> bool:
        if not self._address:
            return False
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(_PATIENCE)
                channel.sendto("\n".join(lines).encode("utf-8", "replace"), name)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log = structlog.get_logger("rechannel.notify")
                log.warning("service-manager-does-not-listen", address=self._address, problem=str(error))
            return False
        self._complained = False
        return True


def _watchdog(environ: Mapping[str, str]) -> float:
    """Return the seconds out of ``WATCHDOG_USEC``; 0 if there are none, or they are meant for another process."""
    process, interval = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if process and process != str(os.getpid()):
        return 0.0
    return int(interval) / _MICRO if interval.isascii() and interval.isdigit() else 0.0


def _line(text: str) -> str:
    """Return text as one printable line."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:_LONGEST]
