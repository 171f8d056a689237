"""Tables and lines for people; programs read ``--json``.

Names and sentences may come from any writer to Redis. `plain` removes control characters, and `escape` markup.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rechannel.daemon.assess.result import ApplicationAssessment, Assessment, Verdict, change
from rechannel.daemon.cli.options import format_time
from rechannel.daemon.view.status import (
    BUSY,
    ApplicationStatus,
    ClusterStatus,
    DrainState,
    ExecutorStatus,
    LeaderStatus,
    LinkCounters,
    MoveStatus,
    PartitionStatus,
)
from rechannel.daemon.view.wording import batch_times, cost_sentence
from rechannel.wire.codes import Code, Mode, Scope
from rechannel.wire.messages import Decision, ExecutorLoad, MigrationCost, Refusal
from rechannel.wire.printable import (
    NOBODY_REPORTS,
    OBSERVE_MODE,
    partition_name,
    plain,
    query_name,
    stage_name,
    with_noun,
)

_WIDE = 160  # columns when the output is no terminal
_MOVES_SHOWN = 20
_VERDICT_STYLES = {Verdict.YES: "green", Verdict.NOT_ASSESSABLE: "yellow", Verdict.UNCLEAR: "yellow"}
_QUIET = 5.0  # seconds; a leader reports every second


def new_console() -> Console:
    """Return the console on standard output; wide where that is no terminal."""
    width = None if sys.stdout.isatty() else _WIDE
    # A part of a name or an address between colons, such as `:key:`, is no emoji.
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, soft_wrap=False)


def new_table(header: str, whole: Collection[str] = ()) -> Table:
    """Return an empty table with the columns of ``header``, such as ``node | >cores``.

    Columns marked with ``>`` are aligned to the right; those in ``whole`` are never wrapped.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in header.split("|"):
        name = column.strip().removeprefix(">")
        justify: Literal["left", "right"] = "right" if ">" in column else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in whole)
    return table


def print_status(status: ClusterStatus, now: float, *, verbose: bool = False) -> None:
    """Print the status of a cluster; ``verbose``: with the forecast of each stage."""
    console, status = new_console(), plain(status)
    console.print(controller_line(status.controller, now))
    for drain in status.drains:
        style = "green" if drain.state in (DrainState.EMPTY, DrainState.RELEASED) else "yellow"
        console.print(f"drain {escape(drain.node)}: {escape(drain.sentence)}", style=style)
    for plan in status.scheduled_plans:
        console.print(f"plan {escape(plan.scheduled_plan)}: {escape(plan.sentence)}", style="yellow")
    if not status.applications:
        console.print(NOBODY_REPORTS)
    for application in status.applications:
        _print_application(console, application, verbose=verbose)
    if status.rejected_messages:
        console.print(f"{status.rejected_messages} unreadable messages in Redis were ignored", style="yellow")


def _print_application(console: Console, status: ApplicationStatus, *, verbose: bool) -> None:
    console.print()
    title = f"{status.name} ({status.application}), Spark {status.spark_version}"
    console.print(f"[bold]{escape(title)}[/bold]: {escape(status.readiness.summary)}")
    for problem in status.problems:
        console.print(f"  problem: {escape(problem)}", style="yellow")
    console.print(_executor_table(status.executors))
    console.print(_query_table(status))
    console.print(f"since the link attached: {_counters(status.counters)}")
    if status.shuffles_seen is not None and any(executor.fresh for executor in status.executors):
        console.print(f"agents reported {status.shuffles_seen:.0%} of the shuffle outputs of the last batches")
    if status.streams:
        console.print(streams_line(status.streams))
    for forecast in status.forecasts if verbose else ():
        console.print(f"forecast of {escape(forecast.sentence)}")
    if status.partitions:
        console.print(partition_table(status.partitions))
    if status.moves:
        console.print(moves_table(status.moves))


def _counters(counters: LinkCounters) -> str:
    return "; ".join(
        (
            f"{with_noun(counters.landed, 'move')} landed, {counters.abandoned} abandoned",
            f"{with_noun(counters.missed, 'batch')} missed",
            f"{with_noun(counters.drifted, 'partition')} drifted",
            with_noun(counters.failed_tasks, "failed task"),
            with_noun(counters.rejected_messages, "rejected message"),
        )
    )


def controller_line(leader: LeaderStatus | None, now: float) -> str:
    """Return the lines on the leading controller and its last action."""
    if leader is None:
        return "[yellow]no controller leads[/yellow]: start one with `rechannel controller`"
    parts = [
        f"controller {escape(leader.leader)} leads in epoch {leader.epoch}",
        f"last reported {leader.last_heard:.0f} s ago" if leader.last_heard > _QUIET else "",
        f"mode {escape(leader.mode)}",
        "[yellow]paused[/yellow]" if leader.paused else "",
        f"next decision in {max(0.0, leader.next_decision - now):.0f} s",
    ]
    line = ", ".join(part for part in parts if part)
    if leader.mode == Mode.OBSERVE:
        line += f"\n{escape(OBSERVE_MODE)}"
    return f"{line}\nlast: {escape(leader.last_sentence)}" if leader.last_sentence else line


def streams_line(classes: Mapping[str, int]) -> str:
    """Return the line on the number of streams of each class."""
    return escape(f"streams: {', '.join(f'{number} {kind}' for kind, number in classes.items())}")


def number(value: float | None, form: str) -> str:
    """Return a formatted number, or a question mark for None."""
    return "?" if value is None else format(value, form)


def _executor_table(executors: Sequence[ExecutorStatus]) -> Table:
    table = new_table(
        "node | executor | >cores | >partitions | >utilization | >λ rows/s | >μ rows/s | >CPU | >Python CPU | >node CPU"
        " | >memory | "
    )
    for executor in executors:
        utilization = executor.utilization
        table.add_row(
            escape(executor.node),
            escape(executor.executor),
            str(executor.cores),
            str(executor.partitions),
            number(utilization, ".0%"),
            number(executor.arrival_rate, ",.0f"),
            number(executor.service_rate, ",.0f"),
            number(executor.cpu, ".2f"),
            number(executor.python_cpu, ".2f"),
            number(executor.node_cpu, ".0%"),
            "?" if executor.rss_bytes is None else f"{executor.rss_bytes / 2**20:,.0f} MiB",
            executor_flags(executor),
            style="red" if utilization is not None and utilization > BUSY else "",
        )
    return table


def executor_flags(executor: ExecutorStatus) -> str:
    """Return all that has no column of its own."""
    drained = "drained" if executor.drained and not executor.releasing else ""
    return escape(", ".join(text for text in (drained, executor.remark) if text))


def _query_table(status: ApplicationStatus) -> Table:
    age = f", {status.last_heard:.0f} s ago" if status.silent else ""
    table = new_table("query | >batch | >batch time | >replay | stage | partitions by executor | ")
    for query in status.queries:
        seconds = "?" if query.batch_seconds is None else f"{query.batch_seconds:.2f} s{age}"
        remark = query.problem or ("" if query.active else "not active")
        # The first stage has the columns of the query, too; a query without stages has one row.
        name, replay = escape(query_name(query.query, query.name)), number(query.residual, "+.0%")
        first = [name, str(query.batch), seconds, replay], escape(remark)
        rows = [
            (
                f"{stage_name(query.query, stage.stage, query.name)} {', '.join(stage.operators)}",
                "  ".join(f"{executor}: {len(held)}" for executor, held in stage.placement.items()),
            )
            for stage in query.stages
        ]
        for index, (unit, placement) in enumerate(rows or [("", "")]):
            own, last = first if index == 0 else ([""] * 4, "")
            table.add_row(*own, escape(unit), escape(placement), last)
    return table


def partition_table(partitions: Sequence[PartitionStatus]) -> Table:
    """Return the table of partitions."""
    table = new_table(
        "partition | executor | >CPU | >Python CPU | >busy s/batch | >rows/s | >state rows | >state | >commit"
        " | >snapshot lag"
    )
    for item in partitions:
        table.add_row(
            escape(partition_name(item.query, item.stage, item.partition, item.name)),
            escape(item.executor or "?"),
            number(item.cpu, ".3f"),
            number(item.python_cpu, ".3f"),
            number(item.busy_seconds, ".3f"),
            number(item.rows_per_second, ",.0f"),
            number(item.state_rows, ",d"),
            "?" if item.state_bytes is None else f"{item.state_bytes / 2**20:,.1f} MiB",
            "?" if item.commit_seconds is None else f"{item.commit_seconds:.2f} s",
            "?" if item.snapshot_lag is None else with_noun(item.snapshot_lag, "batch"),
        )
    return table


def moves_table(moves: Sequence[MoveStatus]) -> Table:
    """Return the table of moves in flight."""
    table = new_table("move | partition | from → to | >step | state")
    for move in moves[:_MOVES_SHOWN]:
        missed = f", missed {move.missed_batches}" if move.missed_batches else ""
        table.add_row(
            escape(move.move),
            escape(partition_name(move.query, move.stage, move.partition, move.name)),
            escape(f"{move.source or '?'} → {move.target}"),
            str(move.step + 1),
            escape(f"{move.state}{missed}"),
        )
    if len(moves) > _MOVES_SHOWN:
        table.add_row(f"… and {len(moves) - _MOVES_SHOWN} more")
    return table


def code_meaning(kind: type[Code], value: str) -> str:
    """Return the meaning of a code within a sentence; an unknown code is returned as it is."""
    try:
        text = kind(value).meaning.replace("`", "").removesuffix(".")
    except ValueError:
        return value
    return text[0].lower() + text[1:]


def refusal_line(refusal: Refusal) -> str:
    """Return the law, what it refuses, and why: ``refused by gate (whole plan): …``."""
    return f"refused by {refusal.law} ({code_meaning(Scope, refusal.scope)}): {refusal.detail}"


def print_decision(application: str, decision: Decision, *, verbose: bool = False) -> None:
    """Print a decision with its figures; ``verbose``: with the streams."""
    console, application, decision = new_console(), plain(application), plain(decision)
    title = f"{decision.decision} ({decision.policy}): {decision.sentence}"
    console.print(f"[bold]{escape(application)}[/bold] {escape(title)}")
    if decision.executors:
        console.print(_load_table(decision.executors))
    for name, before, after in batch_times(decision):
        console.print(f"batch of {escape(name)}: {before:.2f} → {after:.2f} s, predicted")
    for line in cost_lines(decision.migration_cost, decision.names) if decision.migration_cost is not None else ():
        console.print(escape(line))
    if decision.moves:
        console.print(_desired_moves_table(decision))
    if decision.streams and verbose:
        console.print(streams_line(decision.streams))
        for stream in decision.hot_streams:
            console.print(f"  {escape(stream)}")
    for refusal in decision.refusals:
        console.print(escape(refusal_line(refusal)))
    for note in decision.notes:
        console.print(f"note: {escape(note)}")


def _load_table(loads: Sequence[ExecutorLoad]) -> Table:
    table = new_table("node | executor | >partitions | >utilization")
    for load in loads:
        table.add_row(
            escape(load.node),
            escape(load.executor),
            f"{load.partitions_before} → {load.partitions_after}",
            f"{load.utilization_before:.0%} → {load.utilization_after:.0%}",
        )
    return table


def _desired_moves_table(decision: Decision) -> Table:
    table = new_table(">step | partition | from → to")
    for move in decision.moves[:_MOVES_SHOWN]:
        unit = partition_name(move.query, move.stage, move.partition, decision.names.get(move.query, ""))
        table.add_row(str(move.step + 1), escape(unit), escape(f"{move.source or '?'} → {move.target}"))
    if len(decision.moves) > _MOVES_SHOWN:
        table.add_row("", f"… and {len(decision.moves) - _MOVES_SHOWN} more")
    return table


def cost_lines(cost: MigrationCost, names: Mapping[str, str]) -> list[str]:
    """Return the lines on the expected cost of a migration."""
    lines = [f"expected cost: {cost_sentence(cost)}"]
    for query, peak in cost.peak.items():
        name = query_name(query, names.get(query, ""))
        after = f", {cost.batch_after[query]:.2f} s afterwards" if query in cost.batch_after else ""
        before = cost.batch_before.get(query, 0.0)
        meanwhile = f"{peak:.2f} s at most meanwhile" if peak > before else "no longer meanwhile"
        lines.append(f"batch of {name}: {before:.2f} s now, {meanwhile}{after}")
    return lines


def history_line(entry: dict[str, Any]) -> str:
    """Return one line of the history."""
    entry = plain(entry)
    at = format_time(entry["at"])
    if entry["type"] == "decision":
        who = f"{entry['trigger']}{' by ' + entry['user'] if entry['user'] else ''}"
        who += f": {entry['operator_reason']}" if entry.get("operator_reason") else ""
        return f"{at}  decision {entry['decision']}  {entry['result']} ({who}, {entry['policy']}): {entry['sentence']}"
    if entry["type"] == "outcome":
        return f"{at}  outcome of {entry['decision']}  {entry['verdict']}: {entry['sentence']}"
    step = f"{entry['before'] or '·'} → {entry['after']}"
    unit = partition_name(entry["query"], entry["stage"], entry["partition"], entry.get("name", ""))
    way = f"{entry['source'] or '?'} → {entry['target']}"
    evidence = f": {entry['evidence']}" if entry["evidence"] else ""
    return f"{at}  move {entry['move']}  {unit} {way}  {step} ({entry['reason']}){evidence}"


def print_assessment(assessment: Assessment) -> None:
    """Print what event logs say of each query."""
    console, assessment = new_console(), plain(assessment)
    for application in assessment.applications:
        version = f", Spark {application.spark_version}" if application.spark_version else ""
        title = f"{application.name or application.log} ({application.application}{version})"
        console.print(f"[bold]{escape(title)}[/bold]")
        for note in application.notes:
            console.print(f"  {escape(note)}", style="yellow")
        if any(query.stages for query in application.queries):
            console.print(_assessment_table(application))
        for query in application.queries:
            style = _VERDICT_STYLES.get(query.verdict, "")
            console.print(f"[bold]{escape(query.name)}[/bold]: {escape(query.sentence)}", style=style)
            limits = [f"stage {stage.stage}: {stage.sentence}" for stage in query.stages if stage.sentence]
            for line in (*limits, *query.notes):
                console.print(f"  {escape(line)}")
        console.print()
    for line in assessment.skipped:
        console.print(f"passed over: {escape(line)}", style="yellow")


def _assessment_table(application: ApplicationAssessment) -> Table:
    table = new_table(
        "query | >batches | until | >batch | >busiest/mean | >lost to unevenness | >even | >best | >moves",
        whole=["query"],
    )
    for query in application.queries:
        if query.seconds is None or query.lost is None or query.even is None or query.best is None:
            continue
        table.add_row(
            escape(query.name),
            f"{query.batches:,}",
            format_time(query.until),
            f"{query.seconds:.2f} s",
            number(query.unevenness, ".2f"),
            f"{query.lost:.2f} s ({query.lost / query.seconds:.0%})",
            f"{query.even.seconds:.2f} s ({change(query.even.saved)})",
            f"{query.best.seconds:.2f} s ({change(query.best.saved)})",
            f"{query.best.moves:,}",
        )
    return table
