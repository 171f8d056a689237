"""``docs/benchmarks.md``: the sections of the benchmarks in one order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.live import plots as live_plots
from benchmarks.report import live
from benchmarks.report.templates import render as render_template
from benchmarks.simulation import plots as simulation_plots
from benchmarks.simulation import report as simulation

_PARTS = ("live", "simulation", "nexmark")


def figures_of(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of the page, by part."""
    figures = {name: results[name][name].figures() for name in results.keys() & {"live", "nexmark"}}
    if "simulation" in results:
        figures["simulation"] = {name: result.figures() for name, result in results["simulation"].items()}
    return figures


def render(figures: Mapping[str, Any]) -> str:
    """Return the page of the parts that have figures."""
    sections = {"live": live.section, "simulation": simulation.section, "nexmark": nexmark_section}
    context: dict[str, object] = {name: sections[name](figures[name]) if name in figures else "" for name in _PARTS}
    context["summary"] = live.headline(figures["live"]) if "live" in figures else ""
    context["missing"] = [f"`benchmarks.{name}`" for name in _PARTS if name not in figures]
    context["notes"] = figures.get("notes", "").strip("\n")
    return render_template("page", context, wrap=False)


def nexmark_section(figures: Mapping[str, Any]) -> str:
    """Return the section with one row for each query of ``python -m benchmarks.nexmark``."""
    return render_template("nexmark", figures, wrap=False)


def draw(figures: Mapping[str, Any], directory: Path) -> None:
    """Draw the plots of the parts that have figures."""
    if "live" in figures:
        live_plots.draw(figures["live"], directory)
    if "simulation" in figures:
        simulation_plots.draw(figures["simulation"], directory)
