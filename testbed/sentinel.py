"""A master, a replica and three sentinels of Redis or Valkey, on loopback ports of one machine."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from testbed.processes import Block, ManagedProcess, ProcessGroup
from testbed.redis_server import find_server, free_port

__all__ = ["SentinelCluster", "ask"]

_PATIENCE = 90.0  # seconds


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
    """Two servers, the first of them the master, and the sentinels that watch it as the service ``service``."""

    def __init__(
        self, group: ProcessGroup, *, service: str = "rechannel", sentinels: int = 3, down_after_ms: int = 1000
    ) -> None:
        self.service = service
        self.down_after_ms = down_after_ms
        self.servers = [free_port(), free_port()]
        self.sentinels = [free_port() for _ in range(sentinels)]
        self.directory = Path(tempfile.mkdtemp(prefix="rechannel-sentinel-"))
        self.binary = find_server()
        self.processes: dict[int, ManagedProcess] = {}
        self._group = group

    @property
    def url(self) -> str:
        """The address as `redis.url` takes it."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.sentinels)
        return f"sentinel://{places}/0?service={self.service}"

    def start(self) -> Self:
        """Start all, and wait until the replica follows and the sentinels know one another."""
        first, second = self.servers
        self.start_server(first)
        self.start_server(second, follows=first)
        self._until(lambda: "master_link_status:up" in ask(second, "INFO", "replication"), "the replica to follow")
        for port in self.sentinels:
            lines = [
                f"sentinel monitor {self.service} 127.0.0.1 {first} {len(self.sentinels) // 2 + 1}",
                f"sentinel down-after-milliseconds {self.service} {self.down_after_ms}",
                f"sentinel failover-timeout {self.service} {self.down_after_ms * 5}",
            ]
            self._start(port, lines, "--sentinel")
        knows = f"slaves=1,sentinels={len(self.sentinels)}"
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
            answer = ask(port, "SENTINEL", "get-master-addr-by-name", self.service).split()
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
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            for process in self.processes.values():
                process.require_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {_PATIENCE:g} s for {what} in vain")
            time.sleep(0.05)
