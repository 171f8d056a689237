"""The part of the live figures that is kept beside the page, and several runs as one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.live.summary import group
from benchmarks.live.variants import ADAPTIVE, SPARK
from benchmarks.report.results import Result
from testbed.progress import batches

_SESSION = (
    *("situation", "workload", "repeat", "seed", "shape", "lengths", "input", "began", "machine", "command"),
    *("testbed", "link", "end", "exact", "error"),
)
_TURN = ("turn", "way", "situation", "error", "before_from", "event_at", "moved_at", "after_from", "end")
_ORDER = ("asked", "settled", "moves", "landed", "given_up", "sentence")


def merge(runs: Sequence[Result]) -> Result:
    """Return the sessions of several runs as those of one, each of them once; quick if one of them is."""
    sessions: dict[float, Mapping[str, Any]] = {}
    for session in (session for run in runs for session in run.rows):
        earlier = sessions.get(session["began"], {})
        sessions[session["began"]] = earlier if earlier.get("batches") else session
    return msgspec.structs.replace(runs[0], quick=any(run.quick for run in runs), rows=list(sessions.values()))


def compact(result: Result) -> Result:
    """Return what the page needs, with the batches of the first session of each kind for its plot."""
    firsts = [
        next((session for session in alike if session.get("batches")), None) for alike in group(result.rows).values()
    ]
    sessions = []
    for session in result.rows:
        turns = session.get("phases", ())
        drawn = [turn for turn in turns if turn["way"] in (SPARK.name, ADAPTIVE.name) and "end" in turn]
        lines = session["batches"] if any(session is first for first in firsts) else []
        sessions.append(
            {
                **_pick(session, _SESSION),
                "figures": session.get("figures", []),
                "phases": [_compact_turn(turn) for turn in turns],
                "batches": [_compact_batch(line) for line in lines if _is_within(line, drawn)],
            }
        )
    return msgspec.structs.replace(result, rows=sessions)


def _pick(record: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _compact_turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {**_pick(turn, _TURN), "orders": [_pick(order, _ORDER) for order in turn.get("orders", ())]}


def _compact_batch(line: Mapping[str, Any]) -> dict[str, Any]:
    seconds = {"triggerExecution": line["milliseconds"]["triggerExecution"]}
    return {**_pick(line, ("query", "batch", "timestamp")), "milliseconds": seconds}


def _is_within(line: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> bool:
    (batch,) = batches([line])
    return any(turn["before_from"] <= batch.begin and batch.end <= turn["end"] for turn in turns)
