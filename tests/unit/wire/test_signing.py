"""Signatures of messages; keys: several trusted at once, reloaded on a change, private ones not readable by others."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import msgspec
import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from structlog.testing import capture_logs

from rechannel.wire.envelope import decode, encode
from rechannel.wire.messages import DesiredMove, DesiredPlacement
from rechannel.wire.signing import KeyFileError, SignatureError, Signer, Verifier, make_keys, public_keys
from unit.wire.samples import envelope, sample

Pairs = list[tuple[Signer, Path]]
PLACEMENT = sample(DesiredPlacement, decision="d", moves=[sample(DesiredMove, target="1")])


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    for name in ("one", "two", "three"):
        make_keys(directory / name)
    return directory


@pytest.fixture(scope="module")
def pairs(directories: Path) -> Pairs:
    paths = [directories / name for name in ("one", "two", "three")]
    return [(Signer.from_file(path / "signing.key"), path / "signing.pub") for path in paths]


def bundle(path: Path, *files: Path) -> Path:
    path.write_bytes(b"# trusted by links\n" + b"\n".join(file.read_bytes() for file in files))
    return path


def refuse(verifier: Verifier, *messages, match: str = "is not valid") -> None:
    for message in messages:
        with pytest.raises(SignatureError, match=match):
            verifier.check(message)


# -- messages --


def test_a_signature_holds_across_the_wire(pairs):
    signer, public = pairs[0]
    Verifier.from_file(public).check(decode(encode(signer.sign(envelope(PLACEMENT)))))


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'"decision":"d"', b'"decision":"d","why":{"a":[1]}'), (b'"schema":2', b'"schema":2,"region":"north"')],
)
def test_a_signature_covers_the_fields_of_another_release(pairs, before, after):
    signer, public = pairs[0]
    verifier = Verifier.from_file(public)
    newer = encode(envelope(PLACEMENT)).replace(before, after)
    assert after in newer
    signature = base64.b64encode(signer._key.sign(newer))
    message = newer.removesuffix(b',"signature":""}') + b',"signature":"' + signature + b'"}'
    result = decode(message)
    verifier.check(result)
    assert encode(result) == message, "a message is forwarded as it was received"
    altered = (message.replace(after, before), message.replace(b'"target":"1"', b'"target":"2"'))
    refuse(verifier, *map(decode, altered))


def test_the_raw_bytes_of_a_message_cannot_be_sent(pairs):
    signer, public = pairs[0]
    good = encode(signer.sign(envelope(PLACEMENT)))
    raw = b'"raw_bytes":"' + base64.b64encode(good[: good.rindex(b',"signature"')]) + b'"'
    evil = good.replace(b'"target":"1"', b'"target":"2"')
    claims = (
        evil[:-1] + b"," + raw + b"}",
        evil.replace(b',"signature"', b"," + raw + b',"signature"'),
        b"{" + raw + b"," + evil[1:],
    )
    refuse(Verifier.from_file(public), *map(decode, claims))


def test_a_changed_message_can_be_signed_again(pairs):
    signer, public = pairs[0]
    result = decode(encode(signer.sign(envelope(PLACEMENT))))
    again = decode(encode(signer.sign(msgspec.structs.replace(result, epoch=9))))
    Verifier.from_file(public).check(again)
    assert again.epoch == 9


def test_an_unsigned_or_altered_message_is_refused(pairs):
    signer, public = pairs[0]
    verifier, signed = Verifier.from_file(public), signer.sign(envelope(PLACEMENT))
    refuse(verifier, envelope(PLACEMENT), match="unsigned")
    body = msgspec.structs.replace(PLACEMENT, moves=[])
    changes = ({"epoch": 9}, {"expires": 1e12}, {"application": "other"}, {"body": body}, {"signature": "!"})
    refuse(verifier, *(msgspec.structs.replace(signed, **change) for change in changes))


# -- keys --


def test_each_key_of_a_bundle_is_trusted_and_no_other(pairs, tmp_path):
    (one, first), (two, second), (three, _) = pairs
    verifier = Verifier.from_file(bundle(tmp_path / "bundle", first, second, first))
    assert len(verifier.keys) == 2
    for signer in (one, two):
        verifier.check(signer.sign(envelope()))
    refuse(verifier, three.sign(envelope()))


def test_a_directory_of_keys_is_trusted(pairs, tmp_path):
    (one, first), (two, second), _ = pairs
    with pytest.raises(KeyFileError, match="holds no file"):
        Verifier.from_file(tmp_path)
    (tmp_path / "old.pub").write_bytes(first.read_bytes())
    (tmp_path / "notes.txt").write_text("not a key")
    verifier = Verifier.from_file(tmp_path)
    refuse(verifier, two.sign(envelope()))
    (tmp_path / "new.pem").write_bytes(second.read_bytes())
    verifier.check(two.sign(envelope()))
    (tmp_path / "old.pub").unlink()
    refuse(verifier, one.sign(envelope()))


def test_a_changed_file_is_reloaded_and_a_broken_one_changes_nothing(pairs, tmp_path):
    (one, first), (two, second), _ = pairs
    path = bundle(tmp_path / "bundle", first)
    verifier = Verifier.from_file(path)
    with capture_logs() as lines:
        path.write_text("half writ")
        verifier.check(one.sign(envelope()))
        path.unlink()
        verifier.check(one.sign(envelope()))
        verifier.check(one.sign(envelope()))
    assert [line["log_level"] for line in lines] == ["warning", "warning"]
    with capture_logs() as lines:
        bundle(path, second)
        verifier.check(two.sign(envelope()))
    assert [line["event"] for line in lines] == ["public keys read again"]
    refuse(verifier, one.sign(envelope()))


def test_an_unchanged_file_is_not_reloaded(pairs, monkeypatch):
    (one, first), *_ = pairs
    verifier = Verifier.from_file(first)
    monkeypatch.setattr("rechannel.wire.signing.public_keys", lambda source: pytest.fail("read again"))
    verifier.check(one.sign(envelope()))


@pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b"", "holds no public key"),
        (b"-----BEGIN PUBLIC KEY-----\nMARK\n-----END PUBLIC KEY-----\n", "holds no public key"),
        (b"-----BEGIN CERTIFICATE-----\nMARK\n-----END CERTIFICATE-----\n", "holds no public key"),
        (b"-----BEGIN PRIVATE KEY-----\nMARK\n-----END PRIVATE KEY-----\n", "holds a private key"),
    ],
)
def test_a_file_without_a_public_key_is_refused_and_not_shown(tmp_path, content, phrase):
    path = tmp_path / "keys.pub"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=phrase) as caught:
        public_keys(path)
    assert "MARK" not in str(caught.value)


# of a curve that the library does not have (secp112r1)
OTHER_KIND = b"""-----BEGIN PUBLIC KEY-----
MDIwEAYHKoZIzj0CAQYFK4EEAAYDHgAEnXc92YSeTTO+Hy6adxyA/+PRsul3Lnry
0eM2WQ==
-----END PUBLIC KEY-----
"""


def test_a_key_of_an_unknown_kind_is_refused_and_ends_no_verifier(pairs, tmp_path, monkeypatch):
    (one, first), *_ = pairs
    path = bundle(tmp_path / "bundle", first)
    verifier = Verifier.from_file(path)
    path.write_bytes(OTHER_KIND)
    with pytest.raises(KeyFileError, match="is not an Ed25519 key; make one"):
        public_keys(path)
    verifier.check(one.sign(envelope()))

    def refuse_kind(*_: object, **__: object) -> None:
        raise UnsupportedAlgorithm("curve")

    monkeypatch.setattr("rechannel.wire.signing.serialization.load_pem_private_key", refuse_kind)
    with pytest.raises(KeyFileError, match=r"signing\.private_key_file: .* is not an Ed25519 key"):
        Signer.from_file(first)


def test_many_keys_are_refused(tmp_path):
    result = [make_keys(tmp_path / str(number))[1] for number in range(17)]
    with pytest.raises(KeyFileError, match="16 at most"):
        Verifier.from_file(bundle(tmp_path / "bundle", *result))


def test_new_keys_are_private_and_overwrite_nothing(directories, tmp_path):
    private, public = directories / "one" / "signing.key", directories / "one" / "signing.pub"
    assert private.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KeyFileError, match="exists"):
        make_keys(private.parent)
    for path in (public, tmp_path / "none"):
        with pytest.raises(KeyFileError, match=r"signing\.private_key_file"):
            Signer.from_file(path)


def test_a_private_key_that_others_may_read_is_refused_with_the_cure(tmp_path):
    private, _ = make_keys(tmp_path)
    for mode in (0o644, 0o604, 0o620):
        private.chmod(mode)
        with pytest.raises(KeyFileError, match=r"signing\.private_key_file: .*mode .*`chmod 6[04]0 "):
            Signer.from_file(private)
    private.chmod(0o400)
    Signer.from_file(private)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_group_may_read_a_key_of_root(tmp_path):
    private, _ = make_keys(tmp_path)
    private.chmod(0o640)
    Signer.from_file(private)
    os.chown(private, 41_001, 41_001)
    with pytest.raises(KeyFileError, match="can be read by others"):
        Signer.from_file(private)


def test_a_controller_accepts_the_signatures_of_every_trusted_key(pairs, directories, tmp_path):
    (one, first), (two, second), (three, _) = pairs
    trusted = Signer.from_file(directories / "one" / "signing.key", bundle(tmp_path / "bundle", first, second))
    assert trusted.is_trusted(one.sign(envelope()))
    assert trusted.is_trusted(two.sign(envelope()))
    assert not trusted.is_trusted(three.sign(envelope()))
    assert not trusted.is_trusted(envelope())
    assert not one.is_trusted(two.sign(envelope()))


def test_the_key_is_not_shown(pairs):
    signer, _ = pairs[0]
    assert "PRIVATE" not in repr(signer)
    assert "PRIVATE" not in repr(vars(signer))
