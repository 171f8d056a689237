"""A `ControllerView` as plain bounded values: what the page is made of, and what ``/api/view`` answers. Pure.

Fields are only added within one `VERSION`; docs/web-view.md lists them.
"""

from __future__ import annotations

import time
from typing import Any

from rechannel.daemon.view.model import ControllerView, Role
from rechannel.daemon.web import decisions as decided
from rechannel.daemon.web import limits, placement
from rechannel.daemon.web.limits import name, sentence

VERSION = 1
_STALE = 10.0  # seconds; the view is made anew every few

Row = dict[str, Any]


def document(view: ControllerView, now: float) -> Row:
    """Return all that is shown of a view at ``now`` (seconds since the epoch, UTC).

    Names and sentences in it are printable and short, but still what others wrote: escape them. Unknown figures are
    None. The size does not grow with the cluster beyond the bounds in `rechannel.daemon.web.limits`.
    """
    applications, left_out = placement.applications(view.applications) if view.applications else ([], "")
    drains, drains_left_out = decided.drains(view.drains)
    banners = _banners(view, now)
    return {
        "version": VERSION,
        "at": view.at,
        "age": max(0.0, now - view.at) if view.at else None,
        "cluster": name(view.cluster),
        "stale": any(banner["stale"] for banner in banners),
        "banners": banners,
        "controller": {
            "name": name(view.name),
            "role": str(view.role),
            "leader": name(view.leader),
            "since": view.since,
            "epoch": view.epoch,
            "mode": name(view.mode),
            "paused": view.paused,
            "next_decision": view.next_decision,
            "last_sentence": sentence(view.last_sentence),
            "redis_up": view.redis_up,
            "rejected_messages": view.rejected_messages,
            "version": name(view.version),
        },
        "pills": _pills(view, now),
        "busy": placement.BUSY,
        "applications": applications,
        "left_out": left_out,
        "migrations": decided.migrations(view),
        "decisions": decided.decisions(view.decisions),
        "hot_streams": _hot_streams(view),
        "streams": _streams(view),
        "hot_partitions": placement.busiest(view.applications),
        "drains": drains,
        "drains_left_out": drains_left_out,
        "waiting": [sentence(text) for text in view.waiting[: limits.WAITING]],
    }


def clock(at: float | None) -> str:
    """Return a moment as people read it, in UTC; "?" for what is no date."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at)) if at else "?"
    except (ValueError, OverflowError, OSError):
        return "?"


def _banners(view: ControllerView, now: float) -> list[Row]:
    """What a reader has to know before the figures. ``stale``: the figures are not those of now, or nobody's word."""
    found: list[tuple[str, bool]] = []
    if not view.at:
        return [{"text": "The controller has just started: there are no figures yet.", "stale": True}]
    age = now - view.at
    often = next((loop.every for loop in view.loops if loop.job == "view"), 0.0)
    if age > max(_STALE, 4 * often):
        words = f"Stale: these figures are of {clock(view.at)}; the controller has not renewed them since."
        found.append((words, True))
    if not view.redis_up and view.role is not Role.STARTING:
        why = f" ({sentence(view.redis_problem)})" if view.redis_problem else ""
        found.append((f"Stale: Redis is away{why}. What it told stands as it was at {clock(view.read_at)}.", True))
    elif not view.redis_up:
        why = f": {sentence(view.redis_problem)}" if view.redis_problem else ""
        found.append((f"This controller is starting and has not heard from Redis yet{why}.", True))
    if view.role is Role.STANDING_BY:
        leader = f"{name(view.leader)} leads" if view.leader else "nobody is known to lead"
        words = f"This controller does not lead: {leader}. How far a migration is, the leader alone knows."
        found.append((words if view.leader else f"Stale: {words}", not view.leader))
    if view.paused:
        found.append(("Everything is paused: nothing is moved until `rechannel resume`.", False))
    return [{"text": text, "stale": stale} for text, stale in found]


def _pills(view: ControllerView, now: float) -> list[Row]:
    """Short words on the controller; ``kind`` is good, warn, bad or plain."""
    if not view.at:
        return [{"text": "starting", "kind": "warn"}]
    roles = {
        Role.LEADING: (f"leading in epoch {view.epoch}", "good"),
        Role.STANDING_BY: ("standing by", "warn"),
        Role.STARTING: ("starting", "warn"),
    }
    said = [roles[view.role]]
    if view.leader:
        said.append((f"leader {name(view.leader)}", "plain"))
    mode = {"observe": "observe mode: decisions are recorded, not applied", "apply": "apply mode"}.get(view.mode)
    said.append((mode or f"mode {name(view.mode)}", "plain"))
    if view.paused:
        said.append(("paused", "warn"))
    said.append(("Redis answers", "plain") if view.redis_up else ("Redis is away", "bad"))
    if view.next_decision:
        said.append((f"next decision in {max(0.0, view.next_decision - now):,.0f} s", "plain"))
    if view.rejected_messages:
        said.append((f"{view.rejected_messages:,} messages rejected", "warn"))
    return [{"text": text, "kind": kind} for text, kind in said]


def _hot_streams(view: ControllerView) -> list[Row]:
    streams = [stream for application in view.applications for stream in application.hot_streams]
    streams.sort(key=lambda stream: -stream.bytes_per_second)
    return [
        {
            "upstream": sentence(stream.upstream),
            "downstream": sentence(stream.downstream),
            "bytes_per_second": stream.bytes_per_second,
            "local": stream.local,
        }
        for stream in streams[: limits.HOT]
    ]


def _streams(view: ControllerView) -> list[Row]:
    return [
        {
            "application": name(application.name or application.application),
            "classes": {name(kind): number for kind, number in list(application.streams.items())[:8]},
            "shuffles_seen": application.shuffles_seen,
        }
        for application in view.applications[: limits.APPLICATIONS]
        if application.streams
    ]
