"""What queries, stages and numbers are called."""

from __future__ import annotations

import pytest

from rechannel.wire.printable import count, partition_name, query_name, stage_name

UUID = "895c1599-0c4d-4e3f-9d0e-1f2a3b4c5d6e"


@pytest.mark.parametrize(
    ("query", "name", "shown"), [(UUID, "join", "join"), (UUID, "", "query-895c1599"), ("q1", "", "q1")]
)
def test_a_query_has_one_readable_name(query: str, name: str, shown: str) -> None:
    assert query_name(query, name) == shown
    assert stage_name(query, 1, name) == f"{shown}/1"
    assert partition_name(query, 1, 7, name) == f"{shown}/1 #7"


def test_one_is_no_plural() -> None:
    assert [count(number, "executor") for number in (0, 1, 2)] == ["0 executors", "1 executor", "2 executors"]
    assert [count(number, "batch") for number in (1, 1200)] == ["1 batch", "1,200 batches"]
