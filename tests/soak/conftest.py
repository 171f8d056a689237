"""The stack that these tests share: Redis and three nodes with a one-core executor each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.stack import Stack, standalone

NODES = ("127.0.0.93", "127.0.0.94", "127.0.0.95")


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("soak"), {"cluster": {"name": "soak"}}, standalone(NODES, 1, 1024)) as stack:
        yield stack
