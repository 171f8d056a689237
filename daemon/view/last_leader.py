"""The last message of a leader, and whether its lease still holds."""

from __future__ import annotations

from dataclasses import dataclass

from rechannel.wire import keys
from rechannel.wire.messages import ControllerState
from rechannel.wire.redis.store import Store


@dataclass(frozen=True)
class Leadership:
    """The last state message of a leader, sent at ``sent``; its lease ends at ``expires``."""

    state: ControllerState
    sent: float
    expires: float


def last_leadership(store: Store) -> Leadership | None:
    """Return the last state of a leader, None if Redis holds none."""
    envelope = store.get(keys.STATE)
    if envelope is None or not isinstance(envelope.body, ControllerState):
        return None
    return Leadership(envelope.body, envelope.time, envelope.expires)


def leading(store: Store, now: float) -> Leadership | None:
    """Return the state of the leader, None if no controller leads."""
    last = last_leadership(store)
    return last if last is not None and last.expires > now else None
