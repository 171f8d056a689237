"""What people see: tables and lines. Programs read ``--json``; nothing here is to be parsed.

Names and sentences come from whoever may write to Redis: none of them steers a terminal (`plain`) or reads as markup.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rechannel.daemon.cli.options import format_time
from rechannel.wire.display_names import count, partition_name, query_name, stage_name
from rechannel.wire.exit_codes import NOBODY_REPORTS, OBSERVE_MODE
from rechannel.wire.messages import Decision, MigrationPrice
from rechannel.wire.printable import plain

_WIDE = 160  # columns when the output is no terminal
_MOVES_SHOWN = 20
BUSY = 0.95
_QUIET = 5.0  # seconds; a leader says every second that it leads
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def new_console() -> Console:
    """Return the console on standard output; wide where that is no terminal."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else _WIDE, highlight=False, soft_wrap=False)


def new_table(title: str, *columns: tuple[str, str], whole: Collection[str] = ()) -> Table:
    """Return an empty table; a column is its name and the side it leans to. Those in ``whole`` are never wrapped."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for name, side in columns:
        table.add_column(name, justify="right" if side == ">" else "left", overflow="fold", no_wrap=name in whole)
    return table


def status(document: dict[str, Any], now: float, *, verbose: bool = False) -> None:
    """Show the status document of `cli_status`; ``verbose``: what is expected of each stage too."""
    console, document = new_console(), plain(document)
    console.print(controller_line(document["controller"], now))
    for drain in document["drains"]:
        style = "green" if drain["state"] in ("empty", "released") else "yellow"
        console.print(f"drain {escape(drain['node'])}: {escape(drain['sentence'])}", style=style)
    for plan in document.get("waiting", ()):
        console.print(f"waiting {escape(plan['pending'])}: {escape(plan['sentence'])}", style="yellow")
    if not document["applications"]:
        console.print(NOBODY_REPORTS)
    for application in document["applications"]:
        console.print()
        name = f"{application['name']} ({application['application']}), Spark {application['spark_version']}"
        readiness = application["readiness"]
        said = readiness["controller"] or readiness["sentence"]
        console.print(f"[bold]{escape(name)}[/bold]: {escape(said)}")
        for problem in application["problems"]:
            console.print(f"  problem: {escape(problem)}", style="yellow")
        console.print(_executor_table(application["executors"]))
        console.print(_query_table(application))
        counters = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in application["counters"].items())
        console.print(f"moves so far: {counters}")
        if application["shuffles_seen"] is not None and any(row["fresh"] for row in application["executors"]):
            console.print(
                f"agents reported {application['shuffles_seen']:.0%} of the shuffle outputs of the last batches"
            )
        if application["streams"]:
            console.print(streams_line(application["streams"]))
        for forecast in application.get("forecasts", []) if verbose else ():
            console.print(f"forecast of {escape(forecast['sentence'])}")
        if application["partitions"]:
            console.print(partition_table(application["partitions"]))
        if application["moves"]:
            console.print(moves_table(application["moves"]))
    if document["rejected_messages"]:
        console.print(f"{document['rejected_messages']} unreadable messages in Redis were passed over", style="yellow")


def controller_line(controller: dict[str, Any] | None, now: float) -> str:
    """Say who leads and what he does."""
    if controller is None:
        return "[yellow]no controller leads[/yellow]: start one with `rechannel controller`"
    parts = [
        f"controller {escape(controller['leader'])} leads in epoch {controller['epoch']}",
        f"last heard {controller['last_heard']:.0f} s ago" if controller["last_heard"] > _QUIET else "",
        f"mode {escape(controller['mode'])}",
        "[yellow]paused[/yellow]" if controller["paused"] else "",
        f"next decision in {max(0.0, controller['next_decision'] - now):.0f} s",
    ]
    line = ", ".join(part for part in parts if part)
    if controller["mode"] == "observe":
        line += f"\n{escape(OBSERVE_MODE)}"
    return f"{line}\nlast: {escape(controller['last_sentence'])}" if controller["last_sentence"] else line


def streams_line(classes: Mapping[str, int]) -> str:
    """Say how many streams are of each class."""
    return escape(f"streams: {', '.join(f'{number} {kind}' for kind, number in classes.items())}")


def number(value: float | None, form: str) -> str:
    """Return a figure, or a question mark where there is none."""
    return "?" if value is None else format(value, form)


def _executor_table(rows: Sequence[dict[str, Any]]) -> Table:
    table = new_table(
        "",
        ("node", "<"),
        ("executor", "<"),
        ("cores", ">"),
        ("partitions", ">"),
        ("utilization", ">"),
        ("λ rows/s", ">"),
        ("μ rows/s", ">"),
        ("CPU", ">"),
        ("Python CPU", ">"),
        ("node CPU", ">"),
        ("memory", ">"),
        ("", "<"),
    )
    for row in rows:
        busy = row["utilization"]
        table.add_row(
            escape(row["node"]),
            escape(row["executor"]),
            str(row["cores"]),
            str(row["partitions"]),
            number(busy, ".0%"),
            number(row["arrival_rate"], ",.0f"),
            number(row["service_rate"], ",.0f"),
            number(row["cpu"], ".2f"),
            number(row["python_cpu"], ".2f"),
            number(row["node_cpu"], ".0%"),
            "?" if row["rss_bytes"] is None else f"{row['rss_bytes'] / 2**20:,.0f} MiB",
            remarks(row),
            style="red" if busy is not None and busy > BUSY else "",
        )
    return table


def remarks(row: dict[str, Any]) -> str:
    """Say what else is to be known of an executor."""
    drained = "drained" if row["drained"] and not row["releasing"] else ""
    return escape(", ".join(text for text in (drained, row["remark"]) if text))


def _query_table(application: Mapping[str, Any]) -> Table:
    old = f", {application['last_heard']:.0f} s ago" if application["silent"] else ""
    table = new_table(
        "",
        ("query", "<"),
        ("batch", ">"),
        ("batch time", ">"),
        ("stage", "<"),
        ("partitions by executor", "<"),
        ("", "<"),
    )
    for row in application["queries"]:
        remark = row["problem"] or ("" if row["active"] else "not active")
        stages = row["stages"] or [{"stage": "", "operators": [], "placement": {}}]
        for number, stage in enumerate(stages):
            first = number == 0
            name = query_name(row["query"], row["name"])
            unit = stage_name(row["query"], stage["stage"], row["name"]) if row["stages"] else ""
            table.add_row(
                escape(name) if first else "",
                str(row["batch"]) if first else "",
                (f"{row['batch_seconds']:.2f} s{old}" if row["batch_seconds"] is not None else "?") if first else "",
                escape(f"{unit} {', '.join(stage['operators'])}"),
                escape("  ".join(f"{executor}: {len(held)}" for executor, held in stage["placement"].items())),
                escape(remark) if first else "",
            )
    return table


def partition_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Show what is known of each partition."""
    table = new_table(
        "",
        ("partition", "<"),
        ("executor", "<"),
        ("CPU", ">"),
        ("Python CPU", ">"),
        ("busy s/batch", ">"),
        ("rows/s", ">"),
        ("state rows", ">"),
        ("state", ">"),
        ("commit", ">"),
        ("snapshot lag", ">"),
    )
    for row in rows:
        table.add_row(
            escape(partition_name(row["query"], row["stage"], row["partition"], row["name"])),
            escape(row["executor"] or "?"),
            number(row["cpu"], ".3f"),
            number(row["python_cpu"], ".3f"),
            number(row["busy_seconds"], ".3f"),
            number(row["rows_per_second"], ",.0f"),
            number(row["state_rows"], ",d"),
            "?" if row["state_bytes"] is None else f"{row['state_bytes'] / 2**20:,.1f} MiB",
            "?" if row["commit_seconds"] is None else f"{row['commit_seconds']:.2f} s",
            "?" if row["snapshot_lag"] is None else count(row["snapshot_lag"], "batch"),
        )
    return table


def moves_table(moves: Sequence[dict[str, Any]]) -> Table:
    """Show moves and how far they are."""
    table = new_table("", ("move", "<"), ("partition", "<"), ("from → to", "<"), ("step", ">"), ("state", "<"))
    for move in moves[:_MOVES_SHOWN]:
        missed = f", missed {move['misses']}" if move["misses"] else ""
        table.add_row(
            escape(move["move"]),
            escape(partition_name(move["query"], move["stage"], move["partition"], move["name"])),
            escape(f"{move['source'] or '?'} → {move['target']}"),
            str(move["step"]),
            escape(f"{move['state']}{missed}"),
        )
    if len(moves) > _MOVES_SHOWN:
        table.add_row(f"… and {len(moves) - _MOVES_SHOWN} more")
    return table


def decision(application: str, made: Decision, *, verbose: bool = False) -> None:
    """Show a decision with its numbers; ``verbose``: the streams too."""
    console, application = new_console(), plain(application)
    made = msgspec.convert(plain(msgspec.to_builtins(made)), Decision)
    title = f"{made.decision} ({made.policy}): {made.sentence}"
    console.print(f"[bold]{escape(application)}[/bold] {escape(title)}")
    if made.executors:
        table = new_table(
            "",
            ("node", "<"),
            ("executor", "<"),
            ("partitions", ">"),
            ("utilization", ">"),
        )
        for load in made.executors:
            table.add_row(
                escape(load.node),
                escape(load.executor),
                f"{load.partitions_before} → {load.partitions_after}",
                f"{load.utilization_before:.0%} → {load.utilization_after:.0%}",
            )
        console.print(table)
    for query, before in made.batch_time_before.items():
        after = made.batch_time_after.get(query, before)
        name = escape(query_name(query, made.names.get(query, "")))
        console.print(f"critical path of {name}: {before:.2f} → {after:.2f} s per batch, predicted")
    if made.price is not None:
        for line in price_lines(made.price, made.names):
            console.print(escape(line))
    if made.moves:
        table = new_table("", ("step", ">"), ("partition", "<"), ("from → to", "<"))
        for move in made.moves[:_MOVES_SHOWN]:
            where = escape(f"{move.source or '?'} → {move.target}")
            unit = partition_name(move.query, move.stage, move.partition, made.names.get(move.query, ""))
            table.add_row(str(move.step), escape(unit), where)
        if len(made.moves) > _MOVES_SHOWN:
            table.add_row("", f"… and {len(made.moves) - _MOVES_SHOWN} more")
        console.print(table)
    if made.streams and verbose:
        console.print(streams_line(made.streams))
        for stream in made.hot_streams:
            console.print(f"  {escape(stream)}")
    for refusal in made.refusals:
        console.print(escape(f"refused by {refusal.law} (reaches the {refusal.reach}): {refusal.detail}"))
    for note in made.notes:
        console.print(f"note: {escape(note)}")


def size(number: float) -> str:
    """Return a number of bytes in the unit that shows it."""
    unit, factor = next(((unit, factor) for unit, factor in _UNITS if number >= factor), ("bytes", 1.0))
    return f"{number / factor:,.{0 if factor == 1 else 1}f} {unit}"


def price_lines(price: MigrationPrice, names: Mapping[str, str]) -> list[str]:
    """Say what a migration is expected to cost, before it is begun."""
    by = f"learned from {count(price.moves, 'move')}" if price.moves else "by the settings, no move was measured yet"
    cost = (
        f"expected cost: {size(price.bytes)} of state in {count(price.steps, 'step')} "
        f"within {price.total:.1f} s; the worst batch {price.pause:.2f} s longer, all batches together "
        f"{price.seconds:.2f} s; a load takes {price.overhead:.2f} s and {price.load_rate / 1e6:,.0f} MB/s ({by})"
    )
    lines = [cost]
    for query, peak in price.peak.items():
        name = query_name(query, names.get(query, ""))
        after = f", {price.batch_after[query]:.2f} s afterwards" if query in price.batch_after else ""
        before = price.batch_before.get(query, 0.0)
        meanwhile = f"{peak:.2f} s at most meanwhile" if peak > before else "no longer meanwhile"
        lines.append(f"batch of {name}: {before:.2f} s now, {meanwhile}{after}")
    return lines


def history_line(entry: dict[str, Any]) -> str:
    """Return one line of the history."""
    entry = plain(entry)
    at = format_time(entry["at"])
    if entry["type"] == "decision":
        who = f"{entry['trigger']}{' by ' + entry['user'] if entry['user'] else ''}"
        who += f": {entry['asked']}" if entry.get("asked") else ""
        return f"{at}  decision {entry['decision']}  {entry['outcome']} ({who}, {entry['policy']}): {entry['sentence']}"
    if entry["type"] == "outcome":
        return f"{at}  outcome of {entry['decision']}  {entry['verdict']}: {entry['sentence']}"
    step = f"{entry['before'] or '·'} → {entry['after']}"
    unit = partition_name(entry["query"], entry["stage"], entry["partition"], entry.get("name", ""))
    way = f"{entry['source'] or '?'} → {entry['target']}"
    evidence = f": {entry['evidence']}" if entry["evidence"] else ""
    return f"{at}  move {entry['move']}  {unit} {way}  {step} ({entry['reason']}){evidence}"
