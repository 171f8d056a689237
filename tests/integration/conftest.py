"""Fixtures of these tests: a real server with a password, and its store.

Each module has its own ``settings``, by which the store connects.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from unit.daemon.fakes import World

from rechannel.conf.settings import Settings
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with ProcessGroup(tmp_path_factory.mktemp("logs")) as group:
        server = RedisServer(group, password="geheim").start()
        yield server
        server.close()


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    """A store on an empty server."""
    made = Store(settings.redis, settings.cluster.name)
    made._redis.flushall()
    yield made
    made.close()


@pytest.fixture
def world(store: Store) -> World:
    """Agents and a link that have said all that a decision needs."""
    made = World(store, time.time)  # type: ignore[arg-type]
    made.ready()
    return made
