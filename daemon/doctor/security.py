"""Notes about unsafe settings that do not keep Rechannel from running, each with its cure."""

from __future__ import annotations

import ipaddress
import socket

from rechannel.conf.settings import Settings
from rechannel.wire.redis import acl

OPEN_REDIS = (
    "Redis accepts its user default without a password: everybody who can reach it may give orders; once every "
    "part has a user of its own, `ACL SETUSER default off` on every server, or give it a password"
)
NO_PUBLIC_KEYS = (
    "signing.public_key_file is not set, only signing.private_key_file: after a change of the signing key this "
    "controller would accept neither the drains nor the migrations that the old key has signed; name signing.pub there"
)
LISTENS = (
    "{field} = {listen} can be reached from other machines: there is no password, and a page in a browser can "
    "read it under another name; use an address of loopback (127.0.0.1), behind a proxy that authenticates users"
)


def key_notes(settings: Settings) -> list[str]:
    """Return notes about the signing keys of a controller."""
    signing = settings.signing
    return [NO_PUBLIC_KEYS] if signing.private_key_file and not signing.public_key_file else []


def redis_notes(settings: Settings) -> list[str]:
    """Return a note if Redis needs no password; none if it does not answer."""
    return [OPEN_REDIS] if acl.allows_anonymous(settings.redis) else []


def listen_notes(addresses: dict[str, str]) -> list[str]:
    """Return notes about addresses (by setting, "" for none) that other machines can reach."""
    return [
        LISTENS.format(field=field, listen=listen)
        for field, listen in addresses.items()
        if listen and not _is_local(listen.rpartition(":")[0].strip("[]"))
    ]


def _is_local(host: str) -> bool:
    """Whether the first address of this host is reached from this machine alone."""
    try:
        address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(str(address).partition("%")[0]).is_loopback
    except (OSError, ValueError):
        return True  # no such host, so nothing listens there
