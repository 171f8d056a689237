"""The audit file: what operators ordered, what became of it, and what was refused; append-only, one JSON object a line.

An order leaves two lines: `asked` is on the disk before anything is done, `answered` says how it ended. What the desk
itself refuses leaves one, `refused`. Each line stands by itself, with all that is known at that moment.
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

from rechannel.wire.messages import Reply, Request

ASKED, ANSWERED, REFUSED = "asked", "answered", "refused"
_ARGUMENTS = (
    "application",
    "at",
    "deadline",
    "decision",
    "drain",
    "force",
    "node",
    "pending",
    "policy",
    "remove",
    "when",
)
_LONGEST = 1000  # characters of what somebody else wrote
_MODE = 0o640  # who may read it can lock it, and with it keep orders from being given
_TRIES, _BETWEEN = 20, 0.05  # of taking the lock, and seconds between two: a line is written much faster


class AuditError(RuntimeError):
    """The audit file cannot be written; names it and the cure."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line. ``arguments`` are those that verbs have; of a saved plan only its digest. ``code`` None: not known yet.

    ``user`` is what the command line said; that it had an operator's password is what Redis saw to.
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


def line(
    event: str, request: Request, *, sender: str, at: float, leader: str, epoch: int, reply: Reply | None = None
) -> Line:
    """Return the line of an event. ``at`` in seconds since the epoch."""
    arguments = {name: _short(request.arguments[name]) for name in _ARGUMENTS if name in request.arguments}
    if "plan" in request.arguments:
        arguments["plan"] = f"sha256:{hashlib.sha256(request.arguments['plan'].encode(errors='replace')).hexdigest()}"
    data = reply.data if reply is not None else {}
    decided = data.get("decision")
    return Line(
        at=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at % 1 * 1000):03d}Z",
        event=event,
        request=_short(request.request),
        verb=_short(request.verb),
        user=_short(request.user),
        sender=_short(sender),
        reason=_short(request.reason),
        arguments=arguments,
        leader=leader,
        epoch=epoch,
        code=reply.code if reply is not None else None,
        sentence=reply.sentence if reply is not None else "",
        application=str(data.get("application", "")),
        decision=str(decided.get("decision", "")) if isinstance(decided, Mapping) else "",
    )


class AuditFile:
    """The file of the settings; without a path every line is let go. ``sleep`` takes seconds."""

    def __init__(self, path: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = Path(path) if path else None
        self._sleep = sleep

    def check(self) -> None:
        """Raise AuditError where nothing can be appended. Makes no file: it would be whose who looks."""
        if self._path is None:
            return
        directory = self._path.parent
        try:
            os.close(self._open(self._path, 0))
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise self._cannot(error.strerror) from error
            if not os.access(directory, os.W_OK | os.X_OK):
                raise self._cannot(f"it is not there, and {directory} cannot be written to") from error

    def append(self, entry: Line) -> None:
        """Append a line and wait until it is on the disk, or raise AuditError."""
        if self._path is None:
            return
        data = msgspec.json.encode(entry) + b"\n"
        try:
            descriptor = self._open(self._path, os.O_CREAT)
        except FileNotFoundError as error:
            raise self._cannot(error.strerror) from error
        try:
            self._lock(descriptor)
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data  # a disk that was full took half a line
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        except OSError as error:
            raise self._cannot(error.strerror) from error
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        """Wait for another controller of this machine, which may write to it too, but not for ever."""
        for left in reversed(range(_TRIES)):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                    raise
                if not left:
                    raise self._cannot("another process keeps it locked; `fuser` says which") from error
                self._sleep(_BETWEEN)
            else:
                return

    def _open(self, path: Path, more: int) -> int:
        """Open it with these flags more; FileNotFoundError where it is not there, else AuditError."""
        # Not blocking: a pipe without a reader must not hold the controller up before it is refused.
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags | more, 0o600)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self._cannot(error.strerror) from error
        found = os.fstat(descriptor)
        problem = ""
        if not stat.S_ISREG(found.st_mode):
            problem = "it is no ordinary file"
        elif found.st_mode & 0o077 & ~_MODE:
            problem = f"others can open it (mode {stat.S_IMODE(found.st_mode):o}); `chmod {_MODE:o} {path}`"
        if problem:
            os.close(descriptor)
            raise self._cannot(problem)
        return descriptor

    def _cannot(self, why: str | None) -> AuditError:
        return AuditError(f"controller.audit_file: {self._path} cannot be appended to ({why})")


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
