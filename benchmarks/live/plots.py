"""The plots of the live comparison; the same figures make the same file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.live.summary import Noise, group, noise, table
from benchmarks.live.variants import ADAPTIVE, SPARK
from benchmarks.report.plots import pyplot, save
from testbed.progress import batches

_COLORS = {SPARK.name: "#666666", ADAPTIVE.name: "#1b7837"}
_OTHERS = "#92c5de"
_COLUMNS = 4  # situations beside each other


def draw(figures: dict[str, Any], directory: Path) -> None:
    """Draw what there are figures for."""
    if groups := group(figures["rows"]):
        _ratios(groups, noise(groups)["mean"], directory / "live-latency.svg")
        _timeline(groups, directory / "live-timeline.svg")


def _ratios(groups: dict[str, list[dict[str, Any]]], chance: Noise, path: Path) -> None:
    """Bars: mean batch duration over Spark's, by situation and way; the band is what chance does (95 %)."""
    columns = min(_COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    size = (2.6 * columns + 1, 4 * rows)
    figure, every = pyplot().subplots(rows, columns, figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axes in every.flat[len(groups) :]:
        axes.set_visible(False)
    for axes, (label, sessions) in zip(every.flat, groups.items(), strict=False):
        by_variant = table(sessions, {"mean": chance})
        cells = {way: cells["mean"] for way, cells in by_variant.items() if "mean" in cells}
        order = sorted(cells, key=lambda way: cells[way].middle)
        for at, way in enumerate(order):
            cell = cells[way]
            axes.bar(at, cell.middle, color=_COLORS.get(way, _OTHERS))
            axes.plot([at, at], [cell.least, cell.most], color="black", linewidth=1)
            if math.isfinite(cell.reach):
                width = (at - 0.5, at + 0.5)
                axes.fill_between(width, 1 / cell.reach, cell.reach, color="black", alpha=0.12, linewidth=0)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(order)), order, rotation=90)
        axes.set_title(label.replace(", ", "\n"), fontsize=9)
    for row in every:
        row[0].set_ylabel("mean batch duration over Spark's")
    save(figure, path)


def _timeline(groups: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Batch durations from the event on, Spark as it is and the default policy, first session of each situation."""
    figure, every = pyplot().subplots(
        len(groups), 1, figsize=(9, 1.9 * len(groups)), squeeze=False, layout="constrained"
    )
    for (axes,), (label, sessions) in zip(every, groups.items(), strict=True):
        first = next((session for session in sessions if session["batches"]), sessions[0])
        committed = batches(first["batches"])
        for phase in _drawn(first["phases"]):
            way = phase["way"]
            shown = [batch for batch in committed if batch.begin >= phase["before_from"] and batch.end <= phase["end"]]
            times = [batch.end - phase["event_at"] for batch in shown]
            label_once = "" if way in axes.get_legend_handles_labels()[1] else way
            seconds = [batch.seconds for batch in shown]
            axes.plot(times, seconds, color=_COLORS[way], linewidth=1.2, label=label_once)
            order = phase["orders"][-1]
            if "settled" in order:
                begin, end = (order[name] - phase["event_at"] for name in ("asked", "settled"))
                axes.axvspan(begin, end, color=_COLORS[way], alpha=0.2, linewidth=0)
        axes.axvline(0, color="black", linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("batch (s)")
        axes.set_title(label, loc="right", fontsize=9)
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    every[-1][0].set_xlabel("seconds since the event; shaded: the moves")
    save(figure, path)


def _drawn(phases: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the default policy's phase, and those of Spark as it is next to it on either side."""
    whole = [phase for phase in phases if "end" in phase]
    own = [phase for phase in whole if phase["way"] == ADAPTIVE.name][:1]
    turn = own[0]["turn"] if own else 0
    spark = [phase for phase in whole if phase["way"] == SPARK.name]
    before = [phase for phase in spark if phase["turn"] <= turn][-1:]
    after = [phase for phase in spark if phase["turn"] > turn][:1]
    return [*before, *after, *own]
