"""Watches every write of a controller by Redis' own MONITOR: leader, epoch, late writes."""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path

import redis

_LEADERS_KEYS = re.compile(r"(controller:state|:desired|:orders|:decisions)\b")
_SENDER = re.compile(r'"sender":"([^"]*)"')
_EPOCH = re.compile(r'"epoch":(\d+)')


@dataclass
class Leaders:
    """Writes as they come. ``senders``: epoch -> who wrote under it; ``late``: writes of an epoch below the highest."""

    senders: dict[int, set[str]] = field(default_factory=dict)
    late: int = 0
    highest: int = 0

    def take(self, command: str) -> None:
        """Take in one command as MONITOR shows it."""
        key = _LEADERS_KEYS.search(command[:200])
        sender, epoch = _SENDER.search(command), _EPOCH.search(command)
        if key is None or sender is None or epoch is None or not command.upper().startswith(("SET ", "XADD ")):
            return
        number = int(epoch[1])
        if number == 0:
            return  # decisions carry no epoch of their own
        self.senders.setdefault(number, set()).add(sender[1])
        self.late += number < self.highest
        self.highest = max(self.highest, number)

    def problems(self) -> list[str]:
        """Name the epochs under which more than one controller wrote; seeing nobody write is a problem too."""
        if not self.senders:
            return ["no leader was seen to write anything"]
        return [
            f"epoch {epoch} had {len(senders)} leaders: {', '.join(sorted(senders))}"
            for epoch, senders in self.senders.items()
            if len(senders) > 1
        ]


class Watch:
    """A thread that feeds `Leaders` for as long as it is open, through every restart of Redis."""

    def __init__(self, socket: Path) -> None:
        self.leaders = Leaders()
        self._socket = socket
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; a Redis that hangs is not waited for."""
        self._stop.set()
        self._thread.join(0.5)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            client = redis.Redis(unix_socket_path=str(self._socket))
            with contextlib.suppress(redis.RedisError, OSError, ValueError), client.monitor() as monitor:
                for seen in monitor.listen():
                    self.leaders.take(str(seen["command"]))
                    if self._stop.is_set():
                        return
            with contextlib.suppress(redis.RedisError, OSError):
                client.close()
