"""Memory of Redis at the bounds of the keys, and trimming of streams."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rechannel.wire import keys
from rechannel.wire.redis import capacity
from rechannel.wire.redis.capacity import StreamTrimmer

EXAMPLES = (
    (3, 1, capacity.Application(executors=6, queries=4, partitions=800)),
    (100, 10, capacity.Application(executors=40, queries=10, partitions=4_000)),
    (1000, 1, capacity.Application(executors=1000, queries=1, partitions=200_000)),
    (1000, 100, capacity.Application(executors=40, queries=10, partitions=4_000)),
)


def test_the_page_has_the_table_of_memory():
    page = (Path(__file__).parents[4] / "docs" / "redis-keys.md").read_text()
    lines = [
        "| nodes | applications | queries of each | partitions of each | nodes take | applications take | in all |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for nodes, count, one in EXAMPLES:
        parts = capacity.NODE * nodes, one.size * count, capacity.required_memory(nodes, [one] * count)
        cells = (nodes, count, one.queries, one.partitions)
        lines.append(f"| {' | '.join([*(f'{it:,}' for it in cells), *map(capacity.format_mib, parts)])} |")
    assert "\n".join(lines) in page
    for figure in (f"{capacity.NODE / 2**20:.2f} for each node", f"{capacity.CLUSTER / 2**20:.0f} for the cluster"):
        assert figure in page


def test_the_memory_of_an_application_grows_with_its_tasks():
    one = capacity.Application(executors=50, queries=1, partitions=5_000)
    assert one.size < 64 * 2**20
    assert capacity.batch_budget(10_000) == capacity.LEAST_BATCH_BUDGET
    assert capacity.batch_budget(800_000) == keys.BATCHES.size >= capacity.LEAST_BATCHES * 400_000 * capacity.TASK_BYTES
    assert one.size < capacity.Application(executors=50, queries=1, partitions=200_000).size
    assert capacity.required_memory(10, [one]) > capacity.required_memory(9, [one]) > capacity.required_memory(9, [])


def test_a_stream_is_trimmed_to_as_many_entries_as_fit():
    trimming = StreamTrimmer(bound=10)
    assert [trimming.add(40, most=100) for _ in range(4)] == [2, 2, 2, 2], "as if earlier ones were as large"
    assert trimming.add(10, most=100) == 3
    assert [trimming.add(1, most=100) for _ in range(12)] == [4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 10, 10]
    assert trimming.add(500, most=100) == 1, "the newest stays in any case"


def test_entries_of_an_earlier_writer_stay_while_there_is_room():
    trimming = StreamTrimmer(bound=1000)
    assert trimming.add(10, most=1000) == 100
    assert trimming.add(50, most=1000) == 2 + 940 // 50
    assert trimming.add(900, most=1000) == 3 + 40 // 900
    assert trimming.add(100, most=1000) == 2


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 50), st.integers(1, 1000))
def test_the_remaining_entries_always_fit(sizes: list[int], bound: int, most: int) -> None:
    trimming, stored = StreamTrimmer(bound), list[int]()
    for size in sizes:
        stored = [*stored, size][-trimming.add(size, most) :]
        assert len(stored) == 1 or (sum(stored) <= most and len(stored) <= bound)
