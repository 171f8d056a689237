"""Typed access to the keys of one cluster, with the errors of `redis.errors`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis
import redis.exceptions

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys as key_rules
from rechannel.wire.envelope import Envelope, MessageError, decode, encode
from rechannel.wire.keys import MAX_MESSAGE_BYTES, KeyRule, Keys
from rechannel.wire.redis import acl, lua_scripts, tls
from rechannel.wire.redis.acl import AclResult
from rechannel.wire.redis.answers import Convert, Lease, Page, QueuedRequest
from rechannel.wire.redis.capacity import StreamTrimmer
from rechannel.wire.redis.connection import Connection
from rechannel.wire.redis.errors import (
    StoreDeposedError,
    StoreRefusedError,
    StoreTooLargeError,
    is_stream_ended,
    is_wrong_type,
    translated,
)

OLDEST_REDIS = (7, 0)
HIGHEST_EPOCH = 2**53  # numbers in Lua scripts are floats
_TRUSTED_EPOCH = 2**52  # higher epochs in reports of links are ignored: none would be left above them
_FIRST_READ = 256 * 1024  # bytes of a string that are read before its length is checked
_LARGEST_ENTRY = MAX_MESSAGE_BYTES + 1024
_LAST_ID = f"{2**64 - 1}-{2**64 - 1}"  # of a stream: no entry can follow, and Redis refuses to read after it
_Command = tuple[str | int | float | bytes, ...]  # its name, and the arguments after the key
_SCANS = 200  # rounds of a thousand keys each
READ_AT_ONCE = 32 * 2**20  # bytes; longer streams are read entry by entry up to this size
_STREAMS_AT_ONCE = 100  # read in one round trip


class Store:
    """Typed access to the keys of one cluster; connects on first use, thread-safe."""

    def __init__(self, settings: RedisSettings, cluster: str) -> None:
        self.keys = Keys(cluster)
        self.cluster = cluster
        self.rejected = 0  # invalid messages since the start
        self._settings = settings
        self._where = settings.url.split("@")[-1].partition("?")[0]
        self._is_checked = False
        try:
            self._connection = Connection(settings)
        except tls.CredentialFileError as error:
            raise StoreRefusedError(str(error)) from error
        except (ValueError, redis.RedisError, OSError) as error:
            raise StoreRefusedError(f"redis.url: {self._where}: {error}") from error
        self._redis = self._connection.client
        self._acquire = self._redis.register_script(lua_scripts.ACQUIRE)
        self._release = self._redis.register_script(lua_scripts.RELEASE)
        self._fenced = self._redis.register_script(lua_scripts.FENCED)
        self._claim = self._redis.register_script(lua_scripts.CLAIM)
        self._lease: Callable[[], Lease] | None = None  # required to write, in the view of a leader
        self._trimmers: dict[str, StreamTrimmer] = {}  # by key, of the streams written from here

    def fenced(self, lease: Callable[[], Lease]) -> Store:
        """Return a view for a leader, which writes only while Redis has the given lease.

        Redis checks the lease and writes in one atomic step, so a delayed write of a former leader changes nothing:
        it raises StoreDeposedError.
        """
        view = copy.copy(self)
        view._lease = lease
        return view

    def check(self) -> str:
        """Return the server's version, or raise StoreRefusedError when it is older than 7.0."""
        server = self.info("server")
        if server.get("redis_mode") == "sentinel":
            raise StoreRefusedError(f"redis.url: {self._where} is a sentinel; write it as sentinel://…?service=NAME")
        # Valkey reports redis_version 7.2.4 for compatibility, and its own version beside it.
        version = str(server.get("valkey_version") or server.get("redis_version", "0"))
        if tuple(int(part) for part in str(server.get("redis_version", "0")).split(".")[:2]) < OLDEST_REDIS:
            raise StoreRefusedError(f"redis.url: server at {self._where} is version {version}; 7.0 or newer is needed")
        self._is_checked = True
        return version

    def info(self, *sections: str) -> dict[str, Any]:
        """Return the fields of INFO, by default of all sections."""
        with translated(self._where, first=not self._is_checked):
            try:
                return dict(self._redis.info(*sections))
            except (AttributeError, TypeError):  # redis-py parses the answer without checks
                raise redis.exceptions.InvalidResponse from None

    def can_run(self, *command: str) -> bool:
        """Whether the user may run a command. It is sent, so pass one with wrong arguments."""
        with translated(self._where):
            try:
                self._redis.execute_command(*command)
            except redis.exceptions.NoPermissionError:
                return False
            except redis.ResponseError as error:  # Redis checks the arguments after the rights
                return "unknown command" not in str(error)  # which is checked before them
        return True

    def close(self) -> None:
        """Drop the connections."""
        with translated(self._where):
            self._connection.close()

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        """Set a string key.

        ``ttl``: seconds until the key expires, by default those of the rule; 0: never. Raises StoreTooLargeError if the
        message exceeds the size of the rule.
        """
        data = encode(envelope)
        if len(data) > rule.size:
            raise StoreTooLargeError(f"{rule.pattern}: a message of {len(data)} bytes, and {rule.size} is the most")
        seconds = rule.ttl if ttl is None else ttl
        life = ("PX", int(seconds * 1000)) if seconds else ()
        self._write(self.keys(rule, name), ("SET", data, *life))

    def get(self, rule: KeyRule, name: str = "") -> Envelope | None:
        """Read a string key; None when absent or unreadable (counted in ``rejected``)."""
        key = self.keys(rule, name)
        # Other users may have written the key: never read more than the size of a message.
        data = self._answer(lambda: self._redis.getrange(key, 0, _FIRST_READ - 1), b"")
        if len(data) == _FIRST_READ:
            if self._answer(lambda: self._redis.getrange(key, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES), b""):
                self.rejected += 1
                return None
            data = self._answer(lambda: self._redis.getrange(key, 0, MAX_MESSAGE_BYTES), b"")
        return self._decoded(data) if data else None

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope, size: int | None = None) -> None:
        """Append messages and trim the stream to its rule, or to less ``size``, in one round trip."""
        if not envelopes:
            return
        key, lines = self.keys(rule, name), [encode(envelope) for envelope in envelopes]
        trimmer = self._trimmers.pop(key, None) or StreamTrimmer(rule.bound)
        counts = [trimmer.add(len(line), rule.size if size is None else min(size, rule.size)) for line in lines]
        commands = [("XADD", "MAXLEN", "~", count, "*", "m", line) for count, line in zip(counts, lines, strict=True)]
        self._write(key, *commands, ("EXPIRE", rule.ttl))
        self._trimmers[key] = trimmer  # only after the write succeeded

    def read(
        self, rule: KeyRule, name: str, after: str, count: int = 1000, convert: Convert | None = None
    ) -> tuple[str, list[Envelope]]:
        """Read a stream; return the last id that was read and the valid messages.

        ``after``: id of the entry to begin after, "0" for all; ``count``: most entries, fewer of large ones;
        ``convert``: is called with each message before the next one is decoded, and returns what stays of it.
        """
        page = self._page(self._after(rule, name, after, count), after, convert)
        return page.last, page.messages

    def read_each(
        self, rule: KeyRule, after: Mapping[str, str], count: int, doubtful: Collection[str]
    ) -> dict[str, Page]:
        """Read streams of several names, a hundred in one round trip.

        ``after``: name -> id of the entry to begin after; ``count``: most entries of each; ``doubtful``: streams whose
        size is checked first: large ones are read entry by entry.
        """
        names = [name for name, number in after.items() if number != _LAST_ID]
        pages: dict[str, Page] = {}
        for start in range(0, len(names), _STREAMS_AT_ONCE):
            chunk = names[start : start + _STREAMS_AT_ONCE]
            unknown = [name for name in chunk if name in doubtful]
            sizes = self._ask_all([("MEMORY", "USAGE", self.keys(rule, name)) for name in unknown])
            large = {name for name, size in zip(unknown, sizes, strict=True) if int(size or 0) > READ_AT_ONCE}
            small = [name for name in chunk if name not in large]
            answers = self._ask_all(
                [("XRANGE", self.keys(rule, name), f"({after[name]}", "+", "COUNT", count) for name in small]
            )
            answered = [
                *zip(small, answers, strict=True),
                *((name, self._after(rule, name, after[name], count)) for name in large),
            ]
            pages |= {name: self._page(entries or [], after[name]) for name, entries in answered}
        return pages

    def read_newest(
        self, rule: KeyRule, after: Mapping[str, str], silent: Collection[str] = (), convert: Convert | None = None
    ) -> Iterator[tuple[str, Page]]:
        """Yield the new entries of streams: the newest, as many of each as its rule keeps.

        Streams are read together, up to `READ_AT_ONCE` bytes in one round trip. An empty silent one has the last id "".

        ``after``: name -> id of the last entry that was read, "" for none; ``convert``: as for `read`. ``silent``:
        streams that had no new entries for long; one that ends before ``after`` was replaced: it is read from its
        start.
        """
        names = list(after)
        for start in range(0, len(names), _STREAMS_AT_ONCE):
            chunk = names[start : start + _STREAMS_AT_ONCE]
            sizes = self._ask_all([("MEMORY", "USAGE", self.keys(rule, name), "SAMPLES", 0) for name in chunk])
            group, room = dict[str, str](), READ_AT_ONCE
            for name, size in zip(chunk, (int(size or 0) for size in sizes), strict=True):
                if size > room and group:
                    yield from self._newest(rule, group, silent, convert)
                    group, room = {}, READ_AT_ONCE
                if size > READ_AT_ONCE:
                    yield name, self._page(self._last(rule, name, rule.bound), "", convert)
                else:
                    group[name], room = after[name], room - size
            yield from self._newest(rule, group, silent, convert)

    def _newest(
        self, rule: KeyRule, after: Mapping[str, str], silent: Collection[str], convert: Convert | None
    ) -> Iterator[tuple[str, Page]]:
        # A silent one from the last entry that was read, not after it: an empty answer shows that it begins anew.
        silent = {name for name, number in after.items() if name in silent or number == _LAST_ID}
        begins = [number if name in silent or not number else f"({number}" for name, number in after.items()]
        commands = [
            ("XREVRANGE", self.keys(rule, name), "+", begin or "-", "COUNT", rule.bound)
            for name, begin in zip(after, begins, strict=True)
        ]
        replaced = {}
        for (name, number), answer in zip(after.items(), self._ask_all(commands), strict=True):
            entries = [entry for entry in reversed(answer or []) if entry[0].decode() != number]
            if number and answer == [] and name in silent:  # None: a key of another type
                replaced[name] = ""
            else:
                yield name, self._page(entries, number, convert)
        if replaced:
            yield from self._newest(rule, replaced, silent, convert)

    def id_since(self, seconds: float) -> str:
        """Return an id before all entries of the last so many seconds, by the clock of Redis."""
        return f"{max(0, int((self._now() - seconds) * 1000))}-0"

    def read_requests(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[QueuedRequest]]:
        """Read entries of a stream like `read`, with the age of each message."""
        entries = self._after(rule, name, after, count)
        if not entries:
            return after, []
        now = self._now()
        messages = [(number, self._decoded(fields.get(b"m", b""))) for number, fields in entries]
        return entries[-1][0].decode(), [
            QueuedRequest(envelope, max(0.0, now - int(number.partition(b"-")[0]) / 1000))
            for number, envelope in messages
            if envelope is not None
        ]

    def _after(self, rule: KeyRule, name: str, after: str, count: int) -> list[Any]:
        key = self.keys(rule, name)
        if after == _LAST_ID:
            return []
        return self._entries(
            key, lambda start, most: self._redis.xrange(key, min=f"({start}", count=most), after, count
        )

    def last(self, rule: KeyRule, name: str, count: int) -> list[Envelope]:
        """Read the newest ``count`` entries of a stream, oldest first; fewer large ones."""
        return self.read_before(rule, name, "", count)[1]

    def read_before(
        self, rule: KeyRule, name: str, before: str, count: int, convert: Convert | None = None
    ) -> tuple[str, list[Envelope]]:
        """Read the last ``count`` entries before an id, "" for the end; fewer large ones.

        Returns the first id that was read, ``before`` for none, and the messages, oldest first.
        """
        entries = self._last(rule, name, count, before)
        return entries[0][0].decode() if entries else before, self._messages(entries, convert)

    def _last(self, rule: KeyRule, name: str, count: int, before: str = "") -> list[Any]:
        key = self.keys(rule, name)
        entries = self._entries(
            key, lambda end, most: self._redis.xrevrange(key, max=f"({end}" if end else "+", count=most), before, count
        )
        return entries[::-1]

    def last_id(self, rule: KeyRule, name: str = "") -> str:
        """Return the id of the newest entry of a stream, "0" if it is empty."""
        entries = self._answer(lambda: self._redis.xrevrange(self.keys(rule, name), count=1), [])
        return entries[0][0].decode() if entries else "0"

    def list_names(self, rule: KeyRule) -> list[str]:
        """List the names in the keys of a rule that a limited number of SCAN calls finds.

        Raises StoreForbiddenError for users of `rechannel acl`, which may not scan.
        """
        before, _, after = self.keys.acl_pattern(rule).partition("*")
        names, cursor = set[str](), 0
        with self._calling():
            for _ in range(_SCANS):
                cursor, page = self._redis.scan(cursor, match=f"{before}*{after}", count=1000)
                names |= {key.decode(errors="replace")[len(before) : -len(after) or None] for key in page}
                if not cursor:
                    break
        return sorted(name for name in names if key_rules.is_valid_name(name))

    def register_application(self, application: str, now: float) -> None:
        """Add an application to the list of those with a link, or refresh it."""
        self._write(
            self.keys(key_rules.APPLICATIONS),
            ("ZADD", now, application),
            ("ZREMRANGEBYSCORE", "-inf", now - key_rules.APPLICATIONS.ttl),
            ("ZREMRANGEBYRANK", 0, -key_rules.APPLICATIONS.bound - 1),
        )

    def applications(self, since: float) -> list[str]:
        """List applications registered since a time, up to the bound of the rule."""
        key, bound = self.keys(key_rules.APPLICATIONS), key_rules.APPLICATIONS.bound
        if self._size(key) > READ_AT_ONCE:
            self.rejected += 1
            return []
        members = self._answer(lambda: self._redis.zrangebyscore(key, since, "+inf", start=0, num=bound), [])
        return sorted(item.decode(errors="replace") for item in members)

    def acquire_lease(self, holder: str, seconds: float, least_epoch: int) -> Lease:
        """Acquire or renew the lease; return the one in Redis. ``least_epoch``: that of links."""
        epoch = max(0, min(least_epoch, _TRUSTED_EPOCH))
        with self._calling():
            owner = self._acquire(
                keys=[self.keys(key_rules.LEASE), self.keys(key_rules.EPOCH)],
                args=[holder, int(seconds * 1000), epoch, key_rules.LEASE.ttl * 1000, HIGHEST_EPOCH],
            )
        return Lease.from_token(owner)

    def claim(self, request: str, seconds: float) -> Lease:
        """Claim a request for this leader before it is carried out; KeyNameError for a bad id.

        Returns the lease under which it is claimed: an earlier one if a leader took it up then. It lasts ``seconds``.
        """
        if self._lease is None:
            raise TypeError("only a leader's view of the store, made by fenced(), can claim")
        key = self.keys(key_rules.CLAIM, request)
        with self._calling():
            lease = self._lease()
            owner = self._claim(keys=[self.keys(key_rules.LEASE), key], args=[lease.token, max(1, int(seconds * 1000))])
        if owner is None:
            raise _deposed_error(lease)
        return Lease.from_token(owner)

    def release_lease(self, holder: str) -> None:
        """Give the lead up if it is this holder's."""
        with translated(self._where):
            self._release(keys=[self.keys(key_rules.LEASE)], args=[holder])

    def set_paused(self, paused: bool) -> None:
        """Store whether everything is paused."""
        self._write(self.keys(key_rules.PAUSED), ("SET", "1") if paused else ("DEL",))

    def is_paused(self) -> bool:
        """Whether everything is paused."""
        with self._calling():
            return bool(self._redis.exists(self.keys(key_rules.PAUSED)))

    def set_user(self, user: str, rules: Sequence[str]) -> list[AclResult]:
        """Create or replace a Redis user on master and replicas; return a result for each."""
        with self._calling():
            first = AclResult(self._where, acl.create_user(self._redis, user, rules))
            return [first, *acl.create_user_on_replicas(self._connection, user, rules)]

    def _ask_all(self, commands: Sequence[_Command]) -> list[Any]:
        """Run read commands in one round trip; None for a key of another type (counted)."""
        if not commands:
            return []
        with self._calling():
            pipe = self._redis.pipeline(transaction=False)
            for command in commands:
                pipe.execute_command(*command)
            answers = pipe.execute(raise_on_error=False)
            for index, answer in enumerate(answers):
                if not isinstance(answer, Exception):
                    continue
                if not isinstance(answer, redis.ResponseError) or not is_wrong_type(answer):
                    raise answer
                self.rejected += 1
                answers[index] = None
        return list(answers)

    def _page(self, entries: list[Any], after: str, convert: Convert | None = None) -> Page:
        size = sum(len(value) for _, fields in entries for value in fields.values())
        return Page(entries[-1][0].decode() if entries else after, self._messages(entries, convert), size)

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Check the server before the first call, and translate errors."""
        if not self._is_checked:
            self.check()
        with translated(self._where), self._connection.reconnecting():
            yield

    def _answer(self, call: Callable[[], Any], otherwise: Any) -> Any:
        """Run a read command; return ``otherwise`` if the key has another type, which is counted."""
        with self._calling():
            try:
                return call()
            except redis.ResponseError as error:
                if not is_wrong_type(error):
                    raise
                self.rejected += 1
                return otherwise

    def _write(self, key: str, *commands: _Command) -> None:
        """Run write commands on a key in order, in one round trip.

        A key of another type, and a stream whose last id is the highest possible, is deleted first: another user with
        the right to write the key put it there.
        """
        with self._calling():
            try:
                self._run(key, commands)
            except redis.ResponseError as error:
                if not is_wrong_type(error) and not is_stream_ended(error):
                    raise
                self.rejected += 1
                self._run(key, [("DEL",), *commands])

    def _run(self, key: str, commands: Sequence[_Command]) -> None:
        if self._lease is None:
            pipe = self._redis.pipeline(transaction=False)
            for name, *arguments in commands:
                pipe.execute_command(name, key, *arguments)
            pipe.execute()
            return
        lease = self._lease()
        arguments = [part for command in commands for part in (len(command), *command)]
        if not self._fenced(keys=[self.keys(key_rules.LEASE), key], args=[lease.token, *arguments]):
            raise _deposed_error(lease)

    def _now(self) -> float:
        with self._calling():
            return int(self._redis.info("server")["server_time_usec"]) / 1e6

    def _size(self, key: str) -> int:
        """Return the bytes that a key takes in Redis."""
        return int(self._answer(lambda: self._redis.memory_usage(key, samples=0), 0) or 0)

    def _entries(self, key: str, page: Callable[[str, int], list[Any]], after: str, count: int) -> list[Any]:
        """Read up to ``count`` entries of a stream, and at most about `READ_AT_ONCE` bytes."""
        if self._size(key) <= READ_AT_ONCE:
            return list(self._answer(lambda: page(after, count), []))
        result: list[Any] = []
        room = READ_AT_ONCE
        while room > 0 and len(result) < count:
            entries = self._answer(lambda: page(after, 1), [])  # noqa: B023  called at once
            if not entries:
                break
            [(number, fields)] = entries
            size = sum(len(name) + len(value) for name, value in fields.items())
            room -= size
            after = number.decode()
            result.append((number, fields if size <= _LARGEST_ENTRY else {}))
        return result

    def _messages(self, entries: list[Any], convert: Convert | None) -> list[Envelope]:
        messages = (self._decoded(fields.get(b"m", b"")) for _, fields in entries)
        return [convert(envelope) if convert else envelope for envelope in messages if envelope is not None]

    def _decoded(self, data: bytes) -> Envelope | None:
        try:
            return decode(data, cluster=self.cluster)
        except MessageError:
            self.rejected += 1
            return None


def _deposed_error(lease: Lease) -> StoreDeposedError:
    return StoreDeposedError(f"the lease of epoch {lease.epoch} is over, or another's: nothing was written")
