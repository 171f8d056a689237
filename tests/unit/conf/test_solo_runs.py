"""Solo runs of this user: only locked, private directories of the user's own count."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rechannel.conf.solo_runs import live_runs, open_directory, own_directories


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def make(parent: Path, name: str, mode: int = 0o700) -> Path:
    directory = parent / f"rechannel-solo-{name}"
    directory.mkdir()
    directory.chmod(mode)
    (directory / "rechannel.toml").write_text("")
    return directory


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    directory = make(tmp_path, "2-locked")
    lock = open_directory(directory)
    fcntl.flock(lock, fcntl.LOCK_EX)
    yield directory
    os.close(lock)


def test_a_locked_directory_is_a_live_run(tmp_path: Path, locked: Path) -> None:
    make(tmp_path, "1-dead")
    assert live_runs() == [locked / "rechannel.toml"]
    assert live_runs() == [locked / "rechannel.toml"], "looking changes nothing"


def test_a_run_without_its_configuration_is_not_live_yet(locked: Path) -> None:
    (locked / "rechannel.toml").unlink()
    assert live_runs() == []


def test_a_directory_that_others_can_enter_is_no_live_run(locked: Path) -> None:
    locked.chmod(0o755)
    assert live_runs() == []
    assert list(own_directories()) == [locked], "but a leftover that may be removed"


def test_links_files_and_directories_of_others_are_no_runs(
    tmp_path: Path, locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rechannel-solo-3-link").symlink_to(locked)
    (tmp_path / "rechannel-solo-4-file").write_text("")
    (tmp_path / "another").mkdir()
    assert list(own_directories()) == [locked]
    monkeypatch.setattr(os, "geteuid", lambda: locked.stat().st_uid + 1)
    assert list(own_directories()) == []
    assert live_runs() == []


def test_no_temporary_directory_has_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    assert live_runs() == []
