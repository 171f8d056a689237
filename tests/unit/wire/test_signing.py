"""Signing keys: several trusted at once, read again when they change, and private ones that others may not read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rechannel.wire.signing import KeyFileError, SignatureError, Signer, Verifier, make_keys, public_keys
from unit.wire.samples import envelope


@pytest.fixture
def pairs(tmp_path: Path) -> list[tuple[Signer, Path]]:
    made = [make_keys(tmp_path / name) for name in ("one", "two", "three")]
    return [(Signer.from_file(private), public) for private, public in made]


def bundle(path: Path, *files: Path) -> Path:
    path.write_bytes(b"# trusted by links\n" + b"\n".join(file.read_bytes() for file in files))
    return path


def test_each_key_of_a_bundle_is_trusted_and_no_other(pairs, tmp_path):
    (one, first), (two, second), (three, _) = pairs
    verifier = Verifier.from_file(bundle(tmp_path / "bundle", first, second, first))
    assert len(verifier.keys) == 2
    for signer in (one, two):
        verifier.check(signer.sign(envelope()))
    with pytest.raises(SignatureError, match="does not hold"):
        verifier.check(three.sign(envelope()))


def test_a_directory_of_keys_is_trusted(pairs, tmp_path):
    (one, first), (two, second), _ = pairs
    trusted = tmp_path / "trusted"
    trusted.mkdir()
    with pytest.raises(KeyFileError, match="holds no file"):
        Verifier.from_file(trusted)
    (trusted / "old.pub").write_bytes(first.read_bytes())
    (trusted / "notes.txt").write_text("not a key")
    verifier = Verifier.from_file(trusted)
    with pytest.raises(SignatureError):
        verifier.check(two.sign(envelope()))
    (trusted / "new.pem").write_bytes(second.read_bytes())
    verifier.check(two.sign(envelope()))
    (trusted / "old.pub").unlink()
    with pytest.raises(SignatureError):
        verifier.check(one.sign(envelope()))


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(pairs, tmp_path):
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
    with pytest.raises(SignatureError):
        verifier.check(one.sign(envelope()))


def test_an_unchanged_file_is_not_read_again(pairs, tmp_path, monkeypatch):
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
def test_what_is_no_public_key_is_refused_and_not_shown(tmp_path, content, phrase):
    path = tmp_path / "keys.pub"
    path.write_bytes(content)
    with pytest.raises(KeyFileError, match=phrase) as caught:
        public_keys(path)
    assert "MARK" not in str(caught.value)


def test_many_keys_are_refused(tmp_path):
    result = [make_keys(tmp_path / str(number))[1] for number in range(17)]
    with pytest.raises(KeyFileError, match="16 at most"):
        Verifier.from_file(bundle(tmp_path / "bundle", *result))


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
def test_roots_key_may_be_its_groups(tmp_path):
    private, _ = make_keys(tmp_path)
    private.chmod(0o640)
    Signer.from_file(private)
    os.chown(private, 41_001, 41_001)
    with pytest.raises(KeyFileError, match="can be read by others"):
        Signer.from_file(private)


def test_a_controller_takes_over_what_the_other_key_of_the_bundle_signed(pairs, tmp_path):
    (one, first), (two, second), (three, _) = pairs
    private = tmp_path / "one" / "signing.key"
    trusted = Signer.from_file(private, bundle(tmp_path / "bundle", first, second))
    assert trusted.is_own_signature(one.sign(envelope()))
    assert trusted.is_own_signature(two.sign(envelope()))
    assert not trusted.is_own_signature(three.sign(envelope()))
    assert not trusted.is_own_signature(envelope())
    assert not one.is_own_signature(two.sign(envelope()))


def test_nothing_shows_the_key(pairs):
    signer, _ = pairs[0]
    assert "PRIVATE" not in repr(signer)
    assert "PRIVATE" not in repr(vars(signer))
