"""The audit after a fault, from files alone: the output, the journal of moves, the commits.

Pure but for the reading of the files that are named; needs neither Redis nor anything of Rechannel that runs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.counting import expected_counts

ROWS_PER_BATCH = 1000
LINK_LOG = "link.jsonl"  # in the application's directory
QUERIES = ("counts", "python")
ENDS = frozenset({"killed", "abandoned", "drained", "released_idle"})
# Said again after a batch that missed it; all other steps are taken once in the life of a move.
REPEATED = frozenset({"steered", "released_idle"})


@dataclass(frozen=True)
class Audit:
    """The output beside what the same input gives when computed at once; rows, and the batches that differ."""

    batches: int
    lost: int
    doubled: int
    wrong: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether nothing differs in any batch."""
        return not (self.lost or self.doubled or self.wrong)


def increments(batch: int, rows: int = ROWS_PER_BATCH) -> Counter[int]:
    """Return what one batch adds to each key."""
    return expected_counts(range(batch * rows, (batch + 1) * rows))


def compare(name: str, written: Mapping[int, Mapping[int, int]], rows: int = ROWS_PER_BATCH) -> Audit:
    """Compare every batch that a query wrote (batch -> key -> count so far) with the batch computation."""
    last = max(written, default=-1)
    expected: Counter[int] = Counter()
    result: dict[int, int] = {}
    lost = 0
    wrong = []
    for batch in range(last + 1):
        added = increments(batch, rows)
        expected += added
        if batch not in written:
            lost += rows
            wrong.append(f"{name}: batch {batch} was not written")
            continue
        result.update(written[batch])
        differing = {key: (result.get(key), expected[key]) for key in added if result.get(key) != expected[key]}
        if differing:
            key, (was, should) = next(iter(differing.items()))
            wrong.append(f"{name}: batch {batch}, {len(differing)} keys, as key {key}: {was}, expected {should}")
    lost += sum(max(0, count - result.get(key, 0)) for key, count in expected.items())
    doubled = sum(max(0, count - expected.get(key, 0)) for key, count in result.items())
    return Audit(last + 1, lost, doubled, tuple(wrong[:20]))


def audit_query(directory: Path, name: str, rows: int = ROWS_PER_BATCH) -> Audit:
    """Audit what a query has written so far."""
    written = {
        int(path.stem): {int(key): count for key, count in json.loads(path.read_text()).items()}
        for path in (directory / "out" / name).glob("[0-9]*.json")
    }
    return compare(name, written, rows)


def audit(directory: Path, queries: Sequence[str] = QUERIES, rows: int = ROWS_PER_BATCH) -> Audit:
    """Audit all that an application has written so far."""
    parts = [audit_query(directory, name, rows) for name in queries]
    return Audit(
        sum(part.batches for part in parts),
        sum(part.lost for part in parts),
        sum(part.doubled for part in parts),
        tuple(line for part in parts for line in part.wrong),
    )


@dataclass(frozen=True)
class Migrated:
    """Result of a decision's moves. ``reasons``: of those given up; ``unsettled``: id -> last state."""

    moves: int
    landed: int
    abandoned: int
    reasons: Mapping[str, int] = field(default_factory=dict)
    unsettled: Mapping[str, str] = field(default_factory=dict)

    def sentence(self) -> str:
        """Say it in a cell of a table."""
        summary = f"{self.landed} of {self.moves} landed"
        if self.abandoned:
            why = ", ".join(f"{reason} {count}" for reason, count in sorted(self.reasons.items()))
            summary += f", {self.abandoned} abandoned ({why})"
        return f"{summary}, {len(self.unsettled)} ended with the run" if self.unsettled else summary


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Read the steps of moves that links logged; a line that a kill cut off is passed over."""
    lines = []
    for text in path.read_text(errors="replace").splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            lines.append(json.loads(text))
    return [line for line in lines if line.get("event") == "move"]


def migrated(journal: Iterable[Mapping[str, Any]], decision: str, moves: int) -> Migrated:
    """Follow a decision's moves through the journal; ``moves`` is how many were ordered."""
    own = [line for line in journal if line["decision"] == decision]
    last = {line["move"]: line for line in own}
    given_up = [line for line in last.values() if line["after"] == "abandoned"]
    return Migrated(
        moves,
        sum(line["after"] in ("drained", "killed") for line in last.values()),
        len(given_up),
        dict(Counter(line["reason"] or "without a reason" for line in given_up)),
        {move: line["after"] for move, line in last.items() if line["after"] not in ENDS},
    )


def taken_twice(journal: Iterable[Mapping[str, Any]]) -> list[str]:
    """Name the steps of any move that were taken more than once."""
    steps = Counter((line["move"], line["after"]) for line in journal)
    return [
        f"{move}: {after} {count} times"
        for (move, after), count in steps.items()
        if count > 1 and after not in REPEATED
    ]


def commit_times(directory: Path) -> dict[str, list[float]]:
    """Query -> when each of its batches was written, in seconds since the epoch, in order."""
    return {
        name: sorted(path.stat().st_mtime for path in (directory / "out" / name).glob("[0-9]*.json"))
        for name in QUERIES
    }


def longest_gap(times: Sequence[float], since: float, until: float) -> float:
    """Return the longest time without a commit that touches the span, in seconds."""
    before = [at for at in times if at < since]
    inside = [at for at in times if since <= at <= until]
    marks = [*before[-1:], *inside, until]
    return max((b - a for a, b in itertools.pairwise(marks)), default=until - since)


def usual_gap(times: Sequence[float], until: float, last: int = 20) -> float:
    """Return the median time between the last commits before a moment, 0 where there are too few."""
    before = [at for at in times if at < until][-last:]
    return statistics.median(b - a for a, b in itertools.pairwise(before)) if len(before) > 1 else 0.0
