"""The store against a real server: what is refused, what is away, who leads."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.common import raw, until
from unit.daemon.fake_store import FakeClock, FakeStore

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys
from rechannel.wire.envelope import EnvelopeFactory, encode
from rechannel.wire.messages import ControllerState, Reply, Request
from rechannel.wire.redis.errors import StoreDeposedError, StoreRefusedError, StoreUnavailableError
from rechannel.wire.redis.store import Store
from rechannel.wire.redis.streams import read_new_entries
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer

pytestmark = pytest.mark.redis
SECTIONS = {"cluster": {"name": "c"}, "redis": {"timeout": 0.5}}
AUTHOR = EnvelopeFactory("c", "test")


def request(name: str):
    return AUTHOR.envelope(Request(request=name, user="u", command={"verb": "status"}), ttl=60)


@pytest.mark.parametrize("fenced", [False, True])
def test_an_entry_after_which_none_can_come_does_not_stop_a_stream(store, fenced):
    last = f"{2**64 - 1}-{2**64 - 1}"
    raw(store).xadd(store.keys(keys.DECISIONS), {"m": "x"}, id=last)
    assert store.read(keys.DECISIONS, "", "0") == (last, [])
    assert store.read(keys.DECISIONS, "", last) == (last, [])
    assert store.read_requests(keys.DECISIONS, "", last) == (last, [])
    writer = store.fenced(lambda: store.acquire_lease("a", 60, 0)) if fenced else store
    writer.append(keys.DECISIONS, "", request("1"))
    assert store.read(keys.DECISIONS, "", last) == (last, []), "whoever reads on sees that the stream ends before"
    assert store.last_id(keys.DECISIONS) != last
    _, result = store.read(keys.DECISIONS, "", "0")
    assert [item.body.request for item in result] == ["1"]


def test_how_long_a_message_waits_is_told_by_the_servers_clock(store):
    raw(store).xadd(store.keys(keys.REQUESTS), {"m": b"garbage"})
    milliseconds = raw(store).time()[0] * 1000
    message = encode(request("old"))
    raw(store).delete(store.keys(keys.REQUESTS))
    raw(store).xadd(store.keys(keys.REQUESTS), {"m": message}, id=f"{milliseconds - 90_000}-0")
    raw(store).xadd(store.keys(keys.REQUESTS), {"m": b"garbage"}, id=f"{milliseconds - 80_000}-0")
    raw(store).xadd(store.keys(keys.REQUESTS), {"m": message}, id=f"{milliseconds + 90_000}-0")
    newest, result = store.read_requests(keys.REQUESTS, "", "0")
    assert newest == f"{milliseconds + 90_000}-0"
    assert [item.age for item in result] == [pytest.approx(90, abs=5), 0.0]
    assert store.rejected == 1


def test_what_redis_cannot_do_now_is_no_refusal(store):
    raw(store).config_set("min-replicas-to-write", 1)
    try:
        with pytest.raises(StoreUnavailableError):
            store.append(keys.REQUESTS, "", request("1"))
        with pytest.raises(StoreUnavailableError):
            store.acquire_lease("a", 60, 0)
    finally:
        raw(store).config_set("min-replicas-to-write", 0)
    store.append(keys.REQUESTS, "", request("1"))


def test_a_full_redis_does_not_keep_anybody_from_leading(store):
    """What agents and links measured is refused; who leads, and what is paused and drained, can be said."""
    held = [store.acquire_lease("a", 60, 0)]
    leader = store.fenced(lambda: held[0])
    raw(store).config_set("maxmemory", 1)
    try:
        for rule, name in ((keys.BATCHES, "app"), (keys.WINDOWS, "n"), (keys.EVIDENCE, "n"), (keys.JOURNAL, "app")):
            with pytest.raises(StoreUnavailableError):
                store.append(rule, name, request("1"))
        assert store.acquire_lease("a", 60, 0) == held[0]
        store.release_lease("a")
        held[0] = store.acquire_lease("b", 60, 0)
        assert held[0].holder == "b"
        leader.set_paused(True)
        leader.put(keys.ORDERS, "", request("1"))
        leader.append(keys.DECISIONS, "", request("1"))
        assert leader.claim("r1", 60) == held[0]
    finally:
        raw(store).config_set("maxmemory", 0)
    assert store.is_paused() and store.get(keys.ORDERS) is not None


def test_strings_and_streams_have_their_time_to_live(store):
    store.put(keys.REPLY, "1", AUTHOR.envelope(Reply(request="1", code=0, sentence=""), ttl=60))
    store.append(keys.REQUESTS, "", request("1"))
    assert 0 < raw(store).ttl(store.keys(keys.REPLY, "1")) <= keys.REPLY.ttl
    assert 0 < raw(store).ttl(store.keys(keys.REQUESTS)) <= keys.REQUESTS.ttl


def test_garbage_is_counted_and_passed_over(store):
    key = store.keys(keys.REQUESTS)
    for fields in ({"m": b"{"}, {"x": b"1"}, {"m": b"\xff"}):
        raw(store).xadd(key, fields)
    store.append(keys.REQUESTS, "", request("1"))
    assert [item.body.request for item in store.read(keys.REQUESTS, "", "0")[1]] == ["1"]
    raw(store).set(store.keys(keys.REPORT, "app"), b"nonsense")
    assert store.get(keys.REPORT, "app") is None
    assert store.rejected == 4


def test_a_key_of_another_kind_is_counted_and_written_over(store):
    raw(store).set(store.keys(keys.REQUESTS), "a string")
    assert store.read(keys.REQUESTS, "", "0") == ("0", [])
    assert store.rejected == 1
    store.append(keys.REQUESTS, "", request("1"))
    assert [item.body.request for item in store.read(keys.REQUESTS, "", "0")[1]] == ["1"]


def test_a_lease_runs_out(store):
    store.acquire_lease("a", 0.05, 0)
    until(lambda: store.acquire_lease("b", 60, 0).holder == "b", "the lease to run out")


def test_applications_are_listed_by_when_they_were_seen(store):
    store.register_application("old", 100.0)
    store.register_application("new", 200.0)
    assert store.applications(150.0) == ["new"]
    assert store.applications(0.0) == ["new", "old"]


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"password_file": ""}, StoreRefusedError, "redis.password_file"),
        ({"password_file": "/nowhere/at/all"}, StoreRefusedError, "cannot be read"),
        ({"url": "redis://127.0.0.1:1/0"}, StoreUnavailableError, "cannot be reached"),
        ({"url": "unix:///nowhere/redis.sock"}, StoreUnavailableError, "cannot be reached"),
        ({"url": "redis://127.0.0.1:99999/0"}, (StoreRefusedError, StoreUnavailableError), "127.0.0.1:99999"),
    ],
    ids=["no password", "no password file", "nobody listens", "no socket", "no such port"],
)
def test_a_wrong_address_or_password_is_said_clearly(settings, change, error, why):
    with pytest.raises(error, match=why) as caught:
        Store(replace(settings.redis, **change), "c").check()
    assert "geheim" not in str(caught.value)


def test_a_server_that_dies_is_away_and_comes_back(tmp_path):
    with ProcessGroup(Path(tmp_path)) as group:
        server = RedisServer(group, name="mortal").start()
        store = Store(RedisSettings(url=server.url, timeout=0.5), "c")
        store.append(keys.REQUESTS, "", request("1"))
        server.kill()
        with pytest.raises(StoreUnavailableError):
            store.append(keys.REQUESTS, "", request("2"))
        server.start()
        store.append(keys.REQUESTS, "", request("3"))
        assert [item.body.request for item in store.read(keys.REQUESTS, "", "0")[1]] == ["3"]
        store.close()
        server.close()


def test_the_newest_entries_of_a_large_stream_are_read_in_several_answers(store, monkeypatch):
    for module in ("store", "streams"):
        monkeypatch.setattr(f"rechannel.wire.redis.{module}.READ_AT_ONCE", 1000)
    for number in range(20):
        store.append(keys.REQUESTS, "", request(f"{number:0>300}"))
    newest, result = read_new_entries(store, keys.REQUESTS, "", "", first=10)
    assert newest == store.last_id(keys.REQUESTS)
    assert [int(item.body.request) for item in result] == [*range(10, 20)]


# -- the fake that the unit tests trust --


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_the_unit_tests_fake_store_keeps_the_real_ones_promises(kind: str, store: Store) -> None:
    clock = FakeClock(time.time())
    tried: Any = store if kind == "real" else FakeStore(clock, "c")
    author = EnvelopeFactory("c", "t", clock)
    state = ControllerState(
        leader="a", since=0, epoch=1, paused=False, mode="observe", next_decision=0, last_sentence=""
    )
    assert tried.get(keys.STATE) is None
    tried.put(keys.STATE, "", author.envelope(state, ttl=5))
    assert tried.get(keys.STATE).body == state
    assert tried.last_id(keys.REQUESTS) == "0"
    assert tried.read(keys.REQUESTS, "", "0") == ("0", [])
    tried.append(keys.REQUESTS, "", *(author.envelope(state, ttl=number) for number in range(3)))
    newest, result = tried.read(keys.REQUESTS, "", "0")
    assert (newest, len(result)) == (tried.last_id(keys.REQUESTS), 3)
    assert tried.read(keys.REQUESTS, "", newest) == (newest, [])
    after, first = tried.read(keys.REQUESTS, "", "0", 1)
    assert [item.expires for item in first] == [author.clock()]
    assert len(tried.read(keys.REQUESTS, "", after)[1]) == 2
    assert [item.expires for item in tried.last(keys.REQUESTS, "", 1)] == [author.clock() + 2]
    second, result = tried.read_before(keys.REQUESTS, "", newest, 1)
    assert [item.expires for item in result] == [author.clock() + 1]
    assert [item.expires for item in tried.read_before(keys.REQUESTS, "", second, 5)[1]] == [author.clock()]
    assert tried.read_before(keys.REQUESTS, "", after, 5) == (after, [])
    one = tried.acquire_lease("a", 100, 4)
    assert (one.holder, one.epoch) == ("a", 5)
    assert tried.acquire_lease("b", 100, 9) == one
    assert tried.acquire_lease("a", 100, 5) == one
    assert tried.acquire_lease("a", 100, 6).epoch == 7
    tried.release_lease("b")
    assert tried.acquire_lease("b", 100, 0).holder == "a"
    tried.release_lease("a")
    assert tried.acquire_lease("b", 100, 0).epoch == 8
    assert not tried.is_paused()
    tried.set_paused(True)
    assert tried.is_paused()
    held = tried.acquire_lease("b", 100, 0)
    leader, late = tried.fenced(lambda: held), tried.fenced(lambda: one)
    for view in (leader, late):
        for write in (
            lambda view=view: view.put(keys.STATE, "", author.envelope(state, ttl=7)),
            lambda view=view: view.append(keys.REQUESTS, "", author.envelope(state, ttl=8)),
            lambda view=view: view.set_paused(False),
        ):
            if view is leader:
                write()
                continue
            before = (tried.get(keys.STATE), tried.last_id(keys.REQUESTS), tried.is_paused())
            with pytest.raises(StoreDeposedError, match=f"epoch {one.epoch} "):
                write()
            assert (tried.get(keys.STATE), tried.last_id(keys.REQUESTS), tried.is_paused()) == before
    assert (tried.get(keys.STATE).body, tried.is_paused()) == (state, False)
    assert leader.claim("r", 100) == held
    assert leader.claim("r", 100) == held
    with pytest.raises(StoreDeposedError):
        late.claim("other", 100)
    tried.release_lease("b")
    with pytest.raises(StoreDeposedError):
        leader.put(keys.STATE, "", author.envelope(state, ttl=7))
    after_b = tried.acquire_lease("c", 100, 0)
    assert tried.fenced(lambda: after_b).claim("r", 100) == held, "an earlier leader's"
    tried.register_application("x", 100.0)
    assert (tried.applications(100.0), tried.applications(101.0)) == (["x"], [])
