"""The one door to Redis: typed messages in and out, and every foreign error translated.

`StoreUnavailableError` means try again later, `StoreRefusedError` means a human must mend something.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import redis
import redis.exceptions

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys as key_rules
from rechannel.wire.envelope import Envelope, MessageError, decode, encode
from rechannel.wire.keys import MAX_MESSAGE_BYTES, KeyRule, Keys
from rechannel.wire.redis import acl, lua_scripts, tls
from rechannel.wire.redis.acl import AclResult
from rechannel.wire.redis.capacity import StreamTrimmer
from rechannel.wire.redis.connection import Connection
from rechannel.wire.redis.errors import (
    Kind,
    StoreDeposedError,
    StoreForbiddenError,
    StoreRefusedError,
    StoreTooLargeError,
    StoreUnavailableError,
    explain,
)

OLDEST_REDIS = (7, 0)
HIGHEST_EPOCH = 2**53  # what a float holds, and with it Redis' scripts
_BELIEVED_EPOCH = 2**52  # a link that claims more leaves no room above it, and is not believed
_ORDINARY = 256 * 1024  # bytes that are read of a key before it is asked how many there are
_LARGEST_ENTRY = MAX_MESSAGE_BYTES + 1024
_LAST_ID = f"{2**64 - 1}-{2**64 - 1}"  # of a stream: nothing can come after it, and Redis refuses to look
_Command = tuple[str | int | float | bytes, ...]  # its name, and what follows the key
_SCANS = 200  # rounds of a thousand keys each
READ_AT_ONCE = 32 * 2**20  # bytes of a stream; of a longer one, so much is read as fits, entry by entry
_STREAMS_AT_ONCE = 100  # that are read in one round trip


@dataclass(frozen=True)
class QueuedRequest:
    """A message of a stream, and the seconds it has been there by Redis' own clock, which all parts share."""

    envelope: Envelope
    age: float


@dataclass(frozen=True)
class Page:
    """What was read of a stream: the last id seen, the readable messages, and the bytes of all entries."""

    last: str
    messages: list[Envelope]
    size: int


@dataclass(frozen=True)
class Lease:
    """Who leads, and the epoch that fences all others."""

    holder: str
    epoch: int

    @property
    def token(self) -> str:
        """The lease as it stands in Redis."""
        return f"{self.holder}\n{self.epoch}"


class Store:
    """Typed access to the key space of one cluster. Connects on first use; safe to share between threads."""

    def __init__(self, settings: RedisSettings, cluster: str) -> None:
        self.keys = Keys(cluster)
        self.cluster = cluster
        self.rejected = 0  # messages that could not be read, since the start
        self._settings = settings
        self._where = settings.url.split("@")[-1].partition("?")[0]
        self._checked = False
        try:
            self._connection = Connection(settings)
        except (ValueError, redis.RedisError, OSError) as error:
            raise StoreRefusedError(_of_settings(error, self._where)) from error
        self._redis = self._connection.client
        self._acquire = self._redis.register_script(lua_scripts.ACQUIRE)
        self._release = self._redis.register_script(lua_scripts.RELEASE)
        self._fenced = self._redis.register_script(lua_scripts.FENCED)
        self._claim = self._redis.register_script(lua_scripts.CLAIM)
        self._held: Callable[[], Lease] | None = None  # the lease that writing needs, in a leader's view
        self._trimming: dict[str, StreamTrimmer] = {}  # of the streams that are written from here

    def fenced(self, held: Callable[[], Lease]) -> Store:
        """Return a view for a leader: what it writes is written only while the lease in Redis is the one it holds.

        Redis itself looks, in the same step as it writes. So what a leader had under way when it was held up, or does
        before it notices, changes nothing once another leads; such a write raises StoreDeposedError.
        """
        view = copy.copy(self)
        view._held = held
        return view

    def check(self) -> str:
        """Return the server's version, or raise StoreRefusedError when it is older than 7.0."""
        server = self._info("server")
        if server.get("redis_mode") == "sentinel":
            raise StoreRefusedError(f"redis.url: {self._where} is a sentinel; write it as sentinel://…?service=NAME")
        # Valkey answers redis_version 7.2.4 for clients that look there; its own version stands beside it.
        version = str(server.get("valkey_version") or server.get("redis_version", "0"))
        if tuple(int(part) for part in str(server.get("redis_version", "0")).split(".")[:2]) < OLDEST_REDIS:
            raise StoreRefusedError(f"redis.url: server at {self._where} is version {version}; 7.0 or newer is needed")
        self._checked = True
        return version

    def server_info(self) -> dict[str, Any]:
        """Return what the server says of itself (INFO), by name."""
        return self._info()

    def _info(self, *sections: str) -> dict[str, Any]:
        with _translated(self._where, first=not self._checked):
            try:
                return dict(self._redis.info(*sections))
            except (AttributeError, TypeError):  # redis-py takes it apart without looking
                raise redis.exceptions.InvalidResponse from None

    def can_run(self, *command: str) -> bool:
        """Whether our user may use a command. It is sent: give one that Redis refuses for its form."""
        with _translated(self._where):
            try:
                self._redis.execute_command(*command)
            except redis.exceptions.NoPermissionError:
                return False
            except redis.ResponseError:
                pass  # it was looked at, and that is after the rights
        return True

    def close(self) -> None:
        """Drop the connections."""
        with _translated(self._where):
            self._connection.close()

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        """Set a string key; it lives ``ttl`` seconds (the rule's own if None)."""
        data = encode(envelope)
        if len(data) > rule.size:
            raise StoreTooLargeError(f"{rule.pattern}: a message of {len(data)} bytes, and {rule.size} is the most")
        seconds = rule.ttl if ttl is None else ttl
        life = ("PX", int(seconds * 1000)) if seconds else ()
        self._write(self.keys(rule, name), ("SET", data, *life))

    def get(self, rule: KeyRule, name: str = "") -> Envelope | None:
        """Read a string key; None when absent or unreadable (counted in ``rejected``)."""
        key = self.keys(rule, name)
        # Never more than a message may have: what stands there may have been written by anybody.
        data = self._answer(lambda: self._redis.getrange(key, 0, _ORDINARY - 1), b"")
        if len(data) == _ORDINARY:
            if self._answer(lambda: self._redis.getrange(key, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES), b""):
                self.rejected += 1
                return None
            data = self._answer(lambda: self._redis.getrange(key, 0, MAX_MESSAGE_BYTES), b"")
        return self._decoded(data) if data else None

    def delete(self, rule: KeyRule, name: str = "") -> None:
        """Remove a key."""
        self._write(self.keys(rule, name), ("DEL",))

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope, size: int | None = None) -> None:
        """Add messages to a stream in order, trimmed to the rule's bounds, in one round trip.

        ``size`` is how many bytes it may hold if that is less than by the rule.
        """
        if not envelopes:
            return
        key, lines = self.keys(rule, name), [encode(envelope) for envelope in envelopes]
        trimming = self._trimming.pop(key, None) or StreamTrimmer(rule.bound)
        counts = [trimming.add(len(line), rule.size if size is None else min(size, rule.size)) for line in lines]
        commands = [("XADD", "MAXLEN", "~", count, "*", "m", line) for count, line in zip(counts, lines, strict=True)]
        self._write(key, *commands, ("EXPIRE", rule.ttl))
        self._trimming[key] = trimming  # only now is it known that they are there

    def read(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[Envelope]]:
        """Read a stream's entries after an id ("0" for all); returns the last id seen and the readable messages.

        Fewer than ``count`` may come though there are more: so many as are read at once.
        """
        entries = self._after(rule, name, after, count)
        return (entries[-1][0].decode() if entries else after), self._messages(entries)

    def read_each(
        self, rule: KeyRule, after: Mapping[str, str], count: int, doubtful: Collection[str] = ()
    ) -> dict[str, Page]:
        """Read on the streams of several names, each after its id, with one round trip for a hundred of them.

        The ``doubtful`` may be of any size: Redis is asked for it first, and large ones are read entry by entry.
        """
        self._connected()
        names = [name for name, number in after.items() if number != _LAST_ID]
        found: dict[str, Page] = {}
        for start in range(0, len(names), _STREAMS_AT_ONCE):
            some = names[start : start + _STREAMS_AT_ONCE]
            asked = [name for name in some if name in doubtful]
            sizes = self._ask_all([("MEMORY", "USAGE", self.keys(rule, name)) for name in asked])
            large = {name for name, size in zip(asked, sizes, strict=True) if int(size or 0) > READ_AT_ONCE}
            small = [name for name in some if name not in large]
            answers = self._ask_all(
                [("XRANGE", self.keys(rule, name), f"({after[name]}", "+", "COUNT", count) for name in small]
            )
            pages = [
                *zip(small, answers, strict=True),
                *((name, self._after(rule, name, after[name], count)) for name in large),
            ]
            found |= {name: self._page(entries or [], after[name]) for name, entries in pages}
        return found

    def id_since(self, seconds: float) -> str:
        """Return an id that comes before all entries that were added in the last so many seconds, by Redis' clock."""
        self._connected()
        return f"{max(0, int((self._now() - seconds) * 1000))}-0"

    def read_requests(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[QueuedRequest]]:
        """Read like `read`, and tell of each message how long it has been there."""
        entries = self._after(rule, name, after, count)
        if not entries:
            return after, []
        now = self._now()
        found = [(number, self._decoded(fields.get(b"m", b""))) for number, fields in entries]
        return entries[-1][0].decode(), [
            QueuedRequest(envelope, max(0.0, now - int(number.partition(b"-")[0]) / 1000))
            for number, envelope in found
            if envelope is not None
        ]

    def _after(self, rule: KeyRule, name: str, after: str, count: int) -> list[Any]:
        key = self.keys(rule, name)
        if after == _LAST_ID:
            return []

        def page(after: str, count: int) -> list[Any]:
            found: list[Any] = self._redis.xrange(key, min=f"({after}" if after != "0" else "-", count=count)
            return found

        return self._entries(key, page, after, count)

    def last(self, rule: KeyRule, name: str, count: int) -> list[Envelope]:
        """Read the newest entries of a stream, oldest first; fewer than ``count`` where they are large."""
        key = self.keys(rule, name)

        def page(before: str, count: int) -> list[Any]:
            found: list[Any] = self._redis.xrevrange(key, max=f"({before}" if before else "+", count=count)
            return found

        return self._messages(list(reversed(self._entries(key, page, "", count))))

    def last_id(self, rule: KeyRule, name: str = "") -> str:
        """Return the id of a stream's newest entry, "0" when it is empty."""
        entries = self._answer(lambda: self._redis.xrevrange(self.keys(rule, name), count=1), [])
        return entries[0][0].decode() if entries else "0"

    def list_names(self, rule: KeyRule) -> list[str]:
        """List what fills the placeholder of a rule's keys, as far as some rounds of SCAN find them.

        Raises StoreForbiddenError for the users that `rechannel acl` makes: who may scan sees everybody's keys.
        """
        before, _, after = self.keys.acl_pattern(rule).partition("*")
        found, cursor = set[str](), 0
        self._connected()
        with _translated(self._where):
            for _ in range(_SCANS):
                cursor, page = self._redis.scan(cursor, match=f"{before}*{after}", count=1000)
                found |= {key.decode(errors="replace")[len(before) : -len(after) or None] for key in page}
                if not cursor:
                    break
        return sorted(name for name in found if key_rules.is_valid_name(name))

    def register_application(self, application: str, now: float) -> None:
        """Put the application on the list of those with a link."""
        self._write(
            self.keys(key_rules.APPLICATIONS),
            ("ZADD", now, application),
            ("ZREMRANGEBYSCORE", "-inf", now - key_rules.APPLICATIONS.ttl),
            ("ZREMRANGEBYRANK", 0, -key_rules.APPLICATIONS.bound - 1),
        )

    def applications(self, since: float) -> list[str]:
        """List the applications whose link was seen since then, by id; no more than there may be."""
        key, bound = self.keys(key_rules.APPLICATIONS), key_rules.APPLICATIONS.bound
        if self._size(key) > READ_AT_ONCE:
            self.rejected += 1
            return []
        found = self._answer(lambda: self._redis.zrangebyscore(key, since, "+inf", start=0, num=bound), [])
        return sorted(item.decode(errors="replace") for item in found)

    def acquire_lease(self, holder: str, seconds: float, least_epoch: int) -> Lease:
        """Take or renew the lead; returns whoever holds it. ``least_epoch`` is the highest epoch any link reports."""
        self._connected()
        with _translated(self._where):
            owner = self._acquire(
                keys=[self.keys(key_rules.LEASE), self.keys(key_rules.EPOCH)],
                args=[
                    holder,
                    int(seconds * 1000),
                    max(0, min(least_epoch, _BELIEVED_EPOCH)),
                    key_rules.LEASE.ttl * 1000,
                    HIGHEST_EPOCH,
                ],
            )
        name, _, epoch = owner.decode(errors="replace").rpartition("\n")
        return Lease(name, int(epoch))

    def claim(self, request: str, seconds: float) -> Lease:
        """Claim a request for the leader whose view this is, before it is carried out; KeyNameError for an odd id.

        Returns the lease under which it is claimed: an earlier one if a leader took it up then. It lasts ``seconds``.
        """
        if self._held is None:
            raise TypeError("only a leader's view of the store, made by fenced(), can claim")
        key = self.keys(key_rules.CLAIM, request)
        self._connected()
        lease = self._held()
        with _translated(self._where):
            found = self._claim(keys=[self.keys(key_rules.LEASE), key], args=[lease.token, max(1, int(seconds * 1000))])
        if found is None:
            raise _deposed(lease)
        name, _, epoch = found.decode(errors="replace").rpartition("\n")
        return Lease(name, int(epoch) if epoch.isdecimal() else 0)

    def release_lease(self, holder: str) -> None:
        """Give the lead up if it is this holder's."""
        with _translated(self._where):
            self._release(keys=[self.keys(key_rules.LEASE)], args=[holder])

    def set_paused(self, paused: bool) -> None:
        """Remember across restarts whether everything is paused."""
        self._write(self.keys(key_rules.PAUSED), ("SET", "1") if paused else ("DEL",))

    def is_paused(self) -> bool:
        """Say whether everything is paused."""
        self._connected()
        with _translated(self._where):
            return bool(self._redis.exists(self.keys(key_rules.PAUSED)))

    def set_user(self, user: str, rules: Sequence[str]) -> list[AclResult]:
        """Make or replace a Redis user, on the server written to and then on its replicas; says what became of it."""
        self._connected()
        with _translated(self._where):
            first = AclResult(self._where, acl.create_user(self._redis, user, rules))
            return [first, *acl.create_user_on_replicas(self._connection, user, rules)]

    def _ask_all(self, commands: Sequence[_Command]) -> list[Any]:
        """Ask Redis several things in one round trip; None where a key is of another type, which is counted."""
        if not commands:
            return []
        with _translated(self._where):
            pipe = self._redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers = pipe.execute(raise_on_error=False)
            for index, answer in enumerate(answers):
                if not isinstance(answer, Exception):
                    continue
                if not isinstance(answer, redis.ResponseError) or not _wrong_type(answer):
                    raise answer
                self.rejected += 1
                answers[index] = None
        return list(answers)

    def _page(self, entries: list[Any], after: str) -> Page:
        size = sum(len(value) for _, fields in entries for value in fields.values())
        return Page(entries[-1][0].decode() if entries else after, self._messages(entries), size)

    def _connected(self) -> None:
        if not self._checked:
            self.check()

    def _answer(self, ask: Callable[[], Any], otherwise: Any) -> Any:
        """Ask Redis; a key of another type than ours is not ours, which is counted, and ``otherwise`` the answer."""
        self._connected()
        with _translated(self._where):
            try:
                return ask()
            except redis.ResponseError as error:
                if not _wrong_type(error):
                    raise
                self.rejected += 1
                return otherwise

    def _write(self, key: str, *commands: _Command) -> None:
        """Run commands on a key in order, in one round trip.

        A key of another type in its place, or a stream after whose last entry none can come, is removed first: whoever
        may write the key put it there.
        """
        self._connected()
        with _translated(self._where):
            try:
                self._run(key, commands)
            except redis.ResponseError as error:
                if not _wrong_type(error) and not _stream_ended(error):
                    raise
                self.rejected += 1
                self._run(key, [("DEL",), *commands])

    def _run(self, key: str, commands: Sequence[_Command]) -> None:
        if self._held is None:
            pipe = self._redis.pipeline(transaction=False)
            for name, *words in commands:
                pipe.execute_command(name, key, *words)
            pipe.execute()
            return
        lease = self._held()
        words = [word for command in commands for word in (len(command), *command)]
        if not self._fenced(keys=[self.keys(key_rules.LEASE), key], args=[lease.token, *words]):
            raise _deposed(lease)

    def _now(self) -> float:
        with _translated(self._where):
            return int(self._redis.info("server")["server_time_usec"]) / 1e6

    def _size(self, key: str) -> int:
        """Bytes a key takes in Redis, all of its entries counted."""
        return int(self._answer(lambda: self._redis.memory_usage(key, samples=0), 0) or 0)

    def _entries(self, key: str, page: Callable[[str, int], list[Any]], after: str, count: int) -> list[Any]:
        """Up to ``count`` entries of a stream, and of a large one no more than fit into memory at ease."""
        if self._size(key) <= READ_AT_ONCE:
            return list(self._answer(lambda: page(after, count), []))
        found: list[Any] = []
        room = READ_AT_ONCE
        while room > 0 and len(found) < count:
            entries = self._answer(lambda: page(after, 1), [])  # noqa: B023  called at once
            if not entries:
                break
            [(number, fields)] = entries
            size = sum(len(name) + len(value) for name, value in fields.items())
            room -= size
            after = number.decode()
            found.append((number, fields if size <= _LARGEST_ENTRY else {}))
        return found

    def _messages(self, entries: list[Any]) -> list[Envelope]:
        found = [self._decoded(fields.get(b"m", b"")) for _, fields in entries]
        return [envelope for envelope in found if envelope is not None]

    def _decoded(self, data: bytes) -> Envelope | None:
        try:
            return decode(data, cluster=self.cluster)
        except MessageError:
            self.rejected += 1
            return None


def _of_settings(error: Exception, where: str) -> str:
    return str(error) if isinstance(error, tls.CredentialFileError) else f"redis.url: {where}: {error}"


def _deposed(lease: Lease) -> StoreDeposedError:
    return StoreDeposedError(f"the lease of epoch {lease.epoch} is over, or another's: nothing was written")


def _wrong_type(error: redis.ResponseError) -> bool:
    return "WRONGTYPE" in str(error)


def _stream_ended(error: redis.ResponseError) -> bool:
    return "equal or smaller than the target stream top item" in str(error) or "exhausted" in str(error)


_ERRORS = {
    Kind.AWAY: StoreUnavailableError,
    Kind.REFUSED: StoreRefusedError,
    Kind.FORBIDDEN: StoreForbiddenError,
}


@contextmanager
def _translated(where: str, *, first: bool = False) -> Iterator[None]:
    """Turn every error of redis-py into one of ours; ``first``: nothing has come from that server yet."""
    try:
        yield
    except (redis.RedisError, ValueError, OSError) as error:
        kind, sentence = explain(error, where, first=first)
        raise _ERRORS[kind](sentence) from error
