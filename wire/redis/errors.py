"""Errors of the store by what the caller can do, and explanations of redis-py's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import redis
from redis import exceptions

from rechannel.wire.redis import tls


class StoreError(RuntimeError):
    """An operation that Redis did not carry out."""


class StoreUnavailableError(StoreError):
    """Redis is not reachable or too slow; try again later."""


class StoreRefusedError(StoreError):
    """Redis refused: wrong address, password, rights or version. Trying again will not help."""


class StoreDeposedError(StoreError):
    """The lease was lost, so the write was not made; stand by until it is acquired again."""


class StoreForbiddenError(StoreRefusedError):
    """The Redis user has no right to do this."""


class StoreTooLargeError(StoreError):
    """A message larger than its key may be; not written. Trying again is no use: send less."""


_AWAY, _REFUSED, _FORBIDDEN = StoreUnavailableError, StoreRefusedError, StoreForbiddenError
_LOGIN = "check redis.username, redis.password_file and its ACL"
_OF_A_CLUSTER = "name the node of a Redis Cluster that holds them, a single server, or sentinels"
# redis-py has exception classes for some answers, without their first word; for others only the text.
_CLASSES: tuple[tuple[type[Exception], type[StoreError], str], ...] = (
    (exceptions.NoPermissionError, _FORBIDDEN, f"refuses this user ({{error}}); {_LOGIN}"),
    (exceptions.AuthenticationError, _REFUSED, f"refuses this user ({{error}}); {_LOGIN}"),
    (exceptions.BusyLoadingError, _AWAY, "is loading its data after a start; it answers once that is done"),
    (
        exceptions.ReadOnlyError,
        _AWAY,
        "is a replica and takes no writes now; name the master in redis.url, or let sentinels find it (sentinel://)",
    ),
    (exceptions.OutOfMemoryError, _AWAY, "is full and takes no writes now; raise maxmemory in redis.conf"),
    (
        exceptions.MasterDownError,
        _AWAY,
        "is a replica without its master and does not answer now; start the master, or name it in redis.url",
    ),
    (exceptions.ClusterDownError, _AWAY, "is of a Redis Cluster that is down ({error}); check its nodes"),
    (exceptions.TryAgainError, _AWAY, "is of a Redis Cluster that moves keys now ({error}); wait"),
    (exceptions.MovedError, _REFUSED, f"does not hold Rechannel's keys ({{error}}); {_OF_A_CLUSTER}"),
)
_TEXTS = (
    ("MISCONF", _AWAY, "cannot save to its disk and takes no writes now; check its log and its disk"),
    ("NOREPLICAS", _AWAY, "has too few replicas and takes no writes now; add replicas, or lower min-replicas-to-write"),
    ("BUSY ", _AWAY, "runs a script and answers nothing else now; wait, or end the script (SCRIPT KILL)"),
    ("READONLY", _AWAY, "is a replica and takes no writes now; name the master in redis.url"),
    ("OOM ", _AWAY, "is full and takes no writes now; raise maxmemory in redis.conf"),
    ("DB index is out of range", _REFUSED, "has no such database; change the number at the end of redis.url"),
    ("not allowed in cluster mode", _REFUSED, "is of a Redis Cluster, with one database; end redis.url with /0"),
    (
        "DENIED",
        _REFUSED,
        "accepts only local clients while it has no password (protected mode); set one (redis.password_file)",
    ),
    (
        "WRONGTYPE",
        _REFUSED,
        "has another type of value under one of Rechannel's keys ({error}); use a database that nothing else writes to",
    ),
    (
        "unknown command",
        _REFUSED,
        "lacks a command that every Redis has ({error}); check that redis.url names no sentinel and no proxy",
    ),
)
_ENDED = ("Connection closed by server", "Connection reset by peer", "Broken pipe")


def store_error(error: Exception, where: str, *, first: bool = False) -> StoreError:
    """Return the error of the store with its cure; ``first``: the server has never answered.

    In order: unusable files, answers with an exception class, failed connections (TLS first), answers known by their
    text, and servers that do not speak the protocol.
    """
    if isinstance(error, tls.CredentialFileError):
        return StoreRefusedError(str(error))
    for error_class, kind, sentence in _CLASSES:
        if isinstance(error, error_class):
            return kind(f"Redis at {where} {sentence.format(error=error)}")
    if isinstance(error, (redis.ConnectionError, redis.TimeoutError)):
        if cure := tls.handshake_failure(error):
            return StoreRefusedError(f"Redis at {where}: {cure}")
        hint = tls.handshake_hint(error) or (_first_contact_hint(error, where) if first else "")
        sentence = f"Redis at {where} cannot be reached ({error}){hint}; check redis.url and the server"
        return StoreUnavailableError(sentence)
    if isinstance(error, redis.ResponseError):
        for mark, kind, sentence in _TEXTS:
            if mark in str(error):
                return kind(f"Redis at {where} {sentence.format(error=error)}")
        return StoreRefusedError(f"Redis at {where} answered: {error}")
    if isinstance(error, (exceptions.InvalidResponse, ValueError)):
        return StoreRefusedError(f"{where} answered, but not as a Redis server; check redis.url")
    return StoreRefusedError(f"redis.url: {where}: {error}")


def _first_contact_hint(error: Exception, where: str) -> str:
    if any(text in str(error) for text in _ENDED):
        tls = ", and whether it requires TLS (rediss://)" if where.startswith("redis://") else ""
        return f"; it closed the connection without an answer: check that it is a Redis server{tls}"
    if isinstance(error, redis.TimeoutError) and "reading" in str(error):
        return "; it accepts connections and does not answer: check that it is a Redis server"
    return ""


def is_wrong_type(error: redis.ResponseError) -> bool:
    """Return whether the key is of another type than the command needs."""
    return "WRONGTYPE" in str(error)


def is_stream_ended(error: redis.ResponseError) -> bool:
    """Return whether nothing can be appended to the stream: its last id is the highest."""
    return "equal or smaller than the target stream top item" in str(error) or "exhausted" in str(error)


@contextmanager
def translated(where: str, *, first: bool = False) -> Iterator[None]:
    """Raise errors of redis-py as StoreError; ``first``: the server has not answered yet."""
    try:
        yield
    except (redis.RedisError, ValueError, OSError) as error:
        raise store_error(error, where, first=first) from error
