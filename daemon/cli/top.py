"""The command ``top``: a live view of executors, their partitions, hot streams and moves."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rechannel.conf.settings import Settings
from rechannel.daemon.cli.options import format_time, unknown_name
from rechannel.daemon.cli.tables import (
    controller_line,
    executor_flags,
    moves_table,
    new_console,
    new_table,
    number,
    partition_table,
    streams_line,
)
from rechannel.daemon.model.collector import Collector
from rechannel.daemon.view.status import BUSY, ApplicationStatus, ExecutorStatus, HotStream, PartitionStatus
from rechannel.daemon.view.status_builder import read_status
from rechannel.wire.printable import NOBODY_REPORTS, plain, query_name
from rechannel.wire.redis.errors import StoreError
from rechannel.wire.redis.store import Store

_BAR = 12
_HOT_PARTITIONS, _HOT_STREAMS = 8, 6
# One color for each query, in the order of their names.
_COLORS = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")


def run(settings: Settings, stop: threading.Event, *, application: str, every: float, once: bool) -> None:
    """Draw the screen until it is stopped.

    ``every``: seconds between two drawings; ``application``: "" for all.
    """
    console = new_console()
    screen = Screen(settings, application)
    if once or not console.is_terminal:
        console.print(screen.draw())
        return
    with Live(screen.draw(), console=console, screen=True, auto_refresh=False) as live:
        while not stop.wait(every):
            try:
                live.update(screen.draw(), refresh=True)
            except StoreError as error:
                live.update(Text(f"{error}; trying again", style="red"), refresh=True)


class Screen:
    """Screen of `top`, with a collector that reads only new messages."""

    def __init__(self, settings: Settings, application: str) -> None:
        self._settings = settings
        self._application = application
        self._reported = False
        self._store = Store(settings.redis, settings.cluster.name)
        self._collector = Collector(self._store, settings, time.time)

    def draw(self) -> RenderableType:
        """Read the status and draw it. Raises CommandError for an application that never reported."""
        now = time.time()
        status = read_status(self._store, self._settings, now, partitions=True, collector=self._collector)
        names = [row.application for row in status.applications]
        if self._application and not self._reported and self._application not in names:
            raise unknown_name("application", self._application, names)
        self._reported = True  # an application that leaves later may return
        shown = [row for row in status.applications if self._application in ("", row.application)]
        clock = format_time(now, "%H:%M:%S %Z")
        parts: list[RenderableType] = [
            f"[bold]rechannel top[/bold]  {clock}  {controller_line(plain(status.controller), now)}"
        ]
        parts += [
            f"[yellow]drain {escape(drain.node)}: {escape(drain.sentence)}[/yellow]" for drain in plain(status.drains)
        ]
        if not shown:
            parts.append(escape(f"{self._application} does not report any more") if names else NOBODY_REPORTS)
        for row in shown:
            parts += application(row)
        return Group(*parts)


def application(status: ApplicationStatus) -> list[RenderableType]:
    """Draw one application."""
    status = plain(status)
    colors = _colors(status.partitions)
    seen = "no shuffles seen" if status.shuffles_seen is None else f"{status.shuffles_seen:.0%} of shuffle outputs seen"
    legend = "  ".join(f"[{color}]■[/{color}] {escape(name)}" for name, color in colors.items())
    parts: list[RenderableType] = [
        "",
        f"[bold]{escape(status.name)}[/bold]  {escape(status.readiness.summary)}  ({seen})",
        legend,
        _executors(status.executors, status.partitions, colors),
    ]
    parts += [f"[yellow]problem: {escape(problem)}[/yellow]" for problem in status.problems]
    if hot := sorted((item for item in status.partitions if item.cpu), key=lambda item: -(item.cpu or 0.0)):
        parts += ["", partition_table(hot[:_HOT_PARTITIONS])]
    if status.hot_streams:
        parts += ["", _streams(status.hot_streams[:_HOT_STREAMS])]
    if status.streams:
        parts.append(streams_line(status.streams))
    if status.moves:
        parts += ["", moves_table(status.moves)]
    return parts


def _colors(partitions: Sequence[PartitionStatus]) -> dict[str, str]:
    names = sorted({query_name(item.query, item.name) for item in partitions})
    return {name: _COLORS[index % len(_COLORS)] for index, name in enumerate(names)}


def _executors(
    executors: Sequence[ExecutorStatus], partitions: Sequence[PartitionStatus], colors: Mapping[str, str]
) -> Table:
    table = new_table(
        "node | executor | utilization | >CPU | >node CPU | >speed | partitions | ",
        whole=("node", "executor", "utilization", "CPU", "node CPU", "speed"),
    )
    most = max((item.busy_seconds or 0.0 for item in partitions), default=0.0)
    for executor in executors:
        cells = Text()  # one for each partition: the busier, the brighter
        for item in partitions:
            if item.executor == executor.executor:
                share = (item.busy_seconds or 0.0) / most if most else 0.0
                cells.append(_shade(share), style=colors[query_name(item.query, item.name)])
        table.add_row(
            escape(executor.node),
            escape(executor.executor),
            _bar(executor.utilization),
            number(None if executor.cpu is None else executor.cpu + (executor.python_cpu or 0.0), ".2f"),
            number(executor.node_cpu, ".0%"),
            number(executor.speed, ".2f"),
            cells,
            executor_flags(executor),
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


def _streams(streams: Sequence[HotStream]) -> Table:
    table = new_table("hot stream | to | >kB/s | ", whole=("hot stream", "to", "kB/s"))
    for stream in streams:
        place = "local" if stream.local else "remote"
        rate = f"{stream.bytes_per_second / 1e3:,.1f}"
        table.add_row(escape(stream.upstream), escape(stream.downstream), rate, place)
    return table
