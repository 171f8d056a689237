"""Figures of a run, as for autoscalers: reaction to events, regret, own mistakes. Pure.

A batch counts in the phase in which it ends, and from the end of the query's batch before: so the time in which a query
is restarted is its batch's. The best is computed, not run: the optimum for the known loads on the executors of the
phase, with what tasks and batches took beside their rows in the way of the same script in which they took least.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.live.service.cases import Case
from benchmarks.live.service.results import BatchLine, DecisionLine
from benchmarks.live.service.truth import PATIENCE, Goal, goals, optimum
from benchmarks.policies.optimum import optimal_seconds
from benchmarks.unattended.results import OBSERVED, MoveLine, Run
from benchmarks.unattended.script import DRAINED, DRIFT, JOINED, SLOWED, SPIKE, START, STEADY, STOPPED, Phase, Script
from rechannel.wire.codes import DecisionResult, Law, OutcomeVerdict, Trigger

GAP = 0.006  # of the best placement, as a share: with a smaller one, a program is not solved in `PATIENCE`
_POLLED = 0.5  # seconds by which an executor may be seen late
_SAME = 0.1  # seconds: a batch that ends so soon after an event was not struck by it
LATE = 2.0  # times the best batch: rows of a longer one are late
SOON, SOON_BATCHES = 10.0, 3  # seconds, or usual batches where these take longer: a reaction within them is in time
LEAST_GAIN = 0.10  # share: where the best placement gains less, no reaction is due
_UNPROMPTED = frozenset({Trigger.TIMEOUT, Trigger.CONTINUATION, Trigger.ROLLBACK})  # no event leads to these
_IN_PLACE = frozenset({DRIFT, SPIKE, SLOWED, STOPPED})  # events that leave the placement as it is


class Best(NamedTuple):
    """The best possible batch of a phase: its seconds, those of the work of its busiest executor, those beside a task.

    The last ones, ``overhead``, are those of a task beside its rows, and are in the other two.
    """

    batch: float
    load: float
    overhead: float


class PhaseFigures(msgspec.Struct, kw_only=True):
    """Figures of one phase; seconds, None where there is nothing to measure.

    ``to_gain``: share by which the best placement shortens the work of the busiest executor as the event found it, None
    where the event changes the placement; ``reacted``: from the event to the first move of the link's own or decision
    that the event may have led to; ``limit``: what is in time for that; ``first_move``: to the first move begun in the
    phase; ``settled``: to the last landing of these. ``migrations``: of the controller; ``spreads``: sets of the link's
    own moves. ``stretch``: mean batch of the second half; ``longest``: the longest batch over the stretch of the phase
    before. ``worked``: of all batches, shared by the queries, which run at the same time; ``regret``: of these, over
    the ``best`` ones; ``cost``: of those with moves under way, over the stretch of the phase before. ``late``: share of
    the rows whose batch takes more than ``LATE`` times the best one.
    """

    kind: str
    seconds: float
    batches: int
    to_gain: float | None
    reacted: float | None
    limit: float | None
    first_move: float | None
    settled: float | None
    migrations: int
    spreads: int
    moves: int
    longest: float
    stretch: float
    best: float
    worked: float
    regret: float
    cost: float
    late: float

    @property
    def asks(self) -> bool:
        """Whether a reaction is due: a placement that is worth it exists, or partitions have no place."""
        return self.to_gain is None or self.to_gain >= LEAST_GAIN

    @property
    def in_time(self) -> bool:
        """Whether there was a reaction within the limit."""
        return self.reacted is not None and self.limit is not None and self.reacted <= self.limit


class RunFigures(msgspec.Struct, kw_only=True):
    """Figures of one run.

    Those over several phases leave out the drain, which Spark as it is does not have. ``worked``, ``regret``: seconds;
    ``over_best``: seconds of all batches over those of the best ones. ``needless``: moves in steady phases, ``cost``:
    seconds that these took; ``late``: mean over the phases; ``regressed`` and ``rolled_back``: migrations.
    """

    phases: list[PhaseFigures]
    worked: float
    regret: float
    over_best: float
    needless: int
    cost: float
    late: float
    regressed: int
    rolled_back: int

    @property
    def events(self) -> list[PhaseFigures]:
        """Phases whose event has a limit."""
        return [phase for phase in self.phases if phase.limit is not None and phase.kind != DRAINED]


def best_batches(script: Script, runs: Sequence[Run]) -> list[Best]:
    """Return the best possible batch in each phase; ``runs``: of the script, in all ways."""
    overhead, beside = (
        min((getattr(run, name) for run in runs if not run.error), default=0.0) for name in ("task_overhead", "beside")
    )
    loads = [best_load(script, phase, overhead) for phase in script.phases]
    # Of several queries, the tasks of one run while another one is planned: executors need not rest.
    return [
        Best(load + (beside if len(phase.queries) == 1 else 0.0), load, overhead)
        for load, phase in zip(loads, script.phases, strict=True)
    ]


def best_load(script: Script, phase: Phase, overhead: float) -> float:
    """Return the least seconds of work of the busiest executor; ``overhead``: seconds of a task beside its rows."""
    case = script.case_at(phase)
    goal = goal_of(case, overhead, [[0] * query.partitions for query in case.queries], len(phase.speeds))
    return _least_load(tuple(sorted(goal.seconds.tolist(), reverse=True)), goal.cores, tuple(phase.speeds))


@functools.cache  # phases often have the same loads, or a drift permuted them, and solving takes seconds
def _least_load(seconds: tuple[float, ...], cores: int, speeds: tuple[float, ...]) -> float:
    """Return the least seconds of the busiest executor for loads in descending order."""
    work = np.array(seconds)
    if len(set(speeds)) == 1:
        home = np.zeros(len(seconds), dtype=np.int64)
        return optimum(Goal(("all",), work, home, len(speeds), cores), GAP).seconds
    return optimal_seconds(work, np.array(speeds), PATIENCE, GAP)[0]  # a slow node's overhead is taken for slow too


def goal_of(case: Case, overhead: float, homes: Sequence[Sequence[int]], executors: int) -> Goal:
    """Return the partitions of all queries of a case; ``homes``: number of the executor of each, by query."""
    seconds = [[work + overhead for work in query] for query in case.slept()]
    (goal,) = goals([query.name for query in case.queries], seconds, homes, (executors, case.cores), together=True)
    return goal


def run_figures(run: Run, best: Sequence[Best]) -> RunFigures:
    """Return the figures of a run; ``best``: of each phase."""
    phases: list[PhaseFigures] = []
    run = msgspec.structs.replace(run, batches=_back_to_back(run.batches))
    begins = [phase.at for phase in run.phases]
    for number, span in enumerate(zip(begins, [*begins[1:], run.ended], strict=True)):
        before = phases[-1].stretch if phases else math.nan
        phases.append(_phase_figures(run, number, span, before, best[number]))
    shared = [phase for phase in phases if phase.kind != DRAINED]
    steady = [phase for phase in shared if phase.kind == STEADY]
    worked, regret = (sum(getattr(phase, name) for phase in shared) for name in ("worked", "regret"))
    return RunFigures(
        phases=phases,
        worked=worked,
        regret=regret,
        over_best=_ratio(worked, worked - regret),
        needless=sum(phase.moves for phase in steady),
        cost=sum(phase.cost for phase in steady),
        late=statistics.fmean(phase.late for phase in shared if phase.batches),
        regressed=sum(line.verdict == OutcomeVerdict.REGRESSED for line in run.decisions),
        rolled_back=sum(bool(line.rollback_of) and line.moves > 0 for line in run.decisions),
    )


def _back_to_back(batches: Sequence[BatchLine]) -> list[BatchLine]:
    """Return the batches, each from the end of its query's batch before; the first of a query as it is."""
    result: list[BatchLine] = []
    ends: dict[str, float] = {}  # by query
    for line in sorted(batches, key=lambda line: line.end):
        begin = ends.get(line.query, line.begin)
        result.append(BatchLine(line.query, line.batch, begin, line.end - begin))
        ends[line.query] = line.end
    return result


def _phase_figures(run: Run, number: int, span: tuple[float, float], before: float, best: Best) -> PhaseFigures:
    """Return the figures of one phase.

    Parameters
    ----------
    run, number
        The run, and the number of the phase.
    span
        Begin and end of the phase.
    before
        Mean batch of the stretch before, NaN without one.
    best
        The best batch.
    """
    (begin, end), event = span, _event_time(run, number)
    phase = run.script.phases[number]
    kind, queries = phase.kind, len(phase.queries)
    rows = {query.name: sum(query.rows) for query in run.script.case.queries}
    batches = [line for line in run.batches if begin + _SAME < line.end <= end + _SAME]
    half = [line.seconds for line in batches if line.begin >= (begin + end) / 2]
    moves = [move for move in run.moves if begin <= move.begun < end]
    landings = [move.ended for move in moves if move.landed]
    worked = sum(line.seconds for line in batches) / queries
    moving = [line.seconds - before for line in batches if _overlaps(line, moves)]
    return PhaseFigures(
        kind=kind,
        seconds=end - begin,
        batches=len(batches),
        to_gain=_to_gain(run, number, best),
        reacted=_reacted(run, kind, event, span),
        limit=_limit(run, number),
        first_move=max(0.0, min(move.begun for move in moves) - event) if moves else None,
        settled=max(0.0, max(landings) - event) if landings else None,
        migrations=len({move.decision for move in moves if not move.by_link}),
        spreads=len({move.decision for move in moves if move.by_link}),
        moves=len(moves),
        longest=_ratio(max((line.seconds for line in batches), default=math.nan), before),
        stretch=statistics.fmean(half) if half else math.nan,
        best=best.batch,
        worked=worked,
        regret=worked - best.batch * len(batches) / queries,
        cost=sum(moving) / queries,
        late=_ratio(
            sum(rows[line.query] for line in batches if line.seconds > LATE * best.batch),
            sum(rows[line.query] for line in batches),
        ),
    )


def _event_time(run: Run, number: int) -> float:
    """Return the time from which a reaction counts.

    It is the phase's begin, except where a node joins, whose executor comes later, and where one becomes slow: each
    query's rows take longer from a batch of its own on, and the last of these batches counts.
    """
    phase, record = run.script.phases[number], run.phases[number]
    if phase.kind == JOINED:
        return record.came or record.at
    if phase.kind != SLOWED:
        return record.at
    begun = {query.name: query.begun for query in run.script.case.queries if query.name in phase.queries}
    first: dict[str, float] = {}  # by query
    for line in run.batches:
        if line.query in begun and line.batch + begun[line.query] >= phase.batch:
            first.setdefault(line.query, line.begin)
    return max([record.at, *first.values()])


def _to_gain(run: Run, number: int, best: Best) -> float | None:
    """Return the share of the busiest executor's work that the best placement saves on the one at the event.

    None where the event changes the placement, or that was not complete.
    """
    phase = run.script.phases[number]
    if phase.kind not in _IN_PLACE or not run.phases[number - 1].placement:
        return None
    placed = zip(run.script.phases[number - 1].queries, run.phases[number - 1].placement, strict=True)
    homes = [own for query, own in placed if query in phase.queries]
    goal = goal_of(run.script.case_at(phase), best.overhead, homes, len(phase.speeds))
    busiest = max(load / speed for load, speed in zip(goal.loads(), phase.speeds, strict=True))
    return max(0.0, 1 - best.load / busiest)


def _reacted(run: Run, kind: str, event: float, span: tuple[float, float]) -> float | None:
    """Return the seconds until the first reaction; None in a steady phase, and where Rechannel only observes.

    What happens before the executor of a node that joins is there is none, but any slow batch may be reacted to.
    """
    if kind == STEADY or run.way in OBSERVED:
        return None
    times = [line.at for line in run.decisions if line.trigger not in _UNPROMPTED and _is_answer(line)]
    times += [move.begun for move in run.moves if move.by_link]
    since = event - _POLLED if kind == JOINED else span[0]
    return min((max(0.0, at - event) for at in times if since <= at < span[1]), default=None)


def _is_answer(line: DecisionLine) -> bool:
    """Whether a decision got as far as a plan, or as the gate that refused it."""
    return line.outcome in {DecisionResult.APPLIED, DecisionResult.PLANNED} or line.reason == Law.GATE


def _limit(run: Run, number: int) -> float | None:
    """Return the seconds in which a reaction is in time, by the affected queries' batches of the phase before.

    There is none of the start, which has no phase before it, and none of a steady phase.
    """
    phase = run.script.phases[number]
    if phase.kind in {START, STEADY}:
        return None
    begin, end = run.phases[number - 1].at, run.phases[number].at
    affected = phase.queries[:1] if phase.kind in {DRIFT, SPIKE} else phase.queries
    usual = [line.seconds for line in run.batches if line.query in affected and begin < line.end <= end]
    return max(SOON, SOON_BATCHES * statistics.median(usual)) if usual else SOON


def _overlaps(line: BatchLine, moves: Sequence[MoveLine]) -> bool:
    return any(move.begun < line.end and line.begin < max(move.ended, move.begun) for move in moves)


def _ratio(value: float, base: float) -> float:
    return value / base if base else math.nan
