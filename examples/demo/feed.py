"""Feeds the replay's files to the queries, keeping a small lead over the slowest one."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from examples.demo.data import Replay
from testbed.progress import JsonLines

__all__ = ["Feeder", "Progress", "ProgressReader"]


@dataclass(frozen=True)
class Progress:
    """One micro-batch that a query has finished; times in epoch seconds and milliseconds."""

    query: str
    batch_id: int
    rows: int
    trigger_ms: float
    wall: float

    @property
    def started(self) -> float:
        """Begin of the batch, by the wall clock."""
        return self.wall - self.trigger_ms / 1000


@dataclass
class ProgressReader:
    """Follows the file to which the application writes one JSON line per batch."""

    lines: JsonLines
    batches: dict[str, list[Progress]] = field(default_factory=lambda: defaultdict(list))

    def poll(self) -> None:
        """Take in the batches that were finished since the last call."""
        for line in self.lines.read():
            self.batches[line["query"]].append(Progress(**line))

    def finished(self, query: str) -> int:
        """Return how many batches with input a query has finished."""
        return sum(1 for progress in self.batches[query] if progress.rows)


class Feeder:
    """Puts files of ``rows`` flights into the inbox, ``lead`` ahead of the slowest query; the sentinel comes last."""

    def __init__(self, replay: Replay, inbox: Path, control: Path, rows: int, lead: int = 2) -> None:
        self.replay = replay
        self.rows = rows
        self.inbox = inbox
        self.control = control
        self.lead = lead
        self.fed = 0
        self.closed = False
        inbox.mkdir(parents=True, exist_ok=True)
        control.mkdir(parents=True, exist_ok=True)

    def advance(self, slowest: int) -> None:
        """Feed what may be fed now; with the last file the sentinel follows at once."""
        while not self.closed and self.fed < slowest + self.lead:
            self._link(self.replay.next_file(self.rows))
            self.fed += 1
            if self.replay.cut == len(self.replay.flights):
                self.close()

    def close(self) -> None:
        """End the stream here: feed the sentinel, and tell the application that nothing more comes."""
        if not self.closed:
            self.closed = True
            self._link(self.replay.sentinel())
            (self.control / "finished").touch()

    def _link(self, path: Path) -> None:
        target = self.inbox / path.name
        if not target.exists():
            os.link(path, target)  # appears whole, and with the modification time that Spark orders by
