"""What does not keep Rechannel from running but is not safe, as sentences for people: with the cure."""

from __future__ import annotations

import ipaddress
import socket

from rechannel.conf.settings import Settings
from rechannel.wire.redis import acl

OPEN_REDIS = (
    "Redis lets everybody in without a password, as its user default: whoever reaches it may give orders; once every "
    "part has a user of its own, `ACL SETUSER default off` on every server, or give it a password"
)
NO_PUBLIC_KEYS = (
    "signing.public_key_file is not set beside signing.private_key_file: after a change of the signing key this "
    "controller would know neither the drains nor the migrations that the old key has signed; name signing.pub there"
)
LISTENS = (
    "{field} = {listen} can be reached from other machines: there is no password, and a page in anybody's browser can "
    "read it under another name; name an address of loopback (127.0.0.1), with a proxy in front that asks who comes"
)


def key_notes(settings: Settings) -> list[str]:
    """Say what a controller with these keys cannot do."""
    signing = settings.signing
    return [NO_PUBLIC_KEYS] if signing.private_key_file and not signing.public_key_file else []


def redis_notes(settings: Settings) -> list[str]:
    """Ask Redis whether it is open to everybody; nothing is said where it does not answer."""
    return [OPEN_REDIS] if acl.allows_anonymous(settings.redis) else []


def listen_notes(addresses: dict[str, str]) -> list[str]:
    """Say which of these lets others in than this machine. By field: host:port, "" for none."""
    return [
        LISTENS.format(field=field, listen=listen)
        for field, listen in addresses.items()
        if listen and not _is_local(listen.rpartition(":")[0].strip("[]"))
    ]


def _is_local(host: str) -> bool:
    """Whether a server at this host, whose first address it takes, is reached from this machine alone."""
    try:
        place = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(str(place).partition("%")[0]).is_loopback
    except (OSError, ValueError):
        return True  # there is no such host: nothing listens there
