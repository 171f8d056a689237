"""Private directory of a solo run: keys, configuration, socket and log.

It is locked as long as the run lives, and removed with it. The next run of the user removes directories that are not
locked: those of runs whose supervisor was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from rechannel.conf.solo_runs import CONFIG_NAME, PREFIX, open_directory, own_directories, remove_unlocked
from rechannel.migration.solo import SoloError
from rechannel.wire.codes import Mode
from rechannel.wire.signing import make_keys

_LONGEST_SOCKET = 107  # bytes of a Unix socket's path on Linux
_TIMEOUT = 60.0  # seconds between two periodic decisions: who tries it out does not wait five minutes
_MEMORY = "512mb"
_LOG_BYTES = 2**20  # of each of the two log files
_PASSWORD_BYTES = 24
_REMOVAL = 5.0  # seconds for which a killed driver's JVM may still write event files


class RunDirectory:
    """A locked directory with all files of one run."""

    def __init__(self, driver: int) -> None:
        """Make the directory; ``driver`` is the id of the driver's process."""
        self.path, self._lock = _make_locked(f"{PREFIX}{driver}-")
        self.config = self.path / CONFIG_NAME
        self.redis_config = self.path / "redis.conf"
        self._port = _free_port()
        self.log = self.path / "solo.log"

    def write(self, mode: Mode) -> None:
        """Write keys, password and both configurations; SoloError if the path is too long."""
        redis_socket = self.path / "redis.sock"
        if len(os.fsencode(redis_socket)) > _LONGEST_SOCKET:
            raise SoloError(f"{redis_socket} is too long for a Unix socket; set TMPDIR to a shorter directory")
        make_keys(self.path)
        password, password_file = secrets.token_urlsafe(_PASSWORD_BYTES), self.path / "redis.password"
        password_file.write_text(f"{password}\n")
        server = {
            "port": "0",
            "unixsocket": _quoted(redis_socket),
            "unixsocketperm": "700",
            "dir": _quoted(self.path),
            "save": '""',
            "appendonly": "no",
            "maxmemory": _MEMORY,
            "maxmemory-policy": "noeviction",
            "requirepass": password,
            "loglevel": "warning",
        }
        self.redis_config.write_text("".join(f"{name} {value}\n" for name, value in server.items()), encoding="utf-8")
        settings: dict[str, dict[str, str | float]] = {
            "cluster": {"name": "solo"},
            "redis": {"url": f"unix://{quote(str(redis_socket))}", "password_file": password_file.name},
            "signing": {"private_key_file": "signing.key", "public_key_file": "signing.pub"},
            "link": {"directory": "link"},
            "reschedule": {"mode": mode.value, "timeout": _TIMEOUT},
            "controller": {"listen": _listen(self._port)},
        }
        self.config.write_text(_toml(settings))

    def renew_port(self) -> None:
        """Write another port of the controller if something else has its port by now."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # its own connections may linger
            try:
                probe.bind(("127.0.0.1", self._port))
            except OSError:
                before, self._port = self._port, _free_port()
                self.config.write_text(self.config.read_text().replace(_listen(before), _listen(self._port)))

    def trim_log(self) -> None:
        """Begin a new log if the present one is large; the one before it is kept."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > _LOG_BYTES:
                # The children go on appending to the same file.
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)

    def log_tail(self) -> str:
        """Return the last line of the log, "" without one."""
        with contextlib.suppress(OSError):
            lines = self.log.read_text(errors="replace").split("\n")
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    def remove(self) -> None:
        """Remove everything."""
        until = time.monotonic() + _REMOVAL
        while self.path.exists() and time.monotonic() < until:
            shutil.rmtree(self.path, ignore_errors=True)
            time.sleep(0.05)
        os.close(self._lock)


def remove_leftovers() -> None:
    """Remove the directories of this user's runs that no longer live."""
    for directory in own_directories():
        with contextlib.suppress(OSError):
            remove_unlocked(directory)


def _make_locked(prefix: str) -> tuple[Path, int]:
    """Return a new directory and its lock."""
    while True:  # until it is locked, another run may take it for a dead one's
        path = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = open_directory(path)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            os.close(lock)
            path.rmdir()
            problem = f"{path.parent} locks no directory ({error.strerror}); set TMPDIR to a local one"
            raise SoloError(problem) from error
        if path.exists():
            return path, lock
        os.close(lock)


def _quoted(path: Path) -> str:
    """Return a path as redis.conf has it, which knows no escapes of letters."""
    return json.dumps(str(path), ensure_ascii=False)


def _listen(port: int) -> str:
    return f"127.0.0.1:{port}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _toml(sections: Mapping[str, Mapping[str, str | float]]) -> str:
    lines = ["# A solo run of Rechannel; removed when its driver ends."]
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join([*lines, ""])
