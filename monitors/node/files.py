"""Safe opening of files and directories that the code of executors may have made.

An entry may be a pipe, a socket, a device, a link to somewhere else, or a file of any size. Opening it neither waits
nor leads out of the directory, and only regular files are read.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK  # a pipe would wait for its writer
_DIRECTORY = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NONBLOCK
_POD_ROOT = re.compile(r"(/proc/\d+/root)/+(.*)")
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR})  # a link, a socket, a device, …


class NotRegularError(OSError):
    """The entry is no regular file: a link, a pipe, a socket, a device, a directory."""


def open_regular(path: str | os.PathLike[str], *, directory: int | None = None) -> tuple[int, int]:
    """Open a regular file for reading, following no link; return descriptor and size.

    ``directory``: the descriptor that ``path`` is relative to. Raises NotRegularError, or another OSError.
    """
    try:
        descriptor = os.open(path, _FLAGS, dir_fd=directory)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise NotRegularError(error.errno, "not a regular file") from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotRegularError(errno.EINVAL, "not a regular file")
    return descriptor, status.st_size


@contextmanager
def open_directory(root: str, *names: str) -> Iterator[int]:
    """Open a directory below ``root``, following no link below it, and yield the descriptor.

    Links in ``root`` itself are followed, as an administrator may have put them there. In the file system of a pod
    no link is followed: it would lead into that of the host.
    """
    pod = _POD_ROOT.match(root)
    if pod:
        root, names = pod[1], (*filter(None, pod[2].split("/")), *names)
    descriptor = os.open(root, _DIRECTORY)
    try:
        for name in names:
            outer, descriptor = descriptor, os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(outer)
        yield descriptor
    finally:
        os.close(descriptor)
