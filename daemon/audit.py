"""The audit file: append-only JSON lines of orders, results, and refused attempts.

Written by `rechannel.daemon.control.requests`. An order leaves two lines: `asked` is on the disk before anything is
done, `answered` has the result. An order that `RequestHandler` itself refuses leaves one line, `refused`. Every line is
complete by itself.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from rechannel.wire.commands import COMMANDS
from rechannel.wire.messages import Reply, Request
from rechannel.wire.redis.answers import Lease

ASKED, ANSWERED, REFUSED = "asked", "answered", "refused"
_RENAMED = {"nodes": "node"}  # field of a command -> its name in the file, where they differ
_DIGESTED = frozenset({"plan"})  # fields of which only the digest is written
_MAX_LENGTH = 1000  # characters of a text in the audit file; beyond: it is cut, and its length stands beside it
_MODE = 0o640  # a user who may read the file can lock it, and so keep orders from being given
_LOCK_ATTEMPTS, _LOCK_RETRY = 20, 0.05  # seconds between two attempts; a line is written much faster


class AuditError(RuntimeError):
    """The audit file cannot be written; the text names the file and the cure."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the file.

    ``arguments`` are the fields of the command, of a saved plan only its digest. ``user`` is what the sender says;
    Redis' ACL ensures that the sender had an operator's password. ``code`` is None until the order is answered.
    """

    at: str
    event: str  # asked | answered | refused
    request: str
    verb: str
    user: str
    sender: str
    reason: str
    arguments: dict[str, str]
    leader: str
    epoch: int
    code: int | None = None
    sentence: str = ""
    application: str = ""
    decision: str = ""


def line(event: str, request: Request, *, sender: str, at: float, leader: Lease, reply: Reply | None = None) -> Line:
    """Return the line of an event.

    ``event``: `ASKED`, `ANSWERED` or `REFUSED`; ``sender``: as in the envelope; ``leader``: lease of the controller
    that writes the line.
    """
    data = reply.data if reply is not None else {}
    decision = data.get("decision")
    return Line(
        at=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z",
        event=event,
        request=_short(request.request),
        verb=_short(request.verb),
        user=_short(request.user),
        sender=_short(sender),
        reason=_short(request.reason),
        arguments=_arguments(request),
        leader=leader.holder,
        epoch=leader.epoch,
        code=reply.code if reply is not None else None,
        sentence=reply.sentence if reply is not None else "",
        application=str(data.get("application", "")),
        decision=str(decision.get("decision", "")) if isinstance(decision, Mapping) else "",
    )


def _arguments(request: Request) -> dict[str, str]:
    """Return the fields that the verb has, as text; a sender may add any others."""
    kind = COMMANDS.get(request.verb)
    fields = kind.__struct_fields__ if kind is not None else ()
    values = {name: request.command[name] for name in fields if request.command.get(name)}
    return {_RENAMED.get(name, name): _text(name, value) for name, value in values.items()}


def _text(name: str, value: object) -> str:
    if name in _DIGESTED:
        return f"sha256:{hashlib.sha256(str(value).encode(errors='replace')).hexdigest()}"
    if isinstance(value, list):
        return _short(",".join(map(str, value[:_MAX_LENGTH])))
    if isinstance(value, float):
        return f"{value:g}"
    return "yes" if value is True else _short(str(value))


class AuditFile:
    """The file named in the settings; without a path nothing is written."""

    def __init__(self, path: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = Path(path) if path else None
        self._sleep = sleep

    def check(self) -> None:
        """Raise AuditError if nothing can be appended; creates no file."""
        if self._path is None:
            return
        directory = self._path.parent
        try:
            os.close(self._open(self._path, 0))
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise self._error(error.strerror) from error
            if not os.access(directory, os.W_OK | os.X_OK):
                raise self._error(f"it is not there, and {directory} cannot be written to") from error

    def append(self, entry: Line) -> None:
        """Append a line and wait until it is on the disk, or raise AuditError."""
        if self._path is None:
            return
        data = msgspec.json.encode(entry) + b"\n"
        try:
            descriptor = self._open(self._path, os.O_CREAT)
        except FileNotFoundError as error:
            raise self._error(error.strerror) from error
        try:
            self._lock(descriptor)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # the last line is incomplete: the disk was full
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError as error:
            raise self._error(error.strerror) from error
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        """Lock the file; waits a limited time for another controller of this machine."""
        for left in reversed(range(_LOCK_ATTEMPTS)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if not left:
                    raise self._error("another process keeps it locked; `fuser` says which") from error
                self._sleep(_LOCK_RETRY)
            else:
                return

    def _open(self, path: Path, extra_flags: int) -> int:
        """Open the file for appending; raises FileNotFoundError if there is none, else AuditError."""
        # O_NONBLOCK: opening a pipe without a reader would block the controller before the pipe is refused.
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags | extra_flags, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._error(error.strerror) from error
        status = os.fstat(descriptor)
        problem = ""
        if not stat.S_ISREG(status.st_mode):
            problem = "it is not a regular file"
        elif status.st_mode & 0o077 & ~_MODE:
            problem = f"others can open it (mode {stat.S_IMODE(status.st_mode):o}); `chmod {_MODE:o} {path}`"
        if problem:
            os.close(descriptor)
            raise self._error(problem)
        return descriptor

    def _error(self, cause: str | None) -> AuditError:
        return AuditError(f"controller.audit_file: {self._path} cannot be appended to ({cause})")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}… ({len(text)} characters)"
