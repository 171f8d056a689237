"""Decisions, migrations and node drains as rows of the document. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice

from rechannel.daemon.control.migrations import MigrationStatus
from rechannel.daemon.view.status import BUSY, ApplicationStatus, ControllerView, DecisionView, DrainStatus
from rechannel.daemon.view.wording import batch_times, cost_sentence
from rechannel.daemon.web import limits
from rechannel.daemon.web.limits import clip_name, clip_sentence, cut
from rechannel.daemon.web.placement import Row, unit_name
from rechannel.wire.messages import ExecutorLoad
from rechannel.wire.printable import with_noun


def decision_rows(views: Sequence[DecisionView]) -> list[Row]:
    """Return the newest decisions with their figures."""
    return [_decision(view) for view in views[: limits.DECISIONS]]


def migration_rows(view: ControllerView) -> list[Row]:
    """Return one row for each application with moves in flight or a running migration."""
    running = {item.application: item for item in view.migrations}
    moving = [item for item in enumerate(view.applications) if item[1].application in running or item[1].moves]
    rows: list[Row] = []
    room = limits.MOVES
    for number, application in moving[: limits.APPLICATIONS]:
        rows.append(_migration(application, running.get(application.application), room, f"m{number}"))
        room -= len(rows[-1]["moves"])
    return rows


def drain_rows(drains: Sequence[DrainStatus]) -> tuple[list[Row], str]:
    """Return the drained nodes and the sentence on those left out."""
    shown, rest = cut(drains, limits.DRAINS, "drains")
    return [
        {
            "node": clip_name(drain.node),
            "state": clip_name(drain.state),
            "sentence": clip_sentence(drain.sentence),
            "since": drain.since,
            "deadline": drain.deadline,
            "overdue": drain.overdue,
            "partitions": drain.partitions,
            "user": clip_name(drain.user),
            "reason": clip_sentence(drain.reason),
        }
        for drain in shown
    ], rest


def _migration(application: ApplicationStatus, running: MigrationStatus | None, room: int, key: str) -> Row:
    moves = sorted(application.moves, key=lambda move: (move.step, move.query, move.stage, move.partition))
    shown, rest = cut(moves, max(0, room), "moves", "the next steps")
    steps = running.steps if running is not None else 0
    current = min((move.step + 1 for move in moves), default=0)
    sentences = []
    if running is not None:
        sentences.append(clip_sentence(running.sentence))
    if current:
        sentences.append(f"step {current} of {steps}" if steps >= current else f"step {current}")
    sentences += [
        f"{number} {state}" for state, number in sorted(Counter(clip_name(move.state) for move in moves).items())[:8]
    ]
    # Only open moves are known where no controller follows the migration: on a stand-by, or for moves of the link.
    total = running.moves if running is not None else len(moves)
    settled = running.landed + running.abandoned if running is not None else 0
    return {
        "id": key,
        "application": clip_name(application.name or application.application),
        "decision": clip_name(running.decision) if running is not None else "",
        "total": max(total, settled, 1),
        "settled": settled,
        "sentence": "; ".join(sentences),
        "moves": [
            {
                "partition": unit_name(move.query, move.stage, move.partition, move.name),
                "source": clip_name(move.source),
                "target": clip_name(move.target),
                "step": move.step,
                "state": clip_name(move.state),
                "reason": clip_name(move.reason),
                "missed_batches": move.missed_batches,
            }
            for move in shown
        ],
        "left_out": rest,
    }


def _decision(view: DecisionView) -> Row:
    decision, outcome = view.decision, view.outcome
    by_utilization = sorted(decision.executors, key=lambda load: -max(load.utilization_before, load.utilization_after))
    loads, loads_rest = cut(by_utilization, limits.LOADS, "executors", "the busiest")
    refusals, refusals_rest = cut(decision.refusals, limits.REFUSALS, "refusals")
    steps = max((move.step + 1 for move in decision.moves), default=0)
    return {
        # A safe anchor for any id, which stays the same when newer decisions arrive.
        "id": "d" + hashlib.sha256(f"{view.application}\n{decision.decision}".encode()).hexdigest()[:12],
        "application": clip_name(view.application),
        "decision": clip_name(decision.decision),
        "at": decision.at,
        "trigger": clip_name(decision.trigger),
        "user": clip_name(decision.user),
        "policy": clip_name(decision.policy),
        "result": clip_name(decision.result),
        "reason": clip_name(decision.reason),
        "sentence": clip_sentence(decision.sentence),
        "forced": decision.forced,
        "rollback_of": clip_name(decision.rollback_of),
        "gain": decision.gain,
        "cost": decision.cost,
        "batches": [
            {"query": clip_name(name), "before": before, "after": after}
            for name, before, after in islice(batch_times(decision), limits.QUERIES)
        ],
        "migration_cost": cost_sentence(decision.migration_cost) if decision.migration_cost is not None else "",
        "moves": f"{with_noun(len(decision.moves), 'move')} in {with_noun(steps, 'step')}" if steps else "",
        "executors": [_load(load) for load in loads],
        "executors_left_out": loads_rest,
        "refusals": [
            {"law": clip_name(item.law), "scope": clip_name(item.scope), "detail": clip_sentence(item.detail)}
            for item in refusals
        ],
        "refusals_left_out": refusals_rest,
        "notes": [clip_sentence(note) for note in decision.notes[: limits.NOTES]],
        "hot_streams": [clip_sentence(stream) for stream in decision.hot_streams[: limits.TOP]],
        "verdict": clip_name(outcome.verdict) if outcome is not None else "",
        "outcome": clip_sentence(outcome.sentence) if outcome is not None else "",
    }


def _load(load: ExecutorLoad) -> Row:
    return {
        "executor": clip_name(load.executor),
        "node": clip_name(load.node),
        "partitions_before": load.partitions_before,
        "partitions_after": load.partitions_after,
        "before": load.utilization_before,
        "after": load.utilization_after,
        "over": load.utilization_after > BUSY,
    }
