"""What of the figures is worth keeping beside the page, and several live runs taken together. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.live.summary import group
from benchmarks.live.variants import ADAPTIVE, SPARK
from testbed.progress import batches

__all__ = ["compact", "merged", "rounded"]

_SESSION = (
    *("situation", "workload", "repeat", "seed", "shape", "lengths", "input", "began", "machine", "command"),
    *("testbed", "link", "end", "exact", "error"),
)
_PHASE = ("turn", "way", "situation", "error", "before_from", "event_at", "moved_at", "after_from", "end")
_ORDER = ("asked", "settled", "moves", "landed", "given_up", "sentence")


def merged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sessions of several runs as those of one, each of them once; quick if one of them is."""
    sessions: dict[float, Mapping[str, Any]] = {}
    for session in (session for each in found for session in each["sessions"]):
        known = sessions.get(session["began"], {})
        sessions[session["began"]] = known if known.get("batches") else session
    return {**found[0], "quick": any(each["quick"] for each in found), "sessions": list(sessions.values())}


def compact(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same with what the page needs, and the batches of the first session of each kind for its plot."""
    firsts = [next((each for each in alike if each.get("batches")), None) for alike in group(figures).values()]
    sessions = []
    for session in figures["sessions"]:
        kept = {name: session[name] for name in _SESSION if name in session}
        kept["figures"] = rounded(session.get("figures", []))
        phases = session.get("phases", ())
        kept["phases"] = [_phase(phase) for phase in phases]
        drawn = [phase for phase in phases if phase["way"] in (SPARK.name, ADAPTIVE.name) and "end" in phase]
        lines = session["batches"] if any(session is first for first in firsts) else []
        kept["batches"] = [_batch(line) for line in lines if _within(line, drawn)]
        sessions.append(kept)
    return {**figures, "sessions": sessions}


def rounded(value: Any) -> Any:
    """Return figures with four decimals, or four digits where they are below one; what is no number is None."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else round(value, 4) if abs(value) >= 1 else float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def _phase(phase: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: phase[name] for name in _PHASE if name in phase}
    orders = [{name: order[name] for name in _ORDER if name in order} for order in phase.get("orders", ())]
    return {**rounded(kept), "orders": rounded(orders)}


def _batch(line: Mapping[str, Any]) -> dict[str, Any]:
    seconds = {"triggerExecution": line["milliseconds"]["triggerExecution"]}
    return {**{name: line[name] for name in ("query", "batch", "timestamp")}, "milliseconds": seconds}


def _within(line: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> bool:
    (batch,) = batches([line])
    return any(phase["before_from"] <= batch.begin and batch.end <= phase["end"] for phase in phases)
