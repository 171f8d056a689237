"""The document of the web view: a `ControllerView` cut to the bounds of a page. Pure.

``/api/view`` returns it. Fields are only added within one `VERSION`; docs/web-view.md lists them.
"""

from __future__ import annotations

import time

from rechannel.daemon.control.leadership import Role
from rechannel.daemon.view.status import BUSY, ControllerView
from rechannel.daemon.web import limits
from rechannel.daemon.web.decisions import decision_rows, drain_rows, migration_rows
from rechannel.daemon.web.limits import clip_name, clip_sentence
from rechannel.daemon.web.placement import Row, application_rows, busiest_partitions
from rechannel.wire.codes import Mode

VERSION = 1
_MODES: dict[str, str] = {
    Mode.OBSERVE: "observe mode: decisions are recorded, not applied",
    Mode.APPLY: "apply mode",
}
_STALE = 10.0  # seconds; a view is made every two


def build_document(view: ControllerView, now: float) -> Row:
    """Return all that is shown of a view at ``now`` (seconds since the epoch, UTC).

    Names and sentences in it are printable and short; escape them all the same. Unknown figures are None. Its size is
    bounded by `rechannel.daemon.web.limits`.
    """
    leader = view.leader
    applications, left_out = application_rows(view.applications)
    drains, drains_left_out = drain_rows(view.drains)
    banners = _banners(view, now)
    return {
        "version": VERSION,
        "at": view.at,
        "age": max(0.0, now - view.at),
        "cluster": clip_name(view.cluster),
        "stale": any(banner["stale"] for banner in banners),
        "banners": banners,
        "controller": {
            "name": clip_name(view.name),
            "role": str(view.role),
            "leader": clip_name(leader.leader),
            "since": leader.since,
            "epoch": leader.epoch,
            "mode": clip_name(leader.mode),
            "paused": leader.paused,
            "next_decision": leader.next_decision,
            "last_sentence": clip_sentence(leader.last_sentence),
            "redis_up": view.redis_up,
            "rejected_messages": view.rejected_messages,
            "version": clip_name(view.version),
        },
        "pills": _pills(view, now),
        "busy": BUSY,
        "applications": applications,
        "left_out": left_out,
        "migrations": migration_rows(view),
        "decisions": decision_rows(view.decisions),
        "hot_streams": _hot_streams(view),
        "streams": _streams(view),
        "hot_partitions": busiest_partitions(view.applications),
        "drains": drains,
        "drains_left_out": drains_left_out,
        "scheduled_plans": [
            clip_sentence(f"{plan.scheduled_plan}: {plan.sentence}")
            for plan in view.scheduled_plans[: limits.SCHEDULED_PLANS]
        ],
    }


def format_time(at: float | None, form: str = "%Y-%m-%d %H:%M:%S UTC", unknown: str = "?") -> str:
    """Return a time in UTC; ``unknown`` for none, and for one outside the calendar."""
    try:
        return time.strftime(form, time.gmtime(at)) if at else unknown
    except (ValueError, OverflowError, OSError):
        return unknown


def _banners(view: ControllerView, now: float) -> list[Row]:
    """Return the warnings above the figures; ``stale``: the figures are not current.

    In order: the view itself is old, Redis cannot be reached, this controller does not lead, everything is paused.
    """
    banners: list[tuple[str, bool]] = []
    leader = view.leader
    interval = next((job.every for job in view.jobs if job.job == "view"), 0.0)
    if now - view.at > max(_STALE, 4 * interval):
        text = f"Stale: these figures are of {format_time(view.at)}; the controller has not renewed them since."
        banners.append((text, True))
    problem = clip_sentence(view.redis_problem)
    if not view.redis_up and view.read_at:
        reason = f" ({problem})" if problem else ""
        text = f"Stale: Redis is away{reason}. Figures from Redis are of {format_time(view.read_at)}."
        banners.append((text, True))
    elif not view.redis_up:
        reason = f": {problem}" if problem else ""
        banners.append((f"This controller is starting and has no answer from Redis yet{reason}.", True))
    if view.role is Role.STANDING_BY:
        name = f"{clip_name(leader.leader)} leads" if leader.leader else "no leader is known"
        text = f"This controller does not lead: {name}. Only the leader knows the progress of a migration."
        banners.append((text if leader.leader else f"Stale: {text}", not leader.leader))
    if leader.paused:
        banners.append(("Everything is paused: nothing is moved until `rechannel resume`.", False))
    return [{"text": text, "stale": stale} for text, stale in banners]


def _pills(view: ControllerView, now: float) -> list[Row]:
    """Return the labels of the controller; ``kind`` is good, warn, bad or plain."""
    leader = view.leader
    roles = {
        Role.LEADING: (f"leading in epoch {leader.epoch}", "good"),
        Role.STANDING_BY: ("standing by", "warn"),
        Role.STARTING: ("no leader is known" if view.read_at else "starting", "warn"),
    }
    pills = [roles[view.role]]
    if leader.leader:
        pills.append((f"leader {clip_name(leader.leader)}", "plain"))
    mode = _MODES.get(leader.mode)
    pills.append((mode or f"mode {clip_name(leader.mode)}", "plain"))
    if leader.paused:
        pills.append(("paused", "warn"))
    pills.append(("Redis answers", "plain") if view.redis_up else ("Redis is away", "bad"))
    if leader.next_decision:
        pills.append((f"next decision in {max(0.0, leader.next_decision - now):,.0f} s", "plain"))
    if view.rejected_messages:
        pills.append((f"{view.rejected_messages:,} messages rejected", "warn"))
    return [{"text": text, "kind": kind} for text, kind in pills]


def _hot_streams(view: ControllerView) -> list[Row]:
    streams = [stream for application in view.applications for stream in application.hot_streams]
    streams.sort(key=lambda stream: -stream.bytes_per_second)
    return [
        {
            "upstream": clip_sentence(stream.upstream),
            "downstream": clip_sentence(stream.downstream),
            "bytes_per_second": stream.bytes_per_second,
            "local": stream.local,
        }
        for stream in streams[: limits.TOP]
    ]


def _streams(view: ControllerView) -> list[Row]:
    return [
        {
            "application": clip_name(application.name or application.application),
            "classes": {clip_name(kind): number for kind, number in list(application.streams.items())[:8]},
            "shuffles_seen": application.shuffles_seen,
        }
        for application in view.applications[: limits.APPLICATIONS]
        if application.streams
    ]
