"""Options of a connection: hidden passwords, and TLS failures in words."""

from __future__ import annotations

import ssl

import pytest

from rechannel.conf.settings import RedisSettings
from rechannel.wire.redis import tls


def test_a_secret_is_encoded_but_not_shown(tmp_path):
    (tmp_path / "password").write_text("hunter2-hunter2\n")
    result = tls.connection_options(RedisSettings(password_file=str(tmp_path / "password")))["password"]
    assert result.encode() == b"hunter2-hunter2"
    assert result == "hunter2-hunter2"
    for shown in (repr(result), str(result), f"{result}", "%s" % result, repr({"password": result}), repr((result,))):  # noqa: UP031
        assert "hunter2" not in shown


def test_sentinels_are_asked_by_tls_where_a_ca_is_named():
    with pytest.raises(tls.CredentialFileError, match=r"redis\.tls_ca_file: /ca cannot be read"):
        tls.connection_options(RedisSettings(url="sentinel://h:1/0?service=m", tls_ca_file="/ca"))
    assert "ssl" not in tls.connection_options(RedisSettings(url="sentinel://h:1/0?service=m"))


def error(kind: type[ssl.SSLError] = ssl.SSLError, **existing: object) -> Exception:
    cause = kind(1, "failed")
    for name, value in existing.items():
        setattr(cause, name, value)
    outer = RuntimeError("wrapped")
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("actual", "phrase"),
    [
        (error(ssl.SSLCertVerificationError, verify_code=10, verify_message="x"), "has expired"),
        (error(ssl.SSLCertVerificationError, verify_code=9, verify_message="x"), "not valid yet"),
        (error(ssl.SSLCertVerificationError, verify_code=62, verify_message="x"), "another name"),
        (error(ssl.SSLCertVerificationError, verify_code=19, verify_message="self-signed"), "(self-signed)"),
        (error(reason="WRONG_VERSION_NUMBER"), "does not use TLS"),
        (error(reason="TLSV13_ALERT_CERTIFICATE_REQUIRED"), "redis.tls_certificate_file and redis.tls_key_file"),
        (error(reason="TLSV1_ALERT_UNKNOWN_CA"), "the issuer of this client's certificate"),
    ],
)
def test_a_failed_handshake_has_a_cure(actual, phrase):
    assert phrase in tls.handshake_failure(actual)


def test_other_failures_have_no_cure():
    assert tls.handshake_failure(RuntimeError("away")) == ""
    assert tls.handshake_failure(error(reason="SOMETHING_NEW")) == ""
    assert tls.handshake_hint(RuntimeError("away")) == ""
    assert "client certificate" in tls.handshake_hint(error(ssl.SSLEOFError))
