"""The settings of the surroundings: which cluster, Redis, keys, and the link in the driver. And what a field is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


def setting(
    default: Any,
    reason: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] = (),
    pattern: str = "",
    live: bool = False,
    path: bool = False,
) -> Any:
    """Make a field.

    ``live``: controller and agent take a new value over on SIGHUP; else it takes a restart. ``path``: it names a file,
    which is relative to the one it stands in.
    """
    rule = {"reason": reason, "unit": unit, "low": low, "high": high, "choices": choices, "pattern": pattern}
    return field(default=default, metadata={**rule, "live": live, "path": path})


@dataclass(frozen=True)
class ClusterSettings:
    """Which cluster this is."""

    name: str = setting(
        "default",
        "Separates clusters that share one Redis; part of every key.",
        pattern=r"[A-Za-z0-9._-]{1,64}",
    )


@dataclass(frozen=True)
class RedisSettings:
    """Where agents, links and controller meet."""

    url: str = setting(
        "redis://127.0.0.1:6379/0",
        "Redis 7.0 or newer, or Valkey; sentinel://host:port,host:port/0?service=NAME asks sentinels for the master.",
        unit="redis://, rediss://, unix:// or sentinel:// URL without a password",
        pattern=r"(redis|rediss|unix|sentinel)://\S+",
    )
    username: str = setting("", "ACL user; empty means Redis' default user.")
    password_file: str = setting(
        "", "A file that holds the password alone; a password in a URL ends up in logs.", path=True
    )
    tls_ca_file: str = setting(
        "",
        "PEM of the CA that issued the server's certificate; trusted beside the system's own. For rediss://; turns TLS "
        "on for sentinel://.",
        path=True,
    )
    tls_certificate_file: str = setting(
        "", "PEM of our own certificate, where the server wants one (tls-auth-clients).", path=True
    )
    tls_key_file: str = setting(
        "", "PEM of its private key, without a pass phrase; nobody else may read it.", path=True
    )
    sentinel_username: str = setting("", "ACL user of the sentinels themselves; empty means their default user.")
    sentinel_password_file: str = setting(
        "", "A file that holds the sentinels' own password alone, if they have one.", path=True
    )
    timeout: float = setting(
        2.0,
        "A Redis slower than this is treated as away; with sentinels all of them together have as long to answer.",
        unit="seconds",
        low=0.05,
        high=60,
    )


@dataclass(frozen=True)
class SigningSettings:
    """Ed25519 keys: the controller signs desired placements, links check them."""

    private_key_file: str = setting(
        "",
        "PEM; read by the controller alone, and refused if others may read it. Made by `rechannel config keys`.",
        path=True,
    )
    public_key_file: str = setting(
        "",
        "PEM of one key or several, or a directory of such; read by every link, and again when it changes. Without it "
        "a link obeys nobody, and a controller knows nothing of what another key has signed.",
        path=True,
    )


@dataclass(frozen=True)
class LinkSettings:
    """The part inside the Spark driver."""

    directory: str = setting("", "Event stream; private to the user. Empty means a temporary directory.", path=True)
    poll: float = setting(
        0.1, "How often the event stream is read while nothing is to be moved.", unit="seconds", low=0.005, high=5
    )
    poll_moving: float = setting(
        0.005,
        "The same while partitions are to be moved: a batch boundary is short.",
        unit="seconds",
        low=0.001,
        high=1,
    )
    event_log_bytes: int = setting(
        16 * 2**20, "A part of the event stream is deleted once read; this is its size.", unit="bytes", low=10 * 2**20
    )
    deadline_batches: int = setting(
        6, "A move that has not landed after so many batches is abandoned.", unit="batches", low=1, high=1000
    )
    deadline_seconds: float = setting(
        600.0, "The same in time, for queries that stand still.", unit="seconds", low=1, high=86_400
    )
    report: float = setting(1.0, "How often the link reports what it sees.", unit="seconds", low=0.1, high=60)
    spread: bool = setting(
        True,
        "Spread a new query after its first batch, put a restarted one back, spread what a lost executor held.",
    )
