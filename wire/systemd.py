"""Notifications to systemd: readiness, status, watchdog heartbeats, reload and stop.

The protocol of sd_notify(3): lines ``NAME=value`` in one datagram to the socket named by ``NOTIFY_SOCKET``. Without
that variable nothing is sent. No method raises or waits long, because a service manager that does not listen must not
stop a daemon. Use a notifier from one thread at a time.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self, TypeVar

import structlog

_TIMEOUT = 1.0  # seconds to deliver a datagram
_LONGEST = 500  # characters of a status
_BEATS = 4  # maximum heartbeats in one watchdog interval; systemd recommends two
_MICRO = 1_000_000
_T = TypeVar("_T")


class Notifier:
    """Connection of one daemon to its service manager."""

    def __init__(
        self, address: str = "", watchdog: float = 0.0, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.watchdog = watchdog  # seconds without a heartbeat after which the daemon is killed, 0 for never
        self._address = address  # a path, @name for an abstract socket, or "" for none
        self._monotonic = monotonic
        self._ready = False
        self._status = ""
        self._last_beat: float | None = None
        self._is_failing = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Return a notifier as configured by the variables of the service manager."""
        environ = os.environ if environ is None else environ
        return cls(environ.get("NOTIFY_SOCKET", ""), _watchdog(environ))

    @property
    def is_ready(self) -> bool:
        """Whether the service manager knows that the daemon is ready, or there is none."""
        return self._ready or not self._address

    def request_watchdog(self, seconds: float) -> None:
        """Request a watchdog interval of at least so many seconds."""
        if 0 < self.watchdog < seconds and self._send(f"WATCHDOG_USEC={int(seconds * _MICRO)}"):
            self.watchdog = seconds

    def extend_timeout(self, seconds: float) -> None:
        """Extend the timeout of the start or stop to so many seconds from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _MICRO)}")

    def ready(self, status: str = "") -> None:
        """Report that the daemon is ready, once; repeated calls only retry and update the status."""
        if self._ready:
            self.status(status)
            return
        text = _line(status)
        self._ready = self._send("READY=1", *([f"STATUS={text}"] if text else []))
        if self._ready and text:
            self._status = text

    def announce_reload(self, load: Callable[[], _T]) -> Callable[[], _T]:
        """Wrap a function that reloads the configuration to report begin and end of each reload."""

        def reload() -> _T:
            if not self._ready:
                return load()
            # The protocol requires CLOCK_MONOTONIC.
            stamp = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._send("RELOADING=1", f"MONOTONIC_USEC={stamp}")
            try:
                return load()
            finally:
                self._ready = self._send("READY=1")

        return reload

    def stopping(self, status: str = "ends") -> None:
        """Report that the daemon is stopping."""
        self._status = _line(status)
        self._send("STOPPING=1", f"STATUS={self._status}")

    def status(self, text: str) -> None:
        """Report a status of one line; sent only if it changed."""
        text = _line(text)
        if text and text != self._status and self._send(f"STATUS={text}"):
            self._status = text

    def beat(self) -> bool:
        """Send a heartbeat if one is due, and return whether it was. May be called at any rate."""
        if not self.watchdog:
            return False
        now = self._monotonic()
        if self._last_beat is not None and now - self._last_beat < self.watchdog / _BEATS:
            return False
        if self._send("WATCHDOG=1"):
            self._last_beat = now
        return True

    def _send(self, *lines: str) -> bool:
        if not self._address:
            return False
        name = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(_TIMEOUT)
                channel.sendto("\n".join(lines).encode("utf-8", "replace"), name)
        except OSError as error:
            if not self._is_failing:
                self._is_failing = True
                log = structlog.get_logger("rechannel.notify")
                log.warning("service-manager-does-not-listen", address=self._address, problem=str(error))
            return False
        self._is_failing = False
        return True


def _watchdog(environ: Mapping[str, str]) -> float:
    """Return ``WATCHDOG_USEC`` in seconds; 0 if it is not set or is for another process."""
    process, interval = environ.get("WATCHDOG_PID", ""), environ.get("WATCHDOG_USEC", "")
    if process and process != str(os.getpid()):
        return 0.0
    return int(interval) / _MICRO if interval.isascii() and interval.isdigit() else 0.0


def _line(text: str) -> str:
    """Return text as one printable line."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:_LONGEST]
