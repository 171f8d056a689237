"""Proposed placement: a policy's, or that of moves asked for in its place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from rechannel.daemon.decide.policy_settings import SAVED_PLAN
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.wire.codes import Law, Trigger
from rechannel.wire.messages import DesiredMove, Refusal


@dataclass(frozen=True)
class ProposedPlacement:
    """A policy's placement, or one in place of it.

    ``policy``: name of the policy. ``rollback_of``: the decision that is rolled back, if any.
    """

    placement: Placement
    notes: tuple[str, ...]
    policy: str
    rollback_of: str = ""


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One partition to move from ``source`` to ``target``, both executor ids."""

    query: str
    stage: int
    partition: int
    source: str
    target: str


def propose_moves(
    moves: Iterable[PlannedMove | DesiredMove],
    snapshot: Snapshot,
    notes: Sequence[str],
    title: str,
    rollback_of: str = "",
) -> ProposedPlacement | Refusal:
    """Return the present placement with moves that still fit it, or why one of them cannot be.

    A partition that was moved elsewhere since stays there. A rollback leaves out what is not known any more.
    ``rollback_of``: the decision that the moves roll back, if any.
    """
    keys = {stage: key for key, stage in snapshot.stage_ids.items()}
    placement = {key: array.copy() for key, array in snapshot.placement.assignments.items()}
    names = snapshot.cluster.executors
    there = elsewhere = gone = 0
    for move in moves:
        key = keys.get((move.query, move.stage))
        if key is None or not 0 <= move.partition < len(placement[key]):
            if not rollback_of:
                label = f"partition {move.partition} of query {move.query} stage {move.stage}"
                return Refusal(law=Law.STORES_UNKNOWN, detail=f"{title}: {label} is not known now")
            gone += 1
            continue
        index = int(placement[key][move.partition])
        now = names[index] if index != UNPLACED else ""
        if now == move.target:
            there += 1
        elif now != move.source:
            elsewhere += 1
        elif (target := snapshot.cluster.index_of(move.target)) == UNPLACED:
            detail = f"{title}: its target executor {move.target} is not known"
            return Refusal(law=Law.TARGET, detail=detail)
        else:
            placement[key][move.partition] = target
    remarks = [*([title] if not rollback_of else []), *notes]
    remarks += [f"{there} are there already"] if there else []
    remarks += [f"{gone} are of queries that cannot be moved now"] if gone else []
    remarks += [f"{elsewhere} are elsewhere by now and stay"] if elsewhere else []
    return ProposedPlacement(
        Placement(placement), tuple(remarks), Trigger.ROLLBACK if rollback_of else SAVED_PLAN, rollback_of
    )
