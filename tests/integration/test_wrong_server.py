"""Messages about an address with another server behind it, or with a Redis that refuses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.measurements import AgentEvidence
from rechannel.wire.redis.errors import StoreRefusedError, StoreUnavailableError
from rechannel.wire.redis.store import Store
from testbed.redis_server import RedisServer

pytestmark = [pytest.mark.redis, pytest.mark.timeout(60)]

Answering = Callable[[bytes], int]


@pytest.fixture
def answering() -> Iterator[Answering]:
    """Start servers that send these bytes for whatever they are sent, and hang up; returns their ports."""
    servers: list[socket.socket] = []

    def serve(server: socket.socket, answer: bytes) -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(65536)
                client.sendall(answer)

    def start(answer: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(target=serve, args=(server, answer), daemon=True).start()
        return int(server.getsockname()[1])

    yield start
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b":5\r\n", b":abc\r\n"],
)
def test_what_is_not_redis(answering: Answering, answer: bytes) -> None:
    port = answering(answer)
    with pytest.raises(StoreRefusedError) as caught:
        Store(RedisSettings(url=f"redis://127.0.0.1:{port}/0", timeout=2), "default").check()
    assert str(caught.value) == f"redis://127.0.0.1:{port}/0 answered, but not as a Redis server; check redis.url"


@pytest.mark.parametrize("answer", [b"", b"\x15\x03\x03\x00\x02\x02\x28"])
def test_a_server_that_hangs_up_may_want_tls(answering: Answering, answer: bytes) -> None:
    port = answering(answer)
    with pytest.raises(StoreUnavailableError, match=r"whether it requires TLS \(rediss://\)"):
        Store(RedisSettings(url=f"redis://127.0.0.1:{port}/0", timeout=2), "default").check()


@pytest.fixture
def client(server: RedisServer) -> Iterator[Any]:
    client = redis.Redis(unix_socket_path=str(server.socket_path), password="geheim")
    yield client
    client.close()


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path) -> RedisSettings:
    password = tmp_path / "password"
    password.write_text("geheim")
    return RedisSettings(url=f"unix://{server.socket_path}", password_file=str(password))


def written(settings: RedisSettings) -> None:
    store = Store(settings, "default")
    try:
        envelope = EnvelopeFactory("default", "agent:n").envelope(AgentEvidence(node="n", closed=[]), ttl=60)
        store.append(keys.EVIDENCE, "n", envelope)
    finally:
        store.close()


def test_a_database_that_there_is_not(settings: RedisSettings) -> None:
    other = RedisSettings(url=f"{settings.url}?db=99", password_file=settings.password_file)
    with pytest.raises(StoreRefusedError, match="has no such database; change the number"):
        Store(other, "default").check()


def test_a_redis_that_takes_no_writes_is_waited_for(settings: RedisSettings, client: Any) -> None:
    written(settings)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="is full and takes no writes now; raise maxmemory"):
            written(settings)
    finally:
        client.config_set("maxmemory", "0")
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="is a replica and takes no writes now; name the master"):
            written(settings)
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    written(settings)


def test_a_command_that_the_server_lacks_is_no_right(settings: RedisSettings) -> None:
    """As CONFIG, where a provider took it away: it would make everybody an administrator."""
    store = Store(settings, "default")
    assert not store.can_run("NOSUCHCOMMAND")
    assert store.can_run("CONFIG", "GET")
    store.close()


def test_after_an_answer_of_a_replica_a_store_connects_anew(settings: RedisSettings, client: Any) -> None:
    """The name in `redis.url` may lead to another server by then."""
    store = Store(settings, "default")
    connection = store._redis.client_id()
    assert store._redis.client_id() == connection
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    try:
        with pytest.raises(StoreUnavailableError, match="is a replica"):
            store.set_paused(True)
    finally:
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert store._redis.client_id() != connection
    store.close()
