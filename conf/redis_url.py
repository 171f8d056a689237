"""Parse ``sentinel://`` URLs."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

SENTINEL_SCHEME = "sentinel://"
_SENTINEL_PORT = 26379
_FORM = "sentinel://host:port,host:port[/database]?service=NAME"


@dataclass(frozen=True)
class SentinelAddress:
    """Hosts and ports of sentinels, the monitored service, and the database number."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int


def sentinel_address(url: str) -> SentinelAddress | None:
    """Parse a URL; None for another scheme, ValueError with the cure for a wrong URL."""
    if not url.startswith(SENTINEL_SCHEME):
        return None
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may contain a password
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
    return SentinelAddress(tuple(_host_and_port(text) for text in parts.netloc.split(",")), service, int(database))


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0:
        raise ValueError(f"{text!r} is no host and port of a sentinel; the form is {_FORM}")
    return host, port or _SENTINEL_PORT
