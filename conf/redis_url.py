"""Where Redis is: the form of ``sentinel://`` addresses. Pure; connections are made elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

SENTINEL_SCHEME = "sentinel://"
_SENTINEL_PORT = 26379
_FORM = "sentinel://host:port,host:port[/database]?service=NAME"


@dataclass(frozen=True)
class SentinelAddress:
    """The sentinels to ask, the name of the service whose master is meant, and the number of its database."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int = 0


def sentinel_address(url: str) -> SentinelAddress | None:
    """Read an address of sentinels; None for a URL of another kind, ValueError with the cure for a wrong one."""
    if not url.startswith(SENTINEL_SCHEME):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:  # it repeats what it could not read
        raise ValueError(f"is not of the form {_FORM}") from None
    if "@" in parts.netloc:
        raise ValueError(
            "names a user or password; use redis.username and redis.password_file for Redis, redis.sentinel_username "
            "and redis.sentinel_password_file for the sentinels"
        )
    query = parse_qs(parts.query)
    service = "".join(query.pop("service", []))
    database = parts.path.strip("/") or "0"
    if not service or query or not database.isdecimal():
        raise ValueError(f"is not of the form {_FORM}")
    return SentinelAddress(tuple(_place(text) for text in parts.netloc.split(",")), service, int(database))


def _place(text: str) -> tuple[str, int]:
    try:
        place = urlsplit(f"//{text}")
        host, port = place.hostname, place.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise ValueError(f"{text!r} is no host and port of a sentinel; the form is {_FORM}")
    return host, port or _SENTINEL_PORT
