"""The command ``top``: executors, their partitions, hot streams and moves, drawn again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rechannel.conf.settings import Settings
from rechannel.daemon.cli import status
from rechannel.daemon.cli.options import format_time
from rechannel.daemon.cli.tables import (
    BUSY,
    controller_line,
    moves_table,
    new_console,
    new_table,
    number,
    partition_table,
    remarks,
    streams_line,
)
from rechannel.daemon.model.collector import Collector
from rechannel.wire.display_names import query_name
from rechannel.wire.exit_codes import NOBODY_REPORTS, CommandError, ExitCode
from rechannel.wire.printable import plain
from rechannel.wire.redis.store import Store, StoreError

_BAR = 12
_HOT_PARTITIONS, _HOT_STREAMS = 8, 6
# One color for each query, in the order of their names.
_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")

Row = dict[str, Any]


def run(settings: Settings, stop: threading.Event, *, application: str, every: float, once: bool) -> None:
    """Draw until ``stop`` is set; without a terminal, or with ``once``, draw once."""
    console = new_console()
    view = _View(settings, application)
    if once or not console.is_terminal:
        console.print(view.draw())
        return
    with Live(view.draw(), console=console, screen=True, auto_refresh=False) as live:
        while not stop.wait(every):
            try:
                live.update(view.draw(), refresh=True)
            except StoreError as error:
                live.update(Text(f"{error}; trying again", style="red"), refresh=True)


class _View:
    def __init__(self, settings: Settings, application: str) -> None:
        self._settings = settings
        self._only = application
        self._met = False
        self._store = Store(settings.redis, settings.cluster.name)
        self._collector = Collector(self._store, settings, time.time)

    def draw(self) -> RenderableType:
        now = time.time()
        document = status.collect(self._store, self._settings, now, details=True, collector=self._collector)
        rows = document["applications"]
        if self._only and not self._met and self._only not in [row["application"] for row in rows]:
            known = ", ".join(row["application"] for row in rows) or "none"
            raise CommandError(ExitCode.REFUSED, f"unknown application {self._only}; known are {known}")
        self._met = True  # one that goes away later may come back
        shown = [row for row in rows if self._only in ("", row["application"])]
        clock = format_time(now, "%H:%M:%S %Z")
        parts: list[RenderableType] = [
            f"[bold]rechannel top[/bold]  {clock}  {controller_line(plain(document['controller']), now)}"
        ]
        parts += [
            f"[yellow]drain {escape(row['node'])}: {escape(row['sentence'])}[/yellow]"
            for row in plain(document["drains"])
        ]
        if not shown:
            parts.append(NOBODY_REPORTS)
        for row in shown:
            parts += application(row)
        return Group(*parts)


def application(row: Row) -> list[RenderableType]:
    """Draw one application of the status document."""
    row = plain(row)
    colors = _colors(row["partitions"])
    readiness = row["readiness"]
    seen = "no shuffles seen" if row["shuffles_seen"] is None else f"{row['shuffles_seen']:.0%} of shuffle outputs seen"
    legend = "  ".join(f"[{color}]■[/{color}] {escape(name)}" for name, color in colors.items())
    parts: list[RenderableType] = [
        "",
        f"[bold]{escape(row['name'])}[/bold]  {escape(readiness['controller'] or readiness['sentence'])}  ({seen})",
        legend,
        _executors(row["executors"], row["partitions"], colors),
    ]
    parts += [f"[yellow]problem: {escape(problem)}[/yellow]" for problem in row["problems"]]
    if hot := sorted((item for item in row["partitions"] if item["cpu"]), key=lambda item: -item["cpu"]):
        parts += ["", partition_table(hot[:_HOT_PARTITIONS])]
    if row["hot_streams"]:
        parts += ["", _streams(row["hot_streams"][:_HOT_STREAMS])]
    if row["streams"]:
        parts.append(streams_line(row["streams"]))
    if row["moves"]:
        parts += ["", moves_table(row["moves"])]
    return parts


def _colors(partitions: Sequence[Row]) -> dict[str, str]:
    names = sorted({query_name(item["query"], item["name"]) for item in partitions})
    return {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}


def _executors(rows: Sequence[Row], partitions: Sequence[Row], colors: Mapping[str, str]) -> Table:
    table = new_table(
        "",
        ("node", "<"),
        ("executor", "<"),
        ("utilization", "<"),
        ("CPU", ">"),
        ("node CPU", ">"),
        ("speed", ">"),
        ("partitions", "<"),
        ("", "<"),
        whole=("node", "executor", "utilization", "CPU", "node CPU", "speed"),
    )
    for row in rows:
        # A partition is as bright as it is busy: the eye finds the hot ones.
        held = [item for item in partitions if item["executor"] == row["executor"]]
        most = max((item["busy_seconds"] or 0.0 for item in partitions), default=0.0)
        cells = Text()
        for item in held:
            share = (item["busy_seconds"] or 0.0) / most if most else 0.0
            cells.append(_shade(share), style=colors[query_name(item["query"], item["name"])])
        cpu = None if row["cpu"] is None else row["cpu"] + row["python_cpu"]
        table.add_row(
            escape(row["node"]),
            escape(row["executor"]),
            _bar(row["utilization"]),
            number(cpu, ".2f"),
            number(row["node_cpu"], ".0%"),
            number(row["speed"], ".2f"),
            cells,
            remarks(row),
        )
    return table


def _shade(share: float) -> str:
    return "░▒▓█"[min(3, int(share * 4))]


def _bar(share: float | None) -> Text:
    if share is None:
        return Text("?")
    filled = min(_BAR, round(share * _BAR))
    style = "red" if share > BUSY else "green"
    return Text("█" * filled, style=style).append("·" * (_BAR - filled), style="dim").append(f" {share:.0%}", style="")


def _streams(rows: Sequence[Row]) -> Table:
    columns = ("hot stream", "<"), ("to", "<"), ("kB/s", ">"), ("", "<")
    table = new_table("", *columns, whole=("hot stream", "to", "kB/s"))
    for row in rows:
        where = "local" if row["local"] else "remote"
        table.add_row(
            escape(row["upstream"]), escape(row["downstream"]), f"{row['bytes_per_second'] / 1e3:,.1f}", where
        )
    return table
