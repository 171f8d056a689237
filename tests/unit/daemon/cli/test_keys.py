"""Signing keys: ``config keys`` and the checks of ``config check``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import Result

from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.messages import DesiredPlacement
from rechannel.wire.signing import SignatureError, Signer, Verifier, fingerprint, make_keys
from unit.daemon.cli.command import run, write_config


def keys(*arguments: object, code: int = 0) -> Result:
    """Run ``config keys``, which prints no private key."""
    done = run("config", "keys", *arguments, code=code)
    assert "PRIVATE" not in done.output
    return done


def check(config: Path, *arguments: object, code: int = 0) -> Result:
    return run("config", "check", "--config", config, *arguments, code=code)


def message() -> Envelope:
    body = DesiredPlacement(decision="d", runs={}, moves=[])
    return EnvelopeFactory("default", "c", lambda: 1.0).envelope(body, ttl=9, application="app-1", epoch=1)


def test_a_key_is_changed_without_a_gap(tmp_path: Path) -> None:
    assert "every driver and controller" in keys(tmp_path).stdout
    public, private = tmp_path / "signing.pub", tmp_path / "signing.key"
    link = Verifier.from_file(public)
    old = Signer.from_file(private)
    shown = keys("--rotate", tmp_path).stdout
    _, *steps = shown.splitlines()
    assert [line[:2] for line in steps] == ["1.", "2.", "3.", "4."]
    assert "copy" in steps[1]
    assert "to every other machine with a controller" in steps[1]
    following = tmp_path / "signing.next.key"
    assert following.stat().st_mode & 0o777 == 0o600
    new = Signer.from_file(following)
    for signer in (old, new):
        link.check(signer.sign(message()))
    assert "not in use yet" in keys("--retire", tmp_path, code=1).stderr
    following.rename(private)
    again = json.loads(keys("--retire", tmp_path, "--json").stdout)
    assert (len(again["keys"]), len(again["dropped"])) == (1, 1)
    link.check(new.sign(message()))
    with pytest.raises(SignatureError):
        link.check(old.sign(message()))
    assert "nothing to drop" in keys("--retire", tmp_path).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["signing.key", "signing.pub"]


@pytest.mark.root
def test_a_rotation_preserves_owner_and_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys(tmp_path)
    if os.geteuid() == 0:
        for name in ("signing.key", "signing.pub"):
            os.chown(tmp_path / name, 4711, 4712)
    (tmp_path / "signing.pub").chmod(0o640)
    owners = []
    fchown = os.fchown
    monkeypatch.setattr(os, "fchown", lambda *arguments: (owners.append(arguments[1:]), fchown(*arguments)))
    keys("--rotate", tmp_path)
    key, public, following = ((tmp_path / name).stat() for name in ("signing.key", "signing.pub", "signing.next.key"))
    owner = (key.st_uid, key.st_gid)
    assert owners == [owner, owner]
    assert (following.st_uid, following.st_gid) == (public.st_uid, public.st_gid) == owner
    assert (following.st_mode & 0o777, public.st_mode & 0o777) == (0o600, 0o640)


def test_an_interrupted_rotation_is_continued(tmp_path: Path) -> None:
    made = json.loads(keys(tmp_path, "--json").stdout)
    assert [Path(path).exists() for path in (made["private_key_file"], made["public_key_file"])] == [True, True]
    before = (tmp_path / "signing.pub").read_bytes()
    first = json.loads(keys("--rotate", tmp_path, "--json").stdout)
    (tmp_path / "signing.pub").write_bytes(before)  # as if it had ended before the bundle was written
    assert json.loads(keys("--rotate", tmp_path, "--json").stdout) == first
    assert json.loads(keys("--rotate", tmp_path, "--json").stdout) == first


def test_changes_of_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in keys("--rotate", tmp_path, code=1).stderr
    keys(tmp_path)
    assert "--rotate" in keys(tmp_path, code=1).stderr
    keys("--rotate", "--retire", tmp_path, code=2)
    keys("--rotate", tmp_path)
    (tmp_path / "signing.next.key").rename(tmp_path / "signing.key")
    assert "end that change first" in keys("--rotate", tmp_path, code=1).stderr
    (tmp_path / "signing.pub").write_bytes(make_keys(tmp_path / "other")[1].read_bytes())
    for option in ("--rotate", "--retire"):
        assert "different pairs" in keys(option, tmp_path, code=1).stderr


def test_the_newest_key_is_not_dropped_while_the_old_one_is_in_use(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    keys(here)
    keys("--rotate", here)
    both = (here / "signing.pub").read_bytes()
    there.mkdir()
    for name in ("signing.key", "signing.pub"):  # another machine, where the new private key was not brought
        (there / name).write_bytes((here / name).read_bytes())
        (there / name).chmod(0o600)
    new = fingerprint(Signer.from_file(here / "signing.next.key").public)
    old = fingerprint(Signer.from_file(here / "signing.key").public)
    shown = keys("--retire", there, code=1).stderr
    assert f"{old} would be kept, and {new} dropped" in shown
    assert (there / "signing.pub").read_bytes() == both
    (there / "signing.key").write_bytes((here / "signing.next.key").read_bytes())
    shown = keys("--retire", there).stdout
    assert f"trusts {new} alone, which it kept; dropped: {old}" in shown


def test_a_rotation_is_reverted_only_with_force(tmp_path: Path) -> None:
    keys(tmp_path)
    before = (tmp_path / "signing.pub").read_bytes()
    keys("--rotate", tmp_path)
    (tmp_path / "signing.next.key").unlink()
    assert "--force" in keys("--retire", tmp_path, code=1).stderr
    keys("--retire", "--force", tmp_path)
    assert (tmp_path / "signing.pub").read_bytes() == before
    keys("--rotate", "--force", tmp_path, code=2)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    text = f"""
        [redis]
        url = "unix://{tmp_path}/none.sock"
        timeout = 0.5
        [signing]
        private_key_file = "{tmp_path}/keys/signing.key"
        public_key_file = "{tmp_path}/keys/signing.pub"
        [controller]
        audit_file = "{tmp_path}/audit.jsonl"
    """
    return write_config(tmp_path, text)


def test_check_reports_wrong_keys_and_modes(config: Path, tmp_path: Path) -> None:
    assert "can be used" in check(config).stdout
    assert not (tmp_path / "audit.jsonl").exists(), "it would belong to whoever looked"
    (tmp_path / "keys/signing.key").chmod(0o644)
    (tmp_path / "audit.jsonl").touch()
    (tmp_path / "audit.jsonl").chmod(0o666)
    shown = check(config, code=7).stderr
    for phrase in ("signing.private_key_file", "`chmod 6", "controller.audit_file", "others can open it"):
        assert phrase in shown
    (tmp_path / "keys/signing.key").chmod(0o600)
    (tmp_path / "audit.jsonl").chmod(0o600)
    (tmp_path / "keys/signing.pub").write_bytes(make_keys(tmp_path / "other")[1].read_bytes())
    assert "links would refuse all" in check(config, code=7).stderr


def test_check_notes_a_key_change_and_readable_passwords(config: Path, tmp_path: Path) -> None:
    keys("--rotate", tmp_path / "keys")
    (tmp_path / "password").write_text("hunter2-hunter2\n")
    (tmp_path / "password").chmod(0o644)
    config.write_text(config.read_text().replace("timeout", f'password_file = "{tmp_path}/password"\ntimeout'))
    shown = check(config)
    assert "2 keys are trusted" in shown.stderr
    assert "can be read by everybody" in shown.stderr
    notes = json.loads(check(config, "--json").stdout)["notes"]
    assert len(notes) == 2
    assert "hunter2" not in shown.output


def test_check_notes_addresses_that_other_machines_reach(config: Path) -> None:
    with config.open("a") as file:
        file.write('listen = "0.0.0.0:9418"\n[agent]\nmetrics = "[::]:9417"\n')
    shown = check(config)
    assert "can be used" in shown.stdout
    for address in ("controller.listen = 0.0.0.0:9418", "agent.metrics = [::]:9417"):
        assert f"note: {address} can be reached from other machines" in shown.stderr
