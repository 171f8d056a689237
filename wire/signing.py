"""Ed25519 signatures of desired placements: the controller signs, every link checks before it obeys."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rechannel.wire.messages import Envelope, MessageError, signed_bytes


class KeyFileError(ValueError):
    """A key file is missing, unreadable or not an Ed25519 key in PEM."""


class SignatureError(MessageError):
    """An unsigned message, or one whose signature does not hold."""


class Signer:
    """Signs with the controller's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Signer:
        """Load the PEM private key; KeyFileError names the file and the cure."""
        try:
            key = serialization.load_pem_private_key(_read(path, "signing.private_key_file"), password=None)
        except (ValueError, TypeError) as error:
            raise KeyFileError(f"signing.private_key_file: {path} holds no private key in PEM ({error})") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(
                f"signing.private_key_file: {path} is not an Ed25519 key; make one with `rechannel config keys`"
            )
        return cls(key)

    def sign(self, envelope: Envelope) -> Envelope:
        """Return the message with its signature."""
        signature = base64.b64encode(self._key.sign(signed_bytes(envelope))).decode()
        return msgspec.structs.replace(envelope, signature=signature)

    def made(self, envelope: Envelope) -> bool:
        """Whether this key signed a message: Ed25519 signs the same thing the same way again."""
        return bool(envelope.signature) and self.sign(envelope).signature == envelope.signature


class Verifier:
    """Checks signatures with the controller's public key."""

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Verifier:
        """Load the PEM public key; KeyFileError names the file and the cure."""
        try:
            key = serialization.load_pem_public_key(_read(path, "signing.public_key_file"))
        except ValueError as error:
            raise KeyFileError(f"signing.public_key_file: {path} holds no public key in PEM ({error})") from error
        if not isinstance(key, Ed25519PublicKey):
            raise KeyFileError(
                f"signing.public_key_file: {path} is not an Ed25519 key; make one with `rechannel config keys`"
            )
        return cls(key)

    def check(self, envelope: Envelope) -> None:
        """Raise SignatureError unless the message carries a valid signature of the controller."""
        if not envelope.signature:
            raise SignatureError(f"unsigned message from {envelope.sender!r}")
        try:
            self._key.verify(base64.b64decode(envelope.signature, validate=True), signed_bytes(envelope))
        except (InvalidSignature, ValueError) as error:
            raise SignatureError(f"signature of message from {envelope.sender!r} does not hold") from error


def make_keys(directory: Path) -> tuple[Path, Path]:
    """Write a fresh key pair (``signing.key``, mode 600, and ``signing.pub``) and return the two paths.

    Refuses to overwrite: a lost private key silences every link that trusts the old one.
    """
    private, public = directory / "signing.key", directory / "signing.pub"
    for path in (private, public):
        if path.exists():
            raise KeyFileError(f"{path} exists; move it away first")
    directory.mkdir(parents=True, exist_ok=True)
    key = Ed25519PrivateKey.generate()
    descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def _read(path: str | os.PathLike[str], field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise KeyFileError(f"{field}: {path} cannot be read ({error.strerror})") from error
