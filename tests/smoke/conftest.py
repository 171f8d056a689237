"""The stack that the tests of single drivers share: Redis and one node with two cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.stack import Stack, standalone


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    directory = tmp_path_factory.mktemp("drivers")
    with Stack(directory, {"cluster": {"name": "drivers"}}, standalone(["127.0.0.95"], 2, 2048)) as stack:
        yield stack
