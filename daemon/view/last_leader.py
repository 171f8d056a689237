"""Whether a controller leads, as `rechannel status`, `doctor` and a request without an answer see it."""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.wire import keys
from rechannel.wire.messages import ControllerState
from rechannel.wire.redis.store import Store


@dataclass(frozen=True)
class Leadership:
    """What the last leader said of itself, and when. Valid as long as its lease; it stands in Redis for longer."""

    state: ControllerState
    heard: float
    expires: float


def last_leadership(store: Store) -> Leadership | None:
    """Return what the last leader said; None if there was none, or long ago."""
    envelope = store.get(keys.STATE)
    if envelope is None or not isinstance(envelope.body, ControllerState):
        return None
    return Leadership(envelope.body, envelope.time, envelope.expires)


def leading(store: Store, now: float) -> Leadership | None:
    """Return what the leader says; None where none leads."""
    last = last_leadership(store)
    return last if last is not None and last.expires > now else None
