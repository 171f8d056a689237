"""Spark's own event log of a run: placements, busy time, failed attempts, restarts.

Read independently of Rechannel, so that the demo's verdict does not rest on the thing it judges.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["EventLog", "StatefulBatch"]


@dataclass
class StatefulBatch:
    """The stateful stages of one micro-batch: who ran which partition, and for how long."""

    query_id: str
    batch_id: int
    placement: dict[int, str] = field(default_factory=dict)
    busy_ms: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tasks: int = 0

    @property
    def complete(self) -> bool:
        """Whether every partition has been seen."""
        return 0 < self.tasks <= len(self.placement)


class EventLog:
    """Follows the event log in a directory while it is written; `poll` takes in what is new."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.executors: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.starts: dict[str, int] = defaultdict(int)
        self.errors: list[str] = []
        self.failed_attempts: list[str] = []
        self.batches: dict[tuple[str, int], StatefulBatch] = {}
        self._stages: dict[int, tuple[str, int, bool]] = {}
        self._positions: dict[str, int] = {}

    @property
    def restarts(self) -> int:
        """Number of starts of a query beyond its first, and of ends by an error."""
        return sum(count - 1 for count in self.starts.values()) + len(self.errors)

    def poll(self) -> None:
        """Read the complete lines that were added since the last call."""
        for path in sorted(self.directory.glob("*")):
            name = path.name.removesuffix(".inprogress")
            try:
                with path.open("rb") as stream:
                    stream.seek(self._positions.get(name, 0))
                    data = stream.read()
            except FileNotFoundError:
                continue  # renamed at the application's end; the next call finds it under its last name
            whole = data.rfind(b"\n") + 1
            self._positions[name] = self._positions.get(name, 0) + whole
            for line in data[:whole].splitlines():
                self._take(json.loads(line))

    def latest(self, query: str) -> StatefulBatch | None:
        """Return the newest batch of a query, by its name, whose placement is known in full."""
        ids = [query_id for query_id, name in self.names.items() if name == query]
        complete = [batch for (query_id, _), batch in self.batches.items() if query_id in ids and batch.complete]
        return max(complete, key=lambda batch: batch.batch_id, default=None)

    def busy_seconds(self, query: str, last_batches: int) -> dict[str, float]:
        """Return each executor's mean seconds of a query's stateful tasks in its last complete batches."""
        complete = [item for item in self.batches.values() if self.names.get(item.query_id) == query and item.complete]
        newest = sorted(complete, key=lambda item: item.batch_id)[-last_batches:]
        total: dict[str, float] = defaultdict(float)
        for batch in newest:
            for executor, spent in batch.busy_ms.items():
                total[executor] += spent / 1000 / len(newest)
        return dict(total)

    def busy_share(self, query: str, last_batches: int) -> dict[str, float]:
        """Return each executor's share of the time that a query's stateful tasks took in its last complete batches."""
        seconds = self.busy_seconds(query, last_batches)
        whole = sum(seconds.values())
        return {executor: spent / whole for executor, spent in seconds.items()} if whole else {}

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["Event"].rsplit(".", 1)[-1].removeprefix("StreamingQueryListener$")
        handler = getattr(self, f"_on_{kind.lower()}", None)
        if handler is not None:
            handler(event)

    def _on_sparklistenerexecutoradded(self, event: dict[str, Any]) -> None:
        self.executors[event["Executor ID"]] = event["Executor Info"]["Host"]

    def _on_sparklistenerexecutorremoved(self, event: dict[str, Any]) -> None:
        self.executors.pop(event["Executor ID"], None)

    def _on_querystartedevent(self, event: dict[str, Any]) -> None:
        self.names[event["id"]] = event.get("name") or event["id"]
        self.starts[event["id"]] += 1

    def _on_queryterminatedevent(self, event: dict[str, Any]) -> None:
        if event.get("exception"):
            self.errors.append(str(event["exception"]).splitlines()[0])

    def _on_sparklistenerstagesubmitted(self, event: dict[str, Any]) -> None:
        properties = event.get("Properties") or {}
        query_id, batch = properties.get("sql.streaming.queryId"), properties.get("streaming.sql.batchId")
        if query_id is None or batch is None:
            return
        info = event["Stage Info"]
        stateful = any(rdd["Name"].endswith("StateStoreRDD") for rdd in info["RDD Info"])
        self._stages[info["Stage ID"]] = (query_id, int(batch), stateful)
        if stateful:
            stateful_batch = self.batches.setdefault((query_id, int(batch)), StatefulBatch(query_id, int(batch)))
            stateful_batch.tasks = max(stateful_batch.tasks, info["Number of Tasks"])

    def _on_sparklistenertaskend(self, event: dict[str, Any]) -> None:
        info, reason = event["Task Info"], event["Task End Reason"]["Reason"]
        if reason != "Success":
            self.failed_attempts.append(f"stage {event['Stage ID']} task {info['Index']}: {reason}")
            return
        query_id, batch_id, stateful = self._stages.get(event["Stage ID"], ("", -1, False))
        if stateful:
            batch = self.batches[query_id, batch_id]
            batch.placement[info.get("Partition ID", info["Index"])] = info["Executor ID"]
            batch.busy_ms[info["Executor ID"]] += info["Finish Time"] - info["Launch Time"]
