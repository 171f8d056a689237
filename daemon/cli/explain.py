"""The command ``explain``: prints one decision with all its numbers."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import click
import msgspec

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.history import application_names
from rechannel.daemon.cli.options import format_time, unknown_name
from rechannel.daemon.cli.tables import code_meaning, cost_lines, refusal_line
from rechannel.daemon.view.wording import batch_times, format_bytes
from rechannel.wire import keys
from rechannel.wire.codes import DecisionResult, Trigger
from rechannel.wire.envelope import bodies_of
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.messages import Decision, ExecutorLoad, MigrationOutcome, MoveTransition, Refusal
from rechannel.wire.printable import partition_name, plain, query_name, with_noun
from rechannel.wire.redis.store import Store

_MOVES_SHOWN = 100


def print_explanation(settings: Settings, *, decision: str, application: str, as_json: bool) -> None:
    """Print the explanation of a decision.

    ``decision``: "" for the last one that moved or proposed something; ``application``: "" for all.
    """
    store = Store(settings.redis, settings.cluster.name)
    application, selected = _select(store, decision, application)
    outcome = _outcome(store, selected)
    states = _move_states(store, application, selected)
    if as_json:
        document = {
            "application": application,
            "decision": msgspec.to_builtins(selected),
            "outcome": msgspec.to_builtins(outcome) if outcome is not None else None,
            "reached": states,
        }
        click.echo(json.dumps(document))
        return
    for line in lines(application, selected, outcome, states):
        click.echo(plain(line))


def _select(store: Store, decision: str, application: str) -> tuple[str, Decision]:
    """Return application and decision of an id; "" for the last that proposed something."""
    decisions = [
        (envelope.application, envelope.body)
        for envelope in store.last(keys.DECISIONS, "", keys.DECISIONS.bound)
        if isinstance(envelope.body, Decision) and application in ("", envelope.application)
    ]
    if not decisions:
        names = application_names(store, time.time())
        if application and application not in names:
            raise unknown_name("application", application, names)
        raise CommandError(ExitCode.NOTHING, "nothing has been decided yet")
    if decision:
        matches = [item for item in decisions if item[1].decision == decision]
    else:  # a plan that a law refused has no moves, but the load of the executors after it
        matches = [item for item in decisions if item[1].moves or item[1].batch_time_after] or decisions
    if not matches:
        raise CommandError(ExitCode.REFUSED, f"unknown decision {decision}; `rechannel history` lists them")
    return matches[-1]


def _outcome(store: Store, decision: Decision) -> MigrationOutcome | None:
    outcomes = bodies_of(store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound), MigrationOutcome)
    return next((it for it in reversed(outcomes) if it.decision == decision.decision), None)


def _move_states(store: Store, application: str, decision: Decision) -> dict[str, str]:
    """Return the last state in the journal of each move of the decision."""
    if decision.result != DecisionResult.APPLIED or not keys.is_valid_name(application):
        return {}
    journal = bodies_of(store.last(keys.JOURNAL, application, keys.JOURNAL.bound), MoveTransition)
    return {line.move: line.after for line in journal if line.decision == decision.decision}


def lines(
    application: str, decision: Decision, outcome: MigrationOutcome | None, states: Mapping[str, str]
) -> list[str]:
    """Return the explanation of a decision.

    ``states``: move -> its last state in the journal.
    """
    cause = code_meaning(Trigger, decision.trigger)
    user = f", asked by {decision.user}" if decision.user else ""
    if decision.user and decision.trigger == Trigger.OPERATOR:
        cause, user = f"operator {decision.user} asked", ""
    result = code_meaning(DecisionResult, decision.result)
    if decision.result == DecisionResult.PLANNED:
        by_request = decision.trigger in (Trigger.OPERATOR, Trigger.DRAIN)
        reason = "a plan was asked for" if by_request else "mode observe, or all was paused"
        result += f": {reason if decision.moves else 'nothing was to be moved'}"
    options = ", forced" if decision.forced else ""
    options += f", rollback of {decision.rollback_of}" if decision.rollback_of else ""
    return [
        f"decision {decision.decision} on {application}, {format_time(decision.at)}",
        f"  trigger:   {cause}{user}{f': {decision.operator_reason}' if decision.operator_reason else ''}",
        f"  result:    {decision.result} ({decision.reason}): {result}",
        f"  in short:  {decision.sentence}",
        f"  policy:    {decision.policy}{options}",
        *_section("refusals:", _refusals(decision.refusals)),
        *_section("executors, before -> after:", _executors(decision)),
        *_section("predicted gain and cost:", _gain(decision)),
        *_moves(decision, states),
        *_section("outcome:", [f"  {outcome.verdict}: {outcome.sentence}"] if outcome is not None else []),
        *_section("notes:", [f"  {note}" for note in decision.notes]),
    ]


def _section(title: str, rows: Iterable[str]) -> list[str]:
    rows = list(rows)
    return [title, *rows] if rows else []


def _refusals(refusals: list[Refusal]) -> Iterator[str]:
    for refusal in refusals:
        yield f"  {refusal_line(refusal)}"
        if refusal.measured is not None and refusal.limit is not None:
            excess = refusal.measured - refusal.limit
            distance = f"{abs(excess):.4g} {'over' if excess > 0 else 'below'}" if excess else "just at it"
            yield f"    measured {refusal.measured:.4g}, limit {refusal.limit:.4g} {refusal.unit}: {distance}"
        if refusal.until:
            yield f"    until {format_time(refusal.until)}"


def _executors(decision: Decision) -> list[str]:
    return [
        f"  {load.executor} on {load.node}: "
        f"{load.partitions_before} -> {with_noun(load.partitions_after, 'partition')}, "
        f"{load.utilization_before:.0%} -> {load.utilization_after:.0%} busy, "
        f"{load.arrival_before:,.0f} -> {load.arrival_after:,.0f} rows/s"
        f"{_service(load)}"
        for load in decision.executors
    ]


def _service(load: ExecutorLoad) -> str:
    if not load.service_before or not load.service_after:
        return ""
    return f" of {load.service_before:,.0f} -> {load.service_after:,.0f} it can serve"


def _gain(decision: Decision) -> Iterator[str]:
    for query, (name, before, after) in zip(decision.batch_time_before, batch_times(decision), strict=True):
        yield f"  batch of {name}: {_change(before, after)}"
        if query in decision.batch_p95:
            yield f"    95th percentile: {_change(*decision.batch_p95[query])}"
    for query, share in decision.residuals.items():
        name = query_name(query, decision.names.get(query, ""))
        yield f"  the replay of the present placement differs from the measured batch of {name} by {share:+.0%}"
    if decision.gain or decision.cost:
        yield f"  gain {decision.gain:.1f} s over the horizon (gate.horizon), cost {decision.cost:.1f} s"
    if decision.migration_cost is not None:
        yield from (f"  {line}" for line in cost_lines(decision.migration_cost, decision.names))


def _change(before: float, after: float) -> str:
    return f"{before:.2f} s -> {after:.2f} s{f' ({(after - before) / before:+.0%})' if before else ''}"


def _moves(decision: Decision, states: Mapping[str, str]) -> Iterator[str]:
    if not decision.moves:
        return
    totals = ", ".join(f"{number} {state}" for state, number in sorted(Counter(states.values()).items()))
    yield f"{with_noun(len(decision.moves), 'move')}{f', by the journal {totals}' if totals else ''}:"
    for move in decision.moves[:_MOVES_SHOWN]:
        partition = partition_name(move.query, move.stage, move.partition, decision.names.get(move.query, ""))
        state = f", {states[move.move]}" if move.move in states else ""
        reason = f": {decision.move_reasons[move.move]}" if decision.move_reasons.get(move.move) else ""
        yield (
            f"  step {move.step + 1}: {partition}, executor {move.source or '?'} -> {move.target}, "
            f"{format_bytes(move.bytes)}{state}{reason}"
        )
    if len(decision.moves) > _MOVES_SHOWN:
        yield f"  ... and {len(decision.moves) - _MOVES_SHOWN} more (--json has them)"
