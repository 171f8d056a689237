"""The command ``explain``: one decision fully and plainly, whether it moved anything or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from rechannel.daemon.cli.options import (
    application_option,
    config_option,
    exit_code_on_error,
    format_time,
    json_option,
    load_settings,
)
from rechannel.wire.display_names import count, partition_name, query_name

if TYPE_CHECKING:
    from rechannel.conf.settings import Settings
    from rechannel.wire.messages import Decision, ExecutorLoad, MigrationOutcome, Refusal

_MOVES_SHOWN = 100
_TRIGGERS = {
    "timeout": "it was time (reschedule.timeout)",
    "executors": "executors joined or left, and their set was stable since (reschedule.settle)",
    "overload": "an executor or a query was overloaded (reschedule.overload_utilization, reschedule.overload_duration)",
    "continuation": "the plan before was cut to migration.max_moves, and its outcome was kept",
    "operator": "an operator asked",
    "drain": "state was to leave a node (rechannel drain)",
    "rollback": "what a decision had moved was to go back",
    "pending": "a saved plan had waited for its time",
}
_OUTCOMES = {
    "applied": "its moves were begun",
    "planned": "nothing was begun",
    "refused": "nothing was begun: a law refused",
    "not-ready": "nothing was decided: the figures were not there",
}


@click.command()
@config_option
@click.argument("decision", default="")
@application_option
@json_option
@exit_code_on_error
def explain(config: str | None, decision: str, application: str, as_json: bool) -> None:
    """Explain DECISION with all its numbers: why it was made, what it moves and why, what refused what.

    Without DECISION the last one that moved something or proposed to; the ids are those of `rechannel history`.
    """
    run(load_settings(config), decision=decision, application=application, as_json=as_json)


def run(settings: Settings, *, decision: str, application: str, as_json: bool) -> None:
    """Show the decision of this id, for "" the last that moved or proposed something; CommandError without one."""
    import json

    import msgspec

    from rechannel.wire import keys
    from rechannel.wire.exit_codes import CommandError, ExitCode
    from rechannel.wire.messages import Decision, MigrationOutcome, MoveTransition
    from rechannel.wire.printable import plain
    from rechannel.wire.redis.store import Store

    store = Store(settings.redis, settings.cluster.name)
    kept = [
        (envelope.application, envelope.body)
        for envelope in store.last(keys.DECISIONS, "", keys.DECISIONS.bound)
        if isinstance(envelope.body, Decision) and application in ("", envelope.application)
    ]
    if decision:
        found = [it for it in kept if it[1].decision == decision]
    else:  # a plan that a law refused has no moves, but the executors' load as it would have been
        found = [it for it in kept if it[1].moves or it[1].batch_time_after] or kept
    if not found:
        if not kept:
            raise CommandError(ExitCode.NOTHING, "nothing has been decided yet")
        raise CommandError(ExitCode.REFUSED, f"unknown decision {decision}; `rechannel history` lists them")
    of, made = found[-1]
    outcome = None
    for envelope in store.last(keys.OUTCOMES, "", keys.OUTCOMES.bound):
        if isinstance(envelope.body, MigrationOutcome) and envelope.body.decision == made.decision:
            outcome = envelope.body
    reached: dict[str, str] = {}
    if made.outcome == "applied" and keys.possible(of):
        for envelope in store.last(keys.JOURNAL, of, keys.JOURNAL.bound):
            if isinstance(envelope.body, MoveTransition) and envelope.body.decision == made.decision:
                reached[envelope.body.move] = envelope.body.after
    if as_json:
        document = {
            "application": of,
            "decision": msgspec.to_builtins(made),
            "outcome": msgspec.to_builtins(outcome) if outcome is not None else None,
            "reached": reached,
        }
        click.echo(json.dumps(document))
        return
    for line in lines(of, made, outcome, reached):
        click.echo(plain(line))


def lines(application: str, made: Decision, outcome: MigrationOutcome | None, reached: Mapping[str, str]) -> list[str]:
    """Return the explanation of a decision. ``reached``: move -> how far it came."""
    at = format_time(made.at)
    why = _TRIGGERS.get(made.trigger, made.trigger)
    who = f", asked by {made.user}" if made.user else ""
    if made.user and made.trigger == "operator":
        why, who = f"operator {made.user} asked", ""
    came = _OUTCOMES.get(made.outcome, made.outcome)
    if made.outcome == "planned":
        looked = "a plan was asked for" if made.trigger in ("operator", "drain") else "mode observe, or all was paused"
        came += f": {looked if made.moves else 'nothing was to be moved'}"
    how = f"{', forced' if made.forced else ''}{f', undoes {made.undoes}' if made.undoes else ''}"
    found = [
        f"decision {made.decision} on {application}, {at}",
        f"  why then:  {why}{who}{f': {made.asked}' if made.asked else ''}",
        f"  result:    {made.outcome} ({made.reason}): {came}",
        f"  in short:  {made.sentence}",
        f"  policy:    {made.policy}{how}",
    ]
    found += _refusals(made.refusals)
    found += _executors(made)
    found += _gain(made)
    found += _moves(made, reached)
    if outcome is not None:
        found += ["what came of it:", f"  {outcome.verdict}: {outcome.sentence}"]
    found += ["notes:", *(f"  {note}" for note in made.notes)] if made.notes else []
    return found


def _refusals(refusals: list[Refusal]) -> list[str]:
    found = ["what refused what:"] if refusals else []
    for refusal in refusals:
        found.append(f"  {refusal.law}, which reaches the {refusal.reach}: {refusal.detail}")
        if refusal.measured is not None and refusal.limit is not None:
            off = refusal.measured - refusal.limit
            apart = f"{_number(abs(off))} {'over' if off > 0 else 'below'}" if off else "just at it"  # a budget used up
            found.append(
                f"    measured {_number(refusal.measured)}, limit {_number(refusal.limit)} {refusal.unit}: {apart}"
            )
        if refusal.until:
            found.append(f"    until {format_time(refusal.until)}")
    return found


def _number(value: float) -> str:
    return f"{value:.4g}"


def _executors(made: Decision) -> list[str]:
    found = ["executors, before -> after:"] if made.executors else []
    found += [
        f"  {load.executor} on {load.node}: {load.partitions_before} -> {count(load.partitions_after, 'partition')}, "
        f"{load.utilization_before:.0%} -> {load.utilization_after:.0%} busy, "
        f"{load.arrival_before:,.0f} -> {load.arrival_after:,.0f} rows/s"
        f"{_served(load)}"
        for load in made.executors
    ]
    return found


def _served(load: ExecutorLoad) -> str:
    if not load.service or not load.service_after:
        return ""
    return f" of {load.service:,.0f} -> {load.service_after:,.0f} it can serve"


def _gain(made: Decision) -> list[str]:
    found = []
    for query, before in made.batch_time_before.items():
        after = made.batch_time_after.get(query, before)
        change = f" ({(after - before) / before:+.0%})" if before else ""
        name = query_name(query, made.names.get(query, ""))
        found.append(f"  critical path of {name}: {before:.2f} s -> {after:.2f} s{change}")
    if made.gain or made.cost:
        found.append(f"  gain {made.gain:.1f} s over the horizon (gate.horizon), cost {made.cost:.1f} s")
    if made.price is not None:
        from rechannel.daemon.cli.tables import price_lines

        found += [f"  {line}" for line in price_lines(made.price, made.names)]
    return ["predicted gain and cost:", *found] if found else []


def _moves(made: Decision, reached: Mapping[str, str]) -> list[str]:
    if not made.moves:
        return []
    from rechannel.daemon.cli.tables import size

    states = ", ".join(f"{number} {state}" for state, number in sorted(Counter(reached.values()).items()))
    found = [f"{count(len(made.moves), 'move')}{f', by the journal {states}' if states else ''}:"]
    for move in made.moves[:_MOVES_SHOWN]:
        unit = partition_name(move.query, move.stage, move.partition, made.names.get(move.query, ""))
        why = made.why.get(move.move, "")
        found.append(
            f"  step {move.step}: {unit}, executor {move.source or '?'} -> {move.target}, {size(move.bytes)}"
            f"{f', {reached[move.move]}' if move.move in reached else ''}{f': {why}' if why else ''}"
        )
    if len(made.moves) > _MOVES_SHOWN:
        found.append(f"  ... and {len(made.moves) - _MOVES_SHOWN} more (--json has them)")
    return found
