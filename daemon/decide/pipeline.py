"""From a snapshot to a decision: ask the policy, let the manager dispose, and say it in one sentence with its numbers.

Pure, except for policies' own defects, which become refusals. Nothing is published here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rechannel.conf.settings import Settings
from rechannel.daemon.control.guard import BY_ITSELF, CONTINUATION, SelfActionGuard
from rechannel.daemon.control.migration_progress import in_flight
from rechannel.daemon.decide.policy_settings import DRAIN, ROLLBACK, SAVED_PLAN, parameters_for
from rechannel.daemon.decide.requested_placement import RequestedPlacement
from rechannel.daemon.model.application_messages import ApplicationMessages as Measured
from rechannel.daemon.model.readiness import NotReady
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot, take_snapshot
from rechannel.migration.plan.constraints import apply_constraints
from rechannel.migration.plan.cost import LoadRates
from rechannel.migration.plan.inputs import Cooldown, PlanInputs, PlanOptions, ReviewedPlan
from rechannel.policies.analysis.classification import StreamClass, classify, hot_streams
from rechannel.policies.model.arrays import ModelError, ScaleOutError
from rechannel.policies.model.cluster import UNPLACED
from rechannel.policies.model.placement import Placement
from rechannel.policies.registry import PolicyLawError, Proposal, propose
from rechannel.wire.exit_codes import OBSERVE_MODE, ExitCode
from rechannel.wire.messages import Decision, ExecutorLoad, MigrationPrice, Refusal
from rechannel.wire.printable import query_name

#: what is to be known of a controller that only looks on
OBSERVES = f"{OBSERVE_MODE} `rechannel rebalance --apply` moves once."
PAUSED = Refusal(law="paused", scope="plan", detail="Rechannel is paused: `rechannel resume` first")
OVERTAKEN = NotReady(
    NotReadyReason.OVERTAKEN, "something was ordered or begun while the plan was made that it does not know of"
)
_HOT_STREAMS = 10
_EXITS = {
    "ok": ExitCode.DONE,
    "nothing-to-do": ExitCode.NOTHING,
    "gate": ExitCode.NOTHING,
    "cooldown": ExitCode.NOTHING,
}


@dataclass(frozen=True)
class DecisionRequest:
    """Who wants a decision, why, by which policy, and what may be done with it.

    ``pending``: the plan that waited; ``leave``: nodes that are planned as if they were drained.
    """

    decision: str
    at: float
    trigger: str
    policy: str
    user: str = ""
    reason: str = ""
    apply: bool = False
    force: bool = False
    pending: str = ""
    leave: frozenset[str] = frozenset()


def exit_of(decision: Decision) -> ExitCode:
    """Return the exit code that stands for a decision."""
    if decision.outcome == "not-ready":
        return ExitCode.NOT_READY
    return _EXITS.get(decision.reason, ExitCode.REFUSED)


def not_ready(ask: DecisionRequest, why: NotReady) -> Decision:
    """Return the decision not to decide."""
    wait = f"; ready in about {why.ready_in:.0f} s" if why.ready_in is not None else ""
    return _empty(ask, "not-ready", why.code, f"not ready: {why.sentence}{wait}")


def refused(ask: DecisionRequest, refusal: Refusal) -> Decision:
    """Return a refusal that needed no plan."""
    return _empty(ask, "refused", refusal.law, refusal.detail, [refusal])


def no_report(application: str) -> NotReady:
    """Say that nobody reports for an application."""
    return NotReady(NotReadyReason.NO_REPORT, f"no link reports for application {application}")


def plan(
    ask: DecisionRequest,
    measured: Measured,
    settings: Settings,
    drained: Collection[str],
    *,
    asked: Callable[[Snapshot], RequestedPlacement | Refusal] | None,
    resting: float,
    rest: tuple[float, str],
    rates: LoadRates,
    guard: SelfActionGuard,
) -> Decision:
    """Model what was measured of an application and decide on it; may take minutes.

    ``asked`` says what is wanted instead of a policy; ``drained``: nodes that are to hold no state.
    """
    report = measured.report
    snapshot: Snapshot | NotReady
    if ask.trigger in (DRAIN, ROLLBACK):  # what has to leave does so measured or not
        nothing = NotReady(NotReadyReason.NO_STATE, "no active query has a known stateful stage (yet)")
        snapshot = build_snapshot(measured, settings, ask.at, drained, include_unmeasured=True) or nothing
    else:
        snapshot = take_snapshot(measured, settings, ask.at, drained)
    if isinstance(snapshot, NotReady):
        return not_ready(ask, snapshot)
    wish = asked(snapshot) if asked is not None else None
    if isinstance(wish, Refusal):
        return refused(ask, wish)
    return decide(
        ask,
        snapshot,
        settings,
        in_flight=in_flight(report),
        resting=resting,
        rest=rest,
        notes=[f"the link says: {problem}" for problem in report.problems],
        rates=rates,
        wish=wish,
        guard=guard,
    )


def decide(
    ask: DecisionRequest,
    snapshot: Snapshot,
    settings: Settings,
    *,
    in_flight: frozenset[tuple[str, int, int]] = frozenset(),
    resting: float = 0.0,
    rest: tuple[float, str] | None = None,
    notes: Sequence[str] = (),
    rates: LoadRates | None = None,
    wish: RequestedPlacement | None = None,
    guard: SelfActionGuard | None = None,
) -> Decision:
    """Decide on one application.

    ``resting``: seconds of its cool-down that are left, ``rest``: how long it is in all, and why; ``rates``: what
    loading costs, by the settings where None; ``wish``: a placement that is asked for instead of what the policy would
    propose; ``guard``: what holds the controller back where it acts by itself, and warns of what an order goes against.
    """
    room = guard.room(ask.at) if guard is not None and ask.apply and ask.trigger in BY_ITSELF else None
    if rates is not None:  # what was measured takes the place of what was set, for the policy too
        gate = dataclasses.replace(settings.gate, move_cost=rates.overhead, load_rate=rates.load_rate)
        settings = dataclasses.replace(settings, gate=gate)
    try:
        policy, wanted, said = _wanted(ask, snapshot, _within(room, settings), wish)
    except ScaleOutError as error:
        return refused(ask, Refusal(law="scale-out", scope="plan", detail=str(error)))
    except (ModelError, PolicyLawError) as error:
        return refused(ask, Refusal(law="policy", scope="plan", detail=str(error)))
    facts = PlanInputs(
        cluster=snapshot.cluster,
        workload=snapshot.workload,
        current=snapshot.placement,
        stages=snapshot.stages,
        queries=snapshot.queries,
        in_flight=in_flight,
        cooldown=Cooldown(resting, *(rest or (settings.gate.cooldown, ""))),
        loads=snapshot.loads,
        batch_seconds=snapshot.batch_seconds,
        batch_period=snapshot.batch_period,
        rates=rates,
    )
    undoes = wish.undoes if wish is not None else ""
    options = PlanOptions(ask.decision, force=ask.force, rollback=bool(undoes), moves_left=room)
    disposed = apply_constraints(wanted, facts, settings, options)
    moving = {move.query for move in disposed.moves}
    batches = {name: query.batch for name, query in snapshot.queries.items() if name in moving}
    refusal = _held_back(ask, disposed, snapshot, guard, batches)
    warning = ""
    if guard is not None and ask.apply and disposed.moves and ask.trigger not in BY_ITSELF:
        warning = guard.warning(ask.at, len(disposed.moves))
    off = not ask.apply and disposed.moves and settings.reschedule.mode == "observe" and ask.trigger != DRAIN
    return Decision(
        decision=ask.decision,
        at=ask.at,
        trigger=ask.trigger,
        user=ask.user,
        policy=policy,
        outcome="refused" if refusal is not None else _outcome(ask, disposed),
        reason=disposed.code if refusal is None else refusal.law,
        sentence=_sentence(ask, disposed, refusal) + warning,
        executors=_loads(snapshot, disposed),
        moves=list(disposed.moves),
        refusals=[*disposed.refusals, *([refusal] if refusal is not None else [])],
        batch_time_before=disposed.batch_time_before,
        batch_time_after=disposed.batch_time_after,
        gain=disposed.gate.gain if disposed.gate else 0.0,
        cost=disposed.gate.cost if disposed.gate else 0.0,
        streams=stream_classes(snapshot),
        hot_streams=_hot(snapshot),
        notes=[*_asked(ask), *notes, *snapshot.notes, *said, *([OBSERVES] if off else [])],
        names={query.query: query.name for query in snapshot.queries.values() if query.name},
        price=_price(disposed, snapshot),
        forced=ask.force,
        rollback_of=undoes,
        runs={name: query.run for name, query in snapshot.queries.items() if name in moving},
        move_reasons=disposed.why,
        operator_reason=ask.reason,
        pending_plan=ask.pending,
        last_batches=batches,
    )


def _within(room: int | None, settings: Settings) -> Settings:
    """The policy is to plan with as many moves as there are, rather than to lose some of its plan."""
    if room is None:
        return settings
    fewer = dataclasses.replace(settings.migration, max_moves=max(1, min(room, settings.migration.max_moves)))
    return dataclasses.replace(settings, migration=fewer)


def _held_back(
    ask: DecisionRequest,
    disposed: ReviewedPlan,
    snapshot: Snapshot,
    guard: SelfActionGuard | None,
    batches: Mapping[str, int],
) -> Refusal | None:
    """What a costly plan of nobody's still waits for."""
    if guard is None or not ask.apply or ask.trigger not in BY_ITSELF or not disposed.moves:
        return None
    if ask.trigger == CONTINUATION:  # the first part of it was agreed on
        return None
    total = sum(stage.n for stage in snapshot.workload.placeable)
    cost = disposed.gate.cost if disposed.gate else 0.0
    return guard.agreement(snapshot.application, disposed.moves, cost, total, ask.at, batches)


def _asked(ask: DecisionRequest) -> list[str]:
    if not ask.reason:
        return []
    return [f"asked by {ask.user}: {ask.reason}" if ask.user else f"because {ask.reason}"]


def _price(disposed: ReviewedPlan, snapshot: Snapshot) -> MigrationPrice | None:
    price, rates = disposed.cost, disposed.rates
    if price is None:
        return None
    before = {query: snapshot.batch_seconds.get(query, 0.0) for query in price.peak}
    saved = {query: disposed.batch_time_before[query] - disposed.batch_time_after[query] for query in before}
    return MigrationPrice(
        steps=len(price.added),
        bytes=price.bytes,
        pause=price.pause,
        seconds=price.seconds,
        total=price.total,
        batch_before=before,
        peak=price.peak,
        # A path that shrinks by more than a batch lasts is no prediction of it.
        batch_after={query: seconds - saved[query] for query, seconds in before.items() if seconds > saved[query]},
        overhead=rates.overhead,
        load_rate=rates.load_rate,
        moves=rates.moves,
        recent_batches={query: snapshot.usual[query] for query in before if query in snapshot.usual},
    )


def _wanted(
    ask: DecisionRequest, snapshot: Snapshot, settings: Settings, wish: RequestedPlacement | None
) -> tuple[str, Placement, tuple[str, ...]]:
    """Whose placement is wanted, which one, and what is to be said about it.

    A drain's policy may find no room where another one does: what has to leave is not left for that.
    """
    if wish is not None:
        return "rollback" if wish.undoes else SAVED_PLAN, wish.placement, wish.notes
    drain = ask.trigger == DRAIN
    said: list[str] = []

    def proposed(policy: str) -> Proposal:
        parameters = parameters_for(policy, settings, drain=drain)
        return propose(policy, snapshot.cluster, snapshot.workload, snapshot.placement, parameters)

    try:
        proposal = proposed(ask.policy)
    except ScaleOutError as error:
        other = settings.reschedule.policy
        if not drain or other == ask.policy:
            raise
        proposal = proposed(other)
        said.append(f"{other} decides instead of {ask.policy}, which finds no room: {error}")
    wanted = _only_leaving(snapshot, proposal.placement) if drain else proposal.placement
    return proposal.policy, wanted, (*said, *proposal.notes)


def _only_leaving(snapshot: Snapshot, wanted: Placement) -> Placement:
    """A drain moves what has to leave and nothing else: the rest has its own time and its gate."""
    available = snapshot.cluster.available
    return Placement(
        {
            key: np.where((now == UNPLACED) | ~available[now], wanted[key], now)
            for key, now in snapshot.placement.assignments.items()
        }
    )


def _empty(
    ask: DecisionRequest, outcome: str, code: str, sentence: str, refusals: list[Refusal] | None = None
) -> Decision:
    return Decision(
        decision=ask.decision,
        at=ask.at,
        trigger=ask.trigger,
        user=ask.user,
        policy=ask.policy,
        outcome=outcome,
        reason=code,
        sentence=sentence,
        refusals=refusals or [],
        notes=_asked(ask),
        operator_reason=ask.reason,
        pending_plan=ask.pending,
    )


def _outcome(ask: DecisionRequest, disposed: ReviewedPlan) -> str:
    if disposed.code == PlanResult.OK:
        return "applied" if ask.apply else "planned"
    return "planned" if disposed.code == PlanResult.NOTHING_TO_DO else "refused"


def _sentence(ask: DecisionRequest, disposed: ReviewedPlan, refusal: Refusal | None) -> str:
    if refusal is not None:
        return f"{refusal.detail}; would move {disposed.sentence}"
    if disposed.code == PlanResult.OK:
        return f"{'moving' if ask.apply else 'would move'} {disposed.sentence}"
    return disposed.sentence


def _loads(snapshot: Snapshot, disposed: ReviewedPlan) -> list[ExecutorLoad]:
    cluster, before, after = snapshot.cluster, disposed.queue_before, disposed.queue_after
    counts = [partitions(placement, cluster.size) for placement in (snapshot.placement, disposed.placement)]
    return [
        ExecutorLoad(
            executor=cluster.executors[index],
            node=cluster.nodes[index],
            partitions_before=int(counts[0][index]),
            partitions_after=int(counts[1][index]),
            arrival_before=float(before.arrival_rate[index]),
            arrival_after=float(after.arrival_rate[index]),
            service_before=finite(before.service_rate[index]),
            utilization_before=float(before.utilization[index]),
            utilization_after=float(after.utilization[index]),
            service_after=finite(after.service_rate[index]),
        )
        for index in range(cluster.size)
    ]


def partitions(placement: Placement, executors: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Count the partitions on each executor."""
    counts = np.zeros(executors, dtype=np.int64)
    for array in placement.assignments.values():
        counts += np.bincount(array[array >= 0], minlength=executors)
    return counts


def finite(value: float) -> float:
    """Return a number JSON can carry; 0 stands for unknown or unbounded."""
    return float(value) if math.isfinite(value) else 0.0


def stream_classes(snapshot: Snapshot) -> dict[str, int]:
    """Count the streams of each class, the largest class first; nothing where no stream is known."""
    volumes = [stream.volumes() for stream in snapshot.workload.streams]
    if not volumes:
        return {}
    classes = classify(np.concatenate(volumes)).classes
    return {kind.name.lower(): int((classes == kind).sum()) for kind in sorted(StreamClass, reverse=True)}


def _hot(snapshot: Snapshot) -> list[str]:
    return [
        f"{end_name(snapshot, stream.upstream, stream.upstream_index)} → "
        f"{end_name(snapshot, stream.downstream, stream.downstream_partition)}: "
        f"{stream.volume / 1e3:,.1f} kB/s, {'local' if stream.local else 'remote'}"
        for stream in hot_streams(snapshot.workload, snapshot.placement, snapshot.cluster, _HOT_STREAMS)
    ]


def end_name(snapshot: Snapshot, stage: str, entry: int) -> str:
    """Name one end of a stream: a stage with its partition, or with the executor where it has none that are placed."""
    query, _, position = stage.rpartition("/")
    known = snapshot.queries.get(query)
    name = f"{query_name(query, known.name if known else '')}/{position}"
    where = f"partition {entry}" if stage in snapshot.stages else f"on executor {snapshot.cluster.executors[entry]}"
    return f"{name} {where}"
