"""Solo runs of this user: the directory of each, and which of them live.

A solo run (`rechannel.migration.solo`) has one private directory among the temporary files, which is locked as long as
the run lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "rechannel-solo-"  # of a directory; the id of the driver's process follows
CONFIG_NAME = "rechannel.toml"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def live_runs() -> list[Path]:
    """Return the configuration of each live run, sorted by path."""
    configs = [directory / CONFIG_NAME for directory in own_directories() if _is_live(directory)]
    return [config for config in configs if config.is_file()]


def own_directories() -> Iterator[Path]:
    """Yield the directories of this user's runs, live or not."""
    for directory in sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")):
        try:
            status = directory.lstat()
        except OSError:
            continue  # removed in between
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            yield directory


def open_directory(directory: Path) -> int:
    """Return a descriptor of a directory, to lock it; OSError if it is none, or a link."""
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def remove_unlocked(directory: Path) -> None:
    """Remove a directory; OSError if it is locked, is none, or a link."""
    lock = open_directory(directory)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _is_live(directory: Path) -> bool:
    """Whether a directory is private and locked."""
    try:
        descriptor = open_directory(directory)
    except OSError:
        return False
    try:
        if os.fstat(descriptor).st_mode & _OTHERS:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
