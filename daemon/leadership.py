"""Whether a controller leads, as `rechannel status`, `doctor` and a request without an answer see it."""

from __future__ import annotations

from rechannel.wire import keys
from rechannel.wire.messages import ControllerState
from rechannel.wire.store import Store


def leading(store: Store, now: float) -> ControllerState | None:
    """Return what the leader says of itself, None where none leads.

    What it said is valid for as long as its lease; it stands in Redis for longer.
    """
    state = store.get(keys.STATE)
    if state is None or state.expires <= now or not isinstance(state.body, ControllerState):
        return None
    return state.body
