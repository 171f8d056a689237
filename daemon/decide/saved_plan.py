"""Saved plans: their file, and their placement if nothing has changed since. Pure.

A saved plan holds for the executors and runs that it was made for, and no others.
"""

from __future__ import annotations

import msgspec

from rechannel.daemon.decide.proposed_placement import PlannedMove, ProposedPlacement, propose_moves
from rechannel.daemon.model.snapshot import Snapshot
from rechannel.wire.codes import Law
from rechannel.wire.messages import Decision, MigrationCost, Refusal
from rechannel.wire.printable import query_name

FORMAT = 1


class PlanFileError(ValueError):
    """A saved plan that cannot be read; says which field and why."""


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
    migration_cost: MigrationCost | None = None


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
        migration_cost=decision.migration_cost,
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
    return propose_moves(plan.moves, snapshot, (), f"saved plan {plan.decision}")


def _with_host(executor: str, hosts: dict[str, str]) -> str:
    return f"{executor} ({hosts[executor]})"


def _expired(plan: SavedPlan, why: str) -> Refusal:
    detail = f"saved plan {plan.decision} is expired: {why}; make a new one with `rechannel plan --save`"
    return Refusal(law=Law.PLAN_EXPIRED, detail=detail)
