"""``acl`` without a server: which password file is whose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rechannel.daemon.cli.main import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(main, ["acl", *arguments, "--print"])
    assert done.exit_code == code, done.output
    return done


def test_each_user_has_a_password_of_its_own(tmp_path: Path) -> None:
    printed("add-node", "host1")
    printed("add-role", "link", "host1")
    printed("add-role", "link")
    files = {
        "rechannel-default-agent-host1.password",
        "rechannel-default-link-host1.password",
        "rechannel-default-link.password",
    }
    assert {path.name for path in tmp_path.iterdir()} == files
    assert len({path.read_text() for path in tmp_path.iterdir()}) == 3


def test_a_password_that_was_there_is_named() -> None:
    first = printed("add-node", "host1")
    assert first.stderr == ""
    again = printed("add-node", "host1")
    assert again.stdout == first.stdout
    assert "rechannel-default-agent-host1.password, which was there already" in again.stderr


def test_a_password_that_somebody_else_put_there_is_refused_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rechannel-default-viewer.password"
    path.write_text("known-to-somebody-else\n")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert "belongs to somebody else" in printed("add-role", "viewer", code=1).stderr
    printed("add-role", "viewer", "--password-file", str(path))
