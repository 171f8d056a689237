"""Rollback: the placement before a migration, as far as its partitions can go back. Pure."""

from __future__ import annotations

from itertools import compress

import msgspec

from rechannel.daemon.decide.proposed_placement import ProposedPlacement, propose_moves
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.wire.codes import Law
from rechannel.wire.messages import Decision, Refusal


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
