"""One run: start a case, measure, let Rechannel decide, measure again, audit, and compute the truth."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.live.service.cases import Case
from benchmarks.live.service.results import RunResult, Truth
from benchmarks.live.service.session import ServiceSession
from benchmarks.live.service.truth import fewest_moves, goals, optimum
from benchmarks.report.results import machine, progress
from rechannel.wire.codes import DecisionResult
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.measurements import TaskRow
from rechannel.wire.messages import Decision
from testbed.stack import StackError

SAME = 1.02  # times the load where it ended: fewer moves may lead there
_ANSWERS = (ExitCode.DONE, ExitCode.REFUSED, ExitCode.NOTHING, ExitCode.NOT_READY)  # of a request for a decision
_ATTEMPTS = 4  # to see a placement that stays while it is measured
_WARM = 75.0  # seconds from the first placement until executors have compiled most of their code
_PAUSE = 30.0  # seconds of variant "none" between before and after, as long as a migration


@dataclass(frozen=True)
class Plan:
    """Plan of a run, in batches of each query. ``request``: a rebalance is requested, no trigger awaited.

    ``patience``: seconds for a decision; the default is the controller's timeout and some.
    """

    variant: str = "adaptive"
    request: bool = False
    warm_up: int = 5
    before: int = 15
    settle: int = 2
    after: int = 15
    patience: float = 330.0


def measure(directory: Path, case: Case, plan: Plan, command: Sequence[str]) -> RunResult:
    """Make one run and return its record; what broke it off is its ``error``."""
    began = time.time()
    result = RunResult(
        command=list(command), seed=case.seed, variant=plan.variant, case=case, machine=machine(), began=began
    )
    try:
        with ServiceSession(directory, case, plan.variant) as session:
            try:
                _run(session, plan, result)
            finally:
                result.batches = session.lines()
    except RuntimeError as error:  # a part that died, or did not do in time what was waited for
        result.error = str(error)
    if result.placed_after:
        result.truth = truths(case, result.task_overhead, result.placed_before, result.placed_after)
    result.seconds = time.time() - began
    return result


def _run(session: ServiceSession, plan: Plan, result: RunResult) -> None:
    session.start_case()
    _note(result, f"placed: {session.case.summary()}")
    _pause(session, "the executors are warm", _WARM)
    session.await_each(plan.warm_up, 0.0)
    _measure_before(session, plan, result)
    session.copy_event_log()
    names = session.names()
    decision, resumed = _decide(session, plan)
    moved: dict[str, float] = {}  # what came of the moves
    if decision is not None and decision.result == DecisionResult.APPLIED and decision.moves:
        result.first = decision.decision
        _note(result, f"{len(decision.moves)} moves ({decision.trigger}): {decision.sentence}")
        moved = session.await_landed(msgspec.to_builtins(decision)) | {"settled": time.time()}
    elif decision is not None:
        _note(result, f"no move ({decision.trigger}, {decision.reason}): {decision.sentence}")
    _measure_after(session, plan, result, resumed)
    tasks = session.tasks(names)
    result.task_overhead, result.asleep = task_figures(session.case, tasks, result.before_from, result.before_until)
    result.task_overhead_after, _ = task_figures(session.case, tasks, result.after_from, result.after_until)
    _note(result, f"measured, {result.asleep:.0%} of tasks' time asleep: the audit")
    end = session.finish()
    result.audit, result.failed_attempts = end["audit"], end["failed_attempts"]
    result.assessed = session.assessed()
    result.exact = all(audit["ok"] for audit in result.audit.values()) and len(result.audit) == len(names)
    result.decisions = [
        msgspec.structs.replace(line, **moved) if line.decision == result.first else line
        for line in session.decision_lines(names)
    ]


def _note(result: RunResult, text: str) -> None:
    progress(f"{time.time() - result.began:4.0f} s: {text}")


def _pause(session: ServiceSession, what: str, seconds: float) -> None:
    """Wait for a time while the parts of the cluster are watched."""
    until = time.time() + seconds
    session.wait(what, lambda: time.time() > until, every=1.0)


def _measure_before(session: ServiceSession, plan: Plan, result: RunResult) -> None:
    """Measure batches on a placement that stays; StackError where it does not."""
    for _ in range(_ATTEMPTS):
        session.wait("no move is under way", session.at_rest, every=0.3)
        result.placed_before, result.before_from = session.homes(), time.time()
        session.await_each(plan.before, result.before_from)
        result.before_until = time.time()
        result.load_average.append(os.getloadavg()[0])
        if result.placed_before and session.homes() == result.placed_before:
            return
        _note(result, "the placement changed while it was measured: again")
    raise StackError("the placement does not stay: nothing is measured")


def _decide(session: ServiceSession, plan: Plan) -> tuple[Decision | None, float]:
    """Return the decision that came, and the time from which on one could; None where nobody decides."""
    resumed = time.time()
    if plan.variant == "none":
        _pause(session, "as long as a migration", _PAUSE)
        return None, resumed
    session.order("resume")
    while plan.request and session.order("rebalance", "--apply", answers=_ANSWERS) == ExitCode.NOT_READY:
        if time.time() > resumed + plan.patience:
            raise StackError(f"no decision is possible within {plan.patience:g} s")
        session.await_each(1, time.time())

    def decided() -> Decision | bool:
        return session.conclusive(resumed) or time.time() > resumed + plan.patience

    decision = session.wait("a decision", decided, every=0.5)
    return (decision if isinstance(decision, Decision) else None), resumed


def _measure_after(session: ServiceSession, plan: Plan, result: RunResult, resumed: float) -> None:
    """Measure batches of the placement that the first decision left, until another one moves something."""
    session.await_each(plan.settle, time.time())
    result.placed_after, result.after_from = session.homes(), time.time()
    session.await_each(plan.after, result.after_from)
    result.after_until = time.time()
    result.load_average.append(os.getloadavg()[0])
    others = [decision for decision in session.applied(resumed) if decision.decision != result.first and decision.moves]
    if others:
        result.after_until, result.cut_short = others[0].at, True
        _note(result, f"then {len(others[0].moves)} moves ({others[0].trigger}): {others[0].sentence}")


def task_figures(
    case: Case, tasks: Mapping[str, Sequence[TaskRow]], begin: float = 0.0, end: float = math.inf
) -> tuple[float, float]:
    """Return the median seconds of a stateful task beside its rows, and the share of their time that the rows take.

    Parameters
    ----------
    case, tasks
        The case, and the stateful tasks of each query.
    begin, end
        The time in which a task is to begin.
    """
    beside, slept, whole = [], 0.0, 0.0
    for query, seconds in zip(case.queries, case.slept(), strict=True):
        for task in (task for task in tasks.get(query.name, ()) if begin <= task.launch <= end):
            lasted = task.finish - task.launch
            beside.append(max(0.0, lasted - seconds[task.partition]))
            slept += min(lasted, seconds[task.partition])
            whole += lasted
    return (statistics.median(beside), slept / whole) if beside else (0.0, 0.0)


def truths(case: Case, overhead: float, before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[Truth]:
    """Return the truth of each goal: a partition takes its rows' time and a task's overhead."""
    seconds = [[work + overhead for work in query] for query in case.slept()]
    names, cluster = [query.name for query in case.queries], (case.executors, case.cores)
    first, last = (goals(names, seconds, homes, cluster, not case.triggered) for homes in (before, after))
    result = []
    for goal, end in zip(first, last, strict=True):
        best = optimum(goal)
        result.append(
            Truth(
                queries=list(goal.names),
                loads_before=goal.loads(),
                loads_after=end.loads(),
                busiest_before=goal.busiest(),
                busiest_after=end.busiest(),
                optimum=best.seconds,
                optimum_bound=best.bound,
                moves=int((goal.home != end.home).sum()),
                fewest_same=fewest_moves(goal, SAME * end.busiest(), plan=end.home).moves,
            )
        )
    return result
