"""A clock to turn by hand, and a Store in memory that keeps the promises of the real one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, MessageError, decode, encode
from rechannel.wire.keys import KeyRule, Keys
from rechannel.wire.redis.answers import Convert, Lease, Page, QueuedRequest
from rechannel.wire.redis.capacity import StreamTrimmer
from rechannel.wire.redis.errors import StoreDeposedError, StoreForbiddenError, StoreUnavailableError
from rechannel.wire.redis.lua_scripts import EPOCH_LEAP

NOW = 1_700_000_000.0


class FakeClock:
    """Stands still until told to go on."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class FakeFenced:
    """A leader's view of a FakeStore: it writes only while the lease is the one that is held."""

    def __init__(self, store: FakeStore, held: Callable[[], Lease]) -> None:
        self._store = store
        self._held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _guard(self) -> Lease:
        held = self._held()
        self._store._there()
        if self._store.owner() != held:
            raise StoreDeposedError(f"the lease of epoch {held.epoch} is over, or another's: nothing was written")
        return held

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        self._guard()
        self._store.put(rule, name, envelope, ttl)

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        self._guard()
        self._store.append(rule, name, *envelopes)

    def set_paused(self, paused: bool) -> None:
        self._guard()
        self._store.set_paused(paused)

    def claim(self, request: str, seconds: float) -> Lease:
        key = self.keys(keys.CLAIM, request)
        held = self._guard()
        result, until = self._store.claims.get(key, (held, 0.0))
        if until <= self._store.clock():
            result = held
            self._store.claims[key] = (held, self._store.clock() + seconds)
        return result


class FakeStore:
    """Store without a server. Messages go through the real encoding.

    ``away`` makes every call fail, ``unsendable`` every putting and appending of its rule, ``unreadable`` its getting.
    ``forbidden``: rule of which the user has no right to put messages.
    ``page``: entries in one answer at most, of the end of a stream.
    """

    def __init__(self, clock: FakeClock, cluster: str = "default") -> None:
        self.keys = Keys(cluster)
        self.cluster = cluster
        self.clock = clock
        self.rejected = 0
        self.away = False
        self.unsendable: KeyRule | None = None
        self.forbidden: KeyRule | None = None
        self.unreadable: KeyRule | None = None
        self.page = 100_000
        self.writes: list[str] = []
        self.reads: list[tuple[dict[str, str], set[str]]] = []  # of many streams at once: after what, and the doubtful
        self.empty()

    def empty(self) -> None:
        """What an emptied Redis looks like; stream ids go on with time."""
        self.strings: dict[str, tuple[bytes, float]] = {}
        self.streams: dict[str, list[tuple[tuple[int, int], bytes]]] = defaultdict(list)
        self.trimming: dict[str, StreamTrimmer] = {}
        self.claims: dict[str, tuple[Lease, float]] = {}
        self.apps: dict[str, float] = {}
        self._epoch = 0
        self._leap = False
        self._lease: tuple[str, int, float] | None = None
        self._paused = False

    def _there(self) -> None:
        if self.away:
            raise StoreUnavailableError("Redis at nowhere cannot be reached (test)")

    def check(self) -> str:
        self._there()
        return "8.0.0"

    def close(self) -> None:
        self._there()

    def fenced(self, held: Callable[[], Lease]) -> FakeFenced:
        return FakeFenced(self, held)

    def fail_over(self, *, known_epoch: int) -> None:
        """A replica takes over, to which the newest epochs had not come yet, and no lease."""
        self._leap, self._epoch, self._lease = True, known_epoch, None

    def owner(self) -> Lease | None:
        """Who holds the lease at this moment."""
        if self._lease is None or self._lease[2] <= self.clock():
            return None
        return Lease(self._lease[0], self._lease[1])

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        if rule is self.unsendable:
            raise StoreUnavailableError("gone")
        if rule is self.forbidden:
            raise StoreForbiddenError("no right to do this")
        self._there()
        self.writes.append(rule.pattern)
        seconds = rule.ttl if ttl is None else ttl
        self.strings[self.keys(rule, name)] = (encode(envelope), self.clock() + (seconds or 1e12))

    def get(self, rule: KeyRule, name: str = "") -> Envelope | None:
        if rule is self.unreadable:
            raise StoreUnavailableError("gone")
        self._there()
        data, until = self.strings.get(self.keys(rule, name), (None, 0.0))
        return None if data is None or until <= self.clock() else self._decoded(data)

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope, size: int | None = None) -> None:
        if rule is self.unsendable:
            raise StoreUnavailableError("gone")
        self._there()
        trimming = self.trimming.setdefault(self.keys(rule, name), StreamTrimmer(rule.bound))
        for envelope in envelopes:
            data = encode(envelope)
            count = trimming.add(len(data), rule.size if size is None else min(size, rule.size))
            self.append_raw(rule, name, data)
            del self.streams[self.keys(rule, name)][:-count]

    def append_raw(self, rule: KeyRule, name: str, data: bytes) -> None:
        self.writes.append(rule.pattern)
        entries = self.streams[self.keys(rule, name)]
        milliseconds = int(self.clock() * 1000)
        number = entries[-1][0][1] + 1 if entries and entries[-1][0][0] == milliseconds else 0
        entries.append(((milliseconds, number), data))
        del entries[: -rule.bound]

    def read(
        self, rule: KeyRule, name: str, after: str, count: int = 1000, convert: Convert | None = None
    ) -> tuple[str, list[Envelope]]:
        result = self._after(rule, name, after, count)
        return _last_id(result, after), self._messages(result, convert)

    def read_each(
        self, rule: KeyRule, after: Mapping[str, str], count: int, doubtful: Collection[str] = ()
    ) -> dict[str, Page]:
        self.reads.append((dict(after), set(doubtful)))
        result = {}
        for name, number in after.items():
            entries = self._after(rule, name, number, count)
            size = sum(len(data) for _, data in entries)
            result[name] = Page(_last_id(entries, number), self._messages(entries), size)
        return result

    def read_newest(
        self,
        rule: KeyRule,
        after: Mapping[str, str],
        silent: Collection[str] = (),
        convert: Convert | None = None,
    ) -> Iterator[tuple[str, Page]]:
        self._there()
        for name, number in after.items():
            entries = self.streams[self.keys(rule, name)]
            new = [entry for entry in entries if not number or entry[0] > _number(number)]
            if number and name in silent and entries and entries[-1][0] < _number(number):
                new = entries
            new = new[-rule.bound :]
            size = sum(len(data) for _, data in new)
            last = number if entries or name not in silent else ""
            yield name, Page(_last_id(new, last), self._messages(new, convert), size)

    def id_since(self, seconds: float) -> str:
        self._there()
        return f"{int((self.clock() - seconds) * 1000)}-0"

    def _after(self, rule: KeyRule, name: str, after: str, count: int) -> list[tuple[tuple[int, int], bytes]]:
        self._there()
        since = _number(after)
        return [entry for entry in self.streams[self.keys(rule, name)] if entry[0] > since or after == "0"][:count]

    def read_requests(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[QueuedRequest]]:
        result = self._after(rule, name, after, count)
        return _last_id(result, after), [
            QueuedRequest(envelope, max(0.0, self.clock() - number[0] / 1000))
            for number, data in result
            if (envelope := self._decoded(data)) is not None
        ]

    def last(self, rule: KeyRule, name: str, count: int) -> list[Envelope]:
        return self.read_before(rule, name, "", count)[1]

    def read_before(
        self, rule: KeyRule, name: str, before: str, count: int, convert: Convert | None = None
    ) -> tuple[str, list[Envelope]]:
        self._there()
        entries = self.streams[self.keys(rule, name)]
        entries = [entry for entry in entries if not before or entry[0] < _number(before)][-count:][-self.page :]
        return _last_id(entries[:1], before), self._messages(entries, convert)

    def last_id(self, rule: KeyRule, name: str = "") -> str:
        self._there()
        return _last_id(self.streams[self.keys(rule, name)], "0")

    def register_application(self, application: str, now: float) -> None:
        self._there()
        self.apps[application] = now

    def applications(self, since: float) -> list[str]:
        self._there()
        return sorted(name for name, seen in self.apps.items() if seen >= since)

    def acquire_lease(self, holder: str, seconds: float, least_epoch: int) -> Lease:
        self._there()
        owner = self.owner()
        if owner is not None and owner.holder != holder:
            return owner
        if owner is None or self._leap or owner.epoch < max(least_epoch, self._epoch):
            self._epoch = max(self._epoch, least_epoch) + (EPOCH_LEAP if self._leap else 1)
            self._leap = False
            owner = Lease(holder, self._epoch)
        self._lease = (holder, owner.epoch, self.clock() + seconds)
        return owner

    def release_lease(self, holder: str) -> None:
        self._there()
        if self._lease is not None and self._lease[0] == holder:
            self._lease = None

    def set_paused(self, paused: bool) -> None:
        self._there()
        self._paused = paused

    def is_paused(self) -> bool:
        self._there()
        return self._paused

    def _messages(
        self, entries: Sequence[tuple[tuple[int, int], bytes]], convert: Convert | None = None
    ) -> list[Envelope]:
        messages = (self._decoded(data) for _, data in entries)
        return [convert(envelope) if convert else envelope for envelope in messages if envelope is not None]

    def _decoded(self, data: bytes) -> Envelope | None:
        try:
            return decode(data, cluster=self.cluster)
        except MessageError:
            self.rejected += 1
            return None


def _last_id(entries: Sequence[tuple[tuple[int, int], bytes]], unless: str) -> str:
    return f"{entries[-1][0][0]}-{entries[-1][0][1]}" if entries else unless


def _number(entry: str) -> tuple[int, int]:
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)
