"""Constraints between settings, and such that bounds and patterns cannot express."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import SplitResult, parse_qs, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from rechannel.conf import lease_timing
from rechannel.conf.redis_url import SENTINEL_SCHEME, sentinel_address

if TYPE_CHECKING:
    from rechannel.conf.settings import RedisSettings, Settings

_Errors: TypeAlias = list[tuple[tuple[str, ...], str]]  # the settings that a constraint is about, and the sentence
_LARGEST_PORT = 65535
_TLS = ("tls_ca_file", "tls_certificate_file", "tls_key_file")


def errors(settings: Settings) -> _Errors:
    """Return the sentence of each broken constraint with the settings that it is about."""
    broken: _Errors = [(("redis.url",), sentence) for sentence in _url_errors(settings.redis.url)]
    tls_fields = ("redis.url", *(f"redis.{name}" for name in _TLS))
    broken += [(tls_fields, sentence) for sentence in _tls_errors(settings.redis)]
    for name, place in (("controller.listen", settings.controller.listen), ("agent.metrics", settings.agent.metrics)):
        port = place.rpartition(":")[2]
        if port and int(port) > _LARGEST_PORT:  # the system would use the lowest 16 bits, which is another port
            broken.append(((name,), f"{name}: {port} is no port; it must be between 0 and {_LARGEST_PORT}"))
    timing_errors = lease_timing.errors(settings.controller.lease, settings.redis)
    fields = ("controller.lease", "redis.timeout", "redis.url")
    broken += [(fields, sentence) for sentence in timing_errors]
    try:
        ZoneInfo(settings.reschedule.time_zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        sentence = (
            f"reschedule.time_zone: {settings.reschedule.time_zone!r} is not known here; name one as in Europe/Berlin, "
            "and install the system's tzdata if that is missing"
        )
        broken.append((("reschedule.time_zone",), sentence))
    return broken


def _tls_errors(redis: RedisSettings) -> list[str]:
    errors = []
    if bool(redis.tls_certificate_file) != bool(redis.tls_key_file):
        errors.append("redis.tls_certificate_file and redis.tls_key_file: set both, or neither")
    if redis.url.startswith(SENTINEL_SCHEME):
        if redis.tls_certificate_file and not redis.tls_ca_file:
            errors.append("redis.tls_ca_file: must be set too, for sentinels and Redis to be asked by TLS")
    elif not redis.url.startswith("rediss://"):
        fields = [name for name in _TLS if getattr(redis, name)]
        errors += [f"redis.{name}: is set, but redis.url is no rediss:// URL" for name in fields]
    return errors


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:  # its text may contain a password
        return None


def _url_errors(url: str) -> list[str]:
    try:
        if sentinel_address(url) is not None:
            return []
    except ValueError as error:
        return [f"redis.url: {error}"]
    errors = []
    address = _split(url)
    if address is None:
        return ["redis.url: cannot be read as a URL; check its brackets and characters outside ASCII"]
    try:
        _ = address.port
    except ValueError:
        errors.append("redis.url: its port is not a number from 0 to 65535")
    if address.scheme != "unix" and not re.fullmatch(r"(/\d*)?/?", address.path):  # redis-py would use database 0
        errors.append("redis.url: what follows the port is no number of a database; write it as redis://host:port/0")
    options = parse_qs(address.query, keep_blank_values=True).keys() - {"db"}
    if address.password or "password" in options:
        errors.append("redis.url: holds a password; put it alone in a file and name that in redis.password_file")
    elif address.username:  # redis-py would prefer it to redis.username, and to none where anonymous access is checked
        errors.append("redis.url: names a user; use redis.username")
    elif options:  # redis-py would prefer them, to redis.timeout above all
        names = ", ".join(sorted(options))
        errors.append(f"redis.url: holds options of a client ({names}); use redis.timeout, redis.tls_ca_file and such")
    return errors
