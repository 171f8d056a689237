"""Credentials and TLS arguments for Redis, and explanations of failed handshakes."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rechannel.conf.redis_url import SENTINEL_SCHEME
from rechannel.conf.settings import RedisSettings

# Reasons of OpenSSL for a handshake that will fail again.
_CURES = {
    "CERTIFICATE_REQUIRED": "it requires a client certificate: set redis.tls_certificate_file and redis.tls_key_file",
    "HANDSHAKE_FAILURE": "it refuses the handshake; it may require a client certificate (redis.tls_certificate_file)",
    "UNKNOWN_CA": (
        "it does not trust the issuer of this client's certificate: see redis.tls_certificate_file and the server's CA"
    ),
    "BAD_CERTIFICATE": "it refuses this client's certificate: see redis.tls_certificate_file",
    "CERTIFICATE_EXPIRED": "this client's certificate has expired: renew redis.tls_certificate_file",
    "WRONG_VERSION_NUMBER": "it does not use TLS at this port: name its TLS port, or use redis:// in redis.url",
    "RECORD_LAYER_FAILURE": "it does not use TLS at this port: name its TLS port, or use redis:// in redis.url",
    "PACKET_LENGTH_TOO_LONG": "it does not use TLS at this port: name its TLS port, or use redis:// in redis.url",
    "PROTOCOL_VERSION": "it supports no TLS of version 1.2 or newer",
    "UNSUPPORTED_PROTOCOL": "it supports no TLS of version 1.2 or newer",
}
_NOT_YET_VALID, _EXPIRED, _NAME, _ADDRESS = 9, 10, 62, 64  # X509_V_ERR_*


class CredentialFileError(ValueError):
    """An unusable password, key or certificate file; the text names file and cure."""


class Secret(str):
    """Text that `str`, `repr` and formatting hide; encoding it gives the plain text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'…'"

    __str__ = __repr__

    def __format__(self, _how: str) -> str:
        return repr(self)


def connection_options(settings: RedisSettings) -> dict[str, Any]:
    """Return user, password and TLS arguments for redis-py, or raise CredentialFileError."""
    password = read_password(settings.password_file, "redis.password_file")
    return {"username": settings.username or None, "password": password, **tls_options(settings)}


def check_private(path: str | os.PathLike[str], field: str) -> None:
    """Raise CredentialFileError if others can read a private key (a group of root may)."""
    status = Path(path).stat()
    allowed = 0o640 if status.st_uid == 0 else 0o600
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~allowed:
        raise CredentialFileError(f"{field}: {path} can be read by others (mode {mode:o}); `chmod {allowed:o} {path}`")


def handshake_failure(error: BaseException) -> str:
    """Return cause and cure of a failed TLS handshake, "" for other and passing errors."""
    cause = _ssl_error(error)
    if cause is None:
        return ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        if cause.verify_code == _EXPIRED:
            return "its certificate has expired: renew it on the server, and check this machine's clock"
        if cause.verify_code == _NOT_YET_VALID:
            return "its certificate is not valid yet: check this machine's clock"
        if cause.verify_code in (_NAME, _ADDRESS):
            return (
                f"its certificate is for another name ({cause.verify_message}): write a name of the certificate into "
                "redis.url, or have it issued for this one"
            )
        return (
            f"its certificate is not trusted ({cause.verify_message}): redis.tls_ca_file must hold the certificate of "
            "the CA that issued it"
        )
    reason = str(getattr(cause, "reason", "") or "")
    for mark, cure in _CURES.items():
        if mark in reason:
            return cure
    return ""


def handshake_hint(error: BaseException) -> str:
    """Return a possible TLS cause of a failure that may also be temporary, else ""."""
    if isinstance(_ssl_error(error), ssl.SSLEOFError):
        return "; it closed the TLS connection: it may require a client certificate (redis.tls_certificate_file)"
    if any("handshake operation timed out" in str(cause) for cause in _causes(error)):
        return "; it does not answer the TLS handshake: check that this is its TLS port"
    return ""


def _ssl_error(error: BaseException) -> ssl.SSLError | None:
    return next((cause for cause in _causes(error) if isinstance(cause, ssl.SSLError)), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(8):  # redis-py wraps errors
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def read_password(path: str, field: str) -> Secret | None:
    """Return the password in a file, None without a path; CredentialFileError names the field."""
    if not path:
        return None
    try:
        return Secret(Path(path).read_text(encoding="utf-8").strip())
    except UnicodeDecodeError:
        raise CredentialFileError(f"{field}: {path} is not a text file") from None
    except OSError as error:
        raise CredentialFileError(f"{field}: {path} cannot be read ({error.strerror})") from error


def tls_options(settings: RedisSettings) -> dict[str, Any]:
    """Return the TLS arguments for redis-py, empty without TLS, or raise CredentialFileError."""
    sentinels = settings.url.startswith(SENTINEL_SCHEME)
    if not (settings.url.startswith("rediss://") or (sentinels and settings.tls_ca_file)):
        return {}
    context = ssl.create_default_context()
    authority, certificate, key = settings.tls_ca_file, settings.tls_certificate_file, settings.tls_key_file
    if authority:
        _readable(authority, "redis.tls_ca_file")
        try:
            context.load_verify_locations(cafile=authority)
        except (ssl.SSLError, ValueError):
            raise CredentialFileError(f"redis.tls_ca_file: {authority} holds no certificate in PEM") from None
    if certificate:
        _readable(certificate, "redis.tls_certificate_file")
        _readable(key, "redis.tls_key_file")
        check_private(key, "redis.tls_key_file")
        try:
            context.load_cert_chain(certificate, key, password=lambda: "")
        except (ssl.SSLError, ValueError):
            raise CredentialFileError(
                f"redis.tls_certificate_file: {certificate} and redis.tls_key_file: {key} are no certificate and its "
                "key in PEM, without a pass phrase"
            ) from None
    return {
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,  # off by default in older versions
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        "ssl_ca_certs": authority or None,
        "ssl_certfile": certificate or None,
        "ssl_keyfile": key or None,
        **({"ssl": True} if sentinels else {}),
    }


def _readable(path: str, field: str) -> None:
    try:
        with Path(path).open("rb"):
            return
    except OSError as error:
        raise CredentialFileError(f"{field}: {path} cannot be read ({error.strerror})") from error
