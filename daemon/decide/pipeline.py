"""Decision pipeline: request, snapshot, proposal, plan, verdict, decision.

Pure: no clock, thread, logger or store. `draft_decision` may take minutes with tens of thousands of partitions. An end
without a plan is raised as `NoPlan` and becomes a decision in `decision_without_plan` alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.decide.decision_figures import (
    cold_notes,
    correction_notes,
    executor_loads,
    migration_cost,
    name_hot_streams,
    stream_classes,
)
from rechannel.daemon.decide.policy_settings import parameters_for
from rechannel.daemon.decide.proposed_placement import ProposedPlacement
from rechannel.daemon.model.application_messages import ApplicationMessages
from rechannel.daemon.model.cold_start import cold_stages
from rechannel.daemon.model.readiness import NotReady, readiness_problem, without_idle
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot, take_snapshot
from rechannel.migration.moves import AWAITING_BATCH
from rechannel.migration.plan.cost import UNMEASURED, LoadRates
from rechannel.migration.plan.inputs import Cooldown, PlanInputs, PlanOptions, ReviewedPlan
from rechannel.migration.plan.laws import review_plan
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.prediction.choice import choose_by_replay
from rechannel.policies.prediction.correction import GainShare
from rechannel.policies.prediction.evacuation import place_evacuated
from rechannel.policies.prediction.fewest import fewest_moves
from rechannel.policies.prediction.replay import MAX_REPLAYED
from rechannel.policies.registry import PolicyLawError, Proposal, propose
from rechannel.wire.codes import DecisionResult, Law, Mode, NotReadyReason, PlanResult, Trigger
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import Decision, LinkReport, Refusal, Unit
from rechannel.wire.printable import OBSERVE_MODE, query_name

OBSERVE_NOTE = f"{OBSERVE_MODE} `rechannel rebalance --apply` moves once."
PAUSED = Refusal(law=Law.PAUSED, detail="Rechannel is paused: `rechannel resume` first")
NOT_LEADING = NotReady(NotReadyReason.NOT_LEADING, "this controller does not lead")
OVERTAKEN = NotReady(NotReadyReason.OVERTAKEN, "a later order or migration made this plan out of date")
OUTCOME_AWAITED = NotReady(
    NotReadyReason.OUTCOME_AWAITED, "the outcome of the last migration is not known yet: its queries have not settled"
)
_NO_STATE = NotReady(NotReadyReason.NO_STATE, "no active query has a known stateful stage (yet)")
_EXITS: dict[str, ExitCode] = {
    PlanResult.OK: ExitCode.DONE,
    PlanResult.NOTHING_TO_DO: ExitCode.NOTHING,
    Law.GATE: ExitCode.NOTHING,
    Law.COOLDOWN: ExitCode.NOTHING,
}

PlacementSource = Callable[[Snapshot], ProposedPlacement | Refusal]


class NoPlan(Exception):  # noqa: N818 it is an answer, not an error
    """End of a decision without a plan: a law that refuses, or figures that are not there."""

    def __init__(self, reason: Refusal | NotReady) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class DecisionRequest:
    """Request for a decision: user, reason, policy, and permissions.

    ``decision``, ``at``: id of the decision, and the time it was asked for. ``apply``: the moves may begin. ``force``:
    gate and cool-down are skipped. ``scheduled_plan``: id of the scheduled plan that the decision is about.
    ``drained_nodes``: further nodes that the plan takes for drained. ``load_since``: batches that began since then tell
    the load, 0 for any. ``placement_source``: returns the placement that takes the place of a policy's.
    """

    decision: str
    at: float
    trigger: Trigger
    policy: str
    user: str = ""
    reason: str = ""
    apply: bool = False
    force: bool = False
    scheduled_plan: str = ""
    drained_nodes: frozenset[str] = frozenset()
    load_since: float = 0.0
    placement_source: PlacementSource | None = None


@dataclass(frozen=True)
class PlanBasis:
    """Everything a plan is made from, as it was when the plan was asked for.

    ``drained_nodes``: nodes that are to hold no state. ``cooldown``: after the last migration, None for none.
    ``rates``: cost of loading state. ``moves_left``: in the hourly budget, None where it does not apply.
    ``gain_shares``: query -> what is expected of a gain promised to it. ``mending_moves``: the most moves of a drain
    that also evens out what it leaves.
    """

    messages: ApplicationMessages
    settings: Settings
    drained_nodes: frozenset[str] = frozenset()
    cooldown: Cooldown | None = None
    rates: LoadRates = UNMEASURED
    moves_left: int | None = None
    gain_shares: Mapping[str, GainShare] = dataclasses.field(default_factory=dict)
    mending_moves: int = 0


@dataclass(frozen=True)
class Draft:
    """A decision before the guard's verdict.

    ``summary``: its moves in words; ``partitions``: number of partitions of the application.
    """

    decision: Decision
    summary: str
    partitions: int


def exit_of(decision: Decision) -> ExitCode:
    """Return the exit code of a decision."""
    if decision.result == DecisionResult.NOT_READY:
        return ExitCode.NOT_READY
    return _EXITS.get(decision.reason, ExitCode.REFUSED)


def no_report(application: str) -> NotReady:
    """Return the reason if no link reports for an application."""
    return NotReady(NotReadyReason.NO_REPORT, f"no link reports for application {application}")


def moves_in_flight(report: LinkReport) -> frozenset[Unit]:
    """Return the unit of every move that awaits a batch."""
    return frozenset(view.unit for view in report.moves if view.state in AWAITING_BATCH)


def decision_without_plan(request: DecisionRequest, reason: Refusal | NotReady) -> Decision:
    """Return the decision that stands for an end without a plan."""
    if isinstance(reason, Refusal):
        sentence = reason.detail
        result, code, refusals = DecisionResult.REFUSED, reason.law, [reason]
    else:
        wait = f"; ready in about {reason.ready_in:.0f} s" if reason.ready_in is not None else ""
        sentence = f"not ready: {reason.sentence}{wait}"
        result, code, refusals = DecisionResult.NOT_READY, reason.code, []
    return Decision(
        decision=request.decision,
        at=request.at,
        trigger=request.trigger,
        user=request.user,
        policy=request.policy,
        result=result,
        reason=code,
        sentence=sentence,
        refusals=refusals,
        notes=_request_notes(request),
        operator_reason=request.reason,
        scheduled_plan=request.scheduled_plan,
    )


def draft_decision(request: DecisionRequest, basis: PlanBasis) -> Draft:
    """Model an application, propose a placement and put it under the laws; raises NoPlan."""
    snapshot = _snapshot(request, basis)
    _check_explained(request, snapshot, basis.settings)
    proposed = _propose(request, snapshot, basis)
    plan = apply_laws(request, basis, snapshot, proposed)
    if request.trigger == Trigger.DRAIN and basis.mending_moves and plan.moves:
        proposed, plan = _mend(request, basis, snapshot, proposed, plan)
    return Draft(
        record_decision(request, basis, snapshot, proposed, plan),
        plan.sentence,
        snapshot.workload.partitions,
    )


def with_verdict(draft: Draft, verdict: Refusal | None, warning: str = "") -> Decision:
    """Return the decision of a draft, refused by a verdict or with a warning."""
    decision = draft.decision
    if verdict is None:
        return msgspec.structs.replace(decision, sentence=decision.sentence + warning)
    return msgspec.structs.replace(
        decision,
        result=DecisionResult.REFUSED,
        reason=verdict.law,
        sentence=f"{verdict.detail}; would move {draft.summary}",
        refusals=[*decision.refusals, verdict],
    )


def _snapshot(request: DecisionRequest, basis: PlanBasis) -> Snapshot:
    messages, others = basis.messages, (basis.settings, request.at, basis.drained_nodes)
    snapshot: Snapshot | NotReady
    if request.trigger in (Trigger.DRAIN, Trigger.ROLLBACK):  # forced moves do not wait for measurements
        snapshot = build_snapshot(messages, *others, include_unmeasured=True) or _NO_STATE
    else:
        # A saved plan may have moves of any query.
        present = messages if request.placement_source else without_idle(messages, basis.settings)
        snapshot = take_snapshot(present, *others)
    if isinstance(snapshot, NotReady):
        raise NoPlan(snapshot)
    return snapshot


def _check_explained(request: DecisionRequest, snapshot: Snapshot, settings: Settings) -> None:
    """Raise NoPlan where the replay does not explain the measured batches.

    Moves that do not rest on a prediction (forced, drains, rollbacks, saved plans) are not held up.
    """
    if request.force or request.placement_source is not None or request.trigger in (Trigger.DRAIN, Trigger.ROLLBACK):
        return
    for query, residual in sorted(snapshot.residuals.items(), key=lambda item: (-abs(item[1].share), item[0])):
        if residual.within(settings.gate.max_residual):
            continue
        state = snapshot.queries.get(query)
        name, measured = query_name(query, state.name if state else ""), float(snapshot.measured[query].mean())
        if not snapshot.measured_queries.has_settled(query):
            sentence = f"query {name} has had no batch since queries began or ended, a load changed or partitions moved"
            raise NoPlan(NotReady(NotReadyReason.TOO_FEW_BATCHES, sentence, ready_in=snapshot.batch_period.get(query)))
        raise NoPlan(
            NotReady(
                NotReadyReason.UNEXPLAINED,
                f"the model does not explain the batches of {name}: measured "
                f"{measured:.2f} s, replayed {measured * (1 + residual.share):.2f} s ({residual.share:+.0%}), "
                f"gate.max_residual is {settings.gate.max_residual:.0%}",
            )
        )


def _propose(request: DecisionRequest, snapshot: Snapshot, basis: PlanBasis) -> ProposedPlacement:
    """Return the placement that was asked for, or else the policy's."""
    if request.placement_source is not None:
        requested = request.placement_source(snapshot)
        if isinstance(requested, Refusal):
            raise NoPlan(requested)
        return requested
    try:
        return ask_policy(request, snapshot, _cap_max_moves(basis.settings, basis.moves_left), basis.rates)
    except ScaleOutError as error:
        raise NoPlan(Refusal(law=Law.SCALE_OUT, detail=str(error))) from error
    except (ModelError, PolicyLawError) as error:
        raise NoPlan(Refusal(law=Law.POLICY, detail=str(error))) from error


def _cap_max_moves(settings: Settings, moves_left: int | None) -> Settings:
    """Pass the remaining move budget to the policy, so that its plan is not cut."""
    if moves_left is None:
        return settings
    most = max(1, min(moves_left, settings.migration.max_moves))
    return dataclasses.replace(settings, migration=dataclasses.replace(settings.migration, max_moves=most))


def ask_policy(request: DecisionRequest, snapshot: Snapshot, settings: Settings, rates: LoadRates) -> ProposedPlacement:
    """Return the policy's placement.

    A drain falls back on the usual policy if its own finds no room.
    """
    try:
        return _ask(request.policy, request, snapshot, settings, rates)
    except ScaleOutError as error:
        other = settings.reschedule.policy
        if request.trigger != Trigger.DRAIN or other == request.policy:
            raise
        proposed = _ask(other, request, snapshot, settings, rates)
        note = f"{other} decides instead of {request.policy}, which finds no room: {error}"
        return dataclasses.replace(proposed, notes=(note, *proposed.notes))


def _ask(
    policy: str, request: DecisionRequest, snapshot: Snapshot, settings: Settings, rates: LoadRates
) -> ProposedPlacement:
    drain, tasks = request.trigger == Trigger.DRAIN, snapshot.prediction.tasks
    is_adaptive, can_replay = policy == ADAPTIVE.name, tasks <= MAX_REPLAYED
    if drain and is_adaptive and can_replay:
        # The policy's own proposal would count on moves that a drain does not make.
        return ProposedPlacement(place_evacuated(snapshot.prediction, snapshot.placement), (), policy)
    parameters = parameters_for(policy, settings, rates, drain=drain)
    proposal = propose(policy, snapshot.cluster, snapshot.prediction.workload, snapshot.placement, parameters)
    if is_adaptive and can_replay:
        full = parameters.get("mode", "full") == "full"
        return _with_fewest_moves(snapshot, proposal, settings, beyond_proposal=full, force=request.force)
    notes = proposal.notes
    if is_adaptive:
        limit = f"more than {MAX_REPLAYED} are neither replayed nor searched for the fewest moves"
        notes = (f"{tasks} tasks in one batch of each query: {limit}", *notes)
    if drain:  # moves nothing but what has to leave
        evacuated = snapshot.placement.evacuated_to(proposal.placement, snapshot.cluster)
        return ProposedPlacement(evacuated, notes, policy)
    return ProposedPlacement(proposal.placement, notes, policy)


def _with_fewest_moves(
    snapshot: Snapshot, proposal: Proposal, settings: Settings, *, beyond_proposal: bool, force: bool
) -> ProposedPlacement:
    """Return the fewest moves worth making; queries may lose if the decision is forced."""
    model, max_moves = snapshot.prediction, settings.migration.max_moves
    # Only the time of tasks counts here, so moves that were proposed for locality alone may be dropped.
    plans = fewest_moves(
        model, snapshot.placement, proposal.placement, max_moves=max_moves, beyond_proposal=beyond_proposal
    )
    chosen = choose_by_replay(model, snapshot.placement, plans, math.inf if force else settings.gate.max_loss)
    moves, all_moves = len(chosen.moves_from(snapshot.placement)), len(proposal.moves)
    note = f"the fewest moves that bring most of the gain: {moves}; the policy alone would make {all_moves}"
    return ProposedPlacement(chosen, (*proposal.notes, note) if moves != all_moves else proposal.notes, proposal.policy)


def apply_laws(
    request: DecisionRequest, basis: PlanBasis, snapshot: Snapshot, proposed: ProposedPlacement, mending: str = ""
) -> ReviewedPlan:
    """Put a proposed placement under the laws of a migration.

    ``mending``: what the moves gain that a drain makes beside those that have to be, which were judged before.
    """
    inputs = PlanInputs(
        cluster=snapshot.cluster,
        workload=snapshot.workload,
        current=snapshot.placement,
        stage_ids=snapshot.stage_ids,
        queries=snapshot.queries,
        in_flight=moves_in_flight(basis.messages.report),
        cooldown=basis.cooldown or Cooldown(total=basis.settings.gate.cooldown),
        bytes_to_load=snapshot.bytes_to_load,
        measured_batch_seconds={query: float(seconds.mean()) for query, seconds in snapshot.measured.items()},
        batch_period=snapshot.batch_period,
        prediction=snapshot.prediction,
        rates=basis.rates,
        cold=cold_stages(snapshot, basis.messages.report.executors, basis.rates),
        gain_shares=basis.gain_shares,
    )
    options = PlanOptions(
        request.decision,
        force=request.force,
        rollback=bool(proposed.rollback_of),
        moves_left=basis.moves_left,
        mending=mending,
    )
    return review_plan(proposed.placement, inputs, basis.settings, options)


def _mend(
    request: DecisionRequest, basis: PlanBasis, snapshot: Snapshot, proposed: ProposedPlacement, plan: ReviewedPlan
) -> tuple[ProposedPlacement, ReviewedPlan]:
    """Return a drain's placement and plan with the moves that even out what it leaves.

    These are put under the laws of a plan on their own, from the placement after the drain, and are at most as many as
    those of the drain. Where there is none, the drain stays as it is.
    """
    settings, number = basis.settings, len(plan.moves)
    room = min(number, min(settings.migration.max_moves, basis.mending_moves) - number)
    is_ready = readiness_problem(basis.messages, settings, request.at) is None
    if room < 1 or plan.refusals or request.policy != ADAPTIVE.name or not is_ready:
        return proposed, plan
    usual = dataclasses.replace(request, trigger=Trigger.EXECUTORS, policy=settings.reschedule.policy)
    drained = dataclasses.replace(snapshot, placement=plan.placement)
    try:
        _check_explained(usual, snapshot, settings)
        capped = dataclasses.replace(basis, moves_left=room)
        mended = _propose(usual, drained, capped)
    except NoPlan:
        return proposed, plan
    judged = apply_laws(usual, capped, drained, mended)
    if judged.gate is None or not judged.moves:
        return proposed, plan
    mended = dataclasses.replace(proposed, placement=judged.placement)
    return mended, apply_laws(request, basis, snapshot, mended, mending=judged.gate.sentence)


def record_decision(
    request: DecisionRequest, basis: PlanBasis, snapshot: Snapshot, proposed: ProposedPlacement, plan: ReviewedPlan
) -> Decision:
    """Return the decision with its figures, as it is published."""
    moving = {move.query for move in plan.moves}
    observing = not request.apply and plan.moves and basis.settings.reschedule.mode == Mode.OBSERVE
    notes = [*_request_notes(request), *(f"the link says: {problem}" for problem in basis.messages.report.problems)]
    notes += [*snapshot.notes, *proposed.notes, *correction_notes(snapshot, plan), *cold_notes(plan)]
    notes += [OBSERVE_NOTE] if observing and request.trigger != Trigger.DRAIN else []
    return Decision(
        decision=request.decision,
        at=request.at,
        trigger=request.trigger,
        user=request.user,
        policy=proposed.policy,
        result=_result(request, plan),
        reason=plan.code,
        sentence=_sentence(request, plan),
        executors=executor_loads(snapshot, plan),
        moves=list(plan.moves),
        refusals=list(plan.refusals),
        batch_time_before=plan.batch_time_before,
        batch_time_after=plan.batch_time_after,
        batch_p95=plan.batch_p95,
        residuals={query: residual.share for query, residual in snapshot.residuals.items()},
        gain=plan.gate.gain if plan.gate else 0.0,
        cost=plan.gate.cost if plan.gate else 0.0,
        streams=stream_classes(snapshot.prediction.workload),
        hot_streams=name_hot_streams(snapshot, snapshot.prediction.workload),
        notes=notes,
        names={query.query: query.name for query in snapshot.queries.values() if query.name},
        migration_cost=migration_cost(plan, snapshot),
        forced=request.force,
        rollback_of=proposed.rollback_of,
        runs={name: query.run for name, query in snapshot.queries.items() if name in moving},
        move_reasons=plan.reasons,
        operator_reason=request.reason,
        scheduled_plan=request.scheduled_plan,
        last_batches={name: query.batch for name, query in snapshot.queries.items() if name in moving},
        corrections=plan.corrections,
    )


def _request_notes(request: DecisionRequest) -> list[str]:
    if not request.reason:
        return []
    return [f"asked by {request.user}: {request.reason}" if request.user else f"because {request.reason}"]


def _result(request: DecisionRequest, plan: ReviewedPlan) -> DecisionResult:
    if plan.code == PlanResult.OK:
        return DecisionResult.APPLIED if request.apply else DecisionResult.PLANNED
    return DecisionResult.PLANNED if plan.code == PlanResult.NOTHING_TO_DO else DecisionResult.REFUSED


def _sentence(request: DecisionRequest, plan: ReviewedPlan) -> str:
    if plan.code == PlanResult.OK:
        return f"{'moving' if request.apply else 'would move'} {plan.sentence}"
    return plan.sentence
