"""Private directory of a solo run: its files, its lock, and the removal of dead ones."""

from __future__ import annotations

import fcntl
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rechannel.conf.loader import read_settings
from rechannel.conf.solo_runs import live_runs, own_directories
from rechannel.migration.solo import SoloError, run_directory
from rechannel.migration.solo.run_directory import RunDirectory, remove_leftovers
from rechannel.wire.codes import Mode
from rechannel.wire.signing import Signer


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files: short, and with letters that TOML, URLs and Redis quote."""
    with tempfile.TemporaryDirectory(prefix='a "b%20 é') as path:
        monkeypatch.setattr(tempfile, "tempdir", path)
        yield Path(path)


@pytest.fixture
def directory(temporary: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(4711)
    yield directory
    directory.remove()


def test_the_configuration_is_valid_and_complete(directory: RunDirectory) -> None:
    directory.write(Mode.APPLY)
    loaded = read_settings(directory.config, {})
    assert loaded.errors == ()
    settings = loaded.settings
    assert settings.reschedule.mode == "apply"
    assert settings.link.directory == str(directory.path / "link")
    assert settings.controller.listen.startswith("127.0.0.1:")
    assert "%22" in settings.redis.url
    signing = settings.signing
    assert Signer.from_file(signing.private_key_file, signing.public_key_file)
    assert Path(settings.redis.password_file).read_text().strip() in directory.redis_config.read_text()
    assert "port 0\n" in directory.redis_config.read_text()
    quoted = str(directory.path).replace('"', '\\"')
    assert f'dir "{quoted}"\n' in directory.redis_config.read_text()


def test_a_port_that_something_else_has_by_now_is_replaced(directory: RunDirectory) -> None:
    directory.write(Mode.OBSERVE)
    before = directory.config.read_text()
    directory.renew_port()
    assert directory.config.read_text() == before, "it is free"
    port = int(read_settings(directory.config, {}).settings.controller.listen.rpartition(":")[2])
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        directory.renew_port()
    loaded = read_settings(directory.config, {})
    assert loaded.errors == ()
    assert loaded.settings.controller.listen != f"127.0.0.1:{port}"


def test_the_directory_is_private_and_names_the_driver(directory: RunDirectory) -> None:
    assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
    assert directory.path.name.startswith("rechannel-solo-4711-")


def test_a_path_that_is_too_long_for_a_socket_is_refused_with_the_cure(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = temporary / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    directory = RunDirectory(1)
    with pytest.raises(SoloError, match="set TMPDIR to a shorter directory"):
        directory.write(Mode.OBSERVE)
    directory.remove()
    assert list(long.iterdir()) == []


def test_the_next_run_removes_dead_ones_alone(directory: RunDirectory, temporary: Path) -> None:
    directory.write(Mode.OBSERVE)
    dead = temporary / "rechannel-solo-1-dead"
    (dead / "link").mkdir(parents=True)
    (dead / "rechannel.toml").write_text("")
    others = temporary / "rechannel-another"
    others.mkdir()
    remove_leftovers()
    assert not dead.exists()
    assert others.exists()
    assert live_runs() == [directory.config]


def test_a_directory_that_is_removed_before_it_is_locked_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, removed = fcntl.flock, []

    def lock_too_late(descriptor: int, operation: int) -> None:
        if not removed:
            (path,) = own_directories()
            removed.append(path)
            path.rmdir()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    directory = RunDirectory(1)
    assert directory.path != removed[0]
    assert directory.path.is_dir()
    directory.remove()


def test_a_file_system_without_locks_is_refused_with_the_cure(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int, _operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(SoloError, match=r"No locks available.*set TMPDIR to a local one"):
        RunDirectory(1)
    assert list(temporary.iterdir()) == []


def test_the_log_is_bounded(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_directory, "_LOG_BYTES", 10)
    directory.trim_log()
    assert directory.log_tail() == ""
    with directory.log.open("ab", buffering=0) as child:
        child.write(b"short\n")
        directory.trim_log()
        assert directory.log_tail() == "short"
        child.write(b"a longer line\n\n")
        assert directory.log_tail() == "a longer line"
        directory.trim_log()
        child.write(b"next\n")
    assert directory.log.read_text() == "next\n"
    assert directory.log.with_suffix(".log.1").read_text() == "short\na longer line\n\n"
