"""The decisions that are kept in Redis: all of the last ones, and for longer those that moved something.

Whoever may ask for a plan fills the stream of all decisions; the budget of moves and what can be undone must not be
pushed out with it.
"""

from __future__ import annotations

from rechannel.wire import keys
from rechannel.wire.keys import KeyRule
from rechannel.wire.messages import Decision
from rechannel.wire.redis.store import Store


def kept_decisions(store: Store) -> list[tuple[str, Decision]]:
    """Return each decision with its application, oldest first."""
    last, applied = (_read(store, rule) for rule in (keys.DECISIONS, keys.APPLIED))
    there = {decision.decision for _, decision in last}
    # In the order of the streams: clocks may have been set back since.
    return [known for known in applied if known[1].decision not in there] + last


def _read(store: Store, rule: KeyRule) -> list[tuple[str, Decision]]:
    found = store.last(rule, "", rule.bound)
    return [(envelope.application, envelope.body) for envelope in found if isinstance(envelope.body, Decision)]
