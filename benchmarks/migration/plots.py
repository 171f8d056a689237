"""The plots of ``docs/migration.md``; the same figures make the same file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.migration.summary import GOAL, row_figures
from benchmarks.migration.variants import RESTART, VARIANTS
from benchmarks.report.plots import pyplot, save
from rechannel.wire.codes import MoveState
from testbed.progress import batches

_PANELS = 3
_COLORS = {"live": "#1b7837", "restart": "#b2182b", "at-once": "#2166ac", "one-by-one": "#8073ac"}


def draw(figures: dict[str, Any], directory: Path) -> None:
    """Draw what there are figures for."""
    records = [record for record in figures["rows"] if record.get("phases") and record.get("batches")]
    rows = [row_figures(record) for record in records]
    pairs = [(record, row) for record, row in zip(records, rows, strict=True) if row["variants"]]
    if not pairs:
        return
    _peaks([row for _, row in pairs], directory / "migration-peak.png")
    # Most is moved, and the state is largest: what there is to see.
    shown = sorted(pairs, key=lambda pair: (pair[1]["row"]["moves"], pair[1]["row"]["keys"]))[-_PANELS:]
    _durations(shown, directory / "migration-batches.png")


def _peaks(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars: the longest batch over steady, by row and variant; lines for the spread and for the noise."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, axes = pyplot().subplots(figsize=(10, 4.5))
    width = 0.8 / len(VARIANTS)
    for number, variant in enumerate(VARIANTS):
        for index, row in enumerate(rows):
            values = row["variants"].get(variant.name, {}).get("peak_ratio")
            if values:
                at = index + (number - (len(VARIANTS) - 1) / 2) * width
                axes.bar(at, values[0], width, color=_COLORS[variant.name])
                axes.plot([at, at], values[1:], color="black", linewidth=1)
    for index, row in enumerate(rows):
        noise = row["quiet_peak_ratio"]
        axes.plot([index - 0.45, index + 0.45], [noise, noise], color="black", linewidth=1, linestyle=":")
    axes.axhline(GOAL, color="grey", linewidth=1)
    axes.set_yscale("log")
    ticks = [1, 1.25, 1.5, 2, 3, 4, 6, 8, 12]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.minorticks_off()
    axes.set_ylim(bottom=0.9)
    axes.set_ylabel("longest batch over steady (times)")
    axes.set_xticks(range(len(rows)), [row["row"]["name"] for row in rows], rotation=30, ha="right")
    handles: list[Any] = [Patch(color=_COLORS[variant.name]) for variant in VARIANTS]
    handles += [
        Line2D([], [], color="black", linestyle=":"),
        Line2D([], [], color="grey"),
        Line2D([], [], color="black"),
    ]
    labels = [variant.name for variant in VARIANTS] + ["longest quiet batch", f"goal: {GOAL}", "smallest to largest"]
    axes.legend(handles, labels, fontsize=8, frameon=False, ncols=4, loc="upper left")
    save(figure, path)


def _durations(pairs: list[tuple[dict[str, Any], dict[str, Any]]], path: Path) -> None:
    """Batch durations over time, with the times of the moves and the gaps of the restarts."""
    figure, every = pyplot().subplots(
        len(pairs), 1, figsize=(10, 2.8 * len(pairs)), squeeze=False, layout="constrained"
    )
    for (record, row), (axes,) in zip(pairs, every, strict=True):
        committed = batches(record["batches"])
        phases = [phase for phase in record["phases"] if "ordered" in phase]
        zero = record["phases"][0]["quiet_from"]
        for phase in phases:
            begin, color = phase["ordered"] - zero, _COLORS[phase["variant"]]
            landed = [line["at"] - zero for line in phase.get("journal", ()) if line["after"] == MoveState.DRAINED]
            if phase["variant"] == RESTART.name:
                before = max(
                    (batch.end for batch in committed if batch.begin < phase["ordered"]), default=phase["ordered"]
                )
                after = min((batch.end for batch in committed if batch.begin > phase["ordered"]), default=before)
                axes.plot([before - zero, after - zero], [after - before] * 2, color=color, linewidth=2)
                axes.axvspan(before - zero, after - zero, color=color, alpha=0.15, linewidth=0)
            elif landed:
                axes.axvspan(begin, max(landed), color=color, alpha=0.25, linewidth=0)
            for at in landed:
                axes.axvline(at, color=color, linewidth=0.4)
            axes.annotate(
                phase["variant"], (begin, 1), xycoords=("data", "axes fraction"), color=color, fontsize=7, va="bottom"
            )
        shown = [batch for batch in committed if batch.end >= zero]
        axes.plot([batch.end - zero for batch in shown], [batch.seconds for batch in shown], "k.", markersize=3)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("batch duration (s)")
        axes.set_title(row["row"]["name"], loc="right", fontsize=9, pad=14)
    every[-1][0].set_xlabel(
        "time (s); shaded: from the order to the last landing, or between the commits around a restart"
    )
    save(figure, path)
