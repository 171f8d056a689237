"""The plots of the simulations as SVG; the same figures make the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.report.plots import pyplot, save
from benchmarks.simulation.variants import VARIANTS

_COLORS = ("#777777", "#1b7837", "#2166ac", "#b2182b", "#e08214", "#d6604d", "#8073ac")
_METRICS = (("tuples_std", "std of tuples (%)"), ("load_std", "std of busy share (points)"), ("latency", "latency (s)"))


def draw(figures: dict[str, Any], directory: Path) -> None:
    """Draw what there are figures for."""
    if "paper" in figures:
        series = {row["variant"]: row["windows"] for row in figures["paper"]["rows"] if "windows" in row}
        _series(series, directory / "simulation-migration.svg")
    if "hour" in figures:
        _series(figures["hour"]["series"], directory / "simulation-hour.svg")
    if "large" in figures:
        _large(figures["large"], directory / "simulation-large.svg")


def _series(series: dict[str, list[dict[str, float]]], path: Path) -> None:
    """Each metric over the time, one line a variant."""
    figure, every = pyplot(svg_text=True).subplots(len(_METRICS), 1, figsize=(10, 8), sharex=True, layout="constrained")
    for axes, (metric, label) in zip(every, _METRICS, strict=True):
        for variant, color in zip((variant.name for variant in VARIANTS), _COLORS, strict=False):
            windows = series.get(variant, [])
            style = "--" if variant == VARIANTS[0].name else "-"
            times = [row["at"] for row in windows]
            axes.plot(times, [row[metric] for row in windows], style, color=color, linewidth=1, label=variant)
        axes.set_ylabel(label)
        axes.grid(visible=True, linewidth=0.3)
    every[-1].set_yscale("log")
    every[-1].set_xlabel("simulated time (s)")
    every[0].legend(fontsize=8, frameon=False, ncols=3)
    save(figure, path)


def _large(part: dict[str, Any], path: Path) -> None:
    """The mean batch of each minute, one line a policy."""
    figure, axes = pyplot(svg_text=True).subplots(figsize=(10, 4.5), layout="constrained")
    for row, color in zip(part["rows"], _COLORS, strict=False):
        minutes = [(minute + 1, value) for minute, value in enumerate(row["minutes"]) if value is not None]
        label = f"{row['policy']}, {row['limit']:,} moves" if row["limit"] else row["policy"]
        axes.plot([at for at, _ in minutes], [value for _, value in minutes], color=color, linewidth=1.2, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("simulated time (min)")
    axes.set_ylabel("mean batch (s)")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(fontsize=8, frameon=False, ncols=2)
    save(figure, path)
