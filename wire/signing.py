"""Ed25519 signatures: the controller signs its orders, and every link verifies them.

A link can trust several public keys, so that a key can be rotated without a stop: distribute the new public key to all
links, let the controller sign with the new private key, then remove the old public key.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from pathlib import Path

import msgspec
import structlog
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from rechannel.wire.envelope import Envelope, MessageError, signed_bytes
from rechannel.wire.redis.tls import CredentialFileError, check_private

_PRIVATE, _PUBLIC = "signing.private_key_file", "signing.public_key_file"
_KEY = re.compile(rb"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)
_OTHER_KIND = "{field}: {path} is not an Ed25519 key; make one with `rechannel config keys`"
_SUFFIXES = (".pub", ".pem")  # of the files of a directory of keys
_MAX_KEYS = 16  # public keys that a process trusts; beyond: it does not start
_Stamp = tuple[tuple[str, int, int, int], ...]

_LOG = structlog.get_logger("rechannel.signing")


class KeyFileError(ValueError):
    """A key file that is unreadable, readable by others, or not an Ed25519 key in PEM."""


class SignatureError(MessageError):
    """A message without a valid signature."""


class Signer:
    """Signs with a private key; ``trusted`` has the public keys of the links, if known."""

    def __init__(self, key: Ed25519PrivateKey, trusted: Verifier | None = None) -> None:
        self._key = key
        self._own = Verifier(key.public_key())
        self._trusted = trusted

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], public: str | os.PathLike[str] = "") -> Signer:
        """Load a PEM private key, and public keys if given; KeyFileError names the cure."""
        data = _read(path, _PRIVATE)
        try:
            key = serialization.load_pem_private_key(data, password=None)
        except (ValueError, TypeError):
            raise KeyFileError(f"{_PRIVATE}: {path} holds no private key in PEM without a pass phrase") from None
        except UnsupportedAlgorithm:
            raise KeyFileError(_OTHER_KIND.format(field=_PRIVATE, path=path)) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileError(_OTHER_KIND.format(field=_PRIVATE, path=path))
        try:
            check_private(path, _PRIVATE)
        except CredentialFileError as error:
            raise KeyFileError(str(error)) from error
        return cls(key, Verifier.from_file(public) if public else None)

    @property
    def public(self) -> Ed25519PublicKey:
        """The public key."""
        return self._key.public_key()

    def sign(self, envelope: Envelope) -> Envelope:
        """Return the message with a new signature."""
        envelope = msgspec.structs.replace(envelope, raw_bytes=msgspec.UNSET)
        signature = base64.b64encode(self._key.sign(signed_bytes(envelope))).decode()
        return msgspec.structs.replace(envelope, signature=signature)

    def is_trusted(self, envelope: Envelope) -> bool:
        """Whether the message was signed with this key or another trusted one."""
        return any(verifier is not None and verifier.is_valid(envelope) for verifier in (self._own, self._trusted))


class Verifier:
    """Verifies signatures with public keys, and reloads them when their file changes."""

    def __init__(self, *keys: Ed25519PublicKey, source: Path | None = None, stamp: _Stamp = ()) -> None:
        self._keys = keys
        self._source = source
        self._stamp = stamp  # of the source when it was read
        self._last_error = ""

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Verifier:
        """Load public keys from a PEM file or a directory; KeyFileError names the cure."""
        source = Path(path)
        stamp = _stamp(source)  # before reading: a change in between causes a reload
        return cls(*public_keys(source), source=source, stamp=stamp)

    @property
    def keys(self) -> tuple[Ed25519PublicKey, ...]:
        """The trusted keys, reloaded if their file changed."""
        self._refresh()
        return self._keys

    def check(self, envelope: Envelope) -> None:
        """Raise SignatureError unless the message has a valid signature of a trusted key."""
        if not envelope.signature:
            raise SignatureError(f"unsigned message from {envelope.sender!r}")
        try:
            signature, content = base64.b64decode(envelope.signature, validate=True), signed_bytes(envelope)
        except ValueError as error:
            raise SignatureError(f"signature of message from {envelope.sender!r} is not valid") from error
        for key in self.keys:
            try:
                key.verify(signature, content)
            except InvalidSignature:
                continue
            return
        raise SignatureError(f"signature of message from {envelope.sender!r} is not valid")

    def is_valid(self, envelope: Envelope) -> bool:
        """Whether the message has a valid signature of a trusted key."""
        try:
            self.check(envelope)
        except SignatureError:
            return False
        return True

    def _refresh(self) -> None:
        if self._source is None or (stamp := _stamp(self._source)) == self._stamp:
            return
        try:
            self._keys = public_keys(self._source)
        except KeyFileError as error:  # incomplete or deleted: keep the known keys
            if str(error) != self._last_error:
                self._last_error = str(error)
                _LOG.warning("public keys could not be read again; the earlier ones stay trusted", error=str(error))
            return
        self._stamp, self._last_error = stamp, ""
        _LOG.info("public keys read again", keys=[fingerprint(key) for key in self._keys])


def public_keys(source: Path) -> tuple[Ed25519PublicKey, ...]:
    """Read the keys of a PEM file or directory; KeyFileError names the file and the cure."""
    keys: dict[str, Ed25519PublicKey] = {}
    for path in _files(source):
        data = _read(path, _PUBLIC)
        if b"PRIVATE KEY-----" in data:
            raise KeyFileError(f"{_PUBLIC}: {path} holds a private key, which links must not have; name the public one")
        blocks = _KEY.findall(data)
        if not blocks or len(blocks) != data.count(b"-----BEGIN"):
            raise KeyFileError(f"{_PUBLIC}: {path} holds no public key in PEM, or something else beside")
        for block in blocks:
            key = _public_key(block, path)
            keys[fingerprint(key)] = key
    if len(keys) > _MAX_KEYS:
        raise KeyFileError(f"{_PUBLIC}: {source} holds {len(keys)} keys; {_MAX_KEYS} at most: drop those out of use")
    return tuple(keys.values())


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return the first half of the SHA-256 of a public key, in hex."""
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:32]


def pem_of(key: Ed25519PublicKey) -> bytes:
    """Return a public key in PEM."""
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_private_key(path: Path) -> Ed25519PublicKey:
    """Write a new private key to a file with mode 600 and return its public key."""
    key = Ed25519PrivateKey.generate()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.flush()
        os.fsync(file.fileno())
    return key.public_key()


def make_keys(directory: Path) -> tuple[Path, Path]:
    """Write a new key pair, ``signing.key`` and ``signing.pub``, and return the paths.

    Existing files are not overwritten, because links would ignore a controller that lost its private key.
    """
    private, public = directory / "signing.key", directory / "signing.pub"
    for path in (private, public):
        if path.exists():
            raise KeyFileError(f"{path} exists; move it away first, or give --rotate to change the key")
    directory.mkdir(parents=True, exist_ok=True)
    public.write_bytes(pem_of(write_private_key(private)))
    return private, public


def _public_key(block: bytes, path: Path) -> Ed25519PublicKey:
    try:
        key = serialization.load_pem_public_key(block)
    except ValueError:
        raise KeyFileError(f"{_PUBLIC}: {path} holds no public key in PEM") from None
    except UnsupportedAlgorithm:  # a curve that the library does not have, say
        raise KeyFileError(_OTHER_KIND.format(field=_PUBLIC, path=path)) from None
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(_OTHER_KIND.format(field=_PUBLIC, path=path))
    return key


def _files(source: Path) -> list[Path]:
    if not source.is_dir():
        return [source]
    try:
        paths = sorted(path for path in source.iterdir() if path.suffix in _SUFFIXES)
    except OSError as error:
        raise KeyFileError(f"{_PUBLIC}: {source} cannot be read ({error.strerror})") from error
    if not paths:
        raise KeyFileError(f"{_PUBLIC}: the directory {source} holds no file *.pub or *.pem")
    return paths


def _stamp(source: Path) -> _Stamp:
    """Return name, inode, size and time of each key file: a change of the keys changes them."""
    try:
        stats = [(path, path.stat()) for path in _files(source)]
    except (OSError, KeyFileError):
        return ()
    return tuple((str(path), status.st_ino, status.st_size, status.st_mtime_ns) for path, status in stats)


def _read(path: str | os.PathLike[str], field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise KeyFileError(f"{field}: {path} cannot be read ({error.strerror})") from error
