"""A leading controller over one application, on fakes."""

from __future__ import annotations

import pytest

from rechannel.daemon.control.controller import Controller
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import World, leading


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> FakeStore:
    return FakeStore(clock)


@pytest.fixture
def world(store: FakeStore, clock: FakeClock) -> World:
    return World(store, clock)


@pytest.fixture
def leader(world: World) -> Controller:
    """A leading controller over an application whose first executor holds half of the partitions."""
    return leading(world)
