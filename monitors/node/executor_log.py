"""Evidence of closed state stores, read from the standard error of executors.

Spark 4.3 writes this after the provider's close, the same for the HDFS-backed and the RocksDB provider (INFO, logger
``StateStore``)::

    Closed StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=4, storeName=default ], queryRunId=… ]

The lines before it ("Queuing provider from task thread for maintenance and close …", "Closing …") only announce it and
are no evidence. The text is searched for anywhere in a line, so plain text of any pattern and Spark's structured JSON
layout both match. An executor that logs WARN and above gives no evidence.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rechannel.monitors.node import files
from rechannel.monitors.node.processes import Executor
from rechannel.wire.measurements import ClosedStore

PASS_BYTES = 256 * 2**10  # read from one log in one pass
BACKLOG_BYTES = 16 * 2**20  # the rest of a log further ahead than this is skipped

_CLOSED = re.compile(
    rb"Closed StateStoreProviderId[\[(] ?(?:storeId=)?"
    rb"StateStoreId\[ operatorId=(\d{1,9}), partitionId=(\d{1,9}), storeName=([^\r\n\],]{1,200}) \], ?"
    rb"(?:queryRunId=)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
)


@dataclass
class _Log:
    path: Path
    descriptor: int
    offset: int


class ClosedStoreReader:
    """Follows the logs of executors and reports the state stores they closed.

    A log is followed from its end when first seen. Renamed logs are read to their end before the new one is begun,
    truncated ones from the start. ``skipped`` counts failed readings by reason; ``lasting`` has the reason why an
    executor's log cannot be read at all.
    """

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        self.lasting: dict[tuple[int, float], str] = {}
        self._logs: dict[tuple[int, float], _Log] = {}

    def retain(self, alive: set[tuple[int, float]]) -> None:
        """Keep the logs of the executors of these identities; close all others."""
        for identity in [identity for identity in self._logs if identity not in alive]:
            self._close(identity)
        self.lasting = {identity: reason for identity, reason in self.lasting.items() if identity in alive}

    def close(self) -> None:
        """Close every log."""
        self.retain(set())

    def read(self, executor: Executor) -> list[ClosedStore]:
        """Return the stores that an executor has closed by its log since the last call."""
        if executor.log is None:
            return []
        identity = executor.identity
        try:
            log = self._logs.get(identity)
            if log is None:
                log = self._logs[identity] = _Log(executor.log, *files.open_regular(executor.log))
                self.lasting.pop(identity, None)
                return []
            data = self._read_lines(identity, log)
        except FileNotFoundError:
            self.lasting[identity] = f"executor {executor.executor}: no stderr in its working directory"
            return []
        except PermissionError:
            self.lasting[identity] = f"executor {executor.executor}: rights missing to read its log"
            return []
        except files.NotRegularError:
            self.lasting[identity] = f"executor {executor.executor}: its log is not a regular file"
            self._close(identity)
            return []
        except OSError:
            self.skipped["executor log unreadable"] += 1
            self._close(identity)
            return []
        return [_store(executor, match) for match in _CLOSED.finditer(data)]

    def _read_lines(self, identity: tuple[int, float], log: _Log) -> bytes:
        """Return the complete lines that were added, up to the bound."""
        size = os.fstat(log.descriptor).st_size
        if size < log.offset:
            self.skipped["executor log truncated"] += 1
            log.offset = 0
        if size - log.offset > BACKLOG_BYTES:
            self.skipped["executor log too fast: part left unread"] += 1
            log.offset = size - PASS_BYTES
        if size == log.offset:
            self._follow_rename(identity, log)
            return b""
        data = os.pread(log.descriptor, PASS_BYTES, log.offset)
        end = data.rfind(b"\n") + 1
        if end == 0 and len(data) == PASS_BYTES:
            self.skipped["executor log line too long"] += 1
            end = len(data)
        if end == 0:
            # An incomplete line; in a renamed log it will never be completed.
            self._follow_rename(identity, log)
        log.offset += end
        return data[:end]

    def _follow_rename(self, identity: tuple[int, float], log: _Log) -> None:
        """Open the new file once the old one, renamed or deleted, is read."""
        try:
            current = os.stat(log.path, follow_symlinks=False)  # noqa: PTH116
        except FileNotFoundError:
            return  # deleted, or renamed a moment ago
        open_file = os.fstat(log.descriptor)
        if (current.st_dev, current.st_ino) == (open_file.st_dev, open_file.st_ino):
            return
        descriptor, _ = files.open_regular(log.path)
        os.close(log.descriptor)
        self._logs[identity] = _Log(log.path, descriptor, 0)

    def _close(self, identity: tuple[int, float]) -> None:
        log = self._logs.pop(identity, None)
        if log is not None:
            with contextlib.suppress(OSError):
                os.close(log.descriptor)


def _store(executor: Executor, match: re.Match[bytes]) -> ClosedStore:
    operator, partition, store, run = (group.decode("utf-8", "replace") for group in match.groups())
    return ClosedStore(
        application=executor.application,
        executor=executor.executor,
        run=run,
        operator=int(operator),
        partition=int(partition),
        store=store,
        evidence="the executor's log: Closed StateStoreProviderId",
    )
