"""Files of Spark's event logs: search, parts in order, codecs, bounded reading of lines.

The names are those of ``org.apache.spark.deploy.history``: a single file ``APP[.codec][.inprogress]``, or a directory
``eventlog_v2_APP`` with ``appstatus_APP[.inprogress]`` and parts ``events_N_APP[.codec][.compact]``. A compacted part
stands for all parts up to its number.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from rechannel.migration.spark.event_log_codecs import SPARK_CODECS, EventLogCodecError, open_with_spark

_ROLLED = "eventlog_v2_"
_STATUS = "appstatus_"
_PART = re.compile(r"events_(\d{1,18})_")
_IN_PROGRESS, _COMPACTED = ".inprogress", ".compact"
_ZSTD, _ZIP = b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_LARGEST_WINDOW = 2**27  # bytes of memory that a zstd frame may ask for
_LONGEST_LINE = 64 * 2**20  # bytes; longer ones are passed over
_BUFFER = 2**20
_LISTED = 5  # part numbers in a sentence


class EventLogError(Exception):
    """A path that cannot be read as an event log; the message has the cure."""


@dataclass(frozen=True)
class EventLog:
    """Event log of one application.

    ``parts`` in order; ``notes``: sentences on what the log lacks; ``named``: whether the user gave this very path,
    rather than a directory that holds it.
    """

    name: str
    parts: tuple[Path, ...]
    notes: tuple[str, ...] = ()
    named: bool = True


def find_logs(paths: Sequence[Path]) -> list[EventLog]:
    """Return the event logs at some paths, each once; EventLogError if a path has none."""
    logs: dict[Path, EventLog] = {}
    for path in paths:
        for log in _logs_at(path):
            logs.setdefault(log.parts[0].absolute(), log)
    return list(logs.values())


def _logs_at(path: Path) -> list[EventLog]:
    if not path.exists():
        remote = ": copy the log to this machine first" if "://" in str(path) or ":/" in str(path) else ""
        raise EventLogError(f"{path}: there is no such file or directory{remote}")
    if path.is_file() and (_PART.match(path.name) or path.name.startswith(_STATUS)):
        path = path.absolute().parent  # a pattern of the shell named the parts of a rolled log
    if path.is_file():
        return [_single(path, named=True)]
    if not path.is_dir():
        raise EventLogError(f"{path}: is neither a file nor a directory")
    rolled = _rolled(path, named=True)
    return _logs_in(path) if rolled is None else [rolled]


def _logs_in(directory: Path) -> list[EventLog]:
    """Return the logs of a directory with several applications."""
    logs = []
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith((".", _STATUS)):
            continue
        if entry.is_file():
            logs.append(_single(entry, named=False))
        elif entry.is_dir() and entry.name.startswith(_ROLLED) and (log := _rolled(entry, named=False)) is not None:
            logs.append(log)
    if not logs:
        raise EventLogError(
            f"{directory}: holds no event log (a file for each application, or eventlog_v2_* directories)"
        )
    return logs


def _single(path: Path, *, named: bool) -> EventLog:
    return EventLog(path.name, (path,), _in_progress(path.name.endswith(_IN_PROGRESS)), named)


def _in_progress(unfinished: bool) -> tuple[str, ...]:
    return ("the log is in progress: the application runs, or its driver was killed",) if unfinished else ()


def _rolled(directory: Path, *, named: bool) -> EventLog | None:
    """Return the rolled log of a directory, None if it has no part of one."""
    unfinished = _COMPACTED + _IN_PROGRESS  # a compaction that was under way
    names = [it for it in directory.iterdir() if it.is_file() and not it.name.endswith(unfinished)]
    parts = {(int(match[1]), not it.name.endswith(_COMPACTED)): it for it in names if (match := _PART.match(it.name))}
    if not parts:
        return None
    compacted = max((number for number, original in parts if not original), default=0)
    chosen = sorted(key for key in parts if key[0] > compacted or key == (compacted, False))
    numbers = [number for number, _ in chosen]
    notes = list(_in_progress(any(it.name.startswith(_STATUS) and it.name.endswith(_IN_PROGRESS) for it in names)))
    if compacted:
        notes.append(
            f"parts 1 to {compacted} were compacted by the history server: the tasks of their batches are gone "
            "(spark.history.fs.eventLog.rolling.maxFilesToRetain)"
        )
    first = numbers[0] if compacted else 1
    if missing := sorted(set(range(first, min(numbers[-1], first + 10_000))) - set(numbers)):
        listed = ", ".join(map(str, missing[:_LISTED])) + (", …" if len(missing) > _LISTED else "")
        notes.append(f"part {listed} of the log is missing: what happened in it is unknown")
    return EventLog(directory.name, tuple(parts[key] for key in chosen), tuple(notes), named)


def open_part(path: Path) -> BinaryIO:
    """Open a part of a log, decompressed; EventLogError if its codec cannot be read here."""
    raw = path.open("rb")
    start = raw.read(len(_ZSTD))
    raw.seek(0)
    if start == _ZSTD:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        return io.BufferedReader(decompressor.stream_reader(raw, read_across_frames=True, closefd=True), _BUFFER)
    codec = path.name.removesuffix(_COMPACTED).removesuffix(_IN_PROGRESS).rpartition(".")[2]
    if start == _ZIP or codec in SPARK_CODECS:
        raw.close()
    if start == _ZIP:
        raise EventLogError(f"{path}: is a zip archive, as the history server hands out: unpack it first")
    if codec in SPARK_CODECS:
        try:
            return io.BufferedReader(open_with_spark(path), _BUFFER)
        except EventLogCodecError as error:
            raise EventLogError(
                f"{path}: {codec} can be read by Spark's own classes alone, and {error}. Have the application write "
                "its log with spark.eventLog.compression.codec=zstd, or with spark.eventLog.compress=false"
            ) from error
    return raw


class LogLines:
    """Complete lines of a log, read once and in order.

    No more than the longest line is in memory. ``notes``, complete after the last line: sentences on what could not be
    read. A torn last line is no error: Spark was writing it.
    """

    def __init__(self, log: EventLog, longest: int = _LONGEST_LINE) -> None:
        self.notes: list[str] = []
        self._log, self._longest = log, longest
        self._oversized = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self._log.parts:
            try:
                with closing(open_part(part)) as stream:
                    yield from self._lines(stream)
            except (OSError, zstandard.ZstdError) as error:
                self.notes.append(f"{part.name} cannot be read to its end: {error}")
        if self._oversized:
            self.notes.append(f"{self._oversized} lines of more than {self._longest:,} bytes were passed over")

    def _lines(self, stream: BinaryIO) -> Iterator[bytes]:
        inside = False  # an oversized line
        while line := stream.readline(self._longest):
            complete = line.endswith(b"\n")
            if complete and not inside:
                yield line
            elif not complete and not inside and len(line) == self._longest:
                self._oversized += 1
            inside = not complete
