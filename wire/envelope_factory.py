"""Whoever sends messages: the envelopes of one sender."""

from __future__ import annotations

import time
from collections.abc import Callable

from rechannel.wire.messages import SCHEMA, AnyBody, Envelope


class EnvelopeFactory:
    """Makes envelopes for one sender; sequence numbers rise by one."""

    def __init__(self, cluster: str, sender: str, clock: Callable[[], float] = time.time) -> None:
        self.cluster = cluster
        self.sender = sender
        self.clock = clock
        self._sequence = 0

    def envelope(self, body: AnyBody, *, ttl: float, application: str = "", run: str = "", epoch: int = 0) -> Envelope:
        """Wrap a body; it expires ``ttl`` seconds from now."""
        self._sequence += 1
        now = self.clock()
        return Envelope(
            schema=SCHEMA,
            cluster=self.cluster,
            application=application,
            run=run,
            sender=self.sender,
            sequence=self._sequence,
            epoch=epoch,
            time=now,
            expires=now + ttl,
            body=body,
        )
