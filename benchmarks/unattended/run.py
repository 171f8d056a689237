"""One run: a script in one way on a fresh cluster; only its events are ordered."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.live.service.run import task_figures
from benchmarks.live.service.session import ServiceSession
from benchmarks.report.results import progress
from benchmarks.unattended.oracle import Oracle
from benchmarks.unattended.results import OBSERVED, ORACLE, RESTART, MoveLine, PhaseRecord, Run
from benchmarks.unattended.script import (
    DRAINED,
    DRIFT,
    JOINED,
    LOST,
    SLOWED,
    SPIKE,
    STARTED,
    STOPPED,
    Phase,
    Script,
    batch_seconds,
)
from rechannel.wire.codes import MoveState
from rechannel.wire.measurements import BatchReport, TaskRow
from rechannel.wire.messages import MoveTransition
from testbed.stack import PATIENCE, StackError

_SLOWER = 4  # times as slow as expected a run may be
_ENDS = frozenset({MoveState.DRAINED, MoveState.ABANDONED})
_BY_BATCH = frozenset({DRIFT, SPIKE, SLOWED})
_STARTED_AGAIN = 60.0  # seconds in which an executor comes


def measure(directory: Path, script: Script, way: str) -> Run:
    """Make one run and return its record; what broke it off is its ``error``."""
    run = Run(script=script, way=way)
    oracle = Oracle(script) if way == ORACLE else None
    case = msgspec.structs.replace(script.case, spread=way not in OBSERVED)
    try:
        with ServiceSession(directory, case, way) as session:
            try:
                _run(session, run, oracle)
            finally:
                run.batches = session.lines()
    except RuntimeError as error:  # a part that died, or did not do in time what was waited for
        run.error = str(error)
    return run


def phases_of(script: Script, way: str) -> list[tuple[Phase, int]]:
    """Return the phases of one way, with the batch that ends each: Spark as it is drains no node."""
    every = zip(script.phases, script.ends(), strict=True)
    return [(phase, end) for phase, end in every if not (way in OBSERVED and phase.kind == DRAINED)]


def _run(session: ServiceSession, run: Run, oracle: Oracle | None) -> None:
    script = run.script
    session.start_case(paused=False, joining=script.kinds.count(JOINED), queries=script.phases[0].queries)
    names: dict[str, str] = {}
    phases = phases_of(script, run.way)
    for phase, end in phases:
        record = PhaseRecord(at=time.time())
        run.phases.append(record)
        progress(f"{record.at - run.phases[0].at:5.0f} s: {phase.kind}, {session.case.summary()}, {run.way}")
        record.came = _strike(session, phase, run.way)
        if oracle is not None:
            oracle.react(session, phase)
        expected = (end - phase.batch) * batch_seconds(script.case_at(phase), phase)
        _await_batch(session, end, PATIENCE + _SLOWER * expected)
        if phase.kind in _BY_BATCH:
            record.at = _begin(session, phase.batch)
        record.placement = session.homes()
        names |= session.names()
        run.ended = time.time()
        run.decisions = session.decision_lines(names)
        run.moves = move_lines(session.transitions(), names)
    middle = (run.phases[-1].at + run.ended) / 2
    case = script.case_at(phases[-1][0])
    run.task_overhead, run.asleep = task_figures(case, _usual_tasks(session, names), middle, run.ended)
    run.beside = seconds_beside(session.batch_reports(), middle, run.ended)
    end_of = session.finish()
    run.audit, run.failed_attempts = end_of["audit"], end_of["failed_attempts"]
    run.exact = all(audit["ok"] for audit in run.audit.values()) and len(run.audit) == len(script.case.queries)


def _usual_tasks(session: ServiceSession, names: Mapping[str, str]) -> dict[str, list[TaskRow]]:
    """Return the stateful tasks by query, without those on a slow node, whose rows take longer."""
    slow = session.case.slow
    host = session.hosts[slow.executor] if slow else ""
    left_out = {one.executor for one in session.require_report().executors if one.host == host}
    tasks = session.tasks(names)
    return {name: [task for task in every if task.executor not in left_out] for name, every in tasks.items()}


def _strike(session: ServiceSession, phase: Phase, way: str) -> float:
    """Have the event of a phase happen, and the operator of one way react; a change of rows comes with its batch.

    Returns the time at which the executor of a node that joins is there, 0 for other events.
    """
    before, came = _executors(session), 0.0
    if phase.kind == LOST:
        if not session.cluster.kill_executor(session.hosts[phase.executor]):
            raise StackError(f"there is no executor on {session.hosts[phase.executor]}")
    elif phase.kind == JOINED:
        session.join()
    elif phase.kind in (STARTED, STOPPED):
        session.activate(phase.queries)
    elif phase.kind == DRAINED:
        session.order("drain", session.hosts[phase.executor])
    if phase.kind == JOINED or (phase.kind == LOST and way in (RESTART, ORACLE)):
        session.wait("an executor comes", lambda: _executors(session) - before, _STARTED_AGAIN, every=0.3)
        came = time.time() if phase.kind == JOINED else 0.0
        if way == RESTART:
            session.activate(phase.queries, restart=True)
    return came


def _executors(session: ServiceSession) -> set[str]:
    return {one.executor for one in session.require_report().executors}


def _await_batch(session: ServiceSession, number: int, patience: float) -> None:
    """Wait until a batch of the first query begins: the one before it is committed."""
    name = session.case.queries[0].name

    def begun() -> bool:
        return any(line["query"] == name and line["batch"] >= number - 1 for line in reversed(session.poll()))

    session.wait(f"batch {number} of {name}", begun, patience, every=0.3)


def _begin(session: ServiceSession, number: int) -> float:
    """Return the time at which a batch of the first query began."""
    name = session.case.queries[0].name
    return next(line.begin for line in session.lines() if line.query == name and line.batch == number)


def move_lines(journal: Sequence[MoveTransition], names: Mapping[str, str]) -> list[MoveLine]:
    """Return the moves of a journal in the order of their begins; ``names``: of the queries."""
    moves: dict[str, MoveLine] = {}
    for line in journal:
        query = names.get(line.query, line.query)
        new = MoveLine(line.decision, query, line.partition, line.source, line.target, line.at)
        move = moves.setdefault(line.move, new)
        if line.after in _ENDS:
            moves[line.move] = msgspec.structs.replace(move, ended=line.at, landed=line.after == MoveState.DRAINED)
    return list(moves.values())


def seconds_beside(reports: Sequence[BatchReport], begin: float, end: float) -> float:
    """Return the median seconds of a batch beside its stateful stage, of those within a time."""
    seconds: dict[tuple[str, int], float] = {}
    tasks: dict[tuple[str, int], list[TaskRow]] = {}
    for report in (report for report in reports if begin <= report.start and report.end <= end):
        batch = report.query, report.batch
        seconds[batch] = report.seconds
        stateful = (stage.tasks for stage in report.stages if stage.stateful_stage >= 0)
        tasks.setdefault(batch, []).extend(task for stage in stateful for task in stage)
    beside = [
        seconds[batch] - max(task.finish for task in own) + min(task.launch for task in own)
        for batch, own in tasks.items()
        if own
    ]
    return statistics.median(beside) if beside else 0.0
