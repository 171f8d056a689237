"""Policies propose, the manager disposes: the laws a migration must keep, whoever asks for it.

Hard laws, which nothing skips, and how far each refusal reaches:

=================== ======== ==============================================================================
``target``          move     the target executor is known, alive and available
``query-problem``   query    the query is active and can be moved (its link reports no problem)
``run-unknown``     query    the query's run id is known, so the order can be bound to it
``stores-unknown``  query    the stage is known with its operators and their state stores
``partition``       move     the partition exists in that stage
``in-flight``       move     no other move of this partition is under way
``max-moves``       move     at most ``migration.max_moves`` at once; the lightest wait
``budget``          move     at most what is left of ``reschedule.moves_per_hour``, where nobody asked for the plan
``utilization``     plan     no executor above ``gate.max_utilization`` *and* above the highest of before
=================== ======== ==============================================================================

Soft laws, which ``force`` skips: ``cooldown`` (rest after a migration) and ``gate`` (moving must pay). Both refuse the
plan as a whole. What a law refuses leaves the plan first, and the later laws judge what is left.

A partition that is on no known executor loads its state wherever it goes next, so placing it costs nothing and gains
nothing here: a plan that does only this passes the gate. Partitions that have to leave an executor that is not
available (a drained node's) go whether it pays or not, and though the others be overloaded by it: that is said. What
goes ``back`` to where it was before is not asked for its utilization: the way there did not keep what it promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rechannel.conf.settings import Settings
from rechannel.migration.plan.cost import LoadRates, MigrationCost, price
from rechannel.migration.plan.explain import reasons
from rechannel.migration.plan.gate import GateResult, judge
from rechannel.migration.plan.schedule import order_steps
from rechannel.policies.analysis.placement_cost import critical_path
from rechannel.policies.analysis.queueing import QueueReport, executor_utilization
from rechannel.policies.model.arrays import FloatArray
from rechannel.policies.model.cluster import UNPLACED, Cluster
from rechannel.policies.model.placement import Move, Placement
from rechannel.policies.model.workload import Workload
from rechannel.wire.messages import DesiredMove, QueryState, Refusal, StatefulStage
from rechannel.wire.printable import count, partition_name, query_name

_ROUNDING = 1e-9
_EXPLAINED = 100  # moves of a decision whose reason is kept


@dataclass(frozen=True)
class PlanInputs:
    """What the laws look at.

    ``stages``: key of a placeable stage -> (query, number of the stage in the link's report).
    ``in_flight``: (query, stage, partition) of moves that are not settled. ``resting``: seconds of cool-down left,
    ``rest``: how many it has in all, and why they are more than usual; as the settings have it where None.
    ``loads``: key of a stage -> bytes to load of each partition, its state where it is not given. ``batch_seconds`` and
    ``batch_period`` by query; ``rates``: what loading costs, by the settings where None.
    """

    cluster: Cluster
    workload: Workload
    current: Placement
    stages: Mapping[str, tuple[str, int]]
    queries: Mapping[str, QueryState]
    in_flight: frozenset[tuple[str, int, int]] = frozenset()
    resting: float = 0.0
    rest: tuple[float, str] | None = None
    loads: Mapping[str, FloatArray] = field(default_factory=dict)
    batch_seconds: Mapping[str, float] = field(default_factory=dict)
    batch_period: Mapping[str, float] = field(default_factory=dict)
    rates: LoadRates | None = None


@dataclass(frozen=True)
class ReviewedPlan:
    """What may be done of a proposal, and why not the rest.

    ``code``: ok, nothing-to-do, law, cooldown or gate. ``moves`` is empty unless the code is ok; ``placement`` is
    where the permitted moves lead even where a soft law or the utilization then refused them, so that the numbers
    of a refusal can be shown. ``price``: what they cost, None where there are none; ``rates``: by which it is known.
    """

    code: str
    sentence: str
    moves: tuple[DesiredMove, ...]
    refusals: tuple[Refusal, ...]
    verdict: GateResult | None
    price: MigrationCost | None
    rates: LoadRates
    placement: Placement
    queue_before: QueueReport
    queue_after: QueueReport
    batch_time_before: dict[str, float]
    batch_time_after: dict[str, float]
    why: dict[str, str] = field(default_factory=dict)  # move -> its reason, of the first hundred


def dispose(
    wanted: Placement,
    facts: PlanInputs,
    settings: Settings,
    *,
    decision: str,
    force: bool = False,
    back: bool = False,
    room: int | None = None,
) -> ReviewedPlan:
    """Return what of ``wanted`` may be done now. ``decision`` becomes part of each move's id.

    ``force`` skips the soft laws; ``back`` says that the partitions go where they were before; ``room`` is how many
    moves are left of the hour's, None for any number.
    """
    refusals: list[Refusal] = []
    proposed = wanted.moves_from(facts.current)
    moves = _permitted(proposed, facts, refusals)
    moves = _capped(moves, facts, settings.migration.max_moves, refusals)
    if room is not None:
        moves = _capped(moves, facts, room, refusals, settings.reschedule.moves_per_hour)
    placement = _applied(facts.current, moves)
    loads = _loads(moves, facts)
    steps = order_steps(
        moves,
        _weights(moves, facts.workload),
        settings.migration.moves_per_executor,
        sizes=loads,
        queries=[facts.workload.stage(move.stage).query for move in moves],
        per_step=settings.migration.moves_per_batch,
        bytes_per_step=settings.migration.bytes_per_batch,
    )
    before, after = (executor_utilization(facts.cluster, facts.workload, at) for at in (facts.current, placement))
    filled = _homeless_filled(facts.current, placement)
    path_before = critical_path(facts.cluster, facts.workload, filled)
    path_after = critical_path(facts.cluster, facts.workload, placement)
    verdict: GateResult | None = None
    cost: MigrationCost | None = None
    rates = facts.rates or LoadRates(settings.gate.move_cost, settings.gate.load_rate)
    code, sentence = "ok", ""
    if not proposed:
        code, sentence = "nothing-to-do", "nothing to move: no better placement was found"
    elif not moves:
        code, sentence = "law", f"none of {count(len(proposed), 'move')} is permitted: {refusals[0].detail}"
    else:
        cost = price(
            facts.cluster,
            facts.workload,
            filled,
            moves,
            steps,
            loads,
            rates,
            before=path_before,
            batch=facts.batch_seconds,
            period=facts.batch_period,
        )
        verdict = _verdict(facts, path_before, path_after, cost.seconds, settings)
        full = _too_full(facts.cluster, before, after, settings)
        homeless = [move.source == UNPLACED for move in moves]
        must = not all(homeless) and all(_must_leave(move, facts.cluster) for move in moves)
        refusal = None if must else (None if back else full) or _soft(moves, facts, verdict, settings, force or back)
        if must:
            sentence = _leaving(moves, int(steps.max()) + 1, facts, full)
        elif refusal is not None:
            refusals.append(refusal)
            code = "law" if refusal.law == "utilization" else refusal.law
            sentence = refusal.detail
        else:
            sentence = _summary(moves, int(steps.max()) + 1, facts, verdict, force)
    accepted = _desired(moves, steps.tolist(), loads.tolist(), facts, decision) if code == "ok" else ()
    first = accepted[:_EXPLAINED]
    return ReviewedPlan(
        code,
        sentence,
        accepted,
        tuple(refusals),
        verdict,
        cost,
        rates,
        placement,
        before,
        after,
        path_before,
        path_after,
        _why(first, facts, placement),
    )


def _why(moves: tuple[DesiredMove, ...], facts: PlanInputs, placement: Placement) -> dict[str, str]:
    keys = {unit: key for key, unit in facts.stages.items()}
    index = facts.cluster.index_of
    found = [Move(keys[it.query, it.stage], it.partition, index(it.source), index(it.target)) for it in moves]
    words = reasons(facts.cluster, facts.workload, facts.current, placement, found, facts.stages, facts.queries)
    return {move.move: text for move, text in zip(moves, words, strict=True)}


def _permitted(moves: tuple[Move, ...], facts: PlanInputs, refusals: list[Refusal]) -> list[Move]:
    """Keep the moves that break no law of their own; a refusal that reaches a whole query is told once."""
    kept: list[Move] = []
    told: set[tuple[str, str]] = set()
    for move in moves:
        refusal = _refused(move, facts)
        if refusal is None:
            kept.append(move)
        elif refusal.scope == "move" or (refusal.law, refusal.detail) not in told:
            told.add((refusal.law, refusal.detail))
            refusals.append(refusal)
    return kept


def _refused(move: Move, facts: PlanInputs) -> Refusal | None:
    if move.stage not in facts.stages:
        return Refusal(law="stores-unknown", scope="query", detail=f"stage {move.stage}: no such stateful stage")
    query, number = facts.stages[move.stage]
    state = facts.queries.get(query)
    name = query_name(query, state.name if state else "")
    unit = partition_name(query, number, move.partition, name)
    if state is None or not state.active:
        return Refusal(law="query-problem", scope="query", detail=f"query {name} is not active")
    if state.problem:
        return Refusal(law="query-problem", scope="query", detail=f"query {name} cannot be moved: {state.problem}")
    if not state.run:
        return Refusal(law="run-unknown", scope="query", detail=f"the run id of query {name} is not known")
    stage = next((stage for stage in state.stages if stage.stage == number), None)
    if stage is None or not _stores_known(stage):
        return Refusal(
            law="stores-unknown",
            scope="query",
            detail=f"query {name}: the state stores of stage {number} are not known",
        )
    if not 0 <= move.partition < stage.partitions:
        detail = f"{unit}: the stage has {count(stage.partitions, 'partition')}"
        last = stage.partitions - 1
        return Refusal(
            law="partition", scope="move", detail=detail, measured=move.partition, limit=last, unit="partition number"
        )
    if not 0 <= move.target < facts.cluster.size:
        return Refusal(law="target", scope="move", detail=f"{unit}: its target executor is not known")
    if not facts.cluster.available[move.target]:
        executor = facts.cluster.executors[move.target]
        return Refusal(law="target", scope="move", detail=f"{unit}: executor {executor} is not available")
    if (query, number, move.partition) in facts.in_flight:
        return Refusal(law="in-flight", scope="move", detail=f"{unit} is being moved already")
    return None


def _stores_known(stage: StatefulStage) -> bool:
    return bool(stage.operators) and all(operator.stores for operator in stage.operators)


def _capped(
    moves: list[Move], facts: PlanInputs, most: int, refusals: list[Refusal], hour: int | None = None
) -> list[Move]:
    """Keep the heaviest ``most`` moves: of one migration, or what is left of so many an ``hour``."""
    if len(moves) <= most:
        return moves
    work = [_busy(move, facts.workload) for move in moves]
    heaviest = sorted(range(len(moves)), key=lambda index: (moves[index].source != UNPLACED, -work[index], index))
    rule = f"migration.max_moves is {most}"
    if hour is not None:
        rule = f"{most} are left of reschedule.moves_per_hour, which is {hour}"
    refusals.append(
        Refusal(
            law="max-moves" if hour is None else "budget",
            scope="move",
            detail=f"{len(moves) - most} of {count(len(moves), 'move')} wait: {rule}",
            measured=len(moves),
            limit=most,
            unit="moves",
        )
    )
    return [moves[index] for index in sorted(heaviest[:most])]


def _busy(move: Move, workload: Workload) -> float:
    stage = workload.stage(move.stage)
    return float(stage.busy[move.partition] * stage.batches_per_second)


def _weights(moves: list[Move], workload: Workload) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What each move shifts per second: the moves that relieve most come first."""
    return np.array([_busy(move, workload) for move in moves], dtype=np.float64)


def _loads(moves: list[Move], facts: PlanInputs) -> FloatArray:
    """Bytes each move has to load."""
    known = facts.loads
    loads = (known.get(move.stage, facts.workload.stage(move.stage).state_bytes)[move.partition] for move in moves)
    return np.array(list(loads), dtype=np.float64)


def _applied(current: Placement, moves: list[Move]) -> Placement:
    changed = {key: array.copy() for key, array in current.assignments.items()}
    for move in moves:
        changed[move.stage][move.partition] = move.target
    return Placement(changed)


def _homeless_filled(current: Placement, placement: Placement) -> Placement:
    return Placement(
        {key: np.where(array == UNPLACED, placement[key], array) for key, array in current.assignments.items()}
    )


def _verdict(
    facts: PlanInputs, before: Mapping[str, float], after: Mapping[str, float], cost: float, settings: Settings
) -> GateResult:
    rates = dict.fromkeys(before, 0.0)
    for stage in facts.workload.stages:
        rates[stage.query] = max(rates[stage.query], stage.batches_per_second)
    return judge(
        before,
        after,
        rates,
        cost=cost,
        settings=settings.gate,
        names={query: query_name(query, known.name) for query, known in facts.queries.items()},
        batch_seconds=facts.batch_seconds,
    )


def _too_full(cluster: Cluster, before: QueueReport, after: QueueReport, settings: Settings) -> Refusal | None:
    highest = float(before.utilization.max())
    limit = max(settings.gate.max_utilization, highest) * (1 + _ROUNDING)
    worst = int(np.argmax(after.utilization))
    if after.utilization[worst] <= limit:
        return None
    detail = (
        f"executor {cluster.executors[worst]} would be {after.utilization[worst]:.0%} busy, above "
        f"gate.max_utilization {settings.gate.max_utilization:.0%} and above today's highest {highest:.0%}"
    )
    measured = float(after.utilization[worst])
    return Refusal(law="utilization", scope="plan", detail=detail, measured=measured, limit=limit, unit="share")


def _soft(moves: list[Move], facts: PlanInputs, verdict: GateResult, settings: Settings, force: bool) -> Refusal | None:
    if force or all(move.source == UNPLACED for move in moves):
        return None
    if facts.resting > 0:
        whole, why = facts.rest or (settings.gate.cooldown, "")
        rule = f"the rest after it is {whole:g} s, {why}" if why else f"gate.cooldown is {whole:g} s"
        ago = max(0.0, whole - facts.resting)
        detail = f"the last migration ended {ago:.0f} s ago, {rule}: {facts.resting:.0f} s to go"
        return Refusal(law="cooldown", scope="plan", detail=detail, measured=facts.resting, limit=0.0, unit="s to go")
    if not verdict.passes:
        return Refusal(
            law="gate",
            scope="plan",
            detail=verdict.sentence,
            measured=verdict.measured,
            limit=verdict.limit(settings.gate),
            unit=verdict.unit,
        )
    return None


def _must_leave(move: Move, cluster: Cluster) -> bool:
    return move.source == UNPLACED or not bool(cluster.available[move.source])


def _leaving(moves: list[Move], steps: int, facts: PlanInputs, full: Refusal | None) -> str:
    nodes = sorted({facts.cluster.nodes[move.source] for move in moves if move.source != UNPLACED})
    what = f"{count(len(moves), 'partition')} in {count(steps, 'step')} off {', '.join(nodes)}"
    return f"{what}; {full.detail}: add executors" if full is not None else what


def _summary(moves: list[Move], steps: int, facts: PlanInputs, verdict: GateResult, force: bool) -> str:
    total = sum(stage.n for stage in facts.workload.placeable)
    what = f"{len(moves)} of {count(total, 'partition')} in {count(steps, 'step')}"
    homeless = sum(move.source == UNPLACED for move in moves)
    if homeless:
        what += f" ({homeless} of them on no known executor)"
    forced = "forced although " if force and not verdict.passes and homeless < len(moves) else ""
    return f"{what}: {forced}{verdict.sentence}" if homeless < len(moves) else what


def _desired(
    moves: list[Move], steps: list[int], loads: list[float], facts: PlanInputs, decision: str
) -> tuple[DesiredMove, ...]:
    order = sorted(range(len(moves)), key=lambda index: (steps[index], index))
    wanted = []
    for number, index in enumerate(order):
        move = moves[index]
        query, stage = facts.stages[move.stage]
        wanted.append(
            DesiredMove(
                move=f"{decision}.{number}",
                query=query,
                stage=stage,
                partition=move.partition,
                source=facts.cluster.executors[move.source] if move.source != UNPLACED else "",
                target=facts.cluster.executors[move.target],
                step=steps[index],
                bytes=loads[index],
            )
        )
    return tuple(wanted)
