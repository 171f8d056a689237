"""Lines of Spark's progress events, one for each batch, and the batches that are read from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class JsonLines:
    """Follows a file to which another process writes lines of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0  # bytes that were read

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last call; none while there is no file."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


@dataclass(frozen=True)
class Batch:
    """One committed batch; seconds since the epoch. ``query``: its name, where the line tells it."""

    number: int
    begin: float
    end: float
    query: str = ""

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end - self.begin


def progress_line(progress: StreamingQueryProgress) -> dict[str, Any] | None:
    """Return the line of a batch; None for a report that is of none."""
    if "addBatch" not in progress.durationMs:
        return None
    states = progress.stateOperators
    return {
        "query": str(progress.name),
        "batch": progress.batchId,
        "run": str(progress.runId),
        "timestamp": progress.timestamp,
        "milliseconds": dict(progress.durationMs),
        "state_rows": sum(state.numRowsTotal for state in states),
        "state_bytes": sum(state.memoryUsedBytes for state in states),
        "state_updated": sum(state.numRowsUpdated for state in states),
        "input_rows": progress.numInputRows,
    }


def batches(lines: Sequence[Mapping[str, Any]]) -> list[Batch]:
    """Read lines: a batch's duration is Spark's ``triggerExecution``, its commit is its begin plus that."""
    result = []
    for line in lines:
        begin = datetime.fromisoformat(line["timestamp"]).timestamp()
        end = begin + line["milliseconds"]["triggerExecution"] / 1000
        result.append(Batch(int(line["batch"]), begin, end, line.get("query", "")))
    return result
