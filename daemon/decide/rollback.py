"""Rollback: the decision that an order means, and its partitions' way back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

import msgspec

from rechannel.daemon.decide.proposed_placement import ProposedPlacement, propose_moves
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.wire.codes import Law
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, Refusal

_NAME_WITHIN = 300.0  # seconds after a rollback in which the next one has to name its decision


def find_rollback_target(applied: Sequence[Decision], decision: str = "") -> Decision | None:
    """Return the decision of this id, or the last applied one not rolled back ("").

    ``applied``: decisions that moved something in one application, the last one first.
    """
    rolled_back = {entry.rollback_of for entry in applied}
    for entry in applied:
        if entry.decision == decision or not (decision or entry.rollback_of or entry.decision in rolled_back):
            return entry
    return None


def choose_rollback_target(applied: Sequence[Decision], decision: str, application: str, now: float) -> Decision:
    """Return the decision that an operator's rollback means; CommandError if there is none.

    Also CommandError if one was rolled back a moment ago and none is named, so that nobody rolls back two by accident.

    ``applied``: decisions that moved something in the application, the last one first; ``decision``: "" for the last
    one that was not rolled back.
    """
    target = find_rollback_target(applied, decision)
    last = applied[0] if applied and applied[0].rollback_of and not decision else None
    if last is not None and 0 <= now - last.at < _NAME_WITHIN:
        ago = f"{last.rollback_of} was rolled back {now - last.at:.0f} s ago, by {last.decision}"
        more = f"to roll back {target.decision} too, name it with --decision" if target else ""
        raise CommandError(ExitCode.NOTHING, f"{ago}; {more or 'nothing before it is left to roll back'}")
    if target is not None:
        return target
    if decision:  # a wrong request; without a name there is just nothing to roll back
        sentence = f"no decision {decision} moved anything in {application}; `rechannel history` lists them"
        raise CommandError(ExitCode.REFUSED, sentence)
    sentence = f"no decision of the last days moved anything in {application} that was not rolled back"
    raise CommandError(ExitCode.NOTHING, sentence)


def rollback_placement(decision: Decision, snapshot: Snapshot) -> ProposedPlacement | Refusal:
    """Return the placement that moves a decision's partitions back, those that can go."""
    moves = [msgspec.structs.replace(move, source=move.target, target=move.source) for move in decision.moves]
    usable = set(compress(snapshot.cluster.executors, snapshot.cluster.available))
    gone = sorted({move.target for move in moves if move.target not in usable})
    possible = [move for move in moves if move.target in usable]
    notes = [f"{len(moves) - len(possible)} of {len(moves)} stay: executor {', '.join(gone) or '?'} may hold nothing"]
    requested = propose_moves(
        possible, snapshot, notes if gone else (), f"rollback of {decision.decision}", decision.decision
    )
    if isinstance(requested, ProposedPlacement) and requested.placement == snapshot.placement:
        reasons = "; ".join(requested.notes)
        detail = f"none of the {len(moves)} partitions that {decision.decision} moved can be moved back: {reasons}"
        return Refusal(law=Law.ROLLBACK, detail=detail)
    return requested
