"""Fixtures of the tests of single drivers: a stack of Redis and one node with two cores, and a short directory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.stack import Stack, standalone


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("drivers")
    with Stack(directory, {"cluster": {"name": "drivers"}}, standalone(["127.0.0.95"], 2, 2048)) as stack:
        yield stack


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short directory for temporary files, since sockets have short names."""
    with tempfile.TemporaryDirectory(prefix="smoke") as path:
        yield Path(path)
