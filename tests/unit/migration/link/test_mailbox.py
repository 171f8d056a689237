"""The mailbox in the user's driver: its messages, its bounds, and its log on a defect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from rechannel.conf.settings import RedisSettings
from rechannel.daemon.model import collector as collect
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.model.snapshot import Snapshot, take_snapshot
from rechannel.migration.link import mailbox
from rechannel.migration.link.mailbox import Closing, Mailbox
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory
from rechannel.wire.measurements import AgentEvidence, BatchReport, ClosedStore, StageRun
from rechannel.wire.messages import LastPlacement
from rechannel.wire.redis.errors import StoreTooLargeError, StoreUnavailableError
from unit.daemon import fakes
from unit.daemon.fake_store import NOW, FakeClock, FakeStore
from unit.daemon.fakes import APP, QUERY, settings
from unit.migration.samples import accepted_move, closed_store

LINK = Path(mailbox.__file__).parent


@pytest.fixture(autouse=True)
def _as_in_a_driver() -> Iterator[None]:
    """Nobody has set up logging: structlog does as it does by default."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_a_failed_exchange_is_logged_without_values_of_variables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    box = Mailbox(RedisSettings(), EnvelopeFactory("default", "link"), "app-1", None)

    def fails() -> None:
        password = "".join(("MARKED", "password"))
        box._stop.set()
        raise ZeroDivisionError(str(len(password)))

    monkeypatch.setattr(mailbox, "_PERIOD", 0.0)
    monkeypatch.setattr(box, "_exchange", fails)
    box._run()
    output = "".join(capsys.readouterr())
    assert "an exchange with redis failed" in output
    assert "in fails" in output, "the traceback"
    assert "MARKEDpassword" not in output


def test_no_module_of_the_link_logs_exceptions_by_structlog() -> None:
    for module in LINK.glob("*.py"):
        text = module.read_text()
        assert "exc_info" not in text, module
        assert ".exception(" not in text, module


# -- batches of any size --


def huge(partitions: int, number: int = 9) -> BatchReport:
    """A batch with a source task and a stateful one for each partition, on four executors."""
    runs = [
        StageRun(
            spark_stage=2 * number + stage,
            parents=[2 * number] if stage else [],
            stateful_stage=stage - 1,
            tasks=[
                fakes.task(number * 10**6 + stage * partitions + part, part, str(part % 4), run=0.5, start=NOW - 2)
                for part in range(partitions)
            ],
        )
        for stage in range(2)
    ]
    start = NOW - 5.0 * (10 - number)
    return BatchReport(query=QUERY, batch=number, start=start, end=start + 4, input_rows=1, stages=runs)


def in_redis(store: FakeStore) -> list[bytes]:
    return [data for _, data in store.streams[store.keys(keys.BATCHES, APP)]]


@pytest.fixture
def store() -> FakeStore:
    return FakeStore(FakeClock())


@pytest.fixture
def link(store: FakeStore) -> Mailbox:
    """A mailbox whose Redis is in memory, and which exchanges messages in ``_exchange`` alone."""
    box = Mailbox(RedisSettings(), EnvelopeFactory("default", "link", store.clock), APP, None, store.clock)
    box._store = store  # type: ignore[assignment]
    return box


@pytest.fixture
def collector(store: FakeStore) -> Collector:
    return Collector(store, settings(batches=1), store.clock)  # type: ignore[arg-type]


def gathered(collector: Collector) -> list[BatchReport]:
    """Return the whole batches that a controller has by now."""
    collector.refresh()
    messages = collector.gather(APP)
    return list(messages.batches) if messages is not None else []


def post_evidence(store: FakeStore, node: str, *stores: ClosedStore) -> None:
    envelopes = EnvelopeFactory("default", "agent", store.clock)
    store.append(keys.EVIDENCE, node, envelopes.envelope(AgentEvidence(node=node, closed=list(stores)), ttl=60))


@pytest.mark.parametrize(("partitions", "messages"), [(1, 1), (2000, 1), (2001, 2), (200_000, 100)])
def test_a_batch_of_any_size_can_be_decided_on(
    store: FakeStore, link: Mailbox, collector: Collector, partitions: int, messages: int
) -> None:
    where = [str(part % 4) for part in range(partitions)]
    sent = huge(partitions)
    link.post_report(fakes.report([fakes.query(where)]), ())
    link.post_batch(sent, "run-1")
    link._exchange()
    assert link.dropped == 0
    assert len(in_redis(store)) == messages
    assert max(map(len, in_redis(store))) < 2**20
    for executor in range(4):
        window = fakes.window(executor)
        envelope = EnvelopeFactory("default", "agent", store.clock).envelope(window, ttl=60)
        store.append(keys.WINDOWS, window.node, envelope)
    assert gathered(collector) == [sent]
    snapshot = take_snapshot(collector.gather(APP), settings(batches=1), NOW)
    assert isinstance(snapshot, Snapshot), snapshot
    stage = snapshot.workload.stage(f"{QUERY}/0")
    assert stage.busy.shape == (partitions,) and (stage.busy > 0).all()
    assert snapshot.bytes_to_load[f"{QUERY}/0"].min() > 0


def test_parts_that_are_missing_are_counted_and_no_part_is_taken_for_a_batch(
    store: FakeStore, link: Mailbox, collector: Collector
) -> None:
    link.post_report(fakes.report([fakes.query(["0"] * 5000)]), ())
    entries = store.streams[store.keys(keys.BATCHES, APP)]
    link.post_batch(huge(5000, 7), "run-1")
    link._exchange()
    missing = entries.pop(1)
    assert gathered(collector) == [] and collector.incomplete == 0, "it may still come"
    link.post_batch(huge(5000, 8), "run-1")
    link._exchange()
    assert [batch.batch for batch in gathered(collector)] == [8]
    assert collector.incomplete == 1
    store.append_raw(keys.BATCHES, APP, missing[1])
    link.post_batch(huge(5000, 9), "run-1")
    link._exchange()
    assert [batch.batch for batch in gathered(collector)] == [8, 9]
    assert collector.incomplete == 2


def test_a_batch_whose_sending_broke_off_is_sent_again_and_counts_once(
    store: FakeStore, link: Mailbox, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.post_report(fakes.report([fakes.query(["0"] * 50_000)]), ())
    link._exchange()
    sent = huge(50_000)
    link.post_batch(sent, "run-1")
    real, calls = store.append, []

    def breaks_off(*arguments: Any, **options: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise StoreUnavailableError("gone")
        real(*arguments, **options)

    monkeypatch.setattr(store, "append", breaks_off)
    with pytest.raises(StoreUnavailableError):
        link._exchange()
    link._exchange()
    assert len(in_redis(store)) == 10 + 25
    assert max(len(arguments[2:]) for arguments in calls) == 10, "a few megabytes are made ready at once, not all"
    assert gathered(collector) == [sent]
    assert collector.incomplete == 0


def test_batches_of_which_parts_are_missing_are_bounded_in_bytes(
    store: FakeStore, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "_MAX_PART_BYTES", 1_000_000)
    envelopes = EnvelopeFactory("default", "link", store.clock)
    queries = [fakes.query(["0"] * 5000, f"q{number}") for number in range(10)]
    report = envelopes.envelope(fakes.report(queries), ttl=60, application=APP)
    store.put(keys.REPORT, APP, report)
    store.register_application(APP, NOW)
    for query in queries:
        part = msgspec.structs.replace(mailbox.parts_of(huge(5000))[0], query=query.query)
        store.append(keys.BATCHES, APP, envelopes.envelope(part, ttl=60, application=APP, run="run-1"))
    gathered(collector)
    stored = [batch.size for state in collector._applications.values() for batch in state.partial.values()]
    assert 500_000 < sum(stored) <= 1_000_000
    assert collector.incomplete == 10 - len(stored)


def test_redis_keeps_three_batches_of_each_query_and_no_more_than_it_may(store: FakeStore, link: Mailbox) -> None:
    """Of 10,000 tasks a batch that is some ten megabytes; 512 entries were six hundred."""
    link.post_report(fakes.report([fakes.query(["0"] * 5000)]), ())
    batch = huge(5000)
    for number in range(60):
        link.post_batch(msgspec.structs.replace(batch, batch=number), "run-1")
        link._exchange()
    total = sum(map(len, in_redis(store)))
    assert 3 * 10_000 * 100 < total <= 32 * 2**20


# -- what is held in the user's driver --


def of(query: str, number: int, rows: int = 600) -> BatchReport:
    return msgspec.structs.replace(huge(rows // 2, number), query=query)


def names(batches: list[tuple[str, BatchReport]]) -> list[str]:
    return [f"{batch.query}{batch.batch}" for _, batch in batches]


def test_the_newest_batch_of_each_query_is_sent_whatever_the_others_sizes(
    link: Mailbox, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_MAX_TASKS", 1000)
    link.post_report(fakes.report([fakes.query(["0"] * 300, query) for query in "abc"]), ())
    for batch in (of("a", 1), of("b", 1), of("a", 2), of("c", 1, 100), of("b", 2)):
        link.post_batch(batch, "run-1")
    assert names(link._batches) == ["a2", "c1", "b2"] and link.dropped == 2
    link._exchange()
    assert {f"{batch.query}{batch.batch}" for batch in gathered(collector)} == {"a2", "c1", "b2"}
    assert link.dropped == 2


def test_the_newest_batches_have_a_bound_too(link: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_MAX_TASKS", 1000)
    monkeypatch.setattr(mailbox, "_MAX_NEWEST", 2000)
    for query in "abcd":
        link.post_batch(of(query, 1), "run-1")
    assert names(link._batches) == ["b1", "c1", "d1"] and link.dropped == 1


def test_a_batch_too_large_to_be_held_is_named(link: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_MAX_BATCH_TASKS", 1199)
    link.post_batch(of("a", 1, 1000), "run-1")
    assert not link.problem
    link.post_batch(of("b", 7, 1200), "run-1")
    assert names(link._batches) == ["a1"] and link.dropped == 1
    link.post_batch(of("c", 8, 1300), "run-1")
    assert (
        link.problem == "batches of more than 1,199 tasks are not reported, nor decided on: query b (1,200), c (1,300)"
    )
    link.post_batch(of("b", 8, 1000), "run-1")
    assert link.problem.endswith("query c (1,300)")
    link.post_report(fakes.report([fakes.query(["0"] * 300, "b")]), ())
    assert not link.problem, "it has ended"


def test_a_batch_that_is_being_sent_is_neither_dropped_nor_counted(
    store: FakeStore, link: Mailbox, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_MAX_TASKS", 1000)
    link.post_report(fakes.report([fakes.query(["0"] * 300)]), ())
    link._exchange()
    real, later = store.append, [3, 2]

    def meanwhile(*arguments: Any, **options: Any) -> None:
        if later:
            link.post_batch(of(QUERY, later.pop()), "run-1")
            raise StoreUnavailableError("gone")
        real(*arguments, **options)

    monkeypatch.setattr(store, "append", meanwhile)
    link.post_batch(of(QUERY, 1), "run-1")
    for waiting, dropped in (([2], 1), ([3], 2)):  # sending breaks off, and there is a newer one by then
        with pytest.raises(StoreUnavailableError):
            link._exchange()
        assert names(link._batches) == [f"{QUERY}{number}" for number in waiting] and link.dropped == dropped
    later.append(4)

    def arrives(*arguments: Any, **options: Any) -> None:
        while later:
            link.post_batch(of(QUERY, later.pop()), "run-1")
        real(*arguments, **options)

    monkeypatch.setattr(store, "append", arrives)
    link._exchange()
    assert [batch.batch for batch in gathered(collector)] == [3, 4] and link.dropped == 2


def test_orders_arrive_though_redis_takes_no_writes(
    store: FakeStore, link: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("Redis is full and takes no writes now")

    received: list[str] = []
    for name in ("_receive_desired", "_receive_orders", "_receive_evidence"):
        monkeypatch.setattr(link, name, lambda _store, name=name: received.append(name))
    monkeypatch.setattr(store, "put", full)
    link.post_report(fakes.report([fakes.query(["0"])]), ())
    with pytest.raises(StoreUnavailableError, match="is full"):
        link._exchange()
    assert received == ["_receive_desired", "_receive_orders", "_receive_evidence"]


def test_nothing_that_waits_grows_while_redis_is_away(store: FakeStore, link: Mailbox) -> None:
    store.away = True
    rows = fakes.batch(1, ["0"] * 40)
    for number in range(3000):
        query = f"query-{number}"
        link.post_batch(msgspec.structs.replace(rows, query=query, batch=number), "run-1")
        link.post_placement(LastPlacement(query=query, name="", batch=1, operators={0: ["0"]}, hosts={}))
        link.post_journal([accepted_move(number).first_transition(NOW)] * 10)
        link.post_report(fakes.report([fakes.query(["0"], query)]), {f"node-{number}"})
        store.clock.sleep(1.0)
    assert len(link._batches) <= 512 and sum(batch.tasks for _, batch in link._batches) <= 100_000
    assert len(link._unsent_placements) <= 1000 and len(link._current_placements) == 1 and len(link._batch_sizes) <= 1
    assert len(link._journal) == 5000
    assert len(link._cursors) <= 301
    assert link.dropped == (3000 - 512) + (3000 - 1000) + (30_000 - 5000)


def test_last_placements_of_running_queries_are_written_again(store: FakeStore, link: Mailbox) -> None:
    link.post_report(fakes.report([fakes.query(["0"])]), ())
    for query in (QUERY, "ended"):
        link.post_placement(LastPlacement(query=query, name="", batch=1, operators={0: ["0"]}, hosts={}))
    link.post_report(fakes.report([fakes.query(["0"])]), ())
    link._exchange()
    store.empty()
    for seconds, written in ((299.0, []), (2.0, [QUERY])):
        store.clock.sleep(seconds)
        link._exchange()
        assert [query for query in (QUERY, "ended") if store.get(keys.PLACEMENT, query)] == written


def test_placements_that_wait_are_bounded_in_partitions_too(link: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "_MAX_PARTITIONS", 1000)
    for number in range(10):
        where = {0: ["0"] * 200, 1: ["0"] * 200}
        link.post_placement(LastPlacement(query=f"q{number}", name="", batch=1, operators=where, hosts={}))
    assert list(link._unsent_placements) == ["q8", "q9"]
    assert link.dropped == 8


def test_a_huge_batch_waits_for_no_redis_that_is_away(
    store: FakeStore, link: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "_MAX_TASKS", 1000)
    monkeypatch.setattr(mailbox, "_PERIOD", 0.0)
    store.away = True
    link.post_batch(huge(1000), "run-1")
    assert len(link._batches) == 1, "Redis may take it at once"
    link._stop.set()
    link._run()
    assert len(link._batches) == 0 and link.dropped == 1


def test_a_message_too_large_for_redis_holds_up_no_other(
    store: FakeStore, link: Mailbox, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(rule: keys.KeyRule, *_: Any) -> None:
        if rule is keys.REPORT:
            raise StoreTooLargeError("too large (test)")

    store.put = refuses  # type: ignore[method-assign]
    link.post_report(fakes.report([]), ())
    link.post_batch(fakes.batch(1, ["0"]), "run-1")
    link._exchange()
    link.post_report(fakes.report([]), ())
    link._exchange()
    assert link.dropped == 2 and link._report is None
    assert len(in_redis(store)) == 1
    assert capsys.readouterr().out.count("too large for redis") == 1


# -- evidence --


def closed(store: FakeStore, node: str, partition: int) -> Closing:
    """Have a node's agent report that a store was closed."""
    item = closed_store(run="run-1", partition=partition)
    post_evidence(store, node, item)
    return Closing(item, store.clock())


def test_no_node_is_read_while_no_evidence_is_awaited(store: FakeStore, link: Mailbox) -> None:
    closed(store, "node-1", 1)
    for _ in range(10):
        link.post_report(fakes.report([fakes.query(["0"])]), ())
        link._exchange()
    assert store.reads == []
    assert link.pop_closings() == []


def test_evidence_from_before_it_was_awaited_is_delivered_once(store: FakeStore, link: Mailbox) -> None:
    closed(store, "node-1", 1)
    store.clock.sleep(400)
    recent = closed(store, "node-1", 2)
    store.clock.sleep(200)
    link.post_report(fakes.report([]), {"node-1"})
    link._exchange()
    assert link.pop_closings() == [recent], "not what is older than can matter"
    link._exchange()
    assert link.pop_closings() == []


def test_evidence_that_waited_for_redis_has_the_time_at_which_it_was_seen(store: FakeStore, link: Mailbox) -> None:
    item = closed_store()
    evidence = AgentEvidence(node="node-1", closed=[item])
    seen = EnvelopeFactory("default", "agent", store.clock).envelope(evidence, ttl=3600)
    store.clock.sleep(200)
    store.append(keys.EVIDENCE, "node-1", seen)
    link.post_report(fakes.report([]), {"node-1"})
    link._exchange()
    assert link.pop_closings() == [Closing(item, NOW)]


def test_a_node_awaited_again_is_read_on_from_where_it_was_left(store: FakeStore, link: Mailbox) -> None:
    closed(store, "node-1", 1)
    link.post_report(fakes.report([]), {"node-1"})
    link._exchange()
    assert len(link.pop_closings()) == 1
    link.post_report(fakes.report([]), ())
    store.clock.sleep(60)
    meanwhile = closed(store, "node-1", 2)
    link._exchange()
    assert link.pop_closings() == []
    link.post_report(fakes.report([]), {"node-1"})
    link._exchange()
    assert link.pop_closings() == [meanwhile]


def test_all_nodes_are_read_at_once_and_a_size_only_where_it_is_in_doubt(store: FakeStore, link: Mailbox) -> None:
    nodes = {f"node-{number}" for number in range(1000)}
    link.post_report(fakes.report([]), nodes | {"no key {can have this}"})
    for _ in range(3):
        link._exchange()
    assert [(len(after), len(doubtful)) for after, doubtful in store.reads] == [(1000, 1000), (1000, 0), (1000, 0)]
    post_evidence(store, "node-7", *[closed_store()] * 3000)
    for _ in range(3):
        link._exchange()
    assert [doubtful for _, doubtful in store.reads[3:]] == [set(), {"node-7"}, set()]
