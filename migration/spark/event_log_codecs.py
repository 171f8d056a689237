"""Event logs in codecs that Spark alone reads: by a JVM of PySpark, without a session.

py4j is imported where it is used: the machines of operators may have no PySpark, and need none for other codecs.
"""

from __future__ import annotations

import io
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, cast

SPARK_CODECS = frozenset({"lz4", "lzf", "snappy"})
"""Codecs of event logs by the ending of their files, in frames of Spark's or its libraries' own."""
_CHUNK = 4 * 2**20  # bytes of one call


class EventLogCodecError(Exception):
    """Spark's classes are out of reach; the message is the reason."""


class _JavaStream(io.RawIOBase):
    """Java's ``InputStream`` as a stream of Python's."""

    def __init__(self, jvm: Any, stream: Any) -> None:
        self._jvm, self._stream = jvm, stream
        self._rest = memoryview(b"")
        self._error = ""  # at the end of the rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._rest:
            self._read_chunk()
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def _read_chunk(self) -> None:
        from py4j.protocol import Py4JError

        if not self._error:
            chunk = self._jvm.java.io.ByteArrayOutputStream()  # also holds what comes before a torn block
            try:
                self._jvm.org.apache.commons.io.IOUtils.copyLarge(self._stream, chunk, 0, _CHUNK)
            except Py4JError as error:
                self._error = " ".join(str(error).splitlines()[:2])  # without Java's stack
            self._rest = memoryview(bytes(chunk.toByteArray()))
        if self._error and not self._rest:
            raise OSError(f"Spark cannot decompress it: {self._error}")

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def open_with_spark(path: Path) -> io.RawIOBase:
    """Open an event log through ``EventLogFileReader.openEventLog``.

    Raises EventLogCodecError if PySpark cannot start a JVM (Java 11 or newer), or Spark cannot open the file.
    """
    jvm = _start_jvm().jvm
    from py4j.protocol import Py4JError

    try:
        log = jvm.org.apache.hadoop.fs.Path(path.absolute().as_uri())
        system = log.getFileSystem(jvm.org.apache.hadoop.conf.Configuration())
        return _JavaStream(jvm, jvm.org.apache.spark.deploy.history.EventLogFileReader.openEventLog(log, system))
    except Py4JError as error:
        raise EventLogCodecError(f"Spark cannot open the file: {error}") from error


@cache
def _start_jvm() -> Any:
    """Return the gateway of a JVM, which ends with this process, by the pipe to its input."""
    try:
        from pyspark import java_gateway

        return cast("Any", java_gateway).launch_gateway(popen_kwargs={"stdout": subprocess.DEVNULL})
    except Exception as error:  # PySpark's errors differ by release: no PySpark, no Java, an old one
        raise EventLogCodecError(f"PySpark cannot start a JVM ({type(error).__name__}: {error})") from error
