"""Event feed: the listener in Spark, its private directory, and the reader of its files.

The directory is locked as long as its link lives. A later link on the same machine removes directories that hold events
and are not locked: those of drivers that were killed. Systemd leaves locked directories in /tmp alone, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import structlog

from rechannel.conf.solo_runs import open_directory, remove_unlocked
from rechannel.migration.spark.adapter import SparkAdapter
from rechannel.migration.spark.gateway import LinkError
from rechannel.monitors.spark.event_log import EventStream

_LOG = structlog.get_logger("rechannel.link")
_PREFIX = "rechannel-"
_PART_BYTES = 16 * 2**20  # of one file of the stream, which is deleted once read; Spark has a minimum of 10 MiB
_HEARTBEAT = 5.0  # seconds between two heartbeats


class EventFeed:
    """Opens and reads the stream; opens it again after the watchdog or a user removed it."""

    def __init__(self, adapter: SparkAdapter, parent: str) -> None:
        self._adapter = adapter
        self._parent = Path(parent or tempfile.gettempdir())
        self._directory: Path | None = None
        self._lock = -1
        self._stream: EventStream | None = None
        self._next_heartbeat = 0.0
        self.openings = 0  # each may mean that the watchdog took out other hooks of the link, too
        self.dropped = 0  # events that Spark's bus dropped since the first opening
        self._dropped_before = 0  # for earlier links of the application: Spark's counter goes on
        self._incomplete = False

    def open(self) -> None:
        """Have Spark write its events from now on."""
        if not self.openings:
            self._dropped_before = self._adapter.dropped_events()
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_leftovers(self._parent)
        self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
        self._lock = open_directory(self._directory)
        with contextlib.suppress(OSError):  # NFS locks no directory, and so no link removes leftovers there
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._adapter.start_event_stream(self._directory, _PART_BYTES)
        self._stream = EventStream(self._directory)
        self.openings += 1

    def beat(self, now: float) -> None:
        """Send a heartbeat if the last one is some seconds old.

        ``now``: seconds of a steady clock.
        """
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + _HEARTBEAT
            self._send_heartbeat()

    def read(self) -> list[bytes]:
        """Return the lines written since the last call."""
        if self._stream is None:
            self._reopen("it could not be opened")
        try:
            return self._stream.read() if self._stream is not None else []
        except OSError as error:
            self._reopen(str(error))
            return []

    def pop_incomplete(self) -> bool:
        """Return whether events were lost since the last call."""
        incomplete, self._incomplete = self._incomplete, False
        return incomplete

    def mark_incomplete(self) -> None:
        """Note that an event could not be read."""
        self._incomplete = True

    def close(self) -> None:
        """Take out listener, watchdog and files; each step even after an error of another."""
        for step in (self._adapter.stop_event_stream, self._adapter.stop_watchdog):
            with contextlib.suppress(LinkError):
                step()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _send_heartbeat(self) -> None:
        if self._stream is not None and not self._adapter.send_heartbeat():
            self._reopen("the link was silent for too long, or the stream grew faster than it was read")
        dropped = self._adapter.dropped_events() - self._dropped_before
        if dropped > self.dropped:
            _LOG.warning("spark dropped events of the event stream", dropped=dropped - self.dropped)
            self.dropped, self._incomplete = dropped, True

    def _reopen(self, reason: str) -> None:
        _LOG.warning("the event stream is opened anew", reason=reason)
        self.close()
        self._incomplete = True
        self.open()


def remove_leftovers(parent: Path) -> None:
    """Remove the directories of links that no longer live."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            # A directory without events is another program's, or one that its link has not locked yet.
            if directory.lstat().st_uid == os.geteuid() and any(directory.glob("eventlog_v2_*")):
                remove_unlocked(directory)
