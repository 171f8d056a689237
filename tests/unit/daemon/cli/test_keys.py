"""``config keys``: a pair is made, changed without a gap, and looked at by ``config check``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rechannel.daemon.cli.main import main
from rechannel.wire.envelope import Envelope, EnvelopeFactory
from rechannel.wire.messages import DesiredPlacement
from rechannel.wire.signing import SignatureError, Signer, Verifier, fingerprint, make_keys


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    assert "PRIVATE" not in done.output
    return done


def message() -> Envelope:
    body = DesiredPlacement(decision="d", runs={}, moves=[])
    return EnvelopeFactory("default", "c", lambda: 1.0).envelope(body, ttl=9, application="app-1", epoch=1)


def test_a_key_is_changed_without_a_gap(tmp_path: Path) -> None:
    run("config", "keys", tmp_path)
    public, private = tmp_path / "signing.pub", tmp_path / "signing.key"
    link = Verifier.from_file(public)
    old = Signer.from_file(private)
    shown = run("config", "keys", "--rotate", tmp_path).stdout
    assert [line[:2] for line in shown.splitlines()[1:]] == ["1.", "2.", "3.", "4."]
    following = tmp_path / "signing.next.key"
    assert following.stat().st_mode & 0o777 == 0o600
    new = Signer.from_file(following)
    for signer in (old, new):
        link.check(signer.sign(message()))
    assert "not in use yet" in run("config", "keys", "--retire", tmp_path, code=1).stderr
    following.rename(private)
    again = json.loads(run("config", "keys", "--retire", tmp_path, "--json").stdout)
    assert (len(again["keys"]), len(again["dropped"])) == (1, 1)
    link.check(new.sign(message()))
    with pytest.raises(SignatureError):
        link.check(old.sign(message()))
    assert "nothing to drop" in run("config", "keys", "--retire", tmp_path).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["signing.key", "signing.pub"]


@pytest.mark.root
def test_the_next_key_and_the_bundle_belong_to_whom_they_belonged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("config", "keys", tmp_path)
    if os.geteuid() == 0:
        for name in ("signing.key", "signing.pub"):
            os.chown(tmp_path / name, 4711, 4712)
    (tmp_path / "signing.pub").chmod(0o640)
    owners = []
    fchown = os.fchown
    monkeypatch.setattr(os, "fchown", lambda *arguments: (owners.append(arguments[1:]), fchown(*arguments)))
    run("config", "keys", "--rotate", tmp_path)
    key, public, following = ((tmp_path / name).stat() for name in ("signing.key", "signing.pub", "signing.next.key"))
    owner = (key.st_uid, key.st_gid)
    assert owners == [owner, owner]
    assert (following.st_uid, following.st_gid) == (public.st_uid, public.st_gid) == owner
    assert (following.st_mode & 0o777, public.st_mode & 0o777) == (0o600, 0o640)


def test_a_rotation_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    run("config", "keys", tmp_path)
    before = (tmp_path / "signing.pub").read_bytes()
    first = json.loads(run("config", "keys", "--rotate", tmp_path, "--json").stdout)
    (tmp_path / "signing.pub").write_bytes(before)  # as if it had ended before the bundle was written
    assert json.loads(run("config", "keys", "--rotate", tmp_path, "--json").stdout) == first
    assert json.loads(run("config", "keys", "--rotate", tmp_path, "--json").stdout) == first


def test_one_change_at_a_time_and_of_one_pair(tmp_path: Path) -> None:
    assert "cannot be read" in run("config", "keys", "--rotate", tmp_path, code=1).stderr
    run("config", "keys", tmp_path)
    assert "--rotate" in run("config", "keys", tmp_path, code=1).stderr
    run("config", "keys", "--rotate", "--retire", tmp_path, code=2)
    run("config", "keys", "--rotate", tmp_path)
    (tmp_path / "signing.next.key").rename(tmp_path / "signing.key")
    assert "end that change first" in run("config", "keys", "--rotate", tmp_path, code=1).stderr
    (tmp_path / "signing.pub").write_bytes(make_keys(tmp_path / "other")[1].read_bytes())
    for option in ("--rotate", "--retire"):
        assert "different pairs" in run("config", "keys", option, tmp_path, code=1).stderr


def test_the_newest_key_is_not_dropped_where_the_old_one_is_still_in_use(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    run("config", "keys", here)
    run("config", "keys", "--rotate", here)
    both = (here / "signing.pub").read_bytes()
    there.mkdir()
    for name in ("signing.key", "signing.pub"):  # another machine, where the new private key was not brought
        (there / name).write_bytes((here / name).read_bytes())
        (there / name).chmod(0o600)
    new = fingerprint(Signer.from_file(here / "signing.next.key").public)
    old = fingerprint(Signer.from_file(here / "signing.key").public)
    shown = run("config", "keys", "--retire", there, code=1).stderr
    assert f"{old} would be kept, and {new} dropped" in shown
    assert (there / "signing.pub").read_bytes() == both
    (there / "signing.key").write_bytes((here / "signing.next.key").read_bytes())
    shown = run("config", "keys", "--retire", there).stdout
    assert f"trusts {new} alone, which it kept; dropped: {old}" in shown


def test_a_rotation_is_taken_back_by_force_alone(tmp_path: Path) -> None:
    run("config", "keys", tmp_path)
    before = (tmp_path / "signing.pub").read_bytes()
    run("config", "keys", "--rotate", tmp_path)
    (tmp_path / "signing.next.key").unlink()
    assert "--force" in run("config", "keys", "--retire", tmp_path, code=1).stderr
    run("config", "keys", "--retire", "--force", tmp_path)
    assert (tmp_path / "signing.pub").read_bytes() == before
    run("config", "keys", "--rotate", "--force", tmp_path, code=2)


def test_all_that_need_the_public_key_are_named(tmp_path: Path) -> None:
    assert "every driver and controller" in run("config", "keys", tmp_path).stdout
    shown = run("config", "keys", "--rotate", tmp_path).stdout.splitlines()
    assert "copy" in shown[2]
    assert "to every other machine with a controller" in shown[2]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    path = tmp_path / "rechannel.toml"
    path.write_text(
        f"""
[redis]
url = "unix://{tmp_path}/none.sock"
timeout = 0.5
[signing]
private_key_file = "{tmp_path}/keys/signing.key"
public_key_file = "{tmp_path}/keys/signing.pub"
[controller]
audit_file = "{tmp_path}/audit.jsonl"
"""
    )
    return path


def test_check_finds_what_is_wrong_with_keys_and_files(config: Path, tmp_path: Path) -> None:
    assert "can be used" in run("config", "check", "--config", config).stdout
    assert not (tmp_path / "audit.jsonl").exists(), "it would belong to whoever looked"
    (tmp_path / "keys/signing.key").chmod(0o644)
    (tmp_path / "audit.jsonl").touch()
    (tmp_path / "audit.jsonl").chmod(0o666)
    shown = run("config", "check", "--config", config, code=7).stderr
    for phrase in ("signing.private_key_file", "`chmod 6", "controller.audit_file", "others can open it"):
        assert phrase in shown
    (tmp_path / "keys/signing.key").chmod(0o600)
    (tmp_path / "audit.jsonl").chmod(0o600)
    (tmp_path / "keys/signing.pub").write_bytes(make_keys(tmp_path / "other")[1].read_bytes())
    assert "links would refuse all" in run("config", "check", "--config", config, code=7).stderr


def test_check_tells_of_a_change_under_way_and_of_open_passwords(config: Path, tmp_path: Path) -> None:
    run("config", "keys", "--rotate", tmp_path / "keys")
    (tmp_path / "password").write_text("hunter2-hunter2\n")
    (tmp_path / "password").chmod(0o644)
    config.write_text(config.read_text().replace("timeout", f'password_file = "{tmp_path}/password"\ntimeout'))
    shown = run("config", "check", "--config", config)
    assert "2 keys are trusted" in shown.stderr
    assert "can be read by everybody" in shown.stderr
    notes = json.loads(run("config", "check", "--config", config, "--json").stdout)["notes"]
    assert len(notes) == 2
    assert "hunter2" not in shown.output


def test_check_warns_of_a_controller_without_public_keys(config: Path, tmp_path: Path) -> None:
    assert "after a change of the signing key" not in run("config", "check", "--config", config).stderr
    text = config.read_text()
    config.write_text(text.replace(f'public_key_file = "{tmp_path}/keys/signing.pub"', ""))
    assert "after a change of the signing key" in run("config", "check", "--config", config).stderr


def test_check_names_a_missing_password_file_of_the_sentinels(config: Path, tmp_path: Path) -> None:
    config.write_text(config.read_text().replace("timeout", f'sentinel_password_file = "{tmp_path}/no"\ntimeout'))
    shown = run("config", "check", "--config", config, code=7).stderr
    assert f"redis.sentinel_password_file: {tmp_path}/no cannot be read" in shown


def test_check_tells_of_what_other_machines_can_reach(config: Path) -> None:
    with config.open("a") as file:
        file.write('listen = "0.0.0.0:9418"\n[agent]\nmetrics = "[::]:9417"\n')
    shown = run("config", "check", "--config", config)
    assert "can be used" in shown.stdout
    for address in ("controller.listen = 0.0.0.0:9418", "agent.metrics = [::]:9417"):
        assert f"note: {address} can be reached from other machines" in shown.stderr
