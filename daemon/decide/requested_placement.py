"""Requested placements: that of a saved plan, and that before a migration.

Pure. Both are checked against the present: a saved plan holds for the executors and runs it was made for and no others,
and a partition that was moved elsewhere since stays there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import msgspec

from rechannel.daemon.decide.policy_settings import SAVED_PLAN
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.wire.codes import Law, Trigger
from rechannel.wire.messages import Decision, DesiredMove, MigrationPrice, Refusal
from rechannel.wire.printable import query_name

FORMAT = 1


class PlanFileError(ValueError):
    """A saved plan that cannot be read; says which field and why."""


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One partition to move from ``source`` to ``target``, both executor ids."""

    query: str
    stage: int
    partition: int
    source: str
    target: str


class SavedPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan in a file.

    ``executors``: id -> host of all the application had; ``runs``: query -> run.
    """

    format: int
    cluster: str
    application: str
    decision: str
    at: float
    executors: dict[str, str]
    runs: dict[str, str]
    moves: list[PlannedMove]
    sentence: str = ""
    price: MigrationPrice | None = None


@dataclass(frozen=True)
class ProposedPlacement:
    """A policy's placement, or one in place of it.

    ``policy``: name of the policy. ``rollback_of``: the decision that is rolled back, if any.
    """

    placement: Placement
    notes: tuple[str, ...] = ()
    policy: str = SAVED_PLAN
    rollback_of: str = ""


def saved_plan_of(decision: Decision, cluster: str, application: str) -> SavedPlan:
    """Return a decision as a plan that `placement_of_saved_plan` can carry out later."""
    return SavedPlan(
        format=FORMAT,
        cluster=cluster,
        application=application,
        decision=decision.decision,
        at=decision.at,
        executors={load.executor: load.node for load in decision.executors},
        runs=decision.runs,
        moves=msgspec.convert(decision.moves, list[PlannedMove], from_attributes=True),
        sentence=decision.sentence,
        price=decision.price,
    )


def read_plan(text: str | bytes, cluster: str) -> SavedPlan:
    """Read a saved plan; PlanFileError if it is none, or another cluster's."""
    try:
        plan = msgspec.json.decode(text, type=SavedPlan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PlanFileError(f"not a plan of `rechannel plan --save`: {error}") from error
    if plan.format != FORMAT:
        raise PlanFileError(f"format: {plan.format}; this release reads {FORMAT}: make the plan anew")
    if plan.cluster != cluster:
        raise PlanFileError(f"cluster: the plan is for {plan.cluster!r}, this is {cluster!r}")
    if not plan.moves:
        raise PlanFileError("moves: the plan has none")
    return plan


def placement_of_saved_plan(plan: SavedPlan, snapshot: Snapshot) -> ProposedPlacement | Refusal:
    """Return the placement of a saved plan, or why the plan is expired."""
    here = dict(zip(snapshot.cluster.executors, snapshot.cluster.nodes, strict=True))
    changed = [
        *(f"{_with_host(executor, plan.executors)} left" for executor in sorted(plan.executors.keys() - here.keys())),
        *(f"{_with_host(executor, here)} joined" for executor in sorted(here.keys() - plan.executors.keys())),
    ]
    if changed:
        return _expired(plan, f"executor {', '.join(changed)} since")
    for query in sorted({move.query for move in plan.moves}):
        state = snapshot.queries.get(query)
        if state is None:
            return _expired(plan, f"query {query_name(query)} does not run any more")
        if state.run != plan.runs.get(query):
            return _expired(plan, f"query {query_name(query, state.name)} was started again since")
    return _with_moves(plan.moves, snapshot, (), f"saved plan {plan.decision}")


def rollback_placement(decision: Decision, snapshot: Snapshot) -> ProposedPlacement | Refusal:
    """Return the placement that moves a decision's partitions back, those that can go."""
    moves = [msgspec.structs.replace(move, source=move.target, target=move.source) for move in decision.moves]
    usable = set(compress(snapshot.cluster.executors, snapshot.cluster.available))
    gone = sorted({move.target for move in moves if move.target not in usable})
    left = [move for move in moves if move.target in usable]
    notes = [f"{len(moves) - len(left)} of {len(moves)} stay: executor {', '.join(gone) or '?'} may hold nothing"]
    requested = _with_moves(
        left, snapshot, notes if gone else (), f"rollback of {decision.decision}", decision.decision
    )
    if isinstance(requested, ProposedPlacement) and requested.placement == snapshot.placement:
        reasons = "; ".join(requested.notes)
        detail = f"none of the {len(moves)} partitions that {decision.decision} moved can be moved back: {reasons}"
        return Refusal(law=Law.ROLLBACK, detail=detail)
    return requested


def _with_moves(
    moves: Iterable[PlannedMove | DesiredMove],
    snapshot: Snapshot,
    notes: Sequence[str],
    title: str,
    rollback_of: str = "",
) -> ProposedPlacement | Refusal:
    keys = {unit: key for key, unit in snapshot.stage_ids.items()}
    placement = {key: array.copy() for key, array in snapshot.placement.assignments.items()}
    names = snapshot.cluster.executors
    there = elsewhere = gone = 0
    for move in moves:
        key = keys.get((move.query, move.stage))
        if key is None or not 0 <= move.partition < len(placement[key]):
            if not rollback_of:
                unit = f"partition {move.partition} of query {move.query} stage {move.stage}"
                return Refusal(law=Law.STORES_UNKNOWN, detail=f"{title}: {unit} is not known now")
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


def _with_host(executor: str, hosts: dict[str, str]) -> str:
    return f"{executor} ({hosts[executor]})"


def _expired(plan: SavedPlan, why: str) -> Refusal:
    detail = f"saved plan {plan.decision} is expired: {why}; make a new one with `rechannel plan --save`"
    return Refusal(law=Law.PLAN_EXPIRED, detail=detail)
