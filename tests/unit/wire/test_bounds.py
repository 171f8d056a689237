"""Bounds of what a controller reads and keeps, whatever the size of the content of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from rechannel.conf.time_windows import clock_time
from rechannel.daemon.model import collector as collect
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.collector import Collector, implausibility
from rechannel.daemon.model.readiness import readiness_problem
from rechannel.wire import keys
from rechannel.wire.envelope import MessageError, decode, encode
from rechannel.wire.measurements import AgentWindow, BatchReport
from rechannel.wire.redis.streams import read_new_entries
from unit.daemon import fakes
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.daemon.fakes import APP, CONFIG
from unit.wire.hostile import HOST, MAP_OUTPUTS, PLACEMENT, sealed, world


def test_a_reports_size_is_what_it_brings_not_what_it_claims() -> None:
    """A hundred bytes must not make a controller lay out gigabytes."""
    store, clock, _ = world()
    claims = fakes.report([fakes.query(PLACEMENT)])
    stage = msgspec.structs.replace(claims.queries[0].stages[0], partitions=2**40)
    query = msgspec.structs.replace(claims.queries[0], stages=[stage])
    claims = msgspec.structs.replace(claims, queries=[query])
    store.put(keys.REPORT, APP, sealed(claims))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    assert collector.refresh() == {}
    assert store.rejected == 1
    assert "1099511627776 partitions" in implausibility(claims)


def test_a_link_that_claims_a_huge_epoch_leaves_epochs_room() -> None:
    claims = msgspec.structs.replace(fakes.report([]), accepted_epoch=2**53)
    assert decode(encode(sealed(claims))).body == claims
    with pytest.raises(MessageError):
        decode(encode(sealed(msgspec.structs.replace(claims, accepted_epoch=2**53 + 1))))


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_every_time_in_a_message_is_a_date(zone: str) -> None:
    for at in (-6e10, 1e11):
        claims = msgspec.structs.replace(fakes.report([]), attached=at)
        body = decode(encode(sealed(claims))).body
        assert body == claims
        assert clock_time(at, zone)
    with pytest.raises(MessageError):
        decode(encode(sealed(msgspec.structs.replace(fakes.report([]), attached=-1e11))))


def test_what_is_kept_of_batches_and_windows_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_MAX_BATCH_BYTES", 60_000)
    monkeypatch.setattr(collect, "_MAX_WINDOW_BYTES", 40_000)
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    for number in range(10, 400):
        store.append(keys.BATCHES, APP, sealed(fakes.batch(number, PLACEMENT), run="run-1"))
        store.append(keys.WINDOWS, HOST, sealed(fakes.window(0, end=NOW + number, map_outputs=MAP_OUTPUTS * 20)))
        collector.refresh()
        facts = collector.gather(APP)
    assert facts is not None
    stored = [*facts.batches, *(window for some in facts.windows.values() for window in some)]
    assert 80_000 < sum(map(bytes_of, stored)) < 110_000
    assert facts.batches[-1].batch == 399


def test_batches_that_no_decision_asks_for_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    size = bytes_of(fakes.batch(10, PLACEMENT))
    monkeypatch.setattr(collect, "_MAX_BATCH_BYTES", 10 * size)
    monkeypatch.setattr(collect, "_UNCHECKED_BYTES", 4 * size)
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    counts = []
    for number in range(10, 60):
        store.append(keys.BATCHES, APP, sealed(fakes.batch(number, PLACEMENT), run="run-1"))
        load = collector.read_newest_load(APP, ())
        assert load is not None and load.batches["q1"][-1].batch == number
        counts.append(len(load.batches["q1"]))
    assert max(counts[20:]) <= 15 and min(counts[20:]) == 10


def bytes_of(body: BatchReport | AgentWindow) -> int:
    """The memory of what the collector has."""
    return collect._StoredWindow.of(body).size if isinstance(body, AgentWindow) else collect.batch_bytes(body)


def gathered(store: FakeStore, clock: FakeClock, batches: Sequence[BatchReport], nodes: int) -> ApplicationMessages:
    """What a collector keeps of these batches, and of a window of every node with each of them."""
    store.put(keys.REPORT, APP, sealed(fakes.report([fakes.query(PLACEMENT)], count=nodes)))
    for batch in batches:
        store.append(keys.BATCHES, APP, sealed(batch, run="run-1"))
        for node in range(nodes):
            window = fakes.window(node, end=NOW + batch.batch, map_outputs=MAP_OUTPUTS * 10)
            store.append(keys.WINDOWS, window.node, sealed(window))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    facts = collector.gather(APP)
    assert facts is not None
    return facts


def test_many_nodes_do_not_displace_the_batches_of_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do they with a query whose batches are a hundred times as large as a window."""
    store, clock, _ = world()
    need = CONFIG.reschedule.batches
    huge = [fakes.batch(number, PLACEMENT * 60) for number in range(10, 10 + 2 * need)]
    size = bytes_of(huge[0])
    monkeypatch.setattr(collect, "_MAX_BATCH_BYTES", size)
    monkeypatch.setattr(collect, "_MAX_NEEDED_BYTES", int((need + 0.5) * size))
    monkeypatch.setattr(collect, "_MAX_WINDOW_BYTES", 250_000)
    facts = gathered(store, clock, huge, nodes=30)
    assert [batch.batch for batch in facts.batches] == list(range(10 + need, 10 + 2 * need))
    ends = [[window.end for window in stored] for stored in facts.windows.values()]
    assert len(ends) == 30 and all(stored and stored[-1] == NOW + 9 + 2 * need for stored in ends)
    windows = [window for stored in facts.windows.values() for window in stored]
    assert sum(map(bytes_of, windows)) <= 250_000


def test_an_agent_is_not_silent_because_its_map_outputs_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_MAX_OUTPUT_BYTES", 100_000)
    facts = gathered(store, clock, [fakes.batch(number, PLACEMENT) for number in range(10, 14)], nodes=30)
    assert all(len(windows) >= 4 for windows in facts.windows.values())
    newest = [windows[-1] for windows in facts.windows.values()]
    assert all(window.executors for window in newest)
    assert 0 < sum(bool(window.map_outputs) for window in newest) < 30, "as many as fit"
    assert not any(window.map_outputs for windows in facts.windows.values() for window in windows[:-1])


def test_windows_are_bounded_while_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first read of many nodes holds at most twice the bound and the windows of one node."""
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_MAX_WINDOW_BYTES", 50_000)
    held: list[int] = []
    add_windows = Collector._add_windows

    def add(collector: Collector, *arguments: Any) -> int:
        result = add_windows(collector, *arguments)
        held.append(sum(it.size for node in collector._nodes.values() for it in node.windows))
        return result

    monkeypatch.setattr(Collector, "_add_windows", add)
    facts = gathered(store, clock, [fakes.batch(number, PLACEMENT) for number in range(10, 20)], nodes=100)
    assert len(held) == 100
    assert 50_000 < max(held) < 2 * 50_000 + held[0]
    assert len(facts.windows) == 100


def test_huge_batches_do_not_displace_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_MAX_BATCH_BYTES", 100_000)
    monkeypatch.setattr(collect, "_MAX_NEEDED_BYTES", 100_000)
    huge = [fakes.batch(number, PLACEMENT * 60) for number in range(10, 13)]
    assert all(bytes_of(batch) > 60_000 for batch in huge), "more than six shares"
    facts = gathered(store, clock, huge, nodes=10)
    assert len(facts.windows) == 10
    assert min(len(stored) for stored in facts.windows.values()) >= 3
    assert len(facts.batches) <= 1
    problem = readiness_problem(facts, CONFIG, NOW + 20)
    assert problem is not None and not problem.transient, "waiting does not help"
    assert "3 batches are needed (reschedule.batches), and have more tasks than the controller" in problem.sentence


def test_a_query_whose_batches_fit_again_is_decided_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    store.put(keys.REPORT, APP, sealed(fakes.report([fakes.query(PLACEMENT)])))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    monkeypatch.setattr(collect, "_MAX_BATCH_BYTES", 30_000)
    monkeypatch.setattr(collect, "_MAX_NEEDED_BYTES", 30_000)
    for numbers, size, oversized in (((10, 11, 12), 60, True), ((13, 14, 15), 1, False)):
        for number in numbers:
            store.append(keys.BATCHES, APP, sealed(fakes.batch(number, PLACEMENT * size), run="run-1"))
        facts = collector.gather(APP)
        assert facts is not None and bool(facts.oversized) == oversized
        assert (readiness_problem(facts, CONFIG, NOW + 20) is None) == (not oversized)


def test_reports_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    monkeypatch.setattr(collect, "_MAX_REPORT_BYTES", 20_000)
    for number in range(50):
        name = f"x-{number:02}"
        store.put(keys.REPORT, name, sealed(fakes.report([fakes.query(PLACEMENT)]), name))
        store.register_application(name, NOW)
    result = Collector(store, CONFIG, clock).refresh()  # type: ignore[arg-type]
    assert APP in result and 10 < len(result) < 30
    assert store.rejected == 51 - len(result)


def test_a_window_that_was_pushed_twice_counts_once() -> None:
    store, clock, _ = world()
    for end in (NOW + 5, NOW + 5, NOW + 10):
        store.append(keys.WINDOWS, HOST, sealed(fakes.window(0, end=end)))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    messages = collector.gather(APP)
    assert messages is not None
    assert [window.end for window in messages.windows[HOST]][-2:] == [NOW + 5, NOW + 10]


def test_a_batch_that_was_sent_twice_counts_once() -> None:
    store, clock, _ = world()
    for number in (20, 20, 21):
        store.append(keys.BATCHES, APP, sealed(fakes.batch(number, PLACEMENT), run="run-1"))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    messages = collector.gather(APP)
    assert messages is not None
    assert [batch.batch for batch in messages.batches][-2:] == [20, 21]
    assert len({batch.batch for batch in messages.batches}) == len(messages.batches)


def test_a_batch_of_a_query_that_began_after_the_report_waits_for_the_next_report() -> None:
    store, clock, _ = world()
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    clock.sleep(1)
    first = msgspec.structs.replace(fakes.batch(0, PLACEMENT, name="new"), start=clock() - 0.5, end=clock())
    store.append(keys.BATCHES, APP, sealed(first, run="run-1"))
    before = collector.gather(APP)
    assert before is not None and all(batch.query != "new" for batch in before.batches)
    queries = [fakes.query(PLACEMENT), fakes.query(PLACEMENT, "new")]
    store.put(keys.REPORT, APP, sealed(fakes.report(queries), time=clock() + 1))
    collector.refresh()
    after = collector.gather(APP)
    assert after is not None and first in after.batches
    store.put(keys.REPORT, APP, sealed(fakes.report([fakes.query(PLACEMENT)]), time=clock() + 2))
    collector.refresh()
    collector.gather(APP)
    assert "new" not in collector._applications[APP].batches, "it ended"


def test_a_query_whose_batches_were_all_evicted_is_read_on() -> None:
    store, clock, _ = world()
    store.append(keys.BATCHES, APP, sealed(fakes.batch(20, PLACEMENT), run="run-1"))
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]
    collector.refresh()
    assert collector.gather(APP) is not None
    for entries in collector._applications[APP].batches.values():
        entries.clear()
    store.append(keys.BATCHES, APP, sealed(fakes.batch(21, PLACEMENT), run="run-1"))
    messages = collector.gather(APP)
    assert messages is not None and [batch.batch for batch in messages.batches] == [21]


def test_a_query_that_begins_or_ends_is_noticed() -> None:
    store, clock, _ = world()
    collector = Collector(store, CONFIG, clock)  # type: ignore[arg-type]

    def since(*names: str) -> float:
        clock.sleep(10)
        store.put(
            keys.REPORT, APP, sealed(fakes.report([fakes.query(PLACEMENT, name) for name in names]), time=clock())
        )
        collector.refresh()
        messages = collector.gather(APP)
        assert messages is not None
        return messages.queries_since

    assert since("a") == 0.0, "as it was when the controller came"
    assert since("a", "b") == clock()
    began = msgspec.structs.replace(fakes.batch(0, PLACEMENT, name="b"), start=clock() + 4, end=clock() + 9)
    store.append(keys.BATCHES, APP, sealed(began, run="run-1"))
    assert since("a", "b") == began.start
    assert since("a", "b") == began.start
    assert since("b") == clock()


def test_the_newest_entries_are_read_though_one_answer_does_not_hold_them() -> None:
    store, clock, _ = world()
    store.page = 2
    for number in range(9):
        clock.sleep(1)
        store.append(keys.BATCHES, APP, sealed(fakes.batch(number, PLACEMENT)))
    _, result = read_new_entries(store, keys.BATCHES, APP, "", first=7)  # type: ignore[arg-type]
    assert [envelope.body.batch for envelope in result] == [2, 3, 4, 5, 6, 7, 8]


def test_an_untrimmed_stream_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock, _ = world()
    reads: list[int] = []
    plain = store.read
    monkeypatch.setattr(
        store, "read", lambda rule, name, after, count, _: (reads.append(count), plain(rule, name, after, count))[1]
    )
    entry = encode(sealed(fakes.window(0)))
    store.append_raw(keys.WINDOWS, HOST, entry)
    after, _ = read_new_entries(store, keys.WINDOWS, HOST, "", first=64)  # type: ignore[arg-type]
    clock.sleep(1)
    store.streams[store.keys(keys.WINDOWS, HOST)] += [((int(clock() * 1000), n), entry) for n in range(5000)]
    after, result = read_new_entries(store, keys.WINDOWS, HOST, after, first=64)  # type: ignore[arg-type]
    assert (len(result), after) == (64, f"{int(clock() * 1000)}-4999")
    assert sum(reads) <= 200 * 3
