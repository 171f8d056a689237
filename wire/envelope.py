"""The envelope around every message: sender, address, expiry, epoch and signature.

Compatibility: within a schema, bodies only gain fields with defaults, and readers ignore fields that they do not know.
What older readers would misread raises `SCHEMA`; readers accept `OLDEST_READABLE` to `SCHEMA`, the last two schemas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from rechannel.wire.keys import MAX_MESSAGE_BYTES
from rechannel.wire.measurements import Body, Int53, Timestamp
from rechannel.wire.messages import AnyBody

SCHEMA = 2  # written by this release
OLDEST_READABLE = 2  # SCHEMA - 1, but never below 2: no release wrote schema 1
BodyT = TypeVar("BodyT", bound=Body)


class MessageError(ValueError):
    """A message that must not be used: malformed, too large, expired or of another schema."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message: its body and what is known of its writer. Sign it again after changing it."""

    schema: Int53
    cluster: str
    application: str  # "" for none
    run: str  # "" for none
    sender: str
    sequence: Int53
    epoch: Int53
    time: Timestamp
    expires: Timestamp
    body: AnyBody
    signature: str = ""  # base64 of Ed25519 over `signed_bytes`
    # Not part of the message. In a signed message that was decoded: the bytes as received, up to the signature, as a
    # newer release may have added fields that this one does not know.
    raw_bytes: bytes | msgspec.UnsetType = msgspec.UNSET


class _Header(msgspec.Struct):
    schema: int


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Envelope)
_HEADER_DECODER = msgspec.json.Decoder(_Header)


class EnvelopeFactory:
    """Makes the envelopes of one sender; sequence numbers rise by one."""

    def __init__(self, cluster: str, sender: str, clock: Callable[[], float] = time.time) -> None:
        self.cluster = cluster
        self.sender = sender
        self.clock = clock
        self._sequence = 0

    def envelope(self, body: AnyBody, *, ttl: float, application: str = "", run: str = "", epoch: int = 0) -> Envelope:
        """Wrap a body.

        ``ttl``: seconds until it expires; ``application`` and ``run``: "" for none; ``epoch``: of the leader that
        writes it, 0 for other senders.
        """
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


def encode(envelope: Envelope) -> bytes:
    """Serialize a message as JSON; one that was decoded gives the bytes it was decoded from."""
    if isinstance(envelope.raw_bytes, bytes):
        return envelope.raw_bytes + _tail(envelope.signature)
    return _ENCODER.encode(envelope)


def decode(data: bytes, *, cluster: str | None = None) -> Envelope:
    """Decode and check a message, or raise MessageError. Callers check the expiry."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"message of {len(data)} bytes exceeds {MAX_MESSAGE_BYTES}")
    try:
        envelope = _DECODER.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        _check_schema(_schema_of(data))  # a message of another schema need not fit the structs of this one
        raise MessageError(f"malformed message: {error}") from error
    _check_schema(envelope.schema)
    if cluster is not None and envelope.cluster != cluster:
        raise MessageError(f"message for cluster {envelope.cluster!r}, not {cluster!r}")
    tail = _tail(envelope.signature)
    # `encode` writes the signature last. A message written in another way was not signed by one of ours.
    is_signed = bool(envelope.signature) and data.endswith(tail)
    return msgspec.structs.replace(envelope, raw_bytes=data[: -len(tail)] if is_signed else msgspec.UNSET)


def bodies_of(envelopes: Iterable[Envelope | None], kind: type[BodyT]) -> list[BodyT]:
    """Return the messages of a kind; None stands for a key without a message."""
    return [it.body for it in envelopes if it is not None and isinstance(it.body, kind)]


def body_of(envelope: Envelope, kind: type[BodyT]) -> BodyT:
    """Return the body if it is of this kind, else raise MessageError."""
    if not isinstance(envelope.body, kind):
        raise MessageError(f"expected {kind.__name__}, got {type(envelope.body).__name__}")
    return envelope.body


def signed_bytes(envelope: Envelope) -> bytes:
    """Return the bytes that a signature covers: the message without the signature."""
    if isinstance(envelope.raw_bytes, bytes):
        return envelope.raw_bytes + _tail("")
    return _ENCODER.encode(msgspec.structs.replace(envelope, signature=""))


def _schema_of(data: bytes) -> int:
    try:
        return _HEADER_DECODER.decode(data).schema
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return SCHEMA


def _check_schema(schema: int) -> None:
    if not OLDEST_READABLE <= schema <= SCHEMA:
        readable = f"{OLDEST_READABLE} to {SCHEMA}" if OLDEST_READABLE < SCHEMA else f"{SCHEMA}"
        raise MessageError(f"message of schema {schema}; this release reads {readable}: upgrade the older side")


def _tail(signature: str) -> bytes:
    return b',"signature":' + _ENCODER.encode(signature) + b"}"
