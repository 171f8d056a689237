"""Fixtures of these tests: a real server, its store, what an application says there, and who leads.

``SERVER`` of a module: what its server has instead of a password; ``SECTIONS``: settings beside the server's address. A
module may have its own ``settings``, by which the store connects.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from integration.common import configured, leading, raw, state
from unit.daemon.fakes import World

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from rechannel.daemon import log
from rechannel.wire.redis.store import Store
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    options = getattr(request.module, "SERVER", {"password": "geheim"})
    with ProcessGroup(tmp_path_factory.mktemp("logs")) as group, RedisServer(group, **options) as server:
        yield server


@pytest.fixture
def config(
    request: pytest.FixtureRequest, server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A configuration file with a fresh key pair, which the environment names."""
    path = configured(tmp_path, server, request.module.SECTIONS)
    monkeypatch.setenv("RECHANNEL_CONFIG", str(path))
    return path


@pytest.fixture
def settings(config: Path) -> Settings:
    return load(config)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    """A store on an empty server."""
    made = Store(settings.redis, settings.cluster.name)
    raw(made).flushall()
    yield made
    made.close()


@pytest.fixture
def world(store: Store) -> World:
    """Agents and a link that have said all that a decision needs."""
    made = World(store, time.time)  # type: ignore[arg-type]
    made.ready()
    return made


@pytest.fixture
def led(settings: Settings, store: Store) -> Iterator[None]:
    """A controller that leads, in a thread of this process."""
    with leading(settings, lambda: state(store)):
        yield


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ProcessGroup]:
    with ProcessGroup(tmp_path / "logs") as group:
        yield group


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The log of daemons in this process, which must not get between the lines of the command line."""
    target = io.StringIO()
    log.set_up(target)
    yield target
    structlog.reset_defaults()
    logging.getLogger().handlers = []
