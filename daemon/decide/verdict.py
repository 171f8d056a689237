"""Verdict on a migration: its batches, compared with the prediction.

Pure. A batch in which a partition landed belongs to the migration. Those after a query's last landing are settled; the
median of the first few of them is compared with the predicted batch. Load times are those of single tasks: the first
one on the target, compared with the partition's usual task there for as many rows. What a cold start of the
target was predicted to add is taken away.

A migration has *regressed* if a settled batch is longer than predicted by more than a quarter,
longer than before by more than a tenth (smaller differences are noise), and would be shorter by as much
without the moves. The last is what the replay says of the present load under the earlier placement: batches may have
become longer for another reason, which a rollback would not cure. It does not count where the replay does not explain
the present batches. A migration that landed only in part is not compared with its prediction. A query is *not judged*
if its load changed, if it was started anew, or if too few batches came; the whole migration is not if the executors
changed or an operator stopped it.

Of a migration that landed as a whole, and whose batches are not longer for another reason, each query that can be
compared has a *gain share*, which later predictions are corrected by
(:mod:`rechannel.policies.prediction.correction`). There is none if the load of any of them differs by more than a
twentieth: that would be taken for an error of the prediction.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property

from rechannel.conf.settings import Settings
from rechannel.daemon.decide.counterfactual import ratios_without_moves
from rechannel.daemon.model.application_messages import ApplicationMessages, batches_of
from rechannel.daemon.model.task_columns import busy_seconds
from rechannel.daemon.model.usual_batch import SAME_LOAD, UsualBatch, is_same_load, measure_usual_batch, usual_batches
from rechannel.policies.prediction.correction import realized_gain_share
from rechannel.wire.codes import MoveReason, MoveState, OutcomeVerdict
from rechannel.wire.measurements import BatchReport, TaskRow
from rechannel.wire.messages import Decision, MigrationOutcome, MoveTransition
from rechannel.wire.printable import query_name, with_noun

_LEARNED_LOAD = 0.05  # share by which rows may differ where a prediction is to be learned from
_NOISE = 0.10  # share by which the median of a few batches differs without a reason
_REGRESSION = 0.25  # share by which a batch is longer than predicted: predictions are that exact
OUTCOME_PATIENCE = 600.0  # seconds after the last landing in which enough batches and the journal's lines have to come

Verdict = tuple[OutcomeVerdict, str]  # with the reason in words


def measure_outcome(
    decision: Decision,
    journal: Sequence[MoveTransition],
    messages: ApplicationMessages,
    settings: Settings,
    now: float,
    *,
    patient: bool = True,
) -> MigrationOutcome | None:
    """Return the outcome of a migration, or None while its queries have not settled.

    ``journal`` may have moves of other decisions too. Without ``patient`` it does not wait at all, should the landings
    lie in the future: their times are of the driver's clock.
    """
    runs = {query.query: query.run for query in messages.report.queries if query.active}
    lines = [line for line in journal if line.decision == decision.decision]
    landings = {line.move: line for line in lines if line.after == MoveState.DRAINED}
    abandoned = {line.move: line for line in lines if line.after == MoveState.ABANDONED and line.move not in landings}
    need = settings.migration.settle_batches
    names = sorted({line.query for line in landings.values()})
    queries = [_Query(name, decision, list(landings.values()), messages.batches, runs, need) for name in names]
    last = max((line.at for line in landings.values()), default=decision.at)
    incomplete = len(landings) + len(abandoned) < len(decision.moves)  # released while idle, or lines are to come
    if (incomplete or any(query.short for query in queries)) and patient and now - last < OUTCOME_PATIENCE:
        return None
    executors = {info.executor for info in messages.report.executors}
    if not landings:
        verdict, why = OutcomeVerdict.NOT_JUDGED, "no partition landed"
    elif any(line.reason == MoveReason.SUPERSEDED for line in abandoned.values()):
        verdict, why = OutcomeVerdict.NOT_JUDGED, "it was ended before all had landed"
    elif {load.executor for load in decision.executors} != executors:
        verdict, why = OutcomeVerdict.NOT_JUDGED, "the executors changed meanwhile"
    else:
        longer, why = _longer_queries(decision, queries, whole=not abandoned)
        verdict = OutcomeVerdict.NOT_JUDGED if why else OutcomeVerdict.CONFIRMED
        if longer:
            moving = [batch for query in queries for batch in query.moving if batch.start > 0]
            without = ratios_without_moves(decision, messages, settings, moving, now)
            verdict, why = _judge(longer, without)
    # Nothing else made batches longer:
    moved_alone = verdict == OutcomeVerdict.REGRESSED or (verdict == OutcomeVerdict.CONFIRMED and not why)
    whole = len(landings) == len(decision.moves)
    # Both by the driver's clock: the controller's may differ.
    total = last - min(line.at for line in lines) if landings else 0.0
    return MigrationOutcome(
        decision=decision.decision,
        at=now,
        landed=len(landings),
        abandoned=len(abandoned),
        total=total,
        batch_before={query.name: query.usual for query in queries if query.usual > 0},
        peak={query.name: query.peak for query in queries if query.peak > 0},
        batch_after={query.name: query.after for query in queries if query.settled},
        loads=[load for query in queries for load in query.loads()],
        verdict=verdict,
        sentence=_sentence(decision, (verdict, why), len(landings), total, queries),
        predicted=decision.migration_cost,
        gain_shares=_gain_shares(decision, queries) if moved_alone and whole else {},
    )


class _Query:
    """One query's batches: those in which partitions landed, and the settled ones."""

    def __init__(
        self,
        name: str,
        decision: Decision,
        landings: Sequence[MoveTransition],
        batches: Sequence[BatchReport],
        runs: Mapping[str, str],
        need: int,
    ) -> None:
        self.name = name
        self.shown = query_name(name, decision.names.get(name, ""))
        self._need = need
        self._same_run = runs.get(name, "") == decision.runs.get(name, "")
        self._sizes = {move.move: move.bytes for move in decision.moves}
        self._landings = [line for line in landings if line.query == name]
        landed_in = {line.batch for line in self._landings}
        self._last = max(landed_in)
        self.moving = [batch for batch in batches if batch.query == name and batch.batch in landed_in]
        settled = [batch for batch in batches_of(batches, name) if batch.batch > self._last]
        self._next = min((it.batch for it in batches if it.query == name and it.batch > self._last), default=-1)
        self.settled = settled[:need] if self._same_run else []
        cost = decision.migration_cost
        self._cold = cost.cold if cost else {}
        self.usual, _ = cost.recent_batches.get(name, (0.0, 0.0)) if cost else (0.0, 0.0)
        self._usual_before = usual_batches(decision).get(name, UsualBatch(0.0))
        self._batches = batches

    @cached_property
    def _usual_after(self) -> UsualBatch:
        return measure_usual_batch(self.name, self._batches, {batch.batch for batch in self.settled})

    @property
    def short(self) -> bool:
        """Whether more settled batches are needed."""
        return self._same_run and len(self.settled) < self._need

    @property
    def peak(self) -> float:
        """Seconds of the longest batch in which a partition landed, 0 if none was seen."""
        return max((batch.seconds for batch in self.moving), default=0.0)

    @property
    def after(self) -> float:
        """Median seconds of the first settled batches."""
        return float(statistics.median(batch.seconds for batch in self.settled)) if self.settled else 0.0

    def incomparable_because(self) -> str:
        """Return why its batches cannot be compared; "" if they can."""
        if not self._same_run:
            return f"{self.shown} has ended or was started again meanwhile"
        if self.short:
            return f"{self.shown} had {with_noun(len(self.settled), 'batch')} since, {self._need} are needed"
        if self.usual <= 0 or self._next > self._last + self._need:
            return f"the batches of {self.shown} from around the migration are not known any more"
        rows, before = self._usual_after.rows, self._usual_before.rows
        if not self.has_same_load():
            return f"the rows of a batch of {self.shown} changed meanwhile: {before:,.0f} → {rows:,.0f}"
        return ""

    def has_same_load(self, tolerance: float = SAME_LOAD) -> bool:
        """Return whether its rows differ from those before by a share at most."""
        return is_same_load(self._usual_after, self._usual_before, tolerance)

    def loads(self) -> list[tuple[float, float]]:
        """Return bytes and added seconds of each measured landing, without cold starts."""
        loads = []
        settled = [_tasks(batch) for batch in self.settled]
        moving = {batch.batch: _tasks(batch) for batch in self.moving}
        for line in self._landings:
            unit = line.stage, line.partition
            first = moving.get(line.batch, {}).get(unit)
            later = [task for batch in settled if (task := batch.get(unit)) and task.executor == line.target]
            if first is None or first.executor != line.target or not later:
                continue
            rows = statistics.median(task.rows_in for task in later)
            usual = statistics.median(busy_seconds(task) for task in later)
            more = max(1.0, first.rows_in / rows) if rows > 0 else 1.0
            added = busy_seconds(first) - usual * more
            loads.append((self._sizes.get(line.move, 0.0), added - self._cold.get(line.target, 0.0)))
        return loads


def _tasks(batch: BatchReport) -> dict[tuple[int, int], TaskRow]:
    rows = ((run.stateful_stage, task) for run in batch.stages if run.stateful_stage >= 0 for task in run.tasks)
    return {(stage, task.partition): task for stage, task in sorted(rows, key=lambda item: item[1].finish)}


def _longer_queries(decision: Decision, queries: Sequence[_Query], *, whole: bool) -> tuple[dict[_Query, float], str]:
    """Return queries whose batches are longer than before and than expected.

    With the expected seconds of each; where no query can be compared, the reason follows.
    """
    reasons = {query.name: reason for query in queries if (reason := query.incomparable_because())}
    comparable = [query for query in queries if query.name not in reasons]
    if not comparable:
        return {}, next(iter(reasons.values()))
    predicted = decision.migration_cost.batch_after if decision.migration_cost and whole else {}
    expected = {query: predicted.get(query.name, query.usual) for query in comparable}
    longer = [it for it in comparable if it.after > max(expected[it] * (1 + _REGRESSION), it.usual * (1 + _NOISE))]
    return {query: expected[query] for query in longer}, ""


def _gain_shares(decision: Decision, queries: Sequence[_Query]) -> dict[str, float]:
    """Return the share of each query's promised gain that came true, where comparable."""
    shares: dict[str, float] = {}
    comparable = [query for query in queries if not query.incomparable_because()]
    if decision.migration_cost is None or not all(query.has_same_load(_LEARNED_LOAD) for query in comparable):
        return shares
    for query in (query for query in comparable if query.name in decision.migration_cost.batch_after):
        correction = decision.corrections.get(query.name)
        after = correction.uncorrected if correction else decision.migration_cost.batch_after[query.name]
        promised = decision.migration_cost.batch_before.get(query.name, 0.0), after
        share = realized_gain_share(promised, (query.usual, query.after))
        if share is not None:
            shares[query.name] = share
    return shares


def _judge(longer: Mapping[_Query, float], without: Mapping[str, float]) -> Verdict:
    """Judge a migration by what its longer batches would last without it.

    ``longer``: query with longer batches -> the expected seconds; ``without``: query -> its batch without the moves
    over its batch now, where that is known.
    """
    for query, expected in longer.items():
        if without.get(query.name, 0.0) <= 1 - _NOISE:
            why = f"batches of {query.shown} last {query.after / expected - 1:.0%} longer than predicted"
            return OutcomeVerdict.REGRESSED, why
    query = next(iter(longer))
    seconds = query.after * without[query.name]
    why = f"batches of {query.shown} are longer for another reason: without the moves {seconds:.2f} s"
    return OutcomeVerdict.CONFIRMED, why


def _sentence(decision: Decision, verdict: Verdict, landed: int, total: float, queries: Sequence[_Query]) -> str:
    cost = decision.migration_cost
    text = f"{landed} of {with_noun(len(decision.moves), 'move')} landed in {total:.1f} s"
    text += f" (predicted {cost.total:.1f})" if cost else ""
    for query in queries:
        if not query.settled:
            continue
        name = query.name
        text += f"; batch of {query.shown} {query.usual:.2f} → {query.after:.2f} s"
        text += f" (predicted {cost.batch_after[name]:.2f})" if cost and name in cost.batch_after else ""
        if query.peak:
            text += f", at most {query.peak:.2f} s meanwhile"
            text += f" (predicted {cost.peak[name]:.2f})" if cost and name in cost.peak else ""
    code, why = verdict
    prefix = {OutcomeVerdict.REGRESSED: "regressed: ", OutcomeVerdict.NOT_JUDGED: "not judged: "}.get(code, "")
    return f"{prefix}{why + '; ' if why else ''}{text}"
