"""Laws of a migration, and the moves of a proposal that keep them. Pure.

Laws refuse all moves of a query (``query-problem``, ``run-unknown``, ``stores-unknown``), single moves (``partition``,
``target``, ``in-flight``, ``max-moves``, ``budget``), or the plan as a whole (``utilization``, ``cooldown``, ``gate``).
`rechannel.wire.codes.Law` has the meaning of each. Refused moves leave the plan first, and the later laws judge what is
left. Cool-down and gate are the soft laws, which ``force`` skips; all others are hard. Laws of queries and moves hold
for every plan, the others depend on its kind:

    plan                                                   utilization   cooldown, gate
    of a policy or an operator                             refuses       refuse
    with ``force``                                         refuses       -
    only partitions on no known executor                   refuses       -
    off executors that are not available, as in a drain    is named      -
    the same, with moves that even out the rest            is named      -
    rollback                                               -             -

A partition on no known executor loads its state wherever it goes next, so that placing it neither costs nor gains
anything. Partitions on an executor that is not available have to leave whether it pays or not; moves that even out the
rest were put under all laws before, from the placement without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rechannel.conf.settings import Settings
from rechannel.migration.moves import BYTES_PER_BATCH
from rechannel.migration.plan.cost import BatchTimes, PlanCost, SteppedMoves, estimate_cost
from rechannel.migration.plan.gate import JUDGED_DRAWS, GateResult, QueryGain, evaluate_gate
from rechannel.migration.plan.inputs import PlanInputs, PlanOptions, ReviewedPlan
from rechannel.migration.plan.move_reasons import explain_moves
from rechannel.migration.plan.schedule import StepLimits, order_steps
from rechannel.policies.analysis.placement_cost import executor_busy
from rechannel.policies.analysis.queueing import executor_utilization, unit_rates
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.policies.prediction.correction import GainShare, correct_gain, shortest_batch
from rechannel.policies.prediction.gain import predict_changes
from rechannel.policies.prediction.model import PredictionModel
from rechannel.wire.codes import Law, PlanResult, Scope
from rechannel.wire.messages import DesiredMove, GainCorrection, QueryState, Refusal, StatefulStage
from rechannel.wire.printable import partition_name, query_name, with_noun

_ROUNDING = 1e-9
_EXPLAINED_MOVES = 100  # of a decision


def review_plan(proposed: Placement, inputs: PlanInputs, settings: Settings, options: PlanOptions) -> ReviewedPlan:
    """Return the moves towards ``proposed`` that may be made now."""
    changes = proposed.moves_from(inputs.current)
    moves, refusals = _permitted_moves(changes, inputs, settings, options)
    stepped = _schedule(moves, inputs, settings)
    placement = inputs.current.with_moves(moves)
    filled = inputs.current.filled_from(placement)
    rates, both = unit_rates(inputs.workload), (inputs.current, placement)
    before, after = (executor_utilization(inputs.cluster, inputs.workload, at, rates) for at in both)
    gains = _predict_gains(inputs, filled, placement)
    gate: GateResult | None = None
    cost: PlanCost | None = None
    code: PlanResult | Law = PlanResult.OK
    if not changes:
        code, sentence = PlanResult.NOTHING_TO_DO, "nothing to move: no better placement was found"
    elif not moves:
        code, sentence = PlanResult.LAW, f"none of {with_noun(len(changes), 'move')} is permitted: {refusals[0].detail}"
    else:
        times = BatchTimes(inputs.measured_batch_seconds, inputs.batch_period, inputs.cold)
        cost = estimate_cost(inputs.prediction, filled, stepped, inputs.rates, times)
        gate = evaluate_gate(gains, cost.seconds, settings.gate)
        too_full = _utilization_refusal(inputs, placement, settings)
        sentence = _summary(stepped, inputs, gate, too_full, options)
        if (refusal := _plan_refusal(moves, inputs, gate, too_full, options)) is not None:
            refusals.append(refusal)
            code, sentence = Law(refusal.law), refusal.detail
    accepted = _desired_moves(stepped, inputs, options.decision) if code == PlanResult.OK else ()
    return ReviewedPlan(
        code=code,
        sentence=sentence,
        moves=accepted,
        refusals=tuple(refusals),
        gate=gate,
        cost=cost,
        rates=inputs.rates,
        placement=placement,
        queue_before=before,
        queue_after=after,
        batch_time_before={item.query: item.before for item in gains},
        batch_time_after={item.query: item.after for item in gains},
        batch_error={item.query: item.before * item.change.error for item in gains},
        batch_p95={item.query: (item.p95.before, item.p95.after) for item in gains if item.p95 is not None},
        corrections={item.query: item.correction for item in gains if item.correction is not None},
        reasons=_explain(accepted[:_EXPLAINED_MOVES], inputs, placement),
    )


def _permitted_moves(
    changes: Sequence[Move], inputs: PlanInputs, settings: Settings, options: PlanOptions
) -> tuple[list[Move], list[Refusal]]:
    """Return the moves that the laws of queries and moves permit, and the refusals of others."""
    moves, refusals = _filter_moves(changes, inputs)
    most, left = settings.migration.max_moves, options.moves_left
    caps = [(Law.MAX_MOVES, most, f"migration.max_moves is {most}")]
    if left is not None:
        rule = f"{left} are left of reschedule.moves_per_hour, which is {settings.reschedule.moves_per_hour}"
        caps.append((Law.BUDGET, left, rule))
    for law, limit, rule in caps:
        if len(moves) > limit:
            detail = f"{len(moves) - limit} of {with_noun(len(moves), 'move')} wait: {rule}"
            refusal = Refusal(law=law, scope=Scope.MOVE, detail=detail, measured=len(moves), limit=limit, unit="moves")
            refusals.append(refusal)
            moves = _heaviest_moves(moves, inputs, limit)
    return moves, refusals


def _filter_moves(moves: Sequence[Move], inputs: PlanInputs) -> tuple[list[Move], list[Refusal]]:
    """Return the moves that break no law of their own, and the refusals, a query's once."""
    permitted: list[Move] = []
    refusals: list[Refusal] = []
    added: set[tuple[str, str]] = set()
    for move in moves:
        if (refusal := _query_refusal(move, inputs)) is not None:
            if (refusal.law, refusal.detail) not in added:
                added.add((refusal.law, refusal.detail))
                refusals.append(refusal)
        elif (refusal := _move_refusal(move, inputs)) is not None:
            refusals.append(refusal)
        else:
            permitted.append(move)
    return permitted, refusals


def _query_refusal(move: Move, inputs: PlanInputs) -> Refusal | None:
    """Return the law that keeps all partitions of a query or stage where they are."""
    if move.stage not in inputs.stage_ids:
        return Refusal(law=Law.STORES_UNKNOWN, scope=Scope.QUERY, detail=f"stage {move.stage}: no such stateful stage")
    query, number = inputs.stage_ids[move.stage]
    state = inputs.queries.get(query)
    name = query_name(query, state.name if state else "")
    if state is None or not state.active:
        return Refusal(law=Law.QUERY_PROBLEM, scope=Scope.QUERY, detail=f"query {name} is not active")
    if state.problem:
        return Refusal(
            law=Law.QUERY_PROBLEM, scope=Scope.QUERY, detail=f"query {name} cannot be moved: {state.problem}"
        )
    if not state.run:
        return Refusal(law=Law.RUN_UNKNOWN, scope=Scope.QUERY, detail=f"the run id of query {name} is not known")
    stage = _stage(state, number)
    if stage is None or not stage.operators or not all(operator.stores for operator in stage.operators):
        detail = f"query {name}: the state stores of stage {number} are not known"
        return Refusal(law=Law.STORES_UNKNOWN, scope=Scope.QUERY, detail=detail)
    return None


def _move_refusal(move: Move, inputs: PlanInputs) -> Refusal | None:
    """Return the law that refuses one move of a query that can be moved."""
    query, number = inputs.stage_ids[move.stage]
    state = inputs.queries[query]
    label = partition_name(query, number, move.partition, query_name(query, state.name))
    stage = _stage(state, number)
    partitions = stage.partitions if stage is not None else 0
    if not 0 <= move.partition < partitions:
        return Refusal(
            law=Law.PARTITION,
            scope=Scope.MOVE,
            detail=f"{label}: the stage has {with_noun(partitions, 'partition')}",
            measured=move.partition,
            limit=partitions - 1,
            unit="partition number",
        )
    if not 0 <= move.target < inputs.cluster.size:
        return Refusal(law=Law.TARGET, scope=Scope.MOVE, detail=f"{label}: its target executor is not known")
    if not inputs.cluster.available[move.target]:
        executor = inputs.cluster.executors[move.target]
        return Refusal(law=Law.TARGET, scope=Scope.MOVE, detail=f"{label}: executor {executor} is not available")
    if (query, number, move.partition) in inputs.in_flight:
        return Refusal(law=Law.IN_FLIGHT, scope=Scope.MOVE, detail=f"{label} is being moved already")
    return None


def _stage(state: QueryState, number: int) -> StatefulStage | None:
    return next((stage for stage in state.stages if stage.stage == number), None)


def _heaviest_moves(moves: list[Move], inputs: PlanInputs, most: int) -> list[Move]:
    """Return the ``most`` heaviest moves, first those to be made in any case."""
    weights = _weights(moves, inputs)
    stays = [_may_stay(move, inputs.cluster) for move in moves]
    heaviest = sorted(range(len(moves)), key=lambda index: (stays[index], -weights[index], index))
    return [moves[index] for index in sorted(heaviest[:most])]


def _weights(moves: Sequence[Move], inputs: PlanInputs) -> FloatArray:
    """Return the busy seconds per second that each move shifts."""
    stages = {move.stage: inputs.workload.stage(move.stage) for move in moves}
    shifted = [stages[move.stage].busy[move.partition] * stages[move.stage].batches_per_second for move in moves]
    return np.array(shifted, dtype=np.float64)


def _schedule(moves: list[Move], inputs: PlanInputs, settings: Settings) -> SteppedMoves:
    """Put the moves into steps: first those that have to leave, then those that relieve most."""
    stages = [inputs.workload.stage(move.stage) for move in moves]
    sizes = [inputs.bytes_to_load.get(stage.key, stage.state_bytes) for stage in stages]
    loads = np.array([size[move.partition] for size, move in zip(sizes, moves, strict=True)], dtype=np.float64)
    migration, weights = settings.migration, _weights(moves, inputs)
    has_to_leave = np.array([_has_to_leave(move, inputs.cluster) for move in moves], dtype=np.bool_)
    steps = order_steps(
        moves,
        weights + has_to_leave * (1.0 + weights.sum()),
        StepLimits(migration.moves_per_executor, migration.moves_per_batch, BYTES_PER_BATCH),
        sizes=loads,
        queries=[stage.query for stage in stages],
    )
    return SteppedMoves(moves, steps, loads)


def _predict_gains(inputs: PlanInputs, before: Placement, after: Placement) -> list[QueryGain]:
    """Return each query's batch now and its predicted change."""
    changes = predict_changes(inputs.prediction, before, after, seed=JUDGED_DRAWS)
    rates = dict.fromkeys(changes, 0.0)
    for stage in inputs.workload.stages:
        rates[stage.query] = max(rates[stage.query], stage.batches_per_second)
    names = {query: query_name(query, state.name) for query, state in inputs.queries.items()}
    gains = []
    for query, change in changes.items():
        gain = QueryGain(
            query, inputs.measured_batch_seconds.get(query, change.before), change, rates[query], names.get(query, "")
        )
        gains.append(_corrected(gain, inputs.gain_shares.get(query, GainShare()), inputs.prediction))
    return gains


def _corrected(gain: QueryGain, learned: GainShare, model: PredictionModel) -> QueryGain:
    """Return a gain corrected by what came of those that were promised earlier."""
    change = correct_gain(gain.change, learned.share, shortest_batch(model, gain.query))
    if change == gain.change:
        return gain
    correction = GainCorrection(share=learned.share, migrations=learned.migrations, uncorrected=gain.after)
    return replace(gain, change=change, correction=correction)


def _utilization_refusal(inputs: PlanInputs, placement: Placement, settings: Settings) -> Refusal | None:
    """Return the refusal of a plan that makes an executor busier than allowed and than today.

    Queries back to back with fixed rows are exempt: they use any executor as far as they can, whatever the placement.
    Whether one of them gets slower is for the gate.
    """
    cluster = inputs.cluster
    exempt = {query for query, one in inputs.prediction.timing.items() if not one.has_to_keep_up}
    counted = Workload(
        tuple(
            replace(stage, busy=np.zeros_like(stage.busy)) if stage.query in exempt else stage
            for stage in inputs.workload.stages
        )
    )
    before, after = (executor_busy(cluster, counted, at) / cluster.cores for at in (inputs.current, placement))
    highest = float(before.max())
    limit = max(settings.gate.max_utilization, highest) * (1 + _ROUNDING)
    worst = int(np.argmax(after))
    measured = float(after[worst])
    if measured <= limit:
        return None
    detail = (
        f"executor {cluster.executors[worst]} would be {measured:.0%} busy"
        f"{' with queries that have to keep up' if exempt else ''}, above "
        f"gate.max_utilization {settings.gate.max_utilization:.0%} and above today's highest {highest:.0%}"
    )
    return Refusal(law=Law.UTILIZATION, detail=detail, measured=measured, limit=limit, unit="share")


def _plan_refusal(
    moves: Sequence[Move], inputs: PlanInputs, gate: GateResult, too_full: Refusal | None, options: PlanOptions
) -> Refusal | None:
    """Return the law that refuses a plan as a whole, by the table of this module."""
    if options.mending or _only_evacuates(moves, inputs.cluster):
        return None
    if too_full is not None and not options.rollback:
        return too_full
    if options.force or options.rollback or all(move.source == UNPLACED for move in moves):
        return None
    cooldown = inputs.cooldown
    if cooldown.left > 0:
        rule = f"gate.cooldown is {cooldown.total:g} s"
        if cooldown.reason:
            rule = f"the cool-down after it is {cooldown.total:g} s, {cooldown.reason}"
        ago = max(0.0, cooldown.total - cooldown.left)
        return Refusal(
            law=Law.COOLDOWN, detail=f"the last migration ended {ago:.0f} s ago, {rule}: {cooldown.left:.0f} s to go"
        )
    if not gate.passes:
        return Refusal(law=Law.GATE, detail=gate.sentence, measured=gate.measured, limit=gate.limit, unit=gate.unit)
    return None


def _has_to_leave(move: Move, cluster: Cluster) -> bool:
    """Whether a partition is placed, on an executor that is not available."""
    return move.source != UNPLACED and not cluster.available[move.source]


def _may_stay(move: Move, cluster: Cluster) -> bool:
    """Whether a partition is placed, on an executor that is available."""
    return move.source != UNPLACED and bool(cluster.available[move.source])


def _only_evacuates(moves: Sequence[Move], cluster: Cluster) -> bool:
    """Whether some partitions are placed, all of them on executors that are not available."""
    return any(_has_to_leave(move, cluster) for move in moves) and not any(_may_stay(move, cluster) for move in moves)


def _summary(
    stepped: SteppedMoves, inputs: PlanInputs, gate: GateResult, too_full: Refusal | None, options: PlanOptions
) -> str:
    """Describe a plan that no law refuses."""
    moves, steps, forced = stepped.moves, with_noun(stepped.count, "step"), options.force
    if options.mending or _only_evacuates(moves, inputs.cluster):
        leaving = [move for move in moves if not _may_stay(move, inputs.cluster)]
        nodes = sorted({inputs.cluster.nodes[move.source] for move in leaving if move.source != UNPLACED})
        summary = f"{with_noun(len(leaving), 'partition')} in {steps} off {', '.join(nodes)}"
        if options.mending:
            summary += f", and {len(moves) - len(leaving)} more to even out what is left: {options.mending}"
        return f"{summary}; {too_full.detail}: add executors" if too_full is not None else summary
    summary = f"{len(moves)} of {with_noun(inputs.workload.partitions, 'partition')} in {steps}"
    unplaced = sum(move.source == UNPLACED for move in moves)
    if unplaced:
        summary += f" ({unplaced} of them on no known executor)"
    if unplaced == len(moves):
        return summary
    return f"{summary}: {'forced although ' if forced and not gate.passes else ''}{gate.sentence}"


def _desired_moves(stepped: SteppedMoves, inputs: PlanInputs, decision: str) -> tuple[DesiredMove, ...]:
    """Return the moves for the links, in the order of their steps."""
    steps, loads, executors = stepped.steps.tolist(), stepped.loads.tolist(), inputs.cluster.executors
    order = sorted(range(len(stepped.moves)), key=lambda index: (steps[index], index))
    desired = []
    for number, index in enumerate(order):
        move = stepped.moves[index]
        query, stage = inputs.stage_ids[move.stage]
        desired.append(
            DesiredMove(
                move=f"{decision}.{number}",
                query=query,
                stage=stage,
                partition=move.partition,
                source=executors[move.source] if move.source != UNPLACED else "",
                target=executors[move.target],
                step=steps[index],
                bytes=loads[index],
            )
        )
    return tuple(desired)


def _explain(desired: Sequence[DesiredMove], inputs: PlanInputs, placement: Placement) -> dict[str, str]:
    keys = {stage: key for key, stage in inputs.stage_ids.items()}
    index = inputs.cluster.index_of
    moves = [Move(keys[it.query, it.stage], it.partition, index(it.source), index(it.target)) for it in desired]
    reasons = explain_moves(inputs, placement, moves)
    return {move.move: reason for move, reason in zip(desired, reasons, strict=True)}
