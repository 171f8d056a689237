"""What several of these tests share: a real server with a password."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.testbed.processes import ProcessGroup
from benchmarks.testbed.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with ProcessGroup(tmp_path_factory.mktemp("logs")) as group:
        server = RedisServer(group, password="geheim").start()
        yield server
        server.close()
