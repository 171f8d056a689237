"""Size of the keys in a real Redis at their bounds, and the cost of reading evidence."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from integration.common import raw
from unit.daemon import fakes

from rechannel.conf.settings import RedisSettings
from rechannel.migration.link.mailbox import Mailbox
from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, encode
from rechannel.wire.keys import KeyRule
from rechannel.wire.measurements import AgentEvidence, ClosedStore
from rechannel.wire.messages import AgentLimits, Reply
from rechannel.wire.redis.errors import StoreTooLargeError
from rechannel.wire.redis.store import Store
from testbed.redis_server import RedisServer

pytestmark = pytest.mark.redis
SERVER = {"options": {"maxmemory": "0"}}
AUTHOR = EnvelopeFactory("c", "test")
OVERHEAD = 1.3  # what Redis takes for a message, its entry and the allocator's rounding
STREAMS = [rule for rule in keys.TABLE if rule.kind == "stream"]
PUT = [rule for rule in keys.TABLE if rule.kind == "string" and rule.size == keys.MAX_MESSAGE_BYTES]


@pytest.fixture
def settings(server: RedisServer) -> RedisSettings:
    return RedisSettings(url=f"unix://{server.socket_path}", timeout=5.0)


@pytest.fixture
def store(settings: RedisSettings) -> Iterator[Store]:
    made = Store(settings, "c")
    raw(made).execute_command("FLUSHALL", "SYNC")
    yield made
    raw(made).flushall()
    made.close()


def message(size: int) -> Envelope:
    """A message of so many bytes, or of as few as one has."""
    least = len(encode(AUTHOR.envelope(Reply(request="1", code=0, sentence=""), ttl=60)))
    return AUTHOR.envelope(Reply(request="1", code=0, sentence="x" * max(0, size - least - 8)), ttl=60)


def taken(store: Store, rule: KeyRule, name: str = "n") -> int:
    return int(raw(store).memory_usage(store.keys(rule, name), samples=0) or 0)


def used(store: Store) -> int:
    """What the server counts against ``maxmemory``, without the buffers of its clients."""
    memory: dict[str, Any] = raw(store).info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"])


@pytest.mark.parametrize("rule", STREAMS, ids=lambda rule: rule.pattern)
@pytest.mark.parametrize("entries", [4, 60, 2000])
def test_a_stream_takes_no_more_than_its_bytes(
    store: Store, settings: RedisSettings, rule: KeyRule, entries: int
) -> None:
    """Few large messages or many small ones, also when their writer begins anew, up to twice what is kept."""
    one = message(min(rule.size // entries, keys.MAX_MESSAGE_BYTES))
    size = len(encode(one))
    most, before = 0, used(store)

    def measured() -> int:
        # Redis' MEMORY USAGE assumes 240 bytes for each node of a stream's index, which takes a tenth; how many there
        # are follows from the pace of the writer. Valkey counts them.
        return min(taken(store, rule), used(store) - before)

    for number in range(0, 2 * min(rule.size // size, rule.bound) + 2, 2):
        if number == rule.size // size:
            again = Store(settings, "c")
            again.append(rule, "n", one, one)
            again.close()
            store._trimmers.clear()
        store.append(rule, "n", one, one)
        if number % 100 == 0 or size > 2**20:
            most = max(most, measured())
    most = max(most, measured())
    assert most <= OVERHEAD * rule.size + 2**14
    least = min(rule.size - 2 * size, rule.bound * size)
    assert taken(store, rule) >= 0.9 * least, "nor is it trimmed to less than it may hold"


def test_a_few_huge_messages_among_small_ones_do_not_add_up(store: Store) -> None:
    rule = keys.DECISIONS
    for number in range(600):
        store.append(rule, "", message(rule.size // 20 if number % 10 == 0 else 500))
        assert number % 50 or taken(store, rule) <= OVERHEAD * rule.size


@pytest.mark.parametrize("rule", PUT, ids=lambda rule: rule.pattern)
def test_a_string_takes_no_more_than_its_bytes_and_a_longer_one_is_not_written(store: Store, rule: KeyRule) -> None:
    store.put(rule, "n", message(rule.size))
    assert 0.9 * rule.size < taken(store, rule) <= OVERHEAD * rule.size
    with pytest.raises(StoreTooLargeError, match="is the most"):
        store.put(rule, "n", message(rule.size + 100))


def test_what_is_no_message_is_small(store: Store) -> None:
    now = time.time()
    name = "n" * 117
    for number in range(keys.APPLICATIONS.bound + 100):
        store.register_application(f"{name}-{number:010}", now)
    assert 2**20 < taken(store, keys.APPLICATIONS) <= keys.APPLICATIONS.size
    held = store.acquire_lease("h" * 128, 5, 0)
    leader = store.fenced(lambda: held)
    leader.set_paused(True)
    leader.claim("n", 5)
    leader.put(keys.AGENT_LIMITS, "", AUTHOR.envelope(AgentLimits(window_sizes=2**53), ttl=60))
    small = (keys.LEASE, keys.EPOCH, keys.PAUSED, keys.CLAIM, keys.AGENT_LIMITS)
    for rule in small:
        assert 0 < taken(store, rule) <= rule.size
    assert {keys.APPLICATIONS, *small, *STREAMS, *PUT} == set(keys.TABLE), "every key is looked at here"


# -- what evidence costs --


def calls(store: Store, command: str) -> int:
    stats: dict[str, Any] = raw(store).info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


def requested(store: Store, link: Mailbox, rounds: int = 10) -> dict[str, int]:
    """How many commands of each kind some rounds take."""
    names = ("xrange", "xrevrange", "memory|usage", "info")
    before = {name: calls(store, name) for name in names}
    for _ in range(rounds):
        link._exchange()
    return {name: calls(store, name) - before[name] - (name == "info") * len(names) for name in names}


def evidence(node: str, count: int = 1) -> Envelope:
    item = ClosedStore(
        application="app-1", executor="0", run="r", operator=0, partition=1, store="default", evidence="x" * 100
    )
    return AUTHOR.envelope(AgentEvidence(node=node, closed=[item] * count), ttl=60)


def test_nodes_are_asked_only_while_their_evidence_is_awaited(store: Store, settings: RedisSettings) -> None:
    nodes = [f"node-{number}" for number in range(1000)]
    for node in nodes:
        store.append(keys.EVIDENCE, node, evidence(node))
    link = Mailbox(settings, EnvelopeFactory("c", "link"), "app-1", None)
    link.post_report(fakes.report([]), ())
    assert requested(store, link) == {"xrange": 0, "xrevrange": 0, "memory|usage": 0, "info": 1}, "when it connects"
    link.post_report(fakes.report([]), nodes)
    link._exchange()
    assert len(link.pop_closings()) == 1000
    assert requested(store, link) == {"xrange": 10_000, "xrevrange": 0, "memory|usage": 0, "info": 0}
    link.post_report(fakes.report([]), nodes[:3])
    store.append(keys.EVIDENCE, nodes[0], evidence(nodes[0]), evidence(nodes[0]))
    assert requested(store, link) == {"xrange": 30, "xrevrange": 0, "memory|usage": 0, "info": 0}
    assert len(link.pop_closings()) == 2
    link.post_report(fakes.report([]), ())
    assert not any(requested(store, link).values())
    link._store.close()


def test_many_streams_are_read_at_once_each_from_where_it_was_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ("a", "b", "large", "foreign"):
        store.append(keys.EVIDENCE, node, evidence(node), evidence(node))
    raw(store).set(store.keys(keys.EVIDENCE, "foreign"), "a string")
    start = store.id_since(60)
    store.append(keys.EVIDENCE, "large", *[evidence("large", 300)] * 3)
    monkeypatch.setattr("rechannel.wire.redis.store.READ_AT_ONCE", 100_000)
    after = dict.fromkeys(("a", "b", "large", "empty", "foreign"), start) | {"b": store.last_id(keys.EVIDENCE, "b")}
    after_all = after | {"a": "", "b": f"{2**50}-0"}
    newest = dict(store.read_newest(keys.EVIDENCE, after_all, silent={"b", "empty"}))
    assert {node: len(page.messages) for node, page in newest.items()} == {
        "a": 2,
        "b": 2,  # it was replaced: nothing is as new as what was read
        "large": 2,  # the newest, up to what is read at once
        "empty": 0,
        "foreign": 0,
    }
    assert newest["empty"].last == "" and newest["b"].last == after["b"]
    assert store.rejected == 1
    newest = dict(store.read_newest(keys.EVIDENCE, after_all))
    assert not newest["b"].messages and newest["b"].last == after_all["b"], "not silent for long: nothing new"
    assert store.rejected == 2
    last = f"{2**64 - 1}-{2**64 - 1}"
    newest = dict(store.read_newest(keys.EVIDENCE, {"a": last, "b": ""}))
    assert {node: len(page.messages) for node, page in newest.items()} == {"a": 2, "b": 2}, (
        "Redis reads nothing after it"
    )
    store.rejected = 0
    result = store.read_each(keys.EVIDENCE, after, 10, doubtful={"large", "a", "foreign"})
    assert {node: len(page.messages) for node, page in result.items()} == {
        "a": 2,
        "b": 0,
        "large": 4,  # the fifth is more than is read at once
        "empty": 0,
        "foreign": 0,
    }
    assert result["b"].last == after["b"] and result["empty"].last == start
    assert result["large"].size > 100_000 > result["a"].size
    assert store.rejected == 1
