"""The one door to Redis: typed messages in and out, and every foreign error translated.

`StoreUnavailableError` means try again later, `StoreRefusedError` means a human must mend something.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis.exceptions

from rechannel.conf.settings import RedisSettings
from rechannel.wire import keys as key_rules
from rechannel.wire.keys import KeyRule, Keys
from rechannel.wire.messages import SCHEMA, AnyBody, Envelope, MessageError, decode, encode

OLDEST_REDIS = (7, 0)

# KEYS[1] lease, KEYS[2] epoch; ARGV: holder, milliseconds, least epoch. Returns {holder, epoch} of the lease's owner.
# The epoch is one more than the highest that Redis or any link (ARGV[3]) knows, so an emptied Redis cannot reuse one.
_ACQUIRE = """
local owner = redis.call('GET', KEYS[1])
if owner and string.match(owner, '^(.*)\\n') ~= ARGV[1] then return owner end
local known = tonumber(redis.call('GET', KEYS[2]) or '0')
if owner then
  local epoch = tonumber(string.match(owner, '\\n(%d+)$'))
  if epoch >= tonumber(ARGV[3]) and epoch >= known then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return owner
  end
end
local epoch = math.max(known, tonumber(ARGV[3])) + 1
redis.call('SET', KEYS[2], string.format('%d', epoch))
owner = ARGV[1] .. '\\n' .. string.format('%d', epoch)
redis.call('SET', KEYS[1], owner, 'PX', ARGV[2])
return owner
"""

# KEYS[1] lease; ARGV: holder. Gives the lease up if it is the holder's own.
_RELEASE = """
local owner = redis.call('GET', KEYS[1])
if owner and string.match(owner, '^(.*)\\n') == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class StoreError(RuntimeError):
    """Redis could not do it."""


class StoreUnavailableError(StoreError):
    """Redis is away or too slow; try again later."""


class StoreRefusedError(StoreError):
    """Redis answered no: wrong address, password, rights or version. Trying again will not help."""


@dataclass(frozen=True)
class Lease:
    """Who leads, and the epoch that fences all others."""

    holder: str
    epoch: int


class Author:
    """Makes envelopes for one sender; sequence numbers rise by one."""

    def __init__(self, cluster: str, sender: str, clock: Callable[[], float] = time.time) -> None:
        self.cluster = cluster
        self.sender = sender
        self.clock = clock
        self._sequence = 0

    def envelope(self, body: AnyBody, *, ttl: float, application: str = "", run: str = "", epoch: int = 0) -> Envelope:
        """Wrap a body; it expires ``ttl`` seconds from now."""
        self._sequence += 1
        now = self.clock()
        return Envelope(
            schema=SCHEMA,
            cluster=self.cluster,
            application=application,
            run=run,
            sender=self.sender,
            sequence=self._sequence,
            epoch=epoch,
            time=now,
            expires=now + ttl,
            body=body,
        )


class Store:
    """Typed access to the key space of one cluster. Connects on first use; safe to share between threads."""

    def __init__(self, settings: RedisSettings, cluster: str) -> None:
        self.keys = Keys(cluster)
        self.cluster = cluster
        self.rejected = 0  # messages that could not be read, since the start
        self._settings = settings
        self._where = settings.url.split("@")[-1].partition("?")[0]
        self._checked = False
        with _translated(self._where):
            self._redis: Any = redis.Redis.from_url(
                settings.url,
                username=settings.username or None,
                password=_password(settings),
                socket_timeout=settings.timeout,
                socket_connect_timeout=settings.timeout,
            )
        self._acquire = self._redis.register_script(_ACQUIRE)
        self._release = self._redis.register_script(_RELEASE)

    def check(self) -> str:
        """Return the server's version, or raise StoreRefusedError when it is older than 7.0."""
        with _translated(self._where):
            server = self._redis.info("server")
        # Valkey answers redis_version 7.2.4 for clients that look there; its own version stands beside it.
        version = str(server.get("valkey_version") or server.get("redis_version", "0"))
        if tuple(int(part) for part in str(server.get("redis_version", "0")).split(".")[:2]) < OLDEST_REDIS:
            raise StoreRefusedError(f"redis.url: server at {self._where} is version {version}; 7.0 or newer is needed")
        self._checked = True
        return version

    def close(self) -> None:
        """Drop the connections."""
        with _translated(self._where):
            self._redis.close()

    def put(self, rule: KeyRule, name: str, envelope: Envelope, ttl: float | None = None) -> None:
        """Set a string key; it lives ``ttl`` seconds (the rule's own if None)."""
        self._connected()
        seconds = rule.ttl if ttl is None else ttl
        with _translated(self._where):
            self._redis.set(self.keys(rule, name), encode(envelope), px=int(seconds * 1000) if seconds else None)

    def get(self, rule: KeyRule, name: str = "") -> Envelope | None:
        """Read a string key; None when absent or unreadable (counted in ``rejected``)."""
        self._connected()
        with _translated(self._where):
            data = self._redis.get(self.keys(rule, name))
        return None if data is None else self._decoded(data)

    def delete(self, rule: KeyRule, name: str = "") -> None:
        """Remove a key."""
        self._connected()
        with _translated(self._where):
            self._redis.delete(self.keys(rule, name))

    def append(self, rule: KeyRule, name: str, *envelopes: Envelope) -> None:
        """Add messages to a stream in order, trimmed to the rule's bound, in one round trip."""
        if not envelopes:
            return
        self._connected()
        key = self.keys(rule, name)
        with _translated(self._where):
            pipe = self._redis.pipeline(transaction=False)
            for envelope in envelopes:
                pipe.xadd(key, {"m": encode(envelope)}, maxlen=rule.bound, approximate=True)
            pipe.expire(key, rule.ttl)
            pipe.execute()

    def read(self, rule: KeyRule, name: str, after: str, count: int = 1000) -> tuple[str, list[Envelope]]:
        """Read a stream's entries after an id ("0" for all); returns the last id seen and the readable messages."""
        self._connected()
        with _translated(self._where):
            entries = self._redis.xrange(self.keys(rule, name), min=f"({after}" if after != "0" else "-", count=count)
        return (entries[-1][0].decode() if entries else after), self._messages(entries)

    def last(self, rule: KeyRule, name: str, count: int) -> list[Envelope]:
        """Read the newest entries of a stream, oldest first."""
        self._connected()
        with _translated(self._where):
            entries = self._redis.xrevrange(self.keys(rule, name), count=count)
        return self._messages(list(reversed(entries)))

    def last_id(self, rule: KeyRule, name: str = "") -> str:
        """Return the id of a stream's newest entry, "0" when it is empty."""
        self._connected()
        with _translated(self._where):
            entries = self._redis.xrevrange(self.keys(rule, name), count=1)
        return entries[0][0].decode() if entries else "0"

    def seen_application(self, application: str, now: float) -> None:
        """Put the application on the list of those with a link."""
        self._connected()
        key = self.keys(key_rules.APPLICATIONS)
        with _translated(self._where):
            pipe = self._redis.pipeline(transaction=False)
            pipe.zadd(key, {application: now})
            pipe.zremrangebyscore(key, "-inf", now - key_rules.APPLICATIONS.ttl)
            pipe.zremrangebyrank(key, 0, -key_rules.APPLICATIONS.bound - 1)
            pipe.execute()

    def applications(self, since: float) -> list[str]:
        """List the applications whose link was seen since then, by id."""
        self._connected()
        with _translated(self._where):
            found = self._redis.zrangebyscore(self.keys(key_rules.APPLICATIONS), since, "+inf")
        return sorted(item.decode(errors="replace") for item in found)

    def acquire_lease(self, holder: str, seconds: float, least_epoch: int) -> Lease:
        """Take or renew the lead; returns whoever holds it. ``least_epoch`` is the highest epoch any link reports."""
        self._connected()
        with _translated(self._where):
            owner = self._acquire(
                keys=[self.keys(key_rules.LEASE), self.keys(key_rules.EPOCH)],
                args=[holder, int(seconds * 1000), least_epoch],
            )
        name, _, epoch = owner.decode().rpartition("\n")
        return Lease(name, int(epoch))

    def release_lease(self, holder: str) -> None:
        """Give the lead up if it is this holder's."""
        with _translated(self._where):
            self._release(keys=[self.keys(key_rules.LEASE)], args=[holder])

    def set_paused(self, paused: bool) -> None:
        """Remember across restarts whether everything is paused."""
        self._connected()
        with _translated(self._where):
            key = self.keys(key_rules.PAUSED)
            self._redis.set(key, "1") if paused else self._redis.delete(key)

    def paused(self) -> bool:
        """Say whether everything is paused."""
        self._connected()
        with _translated(self._where):
            return bool(self._redis.exists(self.keys(key_rules.PAUSED)))

    def set_user(self, user: str, rules: Sequence[str]) -> bool:
        """Make or replace a Redis user (ACL SETUSER); False if Redis will forget it when it restarts."""
        self._connected()
        with _translated(self._where):
            self._redis.execute_command("ACL", "SETUSER", user, *rules)
            try:
                self._redis.execute_command("ACL", "SAVE")
            except redis.ResponseError:  # this Redis keeps its users in no file
                return False
        return True

    def _connected(self) -> None:
        if not self._checked:
            self.check()

    def _messages(self, entries: list[Any]) -> list[Envelope]:
        found = [self._decoded(fields.get(b"m", b"")) for _, fields in entries]
        return [envelope for envelope in found if envelope is not None]

    def _decoded(self, data: bytes) -> Envelope | None:
        try:
            return decode(data, cluster=self.cluster)
        except MessageError:
            self.rejected += 1
            return None


def _password(settings: RedisSettings) -> str | None:
    if not settings.password_file:
        return None
    try:
        return Path(settings.password_file).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise StoreRefusedError(f"redis.password_file: {settings.password_file} is not a text file") from error
    except OSError as error:
        raise StoreRefusedError(
            f"redis.password_file: {settings.password_file} cannot be read ({error.strerror})"
        ) from error


@contextmanager
def _translated(where: str) -> Iterator[None]:
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise StoreRefusedError(
            f"Redis at {where} refuses us ({error}); check redis.username, redis.password_file and its ACL"
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError) as error:
        raise StoreUnavailableError(
            f"Redis at {where} cannot be reached ({error}); check redis.url and the server"
        ) from error
    except redis.ResponseError as error:
        if "READONLY" in str(error) or "MASTERDOWN" in str(error):
            raise StoreUnavailableError(f"Redis at {where} takes no writes now ({error})") from error
        raise StoreRefusedError(f"Redis at {where} answered: {error}") from error
    except (redis.RedisError, ValueError, OSError) as error:
        raise StoreRefusedError(f"redis.url: {where}: {error}") from error
