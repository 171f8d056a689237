"""Records that the store returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rechannel.wire.envelope import Envelope

Convert = Callable[[Envelope], Envelope]  # of a message that was read into the form in which it is kept


@dataclass(frozen=True)
class QueuedRequest:
    """A message of a stream, and its age in seconds by the clock of Redis."""

    envelope: Envelope
    age: float


@dataclass(frozen=True)
class Page:
    """Part of a stream: the last id, the valid messages, and the bytes of all entries."""

    last: str
    messages: list[Envelope]
    size: int


@dataclass(frozen=True)
class Lease:
    """The leader, and the epoch that fences all other controllers."""

    holder: str
    epoch: int

    @property
    def token(self) -> str:
        """The lease as stored in Redis."""
        return f"{self.holder}\n{self.epoch}"

    @classmethod
    def from_token(cls, token: bytes) -> Lease:
        """Return a lease that Redis has stored; epoch 0 if the token has none."""
        holder, _, epoch = token.decode(errors="replace").rpartition("\n")
        return cls(holder, int(epoch) if epoch.isdecimal() else 0)
