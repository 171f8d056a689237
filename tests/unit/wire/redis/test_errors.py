"""Every answer of a server that is no answer is told as a sentence with its cure, and as what the caller can do."""

from __future__ import annotations

import pytest
import redis
from redis._parsers.base import BaseParser

from rechannel.conf.settings import RedisSettings
from rechannel.wire.redis.errors import (
    StoreError,
    StoreForbiddenError,
    StoreRefusedError,
    StoreUnavailableError,
    store_error,
)
from rechannel.wire.redis.store import Store

AWAY, REFUSED, FORBIDDEN = StoreUnavailableError, StoreRefusedError, StoreForbiddenError
WHERE = "redis://h:6379/9"


def answered(text: str) -> Exception:
    """What redis-py makes of an error that Redis answers."""
    error = BaseParser.parse_error(text)
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("text", "kind", "phrase", "cure"),
    [
        ("LOADING Redis is loading the dataset in memory", AWAY, "is loading its data", "once that is done"),
        ("READONLY You can't write against a read only replica.", AWAY, "is a replica", "name the master"),
        ("OOM command not allowed when used memory > 'maxmemory'.", AWAY, "is full", "raise maxmemory"),
        ("MASTERDOWN Link with MASTER is down", AWAY, "without its master", "start the master"),
        ("MISCONF Redis is configured to save RDB snapshots", AWAY, "cannot save", "its disk"),
        ("NOREPLICAS Not enough good replicas to write.", AWAY, "too few replicas", "min-replicas-to-write"),
        ("BUSY Redis is busy running a script.", AWAY, "runs a script", "SCRIPT KILL"),
        ("CLUSTERDOWN Hash slot not served", AWAY, "Cluster that is down", "check its nodes"),
        ("ERR max number of clients reached", AWAY, "max number of clients", "check redis.url"),
        ("MOVED 3999 127.0.0.1:6381", REFUSED, "127.0.0.1:6381", "name the node"),
        ("ERR SELECT is not allowed in cluster mode", REFUSED, "one database", "/0"),
        ("ERR DB index is out of range", REFUSED, "no such database", "the number at the end of redis.url"),
        ("DENIED Redis is running in protected mode because", REFUSED, "protected mode", "redis.password_file"),
        (
            "WRONGTYPE Operation against a key holding the wrong kind",
            REFUSED,
            "under one of Rechannel's keys",
            "a database",
        ),
        ("ERR unknown command 'GETRANGE'", REFUSED, "unknown command 'GETRANGE'", "no sentinel and no proxy"),
        ("NOAUTH Authentication required.", REFUSED, "refuses this user", "redis.password_file"),
        ("WRONGPASS invalid username-password pair", REFUSED, "invalid username-password", "redis.username"),
        ("NOPERM this user has no permissions", FORBIDDEN, "no permissions", "its ACL"),
        ("ERR odd", REFUSED, "answered: odd", ""),
    ],
)
def test_an_error_of_redis_has_kind_and_cure(text: str, kind: type[StoreError], phrase: str, cure: str) -> None:
    result = store_error(answered(text), WHERE)
    sentence = str(result)
    assert type(result) is kind
    assert sentence.startswith(f"Redis at {WHERE} ")
    assert phrase in sentence
    assert cure in sentence
    assert not cure or "; " in sentence, "the doctor parts the cure there"


@pytest.mark.parametrize(
    "error", [redis.InvalidResponse("Protocol Error: b'HTTP/1.1 400 Bad Request'"), ValueError("int(b'abc')")]
)
def test_a_server_that_is_not_redis_is_refused(error: Exception) -> None:
    result = store_error(error, WHERE)
    assert type(result) is StoreRefusedError
    assert str(result) == f"{WHERE} answered, but not as a Redis server; check redis.url"


@pytest.mark.parametrize(
    ("error", "phrase"),
    [
        (redis.ConnectionError("Connection closed by server."), "requires TLS (rediss://)"),
        (redis.ConnectionError("Error 104 while reading: Connection reset by peer"), "requires TLS"),
        (redis.TimeoutError("Timeout reading from socket"), "accepts connections and does not answer"),
    ],
)
def test_a_hint_is_given_only_before_the_first_answer(error: Exception, phrase: str) -> None:
    result = store_error(error, WHERE, first=True)
    assert type(result) is StoreUnavailableError
    assert phrase in str(result)
    assert phrase not in str(store_error(error, WHERE))
    assert "requires TLS" not in str(store_error(error, "rediss://h:1/0", first=True))


def test_a_sentinel_is_refused_as_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(RedisSettings(url="redis://h:26379/0"), "default")
    monkeypatch.setattr(store._redis, "info", lambda *_: {"redis_version": "7.2.4", "redis_mode": "sentinel"})
    with pytest.raises(StoreRefusedError, match="is a sentinel; write it as sentinel://"):
        store.check()
