"""Assessment of the queries of one period, by the controller's model of them."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.assess.recording import MIN_BATCHES, Period, QueryRecord, Recording
from rechannel.daemon.assess.result import ExecutorWork, PredictedBatch, QueryAssessment, Verdict
from rechannel.daemon.assess.stages import assess_stage, executor_work
from rechannel.daemon.decide.pipeline import DecisionRequest, PlanBasis, apply_laws, ask_policy
from rechannel.daemon.model.application_messages import ApplicationMessages, batches_of
from rechannel.daemon.model.prediction import batches_with_moves, warm_batches
from rechannel.daemon.model.snapshot import Snapshot, build_snapshot
from rechannel.migration.plan.gate import CERTAIN_SHARE
from rechannel.migration.plan.inputs import ReviewedPlan
from rechannel.policies.adaptive.policy import ADAPTIVE
from rechannel.policies.model.arrays import FloatArray, ModelError, ScaleOutError
from rechannel.policies.model.placement import Placement
from rechannel.policies.prediction.gain import CONFIDENCE, PredictedChange, predict_changes
from rechannel.policies.published.even import EVEN
from rechannel.policies.registry import propose
from rechannel.wire.codes import PlanResult, Trigger
from rechannel.wire.measurements import BatchReport
from rechannel.wire.messages import ExecutorInfo, LinkReport, Operator, QueryState, StatefulStage
from rechannel.wire.printable import query_name, with_noun

_STORE = [Operator(operator=0, name="", stores=["default"])]  # a log names no store, and a move here needs none
_SHORTEST_INTERVAL, _TICK = 0.5, 0.1  # seconds of a trigger, and by which a batch begins after its tick at most
_PUNCTUAL = 0.8  # share of the batches that begin at a tick


@dataclass(frozen=True, eq=False)
class AssessedPeriod:
    """A period, and its queries' assessments."""

    period: Period
    queries: Mapping[str, QueryAssessment]


def assess_period(period: Period, recording: Recording, settings: Settings) -> AssessedPeriod:
    """Assess all queries of a period together, as they share its executors."""
    work = _PeriodWork(period, recording, settings)
    try:
        return AssessedPeriod(period, {query: work.assess(query) for query in work.batches})
    except (ModelError, ScaleOutError, ArithmeticError) as error:
        reason = f"its figures describe no possible application: {error}"
        return AssessedPeriod(period, {query: work.refuse(query, reason) for query in work.batches})


@dataclass(frozen=True, eq=False)
class _Placements:
    """Placements now, even, and best by the review of the default policy's."""

    now: Placement
    even: Placement
    best: Placement
    review: ReviewedPlan


class _PeriodWork:
    """Batches of a period, and what the model makes of them."""

    def __init__(self, period: Period, recording: Recording, settings: Settings) -> None:
        self.period, self._records, self._properties = period, recording.queries, recording.properties
        slots = _positive(self._properties.get("spark.task.cpus", ""))
        self._executors = [
            ExecutorInfo(executor=it.executor, host=it.host, cores=max(1, it.cores // slots), added=it.added)
            for it in period.executors.values()
        ]
        self.batches = {query: _select(batches) for query, batches in period.batches.items()}
        self._moved = {query: len(batches_with_moves(batches)) for query, batches in self.batches.items()}
        self._states = {query: self._state(self._records[query], batches) for query, batches in self.batches.items()}
        self._settings = self._all_batches(settings)

    def assess(self, query: str) -> QueryAssessment:
        """Return the assessment of a query."""
        reason = self._obstacle(query)
        if reason:
            return self.refuse(query, reason)
        residual = self._snapshot.residuals.get(query)
        if residual is None:
            return self.refuse(query, "its batches have no duration")
        measured = self._snapshot.measured[query]
        gate = self._settings.gate
        if not residual.within(gate.max_residual):
            seconds = float(measured.mean())
            reason = (
                f"the model does not explain its batches: measured {seconds:.2f} s, replayed "
                f"{seconds * (1 + residual.share):.2f} s; something else than its own work decides how long they last"
            )
            return msgspec.structs.replace(self.refuse(query, reason), residual=residual.share)
        return self._judge(query, measured)

    def refuse(self, query: str, reason: str) -> QueryAssessment:
        """Return the assessment of a query that cannot be assessed."""
        return self._result(query, Verdict.NOT_ASSESSABLE, f"not assessable: {reason}")

    def _result(self, query: str, verdict: Verdict, sentence: str) -> QueryAssessment:
        """Return an assessment without figures of placements."""
        batches = self.batches[query]
        return QueryAssessment(
            query=query,
            name=query_name(query, self._records[query].name),
            verdict=verdict,
            sentence=sentence,
            batches=len(batches),
            since=batches[0].start,
            until=batches[-1].end,
            seconds=statistics.fmean(batch.seconds for batch in batches),
            notes=self._notes(query),
        )

    def _judge(self, query: str, measured: FloatArray) -> QueryAssessment:
        snapshot, at = self._snapshot, self._placements
        cluster, keys = snapshot.cluster, [key for key, (owner, _) in snapshot.stage_ids.items() if owner == query]
        stages = [snapshot.prediction.workload.stage(key) for key in keys]
        figures = [
            assess_stage(cluster, stage, snapshot.stage_ids[stage.key][1], at.now[stage.key], at.best[stage.key])
            for stage in stages
        ]
        seconds, lost = float(measured.mean()), sum(max(0.0, it.busiest - it.even_share) for it in figures)
        lost = min(lost, seconds)
        now, even, best = (executor_work(cluster, stages, placement) for placement in (at.now, at.even, at.best))
        mean = sum(it.even_share for it in figures)
        predicted = self._best(query, seconds)
        base = self._result(query, *self._verdict(predicted))
        return msgspec.structs.replace(
            base,
            seconds=seconds,
            unevenness=sum(it.unevenness * it.even_share for it in figures) / mean if mean > 0 else 1.0,
            lost=lost,
            lost_share=lost / seconds,
            residual=snapshot.residuals[query].share,
            even=self._even(query, seconds),
            best=predicted,
            stages=figures,
            notes=[*base.notes, *(f"executor {it} is {slow.sentence}" for it, slow in snapshot.slow.items())],
            executors=[
                ExecutorWork(executor=name, host=host, now=float(a), even=float(b), best=float(c))
                for name, host, a, b, c in zip(cluster.executors, cluster.nodes, now, even, best, strict=True)
            ],
        )

    def _verdict(self, best: PredictedBatch) -> tuple[Verdict, str]:
        least, review = self._settings.gate.min_gain, self._placements.review
        moves = with_noun(best.moves, "move")
        if best.moves == 0:
            return Verdict.NO, "no: no better placement was found"
        if best.saved < least:
            most = f"{max(0.0, best.saved):.0%}"
            return (
                Verdict.NO,
                f"no: {most} shorter batches at best, by {moves}; less than {least:.0%} is not worth moving",
            )
        if best.least < CERTAIN_SHARE * least:
            wide = f"only {best.least:.0%} is certain" if best.least > 0 else "no gain is certain"
            return Verdict.UNCLEAR, f"unclear: {best.saved:.0%} shorter batches by {moves} are predicted, but {wide}"
        if review.code != PlanResult.OK:
            return Verdict.NO, f"no: {best.saved:.0%} shorter batches by {moves} are predicted, but {review.sentence}"
        return Verdict.YES, f"yes: {best.saved:.0%} shorter batches by {moves}, at least {best.least:.0%}"

    def _best(self, query: str, seconds: float) -> PredictedBatch:
        review, at = self._placements.review, self._placements
        before = max(review.batch_time_before[query], 1e-9)
        saved, error = 1.0 - review.batch_time_after[query] / before, review.batch_error[query] / before
        return self._predicted(query, seconds, at.best, (saved, saved - CONFIDENCE * error))

    def _even(self, query: str, seconds: float) -> PredictedBatch:
        change = self._even_changes[query]
        return self._predicted(query, seconds, self._placements.even, (1.0 - change.ratio, change.least_gain))

    def _predicted(
        self, query: str, seconds: float, placement: Placement, saved: tuple[float, float]
    ) -> PredictedBatch:
        moves = placement.moves_from(self._placements.now)
        own = sum(self._snapshot.stage_ids[move.stage][0] == query for move in moves)
        return PredictedBatch(seconds=seconds * (1.0 - saved[0]), saved=saved[0], least=saved[1], moves=own)

    @cached_property
    def _even_changes(self) -> Mapping[str, PredictedChange]:
        return predict_changes(self._snapshot.prediction, self._placements.now, self._placements.even)

    @cached_property
    def _messages(self) -> ApplicationMessages:
        now = max(batches[-1].end for batches in self.batches.values())
        report = LinkReport(
            name="",
            spark_version="",
            attached=0.0,
            executors=self._executors,
            queries=list(self._states.values()),
            moves=[],
            environment={"spark.scheduler.mode": self._properties.get("spark.scheduler.mode", "FIFO")},
        )
        batches = tuple(batch for batches in self.batches.values() for batch in batches)
        return ApplicationMessages("", report, now, batches, {})

    @cached_property
    def _snapshot(self) -> Snapshot:
        snapshot = build_snapshot(self._messages, self._settings, self._messages.reported_at, forecast=False)
        if snapshot is None:
            raise ModelError("no stage was measured")
        return snapshot

    @cached_property
    def _placements(self) -> _Placements:
        snapshot, settings = self._snapshot, self._settings
        request = DecisionRequest("assess", self._messages.reported_at, Trigger.OPERATOR, ADAPTIVE.name)
        basis = PlanBasis(self._messages, settings)
        review = apply_laws(request, basis, snapshot, ask_policy(request, snapshot, settings, basis.rates))
        now = snapshot.placement.filled_from(review.placement)
        even = propose(EVEN.name, snapshot.cluster, snapshot.prediction.workload, now).placement
        return _Placements(now, even, review.placement, review)

    def _obstacle(self, query: str) -> str:
        """Return the reason why a query cannot be assessed, "" for none."""
        state, batches = self._states[query], self.batches[query]
        if not state.stages:
            if self._records[query].opens_state:
                return "the log has no state metrics of its tasks, so the partitions of its state are unknown"
            return "stateless: none of its stages opens a state store, and tasks without state run anywhere"
        if state.problem:
            return state.problem
        if len(self._executors) < 2:
            return "it runs in one executor, so there is nowhere to move to"
        if len(batches) < MIN_BATCHES:
            measured = f"{with_noun(len(batches), 'batch')} since {self.period.reason}"
            return f"too few batches: {measured}, {MIN_BATCHES} are needed"
        return ""

    def _state(self, record: QueryRecord, batches: Sequence[BatchReport]) -> QueryState:
        """Return what a link would report of a query."""
        ran: dict[int, dict[int, Counter[str]]] = {}
        for task, stage in ((task, run.stateful_stage) for it in batches for run in it.stages for task in run.tasks):
            if stage >= 0:
                ran.setdefault(stage, {}).setdefault(task.partition, Counter())[task.executor] += 1
        stages = [_stage(number, partitions) for number, partitions in sorted(ran.items())]
        return QueryState(
            query=record.query,
            run=record.run or record.query,
            name=record.name,
            batch=batches[-1].batch,
            active=True,
            stages=stages,
            problem=self._problem(record, stages),
            interval=trigger_interval([start for start, _, _ in record.timeline]),
            pool=record.pool,
        )

    def _problem(self, record: QueryRecord, stages: Sequence[StatefulStage]) -> str:
        sizes = {it.partitions for it in record.operators if it.partitions > 0}
        wrong = next((it for it in stages if sizes and it.partitions not in sizes), None)
        if wrong is not None:
            return (
                f"stateful stage {wrong.stage} runs {with_noun(wrong.partitions, 'task')}, but its operators have "
                f"{' or '.join(map(str, sorted(sizes)))} partitions: a coalesce behind the operator puts several of "
                "them into one task"
            )
        lost = {name for it in stages for name in it.placement} - self.period.executors.keys() - {""}
        if lost:
            return f"executor {min(lost)} ran its tasks, and the log does not have its start: its cores are unknown"
        return ""

    def _all_batches(self, settings: Settings) -> Settings:
        """Return settings by which the model averages all batches."""
        span = self._messages.reported_at - min(batches[0].start for batches in self.batches.values())
        return dataclasses.replace(
            settings,
            agent=dataclasses.replace(settings.agent, window=max(span, 1.0)),
            reschedule=dataclasses.replace(settings.reschedule, batches=MIN_BATCHES),
        )

    def _notes(self, query: str) -> list[str]:
        batches, moved = len(self.batches[query]), self._moved[query]
        notes = []
        if moved:
            notes.append(f"in {moved} of {with_noun(batches, 'batch')} Spark ran a partition elsewhere than before")
        operators = ", ".join(dict.fromkeys(it.name for it in self._records[query].operators if it.name))
        if operators:
            notes.append(f"stateful operators: {operators}")
        return notes


def trigger_interval(starts: Sequence[float]) -> float:
    """Return the interval of a query's trigger in seconds, 0 without one.

    Spark's ticks are the multiples of the interval since 1970 (``ProcessingTimeExecutor``). ``starts``: of its triggers
    in seconds since the epoch, oldest first.
    """
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    interval = round(statistics.median(gaps), 1) if len(gaps) >= MIN_BATCHES else 0.0
    if interval < _SHORTEST_INTERVAL:
        return 0.0
    # In milliseconds, as whole numbers: a start on its tick is not a little before it.
    punctual = sum(round(start * 1000) % round(interval * 1000) <= _TICK * 1000 for start in starts)
    return interval if punctual >= _PUNCTUAL * len(starts) else 0.0


def _select(batches: Sequence[BatchReport]) -> list[BatchReport]:
    """Return the newest batches of one placement, oldest first, without cold ones."""
    ordered = batches_of(batches, batches[-1].query)
    moved = batches_with_moves(ordered)
    since = max((index for index, batch in enumerate(ordered) if batch.batch in moved), default=-1) + 1
    stable = ordered[since:] if len(ordered) - since >= MIN_BATCHES else ordered
    return warm_batches(stable, MIN_BATCHES)


def _stage(number: int, partitions: Mapping[int, Counter[str]]) -> StatefulStage:
    """Return a stage with each partition where it ran most often."""
    size = 1 + max(partitions)
    placement = [partitions[it].most_common(1)[0][0] if it in partitions else "" for it in range(size)]
    return StatefulStage(stage=number, partitions=size, operators=_STORE, placement=placement)


def _positive(text: str) -> int:
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 5 else 1
