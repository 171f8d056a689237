"""Password files of ``acl``, without a server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import Result

from unit.daemon.cli.command import run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def printed(*arguments: str, code: int = 0) -> Result:
    return run("acl", *arguments, "--print", code=code)


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


def test_an_existing_password_is_used_again_with_a_note() -> None:
    first = printed("add-node", "host1")
    assert first.stderr == ""
    again = printed("add-node", "host1")
    assert again.stdout == first.stdout
    assert "rechannel-default-agent-host1.password, which existed before" in again.stderr


def test_agents_of_pods_share_a_user_that_writes_the_keys_of_every_node() -> None:
    line = printed("add-role", "agent").stdout
    assert line.startswith("user rechannel-default-agent ")
    assert "%W~rechannel:{default}:node:*:windows %W~rechannel:{default}:node:*:evidence" in line
    assert ":node:host1:windows" in printed("add-node", "host1").stdout
    assert "name the node" in printed("add-node", "", code=2).stderr, "as of an unset variable of a shell"


def test_a_password_file_of_another_user_is_refused_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rechannel-default-viewer.password"
    path.write_text("known-to-somebody-else\n")
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert "belongs to another user" in printed("add-role", "viewer", code=1).stderr
    printed("add-role", "viewer", "--password-file", str(path))
