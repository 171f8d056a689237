"""Reasons not to decide on an application now, and idle queries, which are left out. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rechannel.conf.settings import Settings
from rechannel.daemon.model.application_messages import ApplicationMessages, last_batches
from rechannel.daemon.model.query_model import batch_period
from rechannel.wire.codes import NotReadyReason
from rechannel.wire.measurements import BatchReport
from rechannel.wire.printable import query_name, with_noun

_LONGEST_SILENCE = 10.0  # seconds, of reports that come every second; shorter pauses are those of a busy driver
_IDLE_AFTER, _IDLE_PERIODS = 10.0, 3.0  # seconds, and usual periods, without a batch, after which a query is idle


@dataclass(frozen=True)
class NotReady:
    """Reason why nothing can be decided.

    ``transient``: waiting helps; ``ready_in``: how long, in seconds, where it can be estimated.
    """

    code: NotReadyReason
    sentence: str
    transient: bool = True
    ready_in: float | None = None


def driver_silence(reported_at: float, now: float) -> NotReady | None:
    """Return the silence of a driver, last heard at ``reported_at``, None if it reports.

    It is to be checked before anything else: executors end with their driver, and the agents' figures with them, so
    that an ended driver would look like silent agents.
    """
    age = now - reported_at
    if age <= _LONGEST_SILENCE:
        return None
    sentence = (
        f"driver last reported {age:.0f} s ago: it has ended, hangs, or does not reach Redis; all figures are that old"
    )
    return NotReady(NotReadyReason.DRIVER_SILENT, sentence)


def without_idle(messages: ApplicationMessages, settings: Settings) -> ApplicationMessages:
    """Return messages without the batches of queries that are idle while others run batches.

    Spark runs no batch of a query without input. Its old batches tell nothing of the present load, and those of the
    others are not to be explained by it. A query is idle if none of its batches runs, and the last one ended long
    before that of a query that is measured and can be moved.
    """
    need = settings.reschedule.batches
    last = {query: messages.batches_of(query)[-max(need, 2) :] for query in messages.batches_by_query}
    states = [state for state in messages.report.queries if state.active and last.get(state.query)]
    ends = {state.query: last[state.query][-1].end for state in states}
    measured = [it.query for it in states if it.stages and not it.problem and len(last[it.query]) >= need]
    newest = max((ends[query] for query in measured), default=-math.inf)

    def is_idle(query: str) -> bool:
        return newest - ends[query] > max(_IDLE_AFTER, _IDLE_PERIODS * batch_period(last[query], ends[query]))

    idle = frozenset(it.query for it in states if not it.batch_started and is_idle(it.query))
    if not idle:
        return messages
    return replace(messages, batches=tuple(it for it in messages.batches if it.query not in idle), idle=idle)


def readiness_problem(messages: ApplicationMessages, settings: Settings, now: float) -> NotReady | None:
    """Return the reason why an application cannot be decided on, without building its model."""
    if not messages.report.executors:
        return NotReady(NotReadyReason.NO_EXECUTORS, "the application has no executors")
    active = [query for query in messages.report.queries if query.active]
    if not active:
        return NotReady(NotReadyReason.NO_ACTIVE_QUERY, "no streaming query is active")
    movable = [query for query in active if not query.problem]
    if not movable:
        problems = "; ".join(f"{query_name(query.query, query.name)}: {query.problem}" for query in active)
        return NotReady(NotReadyReason.QUERY_PROBLEM, f"no query can be moved: {problems}", transient=False)
    stateful = [query for query in movable if query.stages]
    if not stateful:
        return NotReady(NotReadyReason.NO_STATE, "no active query has a known stateful stage (yet)")
    recent = {query.query: last_batches(messages, query.query, settings, now) for query in stateful}
    unmeasured = unmeasured_queries(messages, recent, settings, now)
    return unmeasured[0] if len(unmeasured) == len(stateful) else None


def unmeasured_queries(
    messages: ApplicationMessages, recent: Mapping[str, Sequence[BatchReport]], settings: Settings, now: float
) -> list[NotReady]:
    """Return a reason for each movable query with too few batches, that with the most first.

    ``recent``: query -> its batches that a decision averages.
    """
    counted = [
        (recent[query.query], query_name(query.query, query.name), query.query)
        for query in messages.report.queries
        if query.active and not query.problem and query.stages
    ]
    counted.sort(key=lambda item: (len(item[0]), item[1]), reverse=True)
    need = settings.reschedule.batches
    return [
        _idle(name) if query in messages.idle else _too_few_batches(last, name, need, now, query in messages.oversized)
        for last, name, query in counted
        if len(last) < need
    ]


def _idle(name: str) -> NotReady:
    return NotReady(NotReadyReason.TOO_FEW_BATCHES, f"query {name} is idle: it runs no batches, while others do")


def _too_few_batches(last: Sequence[BatchReport], name: str, need: int, now: float, oversized: bool) -> NotReady:
    if oversized:
        sentence = (
            f"query {name}: {with_noun(need, 'batch')} are needed (reschedule.batches), and have more tasks than the "
            "controller stores"
        )
        return NotReady(NotReadyReason.TOO_FEW_BATCHES, sentence, transient=False)
    return NotReady(
        NotReadyReason.TOO_FEW_BATCHES,
        f"query {name} has {with_noun(len(last), 'measured batch')}, {need} are needed (reschedule.batches)",
        ready_in=(need - len(last)) * batch_period(last, now) if last else None,
    )
