"""What does not keep Rechannel from running but is not safe, as sentences for people: with the cure."""

from __future__ import annotations

from rechannel.conf.settings import Settings
from rechannel.wire import users

OPEN_REDIS = (
    "Redis lets everybody in without a password, as its user default: whoever reaches it may give orders. Once every "
    "part has a user of its own, `ACL SETUSER default off` on every server, or give it a password"
)
NO_PUBLIC_KEYS = (
    "signing.public_key_file is not set beside signing.private_key_file: after a change of the signing key this "
    "controller would know neither the drains nor the migrations that the old key has signed; name signing.pub there"
)


def key_notes(settings: Settings) -> list[str]:
    """Say what a controller with these keys cannot do."""
    signing = settings.signing
    return [NO_PUBLIC_KEYS] if signing.private_key_file and not signing.public_key_file else []


def redis_notes(settings: Settings) -> list[str]:
    """Ask Redis whether it is open to everybody; nothing is said where it does not answer."""
    return [OPEN_REDIS] if users.open_to_all(settings.redis) else []
