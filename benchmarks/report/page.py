"""``docs/benchmarks.md``: the sections of the benchmarks in one order, and the headline for the README."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import live
from benchmarks.report.templates import render as render_template
from benchmarks.simulation import report as simulation

__all__ = ["draw", "insert_headline", "nexmark_section", "render"]

_TWICE = 2
_PARTS = ("live", "simulation", "nexmark")
BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def render(figures: Mapping[str, Any]) -> str:
    """Return the page of the parts that have figures."""
    sections = {"live": live.section, "simulation": simulation.section, "nexmark": nexmark_section}
    context: dict[str, object] = {name: sections[name](figures[name]) if name in figures else "" for name in _PARTS}
    context["summary"] = live.headline(figures["live"]) if "live" in figures else ""
    context["missing"] = [f"`benchmarks.{name}`" for name in _PARTS if name not in figures]
    context["notes"] = figures.get("notes", "").strip("\n")
    return render_template("page", context, wrap=False)


def nexmark_section(figures: Mapping[str, Any]) -> str:
    """Return the section with one row for each query of what ``python -m benchmarks.nexmark --json`` writes."""
    return render_template("nexmark", figures, wrap=False)


def insert_headline(text: str, figures: Mapping[str, Any]) -> str:
    """Return a page with the headline of what was measured twice between its two marks; ValueError without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} with {END} after it")
    return f"{before}{begin}\n\n{live.headline(figures, _TWICE)}\n{end}{after}"


def draw(figures: Mapping[str, Any], directory: Path) -> None:
    """Draw the plots of the parts that have figures."""
    from benchmarks.live import plots  # these need matplotlib, which the figures do not
    from benchmarks.simulation import plots as simulation_plots

    if "live" in figures:
        plots.draw(figures["live"], directory)
    if "simulation" in figures:
        simulation_plots.draw(figures["simulation"], directory)
