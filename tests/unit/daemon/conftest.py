"""A leading controller over one application, on fakes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from rechannel.daemon.control import outcomes
from rechannel.daemon.control.controller import Controller
from rechannel.migration.plan.cost import LoadRates
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import World, leading


@pytest.fixture(autouse=True)
def _cheap_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves gain a few percent of a fake batch, so that their loads must cost little."""
    monkeypatch.setattr(outcomes, "UNMEASURED", LoadRates(0.01, 50e6))


@pytest.fixture
def _log_restored() -> Iterator[None]:
    """The set-up of logging is put back afterwards."""
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before
    structlog.reset_defaults()


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
