"""What must hold of several settings at once. Each mistake comes with the fields it is about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, parse_qs, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rechannel.conf import lease_timing
from rechannel.conf.redis_url import SENTINEL_SCHEME, sentinel_address

if TYPE_CHECKING:
    from rechannel.conf.settings import RedisSettings, Settings

_Mistakes: TypeAlias = list[tuple[tuple[str, ...], str]]
_PORTS = 65535  # the highest
_TLS = ("tls_ca_file", "tls_certificate_file", "tls_key_file")


def mistakes(settings: Settings) -> _Mistakes:
    """Return the fields and the sentence of each mistake."""
    found: _Mistakes = [(("redis.url",), sentence) for sentence in _address_mistakes(settings.redis.url)]
    found += [
        (("redis.url", *(f"redis.{name}" for name in _TLS)), mistake) for mistake in _tls_mistakes(settings.redis)
    ]
    for name, place in (("controller.listen", settings.controller.listen), ("agent.metrics", settings.agent.metrics)):
        port = place.rpartition(":")[2]
        if port and int(port) > _PORTS:  # the system would take its lowest 16 bits, another port
            found.append(((name,), f"{name}: {port} is no port; it must be between 0 and {_PORTS}"))
    if settings.agent.sample > settings.agent.window:
        sentence = "agent.sample: must not exceed agent.window, or a window holds no sample"
        found.append((("agent.sample", "agent.window"), sentence))
    late = lease_timing.mistakes(
        settings.controller.lease,
        settings.controller.observe,
        settings.redis.timeout,
        sentinels=settings.redis.url.startswith(SENTINEL_SCHEME),
    )
    fields = ("controller.lease", "controller.observe", "redis.timeout", "redis.url")
    found += [(fields, sentence) for sentence in late]
    if settings.link.poll_moving > settings.link.poll:
        found.append((("link.poll_moving", "link.poll"), "link.poll_moving: must not exceed link.poll"))
    try:
        ZoneInfo(settings.reschedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        sentence = (
            f"reschedule.time_zone: {settings.reschedule.time_zone!r} is not known here; name one as in Europe/Berlin, "
            "and install the system's tzdata if that is missing"
        )
        found.append((("reschedule.time_zone",), sentence))
    return found


def _tls_mistakes(redis: RedisSettings) -> list[str]:
    mistakes = []
    address = _split(redis.url)
    if address and any(name.startswith("ssl_") for name in parse_qs(address.query, keep_blank_values=True)):
        mistakes.append("redis.url: TLS is set by redis.tls_ca_file and its neighbors, not by the URL")
    if bool(redis.tls_certificate_file) != bool(redis.tls_key_file):
        mistakes.append("redis.tls_certificate_file and redis.tls_key_file: set both, or neither")
    if redis.url.startswith(SENTINEL_SCHEME):
        if redis.tls_certificate_file and not redis.tls_ca_file:
            mistakes.append("redis.tls_ca_file: must be set too, for sentinels and Redis to be asked by TLS")
    elif not redis.url.startswith("rediss://"):
        given = [name for name in _TLS if getattr(redis, name)]
        mistakes += [f"redis.{name}: is set, but redis.url is no rediss:// URL" for name in given]
    return mistakes


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # what it says may hold a password
        return None


def _address_mistakes(url: str) -> list[str]:
    try:
        if sentinel_address(url) is not None:
            return []
    except ValueError as error:
        return [f"redis.url: {error}"]
    mistakes = []
    address = _split(url)
    if address is None:
        return ["redis.url: cannot be read as a URL; see to its brackets and to characters that are no ASCII"]
    try:
        _ = address.port
    except ValueError:
        mistakes.append("redis.url: its port is not a number from 0 to 65535")
    if address.scheme != "unix" and not re.fullmatch(r"(/\d*)?/?", address.path):  # the first one would be taken
        mistakes.append("redis.url: what follows the port is no number of a database; write it as redis://host:port/0")
    if address.password or "password" in parse_qs(address.query):
        mistakes.append("redis.url: holds a password; put it alone in a file and name that in redis.password_file")
    return mistakes
