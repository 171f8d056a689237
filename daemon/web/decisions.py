"""What was decided and why, what is being moved, and which nodes are emptied. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rechannel.daemon.view.model import ApplicationView, ControllerView, DecisionView, DrainView, MigrationView
from rechannel.daemon.web import limits
from rechannel.daemon.web.limits import cut, name, sentence
from rechannel.daemon.web.placement import BUSY, unit_name
from rechannel.wire.messages import Decision, ExecutorLoad, MigrationPrice
from rechannel.wire.printable import count, query_name

Row = dict[str, Any]


def decisions(views: Sequence[DecisionView]) -> list[Row]:
    """Return the newest decisions, with the numbers they were made on."""
    return [_decision(view) for view in views[: limits.DECISIONS]]


def migrations(view: ControllerView) -> list[Row]:
    """Return what is being moved, for each application that has moves in flight or a migration under way."""
    rows = []
    room = limits.MOVES
    for number, application in enumerate(view.applications[: limits.APPLICATIONS]):
        running = next((item for item in view.migrations if item.application == application.application), None)
        if running is None and not application.moves:
            continue
        rows.append(_migration(application, running, view.decisions, room, f"m{number}"))
        room -= len(rows[-1]["moves"])
    return rows


def drains(views: Sequence[DrainView]) -> tuple[list[Row], str]:
    """Return the drained nodes, and a sentence on those left out."""
    kept, rest = cut(views, limits.DRAINS, "drains")
    return [
        {
            "node": name(drain.node),
            "state": name(drain.state),
            "sentence": sentence(drain.sentence),
            "since": drain.since,
            "deadline": drain.deadline,
            "overdue": drain.overdue,
            "partitions": drain.partitions,
            "user": name(drain.user),
            "reason": sentence(drain.reason),
        }
        for drain in kept
    ], rest


def _migration(
    application: ApplicationView,
    running: MigrationView | None,
    known: Sequence[DecisionView],
    room: int,
    key: str,
) -> Row:
    moves = sorted(application.moves, key=lambda move: (move.step, move.query, move.stage, move.partition))
    kept, rest = cut(moves, max(0, room), "moves", "the next steps")
    decided = next((item.decision for item in known if running and item.decision.decision == running.decision), None)
    steps = max((move.step + 1 for move in decided.moves), default=0) if decided is not None else 0
    current = min((move.step + 1 for move in moves), default=0)
    said = []
    if running is not None:
        said.append(sentence(running.sentence))
    if current:
        said.append(f"step {current} of {steps}" if steps >= current else f"step {current}")
    said += [f"{number} {state}" for state, number in sorted(Counter(name(move.state) for move in moves).items())[:8]]
    # Without a controller that follows it (a stand-by, or the link's own spreading) only what is open is known.
    total = running.moves if running is not None else len(moves)
    settled = running.landed + running.abandoned if running is not None else 0
    return {
        "id": key,
        "application": name(application.name or application.application),
        "decision": name(running.decision) if running is not None else "",
        "total": max(total, settled, 1),
        "settled": settled,
        "sentence": "; ".join(said),
        "moves": [
            {
                "partition": unit_name(application.queries, (move.query, move.stage, move.partition)),
                "source": name(move.source),
                "target": name(move.target),
                "step": move.step,
                "state": name(move.state),
                "reason": name(move.reason),
                "missed_batches": move.missed_batches,
            }
            for move in kept
        ],
        "left_out": rest,
    }


def _decision(view: DecisionView) -> Row:
    made, came = view.decision, view.outcome
    by_gap = sorted(made.executors, key=lambda load: -max(load.utilization_before, load.utilization_after))
    loads, loads_rest = cut(by_gap, limits.LOADS, "executors", "the busiest")
    refusals, refusals_rest = cut(made.refusals, limits.REFUSALS, "refusals")
    steps = max((move.step + 1 for move in made.moves), default=0)
    return {
        # An anchor that no hostile id can break, and that stays the same while newer decisions come in.
        "id": "d" + hashlib.sha256(f"{view.application}\n{made.decision}".encode()).hexdigest()[:12],
        "application": name(view.application),
        "decision": name(made.decision),
        "at": made.at,
        "trigger": name(made.trigger),
        "user": name(made.user),
        "policy": name(made.policy),
        "outcome": name(made.outcome),
        "reason": name(made.reason),
        "sentence": sentence(made.sentence),
        "forced": made.forced,
        "undoes": name(made.rollback_of),
        "gain": made.gain,
        "cost": made.cost,
        "batches": _batches(made),
        "price": _price(made.price),
        "moves": f"{count(len(made.moves), 'move')} in {count(steps, 'step')}" if steps else "",
        "executors": [_load(load) for load in loads],
        "executors_left_out": loads_rest,
        "refusals": [
            {"law": name(item.law), "scope": name(item.scope), "detail": sentence(item.detail)} for item in refusals
        ],
        "refusals_left_out": refusals_rest,
        "notes": [sentence(note) for note in made.notes[: limits.NOTES]],
        "hot_streams": [sentence(stream) for stream in made.hot_streams[: limits.HOT]],
        "verdict": name(came.verdict) if came is not None else "",
        "came": sentence(came.sentence) if came is not None else "",
    }


def _load(load: ExecutorLoad) -> Row:
    return {
        "executor": name(load.executor),
        "node": name(load.node),
        "partitions_before": load.partitions_before,
        "partitions_after": load.partitions_after,
        "before": load.utilization_before,
        "after": load.utilization_after,
        "over": load.utilization_after > BUSY,
    }


def _batches(made: Decision) -> list[Row]:
    rows = []
    for query, before in list(made.batch_time_before.items())[: limits.QUERIES]:
        after = made.batch_time_after.get(query, before)
        rows.append({"query": name(query_name(query, made.names.get(query, ""))), "before": before, "after": after})
    return rows


def _price(price: MigrationPrice | None) -> str:
    if price is None:
        return ""
    by = f"learned from {count(price.moves, 'move')}" if price.moves else "by the settings, no move was measured yet"
    return (
        f"{price.bytes / 1e6:,.1f} MB of state in {count(price.steps, 'step')} within "
        f"{price.total:,.1f} s; the worst batch {price.pause:,.2f} s longer, all together {price.seconds:,.2f} s ({by})"
    )
